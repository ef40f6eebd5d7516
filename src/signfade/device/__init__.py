"""What a device does with its gradient: rotate it, fit a prior, take one bit a coordinate, pack a packet."""

from __future__ import annotations

from signfade.device.lloyd_max import LloydMaxQuantizer
from signfade.device.packet import Packet, PacketError
from signfade.device.prior import Prior, fit_prior, spread
from signfade.device.quantize import LogQuantizer, Quantizer, UniformQuantizer
from signfade.device.rotate import rotate, rotated_size, unrotate
from signfade.device.sign import one_bit, pack_signs, sign, unpack_signs

__all__ = [
    "LloydMaxQuantizer",
    "LogQuantizer",
    "Packet",
    "PacketError",
    "Prior",
    "Quantizer",
    "UniformQuantizer",
    "fit_prior",
    "one_bit",
    "pack_signs",
    "rotate",
    "rotated_size",
    "sign",
    "spread",
    "unpack_signs",
    "unrotate",
]
