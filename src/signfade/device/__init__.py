"""What a device does with its gradient: rotate it, fit a prior, take one bit per weight, make a packet."""

from __future__ import annotations

from signfade.device.bits import Bits, pack_signs, sign, unpack_signs
from signfade.device.constellation import Amplitudes
from signfade.device.encoder import (
    EXACT_BITS,
    Encoder,
    Message,
    Priors,
    bit_agreement,
    lost_by_bits,
    one_bit,
)
from signfade.device.lloyd_max import LloydMaxQuantizer
from signfade.device.packet import (
    Packet,
    PacketError,
    decode_packets,
    make_packet,
    packet_overhead,
    read_packet,
)
from signfade.device.prior import Prior, add_sign_noise, fit_prior, noisy_scale, sign_noise_factor, spread
from signfade.device.privacy import bit_epsilon, composed_epsilon, randomised_response
from signfade.device.quantizers import LogQuantizer, Quantizer, ScalarCode, UniformQuantizer
from signfade.device.rivals import drive, eden, qsgd, scaled_sign, top_k
from signfade.device.rotation import rotate, rotated_size, unrotate

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
    "read_packet",
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
