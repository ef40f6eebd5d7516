"""From bits to noisy symbols: where the users stand, how their links fade, what the base station receives.

Noise convention of the whole package: `sigma2` is the variance of the *real* noise on one symbol, a symbol is
+1 or -1 (unit power), and the instantaneous SNR is `h**2 / sigma2`. See docs/model.md.
"""

from __future__ import annotations

from signfade.uplink.cell import (
    Cell,
    LinkBudget,
    Propagation,
    mean_snr_db,
    noise_variance,
    place_users,
)
from signfade.uplink.channel import (
    GaussMarkov,
    Link,
    Signals,
    draw_fading,
    error_probability,
    half_llr,
    symbols,
    transmit,
)
from signfade.uplink.code import Decoded, PolarCode, send_coded
from signfade.uplink.over_the_air import align, inversion_level
from signfade.uplink.path_loss import PATH_LOSSES, OutsideValidity, PathLoss, Site, cost231_hata
from signfade.uplink.pilots import GainEstimate, Refined, Sounding, fit_levels, refine_gain, sound
from signfade.uplink.radio import Radio, make_radio

__all__ = [
    "PATH_LOSSES",
    "Cell",
    "Decoded",
    "GainEstimate",
    "GaussMarkov",
    "Link",
    "LinkBudget",
    "OutsideValidity",
    "PathLoss",
    "PolarCode",
    "Propagation",
    "Radio",
    "Refined",
    "Signals",
    "Site",
    "Sounding",
    "align",
    "cost231_hata",
    "draw_fading",
    "error_probability",
    "fit_levels",
    "half_llr",
    "inversion_level",
    "make_radio",
    "mean_snr_db",
    "noise_variance",
    "place_users",
    "refine_gain",
    "send_coded",
    "sound",
    "symbols",
    "transmit",
]
