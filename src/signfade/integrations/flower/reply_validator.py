"""Replies of devices, read without trusting anything: type, shape, size and range of every field."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from logging import WARNING
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, RecordDict
from flwr.supercore import log
from torch import Tensor

from signfade.device import Encoder, Packet, PacketError, read_packet
from signfade.device.packet import ROUNDS
from signfade.integrations.flower.client_registry import ClientRegistry
from signfade.integrations.flower.exchange import Largest, Replies, message_bytes
from signfade.integrations.flower.messages import ARRAYS, RECORD, Answer, Layout
from signfade.simulation.run import RunFailed

__all__ = ["ReplyFormat", "ReplyTotals", "ReplyValidator"]

_MOST_SAMPLES = 2**53
# What Flower puts around a reply and around each of its arrays, with room for its growth; a reply of 6,090
# weights without arrays measures 500 bytes more than its packet. Reasons for a failure must fit in, too.
_AROUND_REPLY = 1 << 16
_AROUND_ARRAY = 1 << 11
_MOST_CHARACTERS = 300  # of a device's own message that go into our log
_EMPTY_ROUNDS = 3  # in a row after which the run fails
_REFUSED_ROUNDS = 3  # in a row in which most replies were refused


@dataclass(frozen=True)
class ReplyFormat:
    """What a reply must look like in a round; without `sends_bits` devices send gradients in full."""

    encoder: Encoder
    layout: Layout
    devices: int
    round: int  # counted from 0
    sends_bits: bool = True

    def largest(self) -> Largest:
        """Return the most that an honest reply can have.

        Example:
            >>> from signfade.settings import MethodSettings
            >>> encoder, layout = Encoder(MethodSettings(), (8_000_000,)), Layout({"w": (8_000_000,)})
            >>> ReplyFormat(encoder, layout, devices=1, round=0).largest().bytes - _AROUND_REPLY
            1000008
        """
        sent = 4 * self.layout.size
        if self.sends_bits:  # signs, and two float32 scalars per layer
            sent = -(-self.encoder.size // 8) + 8 * len(self.encoder.segments)
        kinds = self.layout.buffers
        for name, (shape, dtype) in kinds.items():
            sent += math.prod(shape) * np.dtype(dtype).itemsize + _AROUND_ARRAY + len(name)
        return Largest(sent + _AROUND_REPLY, len(kinds))

    def read(self, content: RecordDict) -> Answer:
        """Read a reply.

        Raises:
            ValueError: Anything is missing, damaged, of another round, method or model, or not finite.
        """
        fields = _fields(content)
        examples = _examples(fields)
        loss = fields.get("loss")
        if not isinstance(loss, float) or not math.isfinite(loss):
            raise ValueError(f"its loss must be a finite number; got {loss!r}")
        packet, gradient = None, None
        if self.sends_bits:
            packet = self._packet(fields.get("packet"))
            device = self._device(packet.device)
        else:
            device = self._device(fields.get("device"))
            gradient = _gradient(fields.get("gradient"), self.layout.size)
        buffers = self.layout.read_buffers(content.array_records.get(ARRAYS, ArrayRecord()))
        saturated = _saturated(fields, len(self.encoder.segments))
        return Answer(device, examples, loss, packet, gradient, buffers, saturated)

    def read_identity(self, content: RecordDict) -> Answer:
        """Read which device a node says it is; raises as `read` does."""
        fields = _fields(content)
        return Answer(self._device(fields.get("device")), _examples(fields))

    def _packet(self, data: object) -> Packet:
        if not isinstance(data, bytes):
            raise ValueError("it holds no packet")
        try:
            packet = read_packet(self.encoder, data)
        except PacketError as error:
            raise ValueError(f"its packet is damaged: {error}") from error
        if packet.round != self.round % ROUNDS:
            raise ValueError(f"its packet is of round {packet.round + 1} (modulo {ROUNDS})")
        return packet

    def _device(self, number: object) -> int:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < self.devices:
            raise ValueError(f"its device number must be 0 to {self.devices - 1}; got {number!r}")
        return number


@dataclass
class ReplyTotals:
    """How many replies were good and how many refused, and the bytes of all of them, in the whole run."""

    good: int = 0
    refused: int = 0
    uplink_bytes: int = 0


class ReplyValidator:
    """Reads replies in the order of their nodes, so that it does not matter who answered first.

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
        self._empty_rounds = self._refused_rounds = 0  # in a row

    def read(self, replies: Replies, read: Callable[[RecordDict], Answer], round: int) -> dict[int, Answer]:
        """Return the good replies to a round's messages, by node; count and name the rest.

        `read` is a method of `ReplyFormat`; rounds are counted from 0.
        """
        answers: dict[int, Answer] = {}
        for node, reply in sorted(replies.came.items()):
            try:
                self.totals.uplink_bytes += message_bytes(reply)
                if reply.has_content():
                    answers[node] = read(reply.content)
                else:
                    self._fault("failed", node, round, reply.error.reason or "no reason given")
            except ValueError as error:
                self._fault("refused", node, round, str(error))
            except Exception as error:  # nothing that a stranger sends may end the run
                self._fault("refused", node, round, f"its reply cannot be read: {error}")
        refused = self._registry.claim({node: answer.device for node, answer in answers.items()})
        for node, why in sorted((refused | replies.unreadable).items()):
            self._fault("refused", node, round, why)
        for node in replies.silent:
            self._fault("missing", node, round, "no answer in time")
        good = {node: answer for node, answer in answers.items() if node not in refused}
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

    def check_round(self, number: int, before: ReplyTotals, *, last: bool) -> None:
        """Raise `RunFailed` if nobody answers, or if most replies are refused."""
        totals = self.totals
        good, refused = totals.good - before.good, totals.refused - before.refused
        self._empty_rounds = 0 if good else self._empty_rounds + 1
        self._refused_rounds = self._refused_rounds + 1 if refused > good else 0
        if self._refused_rounds >= _REFUSED_ROUNDS:
            what = f"more than half of the replies were refused in {_REFUSED_ROUNDS} rounds in a row"
        elif self._empty_rounds >= _EMPTY_ROUNDS:
            raise RunFailed(f"round {number}: no device has answered for {_EMPTY_ROUNDS} rounds")
        elif last and totals.refused > totals.good:
            what = f"{totals.refused} of {totals.refused + totals.good} replies of the run were refused"
        else:
            return
        newest = next((text for text in reversed(self.faults) if ": refused: " in text), "see the log")
        raise RunFailed(f"round {number}: {what}; the last one: {newest}")

    def warn(self, sentence: str) -> None:
        """Keep a sentence, and write it to Flower's log."""
        self.faults.append(sentence)
        log(WARNING, sentence)

    def _fault(self, kind: str, node: int, round: int, why: str) -> None:
        """Count and name what a node did wrong; from now on it is not known which weights it has."""
        self._registry.rounds.pop(node, None)
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
        raise ValueError(f"it holds no record {RECORD!r}")
    return dict(content.config_records[RECORD])


