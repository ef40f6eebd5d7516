"""Replies of devices, read without trusting anything: type, shape, size and range of every field."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from logging import WARNING
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import ArrayRecord, RecordDict
from flwr.supercore import log
from torch import Tensor

from signfade.device import Encoder, Packet, PacketError, check_packet
from signfade.integrations.flower.client_registry import ClientRegistry
from signfade.integrations.flower.exchange import Replies
from signfade.integrations.flower.layout import Layout
from signfade.integrations.flower.limit import Largest
from signfade.integrations.flower.wire import ARRAYS, RECORD, Answer, Identity, message_bytes

__all__ = ["BadReply", "ReplyFormat", "ReplyTotals", "ReplyValidator", "read_identity"]

Content = TypeVar("Content", Answer, Identity)
_MOST_SAMPLES = 2**53
# What Flower puts around a reply and around each of its arrays, with room for its growth; a reply of 6,090
# weights without arrays measures 500 bytes more than its packet. Reasons for a failure must fit in, too.
_AROUND_REPLY = 1 << 16
_AROUND_ARRAY = 1 << 11
_MOST_CHARACTERS = 300  # of a device's own message that go into our log


class BadReply(ValueError):
    """A reply that cannot be used, and why, in one sentence."""


@dataclass(frozen=True)
class ReplyFormat:
    """What a reply must look like in a round.

    Attributes:
        encoder: The device's half of the method.
        layout: Of the model.
        devices: Number of devices in the cell.
        round: Counted from 0.
        sends_bits: Whether devices send packets; otherwise they send gradients in full.
    """

    encoder: Encoder
    layout: Layout
    devices: int
    round: int
    sends_bits: bool = True

    def largest(self) -> Largest:
        """Return the most that an honest reply can have.

        Example:
            >>> from signfade.settings import MethodSettings
            >>> sizes = []
            >>> for weights in (0, 8_000_000):
            ...     layout = Layout({"w": (weights + 1,)})
            ...     encoder = Encoder(MethodSettings(), layout.segments)
            ...     sizes.append(ReplyFormat(encoder, layout, devices=1, round=0).largest().bytes)
            >>> sizes[1] - sizes[0]
            1000000
        """
        sent = 4 * self.layout.size
        if self.sends_bits:  # signs, and two float32 scalars per layer
            sent = -(-self.encoder.size // 8) + 8 * len(self.encoder.segments)
        kinds = self.layout.buffers
        buffers = sum(kind.bytes + _AROUND_ARRAY + len(name) for name, kind in kinds.items())
        return Largest(sent + buffers + _AROUND_REPLY, len(kinds))

    def read(self, content: RecordDict) -> Answer:
        """Read a reply.

        Raises:
            BadReply: Anything is missing, damaged, of another round, method or model, or not finite.
        """
        fields = _fields(content)
        examples = _examples(fields)
        loss = fields.get("loss")
        if not isinstance(loss, float) or not math.isfinite(loss):
            raise BadReply(f"its loss must be a finite number; got {loss!r}")
        packet, gradient = None, None
        try:
            if self.sends_bits:
                packet = _packet(fields.get("packet"), self.encoder, self.round)
                device = _device(packet.device, self.devices)
            else:
                device = _device(fields.get("device"), self.devices)
                gradient = _gradient(fields.get("gradient"), self.layout.size)
            buffers = self.layout.read_buffers(content.array_records.get(ARRAYS, ArrayRecord()))
        except ValueError as error:
            raise BadReply(str(error)) from error
        saturated = _saturated(fields, len(self.encoder.segments))
        return Answer(device, loss, examples, packet, gradient, buffers, saturated)


def read_identity(content: RecordDict, devices: int) -> Identity:
    """Read which of so many devices a node says it is; raises as `ReplyFormat.read` does."""
    fields = _fields(content)
    return Identity(_device(fields.get("device"), devices), _examples(fields))


@dataclass
class ReplyTotals:
    """How many replies were good and how many refused, and the bytes of all of them, in the whole run."""

    good: int = 0
    refused: int = 0
    uplink_bytes: int = 0


class ReplyValidator:
    """Reads replies in the order of their nodes, so that it does not matter who answered first.

    Args:
        registry: Which node is which device.

    Attributes:
        faults: A sentence for everything that went wrong.
        counts: How many replies were `refused` (not what was asked for), `failed` (the device or the
            SuperLink says so), `missing` or `late`, since the server was started.
        totals: Of the whole run; a checkpoint holds them. Bytes are counted as Flower serialises replies.
    """

    def __init__(self, registry: ClientRegistry) -> None:
        self._registry = registry
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()
        self.totals = ReplyTotals()

    def read(self, replies: Replies, read: Callable[[RecordDict], Content], round: int) -> dict[int, Content]:
        """Return what is good, by node; count and name the rest.

        Args:
            replies: What came in reply to a round's messages.
            read: From the content of a reply to what it says; raises `BadReply`.
            round: Counted from 0.
        """
        contents: dict[int, Content] = {}
        for node, reply in sorted(replies.came.items()):
            try:
                self.totals.uplink_bytes += message_bytes(reply)
                if reply.has_content():
                    contents[node] = read(reply.content)
                else:
                    self._fault("failed", node, round, reply.error.reason or "no reason given")
            except BadReply as error:
                self._fault("refused", node, round, str(error))
            except Exception as error:  # nothing that a stranger sends may end the run
                self._fault("refused", node, round, f"its reply cannot be read: {error}")
        refused = self._registry.claim({node: content.device for node, content in contents.items()})
        for node, why in sorted((refused | replies.unreadable).items()):
            self._fault("refused", node, round, why)
        for node in replies.silent:
            self._fault("missing", node, round, "no answer in time")
        good = {node: content for node, content in contents.items() if node not in refused}
        self.totals.good += len(good)
        return good

    def drop_late(self, replies: Replies, round: int) -> None:
        """Drop what came after its round."""
        for node, reply in sorted(replies.came.items()):
            self.totals.uplink_bytes += message_bytes(reply)
            why = "its answer came after its round" if reply.has_content() else reply.error.reason
            self._fault("late", node, round, why or "no reason given")
        for node, why in sorted(replies.unreadable.items()):
            self._fault("late", node, round, why)

    def warn(self, sentence: str) -> None:
        """Keep a sentence, and write it to Flower's log."""
        self.faults.append(sentence)
        log(WARNING, sentence)

    def _fault(self, kind: str, node: int, round: int, why: str) -> None:
        """Count and name what a node did wrong; from now on it is not known which weights it has."""
        self._registry.forget_round(node)
        self.counts[kind] += 1
        self.totals.refused += kind == "refused"
        self.warn(f"round {round + 1}: {kind}: {self._registry.name(node)}: {_short(why)}")


