"""From bits to noisy symbols: where the users stand, how their links fade, what the base station receives.

Noise convention of the whole package: `sigma2` is the variance of the *real* noise on one symbol, a symbol is
+1 or -1 (unit power), and the instantaneous SNR is `h**2 / sigma2`. See docs/model.md.
"""

from __future__ import annotations

from signfade.uplink.cell import Cell, LinkBudget, mean_snr_db, noise_variance, place_users
from signfade.uplink.channel import (
    Link,
    draw_fading,
    error_probability,
    flip_bits,
    half_llr,
    transmit,
)
from signfade.uplink.code import Decoded, PolarCode, send_coded
from signfade.uplink.pathloss import OutsideValidity, cost231_hata

__all__ = [
    "Cell",
    "Decoded",
    "Link",
    "LinkBudget",
    "OutsideValidity",
    "PolarCode",
    "cost231_hata",
    "draw_fading",
    "error_probability",
    "flip_bits",
    "half_llr",
    "mean_snr_db",
    "noise_variance",
    "place_users",
    "send_coded",
    "transmit",
]