def _examples(fields: dict[str, Any]) -> int:
    examples = fields.get("examples")
    if isinstance(examples, bool) or not isinstance(examples, int) or not 1 <= examples <= _MOST_SAMPLES:
        raise ValueError(f"its number of samples must be a positive integer; got {examples!r}")
    return examples


def _saturated(fields: dict[str, Any], most: int) -> tuple[int, int]:
    """Return how many means and scales saturated, each at most one per layer; an absent field means none."""
    found = fields.get("saturated", [0, 0])
    whole = isinstance(found, list) and all(type(n) is int and 0 <= n <= most for n in found)
    if not whole or len(found) != 2:
        raise ValueError(f"its saturated must be two numbers from 0 to {most}; got {str(found)[:50]}")
    return found[0], found[1]


def _gradient(data: object, size: int) -> Tensor:
    if not isinstance(data, bytes) or len(data) != 4 * size:
        got = f"{len(data)} bytes" if isinstance(data, bytes) else type(data).__name__
        raise ValueError(f"its gradient must be {size} float32 numbers; got {got}")
    gradient = torch.from_numpy(np.frombuffer(data, dtype="<f4").astype(np.float32))
    if not bool(gradient.isfinite().all()):
        raise ValueError("its gradient must be finite; it holds NaN or infinity")
    return gradient
