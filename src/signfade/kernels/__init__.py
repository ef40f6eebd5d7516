"""Compiled code: keyed noise, fused sums, transforms and decoders. Nobody needs to know it is there.

A function has its plain form in torch, which serves any tensor on any device, and one compiled form for the
CPU.
"""

from __future__ import annotations

from signfade.kernels.bits import layer_deviations, layer_sums, pack_above
from signfade.kernels.fused import fused_sum, received, standard_normal

__all__ = ["fused_sum", "layer_deviations", "layer_sums", "pack_above", "received", "standard_normal"]