def _short(text: str) -> str:
    """Return a device's own words as one line of bounded length.

    Example:
        >>> _short("two" + chr(10) + "lines" + chr(27) + "[31m")
        'two lines [31m'
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}..."


def _fields(content: RecordDict) -> dict[str, Any]:
    if RECORD not in content.config_records:
        raise BadReply(f"it holds no record {RECORD!r}")
    return dict(content.config_records[RECORD])


def _packet(data: object, encoder: Encoder, round: int) -> Packet:
    if not isinstance(data, bytes):
        raise BadReply("it holds no packet")
    try:
        packet = Packet.from_bytes(data)
    except PacketError as error:
        raise BadReply(f"its packet is damaged: {error}") from error
    check_packet(encoder, packet)
    if packet.round != round:
        raise BadReply(f"its packet is of round {packet.round + 1}")
    return packet


def _device(number: object, devices: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < devices:
        raise BadReply(f"its device number must be 0 to {devices - 1}; got {number!r}")
    return number


def _examples(fields: dict[str, Any]) -> int:
    examples = fields.get("examples")
    if isinstance(examples, bool) or not isinstance(examples, int) or not 1 <= examples <= _MOST_SAMPLES:
        raise BadReply(f"its number of samples must be a positive integer; got {examples!r}")
    return examples


def _saturated(fields: dict[str, Any], most: int) -> tuple[int, int]:
    """Return how many means and scales saturated, each at most one per layer; an absent field means none."""
    found = fields.get("saturated", [0, 0])
    right = (
        isinstance(found, list) and len(found) == 2 and all(type(n) is int and 0 <= n <= most for n in found)
    )
    if not right:
        raise BadReply(f"its saturated must be two numbers from 0 to {most}; got {str(found)[:50]}")
    return found[0], found[1]


def _gradient(data: object, size: int) -> Tensor:
    if not isinstance(data, bytes) or len(data) != 4 * size:
        got = f"{len(data)} bytes" if isinstance(data, bytes) else type(data).__name__
        raise BadReply(f"its gradient must be {size} float32 numbers; got {got}")
    gradient = torch.from_numpy(np.frombuffer(data, dtype="<f4").astype(np.float32))
    if not bool(gradient.isfinite().all()):
        raise BadReply("its gradient must be finite; it holds NaN or infinity")
    return gradient
