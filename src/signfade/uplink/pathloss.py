"""COST-231 Hata, the path loss of the paper's cell, and a warning where it is extrapolated."""

from __future__ import annotations

import math
import warnings
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade._check import check_choice, check_finite, check_positive

__all__ = ["CITIES", "OutsideValidity", "check_number", "cost231_hata", "outside_validity", "warn_outside"]

CITIES = ("medium", "large", "metropolitan")
CLOSEST_KM = 0.02  # the formula diverges at the mast; nobody stands closer than this

Distance = TypeVar("Distance", float, Tensor, NDArray[Any])


class OutsideValidity(UserWarning):
    """COST-231 Hata is used outside the ranges its measurements covered."""


def outside_validity(distance_km: Tensor, carrier_mhz: float, base_m: float, user_m: float) -> list[str]:
    """Return every parameter outside the range that COST-231 Hata was measured in, with that range.

    The text holds no distances: Python shows an unchanged warning once per place in the code, so a run that
    places its users again and again stays quiet.

    Example:
        >>> outside_validity(torch.tensor([0.5, 2.0]), 2000, 70, 1.5)
        ['distance_km (1 to 20)']
    """
    outside = []
    if not 1500 <= carrier_mhz <= 2000:
        outside.append(f"carrier_mhz = {carrier_mhz:g} (1500 to 2000)")
    if not 30 <= base_m <= 200:
        outside.append(f"base_m = {base_m:g} (30 to 200)")
    if not 1 <= user_m <= 10:
        outside.append(f"user_m = {user_m:g} (1 to 10)")
    if bool(((distance_km < 1) | (distance_km > 20)).any()):
        outside.append("distance_km (1 to 20)")
    return outside


def warn_outside(
    distance_km: Tensor, carrier_mhz: float, base_m: float, user_m: float, *, stacklevel: int
) -> None:
    """Warn once, naming every parameter outside its range."""
    if outside := outside_validity(distance_km, carrier_mhz, base_m, user_m):
        text = f"COST-231 Hata is extrapolated in {', '.join(outside)}; pass warn=False to silence this"
        warnings.warn(text, OutsideValidity, stacklevel=stacklevel + 1)


def check_number(name: str, value: float, *, positive: bool) -> None:
    """Raise unless `value` is a finite number, and above zero where it has to be."""
    if not math.isfinite(value) or (positive and value <= 0):
        kind = "positive and finite" if positive else "finite"
        raise ValueError(f"{name} must be {kind}; got {value!r}")


def cost231_hata(
    distance_km: Distance,
    carrier_mhz: float = 2000.0,
    base_m: float = 70.0,
    user_m: float = 1.5,
    city: str = "metropolitan",
    *,
    warn: bool = True,
) -> Distance:
    """Return the median path loss of COST-231 Hata in dB.

    `46.3 + 33.9 log10(f) - 13.82 log10(hb) - a(hm) + (44.9 - 6.55 log10(hb)) log10(d) + Cm`, where

    | city | a(hm) | Cm |
    |---|---|---|
    | `medium` (or small) city, suburb | `(1.1 log10(f) - 0.7) hm - (1.56 log10(f) - 0.8)` | 0 dB |
    | `large` city | `3.2 log10(11.75 hm)**2 - 4.97` | 0 dB |
    | `metropolitan`: its dense centre | as `large` | 3 dB |

    Both `a(hm)` are within 0.05 dB of zero for a telephone in the hand (1.5 m) and differ by 16 dB at 10 m.

    Args:
        distance_km: ground distance, a number or any shape of array or tensor; below 20 m it counts as 20 m.
        carrier_mhz: carrier frequency, measured range 1500 to 2000 MHz.
        base_m: height of the base station, measured range 30 to 200 m.
        user_m: height of the user's antenna, measured range 1 to 10 m.
        city: "medium", "large" or "metropolitan".
        warn: whether to warn, once a call, if a parameter leaves its measured range (distance: 1 to 20 km).

    Returns:
        The loss in dB: of the kind (number, array, tensor) and shape of `distance_km`.

    Raises:
        ValueError: a distance that is negative or not finite, a frequency or height that is not positive, an
            unknown city.

    Example:
        >>> round(cost231_hata(1.0), 1)
        135.7
        >>> cost231_hata(torch.tensor([1.0, 10.0])) - cost231_hata(torch.tensor([1.0, 10.0]), city="large")
        tensor([3., 3.])

    Reference: Sec. VI-A, "Network model"; docs/model.md.
    """
    given = isinstance(distance_km, Tensor | np.ndarray)
    distance = torch.as_tensor(distance_km, dtype=None if given else torch.float64)  # else float32
    check_positive("distance_km", distance, zero=True)
    check_finite("distance_km", distance)
    for name, value in (("carrier_mhz", carrier_mhz), ("base_m", base_m), ("user_m", user_m)):
        check_number(name, value, positive=True)
    check_choice("city", city, CITIES)
    if warn:
        warn_outside(distance, carrier_mhz, base_m, user_m, stacklevel=2)
    log_f, log_hb = math.log10(carrier_mhz), math.log10(base_m)
    if city == "medium":
        user_gain = (1.1 * log_f - 0.7) * user_m - (1.56 * log_f - 0.8)
    else:
        user_gain = 3.2 * math.log10(11.75 * user_m) ** 2 - 4.97
    clutter = 3.0 if city == "metropolitan" else 0.0
    at_1km = 46.3 + 33.9 * log_f - 13.82 * log_hb - user_gain + clutter
    loss = at_1km + (44.9 - 6.55 * log_hb) * distance.double().clamp(min=CLOSEST_KM).log10()
    if isinstance(distance_km, Tensor):
        return loss.to(distance.dtype) if distance.is_floating_point() else loss
    if isinstance(distance_km, np.ndarray):
        return loss.numpy()
    return float(loss)
