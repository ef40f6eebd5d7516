"""Replies of devices, read without trusting anything: type, shape, size and range of every field."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from signfade.device import Packet, PacketError
from signfade.device.encoder import Encoder
from signfade.device.packets import check_packet
from signfade.integrations.flower.layout import Layout
from signfade.integrations.flower.limit import Largest
from signfade.integrations.flower.wire import ARRAYS, RECORD, Answer, Presence

__all__ = ["BadAnswer", "largest_reply", "read_answer", "read_presence"]

_MOST_SAMPLES = 2**53
# What Flower puts around a reply and around each of its arrays, with room for its growth; a reply of 6,090
# weights without arrays measures 500 bytes more than its packet. Reasons for a failure must fit in, too.
_AROUND_REPLY = 1 << 16
_AROUND_ARRAY = 1 << 11


class BadAnswer(ValueError):
    """A reply that cannot be used, said in one sentence."""


def largest_reply(encoder: Encoder, layout: Layout) -> Largest:
    """Return the most that an honest reply can have.

    Args:
        encoder: The device's half of the method.
        layout: Of the model.

    Example:
        >>> from signfade.settings import MethodSettings
        >>> sizes = []
        >>> for weights in (0, 8_000_000):
        ...     layout = Layout({"w": (weights + 1,)})
        ...     sizes.append(largest_reply(Encoder(MethodSettings(), layout.segments), layout).bytes)
        >>> sizes[1] - sizes[0]
        1000000
    """
    if encoder.method.aggregator == "ideal":
        sent = 4 * layout.size
    else:  # signs, and two float32 scalars a layer
        sent = -(-encoder.size // 8) + 8 * len(encoder.segments)
    buffers = sum(kind.bytes + _AROUND_ARRAY + len(name) for name, kind in layout.buffers.items())
    return Largest(sent + buffers + _AROUND_REPLY, len(layout.buffers))


def read_presence(content: RecordDict, devices: int) -> Presence:
    """Read who a device says it is; raises as `read_answer` does."""
    words = _words(content)
    return Presence(_device(words.get("device"), devices), _examples(words))


def read_answer(content: RecordDict, encoder: Encoder, layout: Layout, devices: int, round: int) -> Answer:
    """Read a reply, trusting nothing.

    Args:
        content: Of the reply.
        encoder: The device's half of the method: what a packet must look like.
        layout: What buffers must look like.
        devices: Number of devices K in the cell.
        round: The round that was asked for, counted from 0.

    Raises:
        BadAnswer: Anything is missing, damaged, of another round, method or model, or not finite.
    """
    words = _words(content)
    examples = _examples(words)
    loss = words.get("loss")
    if not isinstance(loss, float) or not math.isfinite(loss):
        raise BadAnswer(f"its loss must be a finite number; got {loss!r}")
    packet, gradient = None, None
    try:
        if encoder.method.aggregator == "ideal":
            device = _device(words.get("device"), devices)
            gradient = _gradient(words.get("gradient"), layout.size)
        else:
            packet = _packet(words.get("packet"), encoder, round)
            device = _device(packet.device, devices)
        buffers = layout.read_buffers(content.array_records.get(ARRAYS, ArrayRecord()))
    except ValueError as error:
        raise BadAnswer(str(error)) from error
    saturated = _saturated(words, len(encoder.segments))
    return Answer(device, loss, examples, packet, gradient, buffers, saturated)


def _words(content: RecordDict) -> dict[str, Any]:
    if RECORD not in content.config_records:
        raise BadAnswer(f"it holds no record {RECORD!r}")
    return dict(content.config_records[RECORD])


def _packet(data: object, encoder: Encoder, round: int) -> Packet:
    if not isinstance(data, bytes):
        raise BadAnswer("it holds no packet")
    try:
        packet = Packet.from_bytes(data)
    except PacketError as error:
        raise BadAnswer(f"its packet is damaged: {error}") from error
    check_packet(encoder, packet)
    if packet.round != round:
        raise BadAnswer(f"its packet is of round {packet.round + 1}")
    return packet


def _device(number: object, devices: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < devices:
        raise BadAnswer(f"its device number must be 0 to {devices - 1}; got {number!r}")
    return number


def _examples(words: dict[str, Any]) -> int:
    examples = words.get("examples")
    if isinstance(examples, bool) or not isinstance(examples, int) or not 1 <= examples <= _MOST_SAMPLES:
        raise BadAnswer(f"its number of samples must be a positive integer; got {examples!r}")
    return examples


def _saturated(words: dict[str, Any], most: int) -> tuple[int, int]:
    """Return how many means and scales saturated, each at most one per layer; none where nothing is said."""
    said = words.get("saturated", [0, 0])
    right = isinstance(said, list) and len(said) == 2 and all(type(n) is int and 0 <= n <= most for n in said)
    if not right:
        raise BadAnswer(f"its saturated must be two numbers from 0 to {most}; got {str(said)[:50]}")
    return said[0], said[1]


def _gradient(data: object, size: int) -> Tensor:
    if not isinstance(data, bytes) or len(data) != 4 * size:
        got = f"{len(data)} bytes" if isinstance(data, bytes) else type(data).__name__
        raise BadAnswer(f"its gradient must be {size} float32 numbers; got {got}")
    gradient = torch.from_numpy(np.frombuffer(data, dtype="<f4").astype(np.float32))
    if not bool(gradient.isfinite().all()):
        raise BadAnswer("its gradient must be finite; it holds NaN or infinity")
    return gradient
