"""What a device does with its gradient: rotate it, fit a prior, take one bit a coordinate, pack a packet."""

from __future__ import annotations

from signfade.device.error_feedback import lost_by_bits
from signfade.device.lloyd_max import LloydMaxQuantizer
from signfade.device.noisy_sign import add_sign_noise, noisy_scale, sign_noise_factor
from signfade.device.packet import Packet, PacketError, packet_overhead
from signfade.device.prior import Prior, fit_prior, spread
from signfade.device.privacy import bit_epsilon, composed_epsilon, randomised_response
from signfade.device.quantize import LogQuantizer, Quantizer, UniformQuantizer
from signfade.device.rotate import rotate, rotated_size, unrotate
from signfade.device.scalar_code import ScalarCode
from signfade.device.sign import one_bit, pack_signs, sign, unpack_signs

__all__ = [
    "LloydMaxQuantizer",
    "LogQuantizer",
    "Packet",
    "PacketError",
    "Prior",
    "Quantizer",
    "ScalarCode",
    "UniformQuantizer",
    "add_sign_noise",
    "bit_epsilon",
    "composed_epsilon",
    "fit_prior",
    "lost_by_bits",
    "noisy_scale",
    "one_bit",
    "pack_signs",
    "packet_overhead",
    "randomised_response",
    "rotate",
    "rotated_size",
    "sign",
    "sign_noise_factor",
    "spread",
    "unpack_signs",
    "unrotate",
]
