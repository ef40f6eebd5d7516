"""What a device does with its gradient: rotate it, fit a prior, take one bit per weight, make a packet."""

from __future__ import annotations

from signfade.device.bits import Bits, one_bit, pack_signs, sign, unpack_signs
from signfade.device.encoder import EXACT_BITS, Encoder, Message, Priors, bit_agreement
from signfade.device.error_feedback import lost_by_bits
from signfade.device.levels import Amplitudes
from signfade.device.lloyd_max import LloydMaxQuantizer
from signfade.device.noisy_sign import add_sign_noise, noisy_scale, sign_noise_factor
from signfade.device.packet import Packet, PacketError, packet_overhead
from signfade.device.packets import check_packet, decode_packets, make_packet
from signfade.device.prior import Prior, fit_prior, spread
from signfade.device.privacy import bit_epsilon, composed_epsilon, randomised_response
from signfade.device.quantize import LogQuantizer, Quantizer, UniformQuantizer
from signfade.device.rivals import drive, eden, qsgd, scaled_sign, top_k
from signfade.device.rotation import rotate, rotated_size, unrotate
from signfade.device.scalar_code import ScalarCode

__all__ = [
    "EXACT_BITS",
    "Amplitudes",
    "Bits",
    "Encoder",
    "LloydMaxQuantizer",
    "LogQuantizer",
    "Message",
    "Packet",
    "PacketError",
    "Prior",
    "Priors",
    "Quantizer",
    "ScalarCode",
    "UniformQuantizer",
    "add_sign_noise",
    "bit_agreement",
    "bit_epsilon",
    "check_packet",
    "composed_epsilon",
    "decode_packets",
    "drive",
    "eden",
    "fit_prior",
    "lost_by_bits",
    "make_packet",
    "noisy_scale",
    "one_bit",
    "pack_signs",
    "packet_overhead",
    "qsgd",
    "randomised_response",
    "rotate",
    "rotated_size",
    "scaled_sign",
    "sign",
    "sign_noise_factor",
    "spread",
    "top_k",
    "unpack_signs",
    "unrotate",
]
