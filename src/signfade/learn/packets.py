"""From what devices send to packets of real bytes, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from signfade.device import Packet, unpack_signs
from signfade.learn.encode import Encoder, Sent

__all__ = ["Decoded", "check_packet", "decode_packets", "make_packet"]


@dataclass(frozen=True)
class Decoded:
    """What the server reads in K packets, in their order.

    Attributes:
        packed: Signs, eight to a byte, `[K, ceil(M/8)]`.
        mean: Means, `[K, S]`; zero where the method sends none.
        scale: Scales, `[K, S]`; zero where the method sends none.
    """

    packed: Tensor
    mean: Tensor
    scale: Tensor


def make_packet(encoder: Encoder, sent: Sent, row: int, *, device: int, round: int) -> Packet:
    """Return the packet of one device.

    Args:
        encoder: The device's half of the method.
        sent: What `encoder.encode` returned.
        row: Which of its devices.
        device: Number of the device.
        round: Round, counted from 0.

    Example:
        >>> from signfade.settings import MethodSettings
        >>> encoder = Encoder(MethodSettings(side_bits=8), layers=(3,))
        >>> sent = encoder.encode(torch.tensor([[0.2, -0.1, 0.05]]))
        >>> packet = make_packet(encoder, sent, 0, device=7, round=2)
        >>> packet.mean_bits, packet.scale_bits  # the first round's scales are on the wide grid
        (8, 16)
        >>> bool((decode_packets(encoder, [packet]).scale == sent.scale).all())
        True
    """
    mean, scale = torch.zeros(0), torch.zeros(0)
    if encoder.sends_scalars:
        mean, scale = sent.mean[row], sent.scale[row]
    if encoder.quantised:  # what was sent are levels already: each is in its own bin
        mean, scale = encoder.scalar_code.encode(mean, scale)
    signs = unpack_signs(sent.packed[row], encoder.size)
    mean_bits, scale_bits = encoder.scalar_bits
    return Packet.make(
        signs, mean, scale, device=device, round=round, mean_bits=mean_bits, scale_bits=scale_bits
    )


def check_packet(encoder: Encoder, packet: Packet) -> None:
    """Raise unless a packet is what the method's devices send.

    Raises:
        ValueError: Another number of signs, of layers or of bits a scalar, or a code nobody uses.

    Example:
        >>> from signfade.settings import MethodSettings
        >>> other = Packet.make(torch.ones(4), torch.zeros(1), torch.ones(1))
        >>> check_packet(Encoder(MethodSettings(), layers=(3,)), other)
        Traceback (most recent call last):
        ValueError: a packet of this model has 3 signs; got 4
    """
    layers = len(encoder.segments) if encoder.sends_scalars else 0
    if packet.size != encoder.size:
        raise ValueError(f"a packet of this model has {encoder.size} signs; got {packet.size}")
    if packet.layers != layers:
        raise ValueError(f"a packet of this method has {layers} means and scales; got {packet.layers}")
    if (packet.mean_bits, packet.scale_bits) != encoder.scalar_bits:
        must = "{} and {}".format(*encoder.scalar_bits)
        got = f"{packet.mean_bits} and {packet.scale_bits}"
        raise ValueError(f"means and scales of this round have {must} bits (0: float32); got {got}")
    _scalars(encoder, packet)


def decode_packets(encoder: Encoder, packets: Sequence[Packet]) -> Decoded:
    """Read packets that `check_packet` has let pass."""
    rows = [np.frombuffer(packet.sign_bytes, dtype=np.uint8) for packet in packets]
    mean, scale = zip(*(_scalars(encoder, packet) for packet in packets), strict=True)
    return Decoded(torch.from_numpy(np.stack(rows)), torch.stack(mean), torch.stack(scale))


def _scalars(encoder: Encoder, packet: Packet) -> tuple[Tensor, Tensor]:
    """Return the means and scales of one packet, `[S]` each, float32."""
    if not packet.layers:
        zero = torch.zeros(len(encoder.segments))
        return zero, zero
    if not packet.mean_bits:
        return packet.mean, packet.scale
    return encoder.scalar_code.decode(packet.mean, packet.scale)
