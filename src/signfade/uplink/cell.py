"""The cell: path loss, the link budget, and where the users stand.

All SNRs here are *mean* SNRs in dB: averaged over the fading, which has `E[h**2] = 1`.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade._check import check_choice, check_finite, check_positive

__all__ = [
    "Cell",
    "LinkBudget",
    "OutsideValidity",
    "cost231_hata",
    "mean_snr_db",
    "noise_variance",
    "outside_validity",
    "place_users",
]

BOLTZMANN = 1.380649e-23  # joule per kelvin, exact by definition of the kelvin
CITIES = ("medium", "large", "metropolitan")
CLOSEST_KM = 0.02  # the formula diverges at the mast; nobody stands closer than this

Distance = TypeVar("Distance", float, Tensor, NDArray[Any])


class OutsideValidity(UserWarning):
    """COST-231 Hata is used outside the ranges its measurements covered."""


def outside_validity(distance_km: Tensor, carrier_mhz: float, base_m: float, user_m: float) -> list[str]:
    """Return every parameter outside the range that COST-231 Hata was measured in, with that range.

    The text holds no distances: Python shows an unchanged warning once per place in the code, so a run that
    places its users again and again stays quiet.
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


def _warn_outside(
    distance_km: Tensor, carrier_mhz: float, base_m: float, user_m: float, *, stacklevel: int
) -> None:
    """Warn once, naming every parameter outside its range."""
    if outside := outside_validity(distance_km, carrier_mhz, base_m, user_m):
        text = f"COST-231 Hata is extrapolated in {', '.join(outside)}; pass warn=False to silence this"
        warnings.warn(text, OutsideValidity, stacklevel=stacklevel + 1)


def _check_number(name: str, value: float, *, positive: bool) -> None:
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
    """Return the median path loss of COST-231 Hata in dB, of the kind and shape of `distance_km`.

    `46.3 + 33.9 log10(f) - 13.82 log10(hb) - a(hm) + (44.9 - 6.55 log10(hb)) log10(d) + Cm`, where

    | city | a(hm) | Cm |
    |---|---|---|
    | `medium` (or small) city, suburb | `(1.1 log10(f) - 0.7) hm - (1.56 log10(f) - 0.8)` | 0 dB |
    | `large` city | `3.2 log10(11.75 hm)**2 - 4.97` | 0 dB |
    | `metropolitan`: its dense centre | as `large` | 3 dB |

    Both `a(hm)` are within 0.05 dB of zero for a telephone in the hand (1.5 m) and differ by 16 dB at 10 m.
    The distance is a number, an array or a tensor; below 20 m it counts as 20 m. Warns once per call if a
    parameter leaves its measured range: 1500 to 2000 MHz, base 30 to 200 m, user 1 to 10 m, 1 to 20 km.

    Example:
        >>> round(cost231_hata(1.0), 1)
        135.7

    Reference: Sec. VI-A, "Network model"; docs/model.md.
    """
    given = isinstance(distance_km, Tensor | np.ndarray)
    distance = torch.as_tensor(distance_km, dtype=None if given else torch.float64)  # else float32
    check_positive("distance_km", distance, zero=True)
    check_finite("distance_km", distance)
    for name, value in (("carrier_mhz", carrier_mhz), ("base_m", base_m), ("user_m", user_m)):
        _check_number(name, value, positive=True)
    check_choice("city", city, CITIES)
    if warn:
        _warn_outside(distance, carrier_mhz, base_m, user_m, stacklevel=2)
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


@dataclass(frozen=True)
class LinkBudget:
    """What a user's transmitter, the air and the base station's receiver add and take away, in dB.

    `SNR = power + gains - path loss - shadowing - noise`, `noise = 10 log10(k T B / 1 mW) + noise figure`.
    `gains_db` sums the antennas of both ends, less cables and bodies. `shadowing_db` is the deviation of
    the log-normal shadowing, zero for none.

    Example:
        >>> round(float(LinkBudget().snr_db(torch.tensor(1.0))), 1)
        3.7

    Reference: Sec. VI-A, "Network model". The paper gives the two heights; the rest is our choice.
    """

    power_dbm: float = 23.0
    gains_db: float = 0.0
    bandwidth_hz: float = 180e3
    noise_figure_db: float = 5.0
    temperature_k: float = 290.0
    carrier_mhz: float = 2000.0
    base_m: float = 70.0
    user_m: float = 1.5
    city: str = "metropolitan"
    shadowing_db: float = 0.0

    def __post_init__(self) -> None:
        for name in ("power_dbm", "gains_db", "noise_figure_db"):
            _check_number(name, getattr(self, name), positive=False)
        for name in ("bandwidth_hz", "temperature_k", "carrier_mhz", "base_m", "user_m"):
            _check_number(name, getattr(self, name), positive=True)
        if not 0 <= self.shadowing_db < math.inf:
            raise ValueError(f"shadowing_db must be non-negative and finite; got {self.shadowing_db!r}")
        check_choice("city", self.city, CITIES)

    @property
    def noise_dbm(self) -> float:
        """Power of the thermal noise in the band, with the receiver's noise figure, in dBm."""
        thermal_mw = 1e3 * BOLTZMANN * self.temperature_k * self.bandwidth_hz
        return 10 * math.log10(thermal_mw) + self.noise_figure_db

    def snr_db(self, distance_km: Tensor, shadowing: Tensor | float = 0.0, *, warn: bool = True) -> Tensor:
        """Return the mean SNR in dB at `distance_km`, less the `shadowing` losses in dB (broadcast).

        Warns as [`cost231_hata`][signfade.uplink.cost231_hata] does; the result is float64.
        """
        check_finite("shadowing", torch.as_tensor(shadowing))
        place = (self.carrier_mhz, self.base_m, self.user_m)
        loss = cost231_hata(distance_km.double(), *place, city=self.city, warn=False)
        if warn:
            _warn_outside(distance_km, *place, stacklevel=2)
        return self.power_dbm + self.gains_db - loss - shadowing - self.noise_dbm


def place_users(count: int, generator: np.random.Generator, radius_km: float = 1.0) -> Tensor:
    """Return positions `[K, 2]` of users uniform in a disc around the base station, in km, float64.

    Distance `radius * sqrt(u)`, angle `2 pi v`, with u and v uniform: the area within r grows as r squared.
    User k stands in the same place however many come after.

    Example:
        >>> from signfade.keys import generator
        >>> place_users(3, generator(1, "positions")).norm(dim=1) <= 1
        tensor([True, True, True])

    Reference: Sec. VI-A, "Network model".
    """
    if count < 0:
        raise ValueError(f"count must be non-negative; got {count!r}")
    _check_number("radius_km", radius_km, positive=True)
    u, v = generator.random((count, 2)).T
    distance, angle = radius_km * np.sqrt(u), 2 * np.pi * v
    return torch.from_numpy(np.stack([distance * np.cos(angle), distance * np.sin(angle)], axis=1))


def mean_snr_db(
    positions: Tensor,
    budget: LinkBudget | None = None,
    generator: np.random.Generator | None = None,
    *,
    warn: bool = True,
    stacklevel: int = 2,
) -> Tensor:
    """Return each user's mean SNR in dB, float64 `[K]`, from positions `[K, 2]` in km from the base station.

    The generator is the source of the shadowing, one draw per user, and needed if the budget has any. Warns
    once per call where COST-231 Hata is extrapolated (any user inside 1 km); `stacklevel` says whose line the
    warning names, as in `warnings.warn`.

    Example:
        >>> snr = mean_snr_db(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        >>> [round(x, 1) for x in snr.tolist()]
        [3.7, -6.2]

    Reference: Sec. VI-A, "Network model"; docs/model.md.
    """
    budget = budget or LinkBudget()
    if positions.ndim != 2 or positions.shape[1] != 2:
        raise ValueError(f"positions must have shape [K, 2]; got {list(positions.shape)}")
    check_finite("positions", positions)
    if budget.shadowing_db > 0 and generator is None:
        raise ValueError("generator must be given when the budget has shadowing; got None")
    distance = positions.double().norm(dim=1)
    if warn:
        _warn_outside(distance, budget.carrier_mhz, budget.base_m, budget.user_m, stacklevel=stacklevel)
    if generator is None or budget.shadowing_db == 0:
        return budget.snr_db(distance, warn=False)
    shadowing = budget.shadowing_db * torch.from_numpy(generator.standard_normal(len(distance)))
    return budget.snr_db(distance, shadowing, warn=False)


def noise_variance(snr_db: Tensor) -> Tensor:
    """Return the variance of the real noise on a unit-power symbol: `sigma2 = 10**(-SNR/10)`.

    With fading of `E[h**2] = 1` the mean of the instantaneous SNR `h**2 / sigma2` is then the mean SNR.

    Example:
        >>> noise_variance(torch.tensor([0.0, 10.0, 20.0]))
        tensor([1.0000, 0.1000, 0.0100])
    """
    if bool(snr_db.isnan().any()):
        raise ValueError("snr_db must be a number; got NaN")
    return torch.pow(10.0, -snr_db / 10)


@dataclass(frozen=True)
class Cell:
    """One cell: a disc of users and the budget of their links.

    Example:
        >>> [round(Cell().snr_quantile_db(level), 1) for level in (0.05, 0.5, 0.95)]
        [4.1, 8.7, 25.1]

    Reference: Sec. VI-A, "Network model".
    """

    radius_km: float = 1.0
    budget: LinkBudget = field(default_factory=LinkBudget)

    def __post_init__(self) -> None:
        _check_number("radius_km", self.radius_km, positive=True)

    def place_users(self, count: int, generator: np.random.Generator) -> Tensor:
        """Return `count` positions `[K, 2]` uniform in the cell; see `place_users`."""
        return place_users(count, generator, self.radius_km)

    def mean_snr_db(
        self, positions: Tensor, generator: np.random.Generator | None = None, *, warn: bool = True
    ) -> Tensor:
        """Return each user's mean SNR `[K]` in dB; see `mean_snr_db`."""
        return mean_snr_db(positions, self.budget, generator, warn=warn, stacklevel=3)

    def snr_quantile_db(self, level: float) -> float:
        """Return the mean SNR in dB that a fraction `level` of all users stays below, without shadowing.

        The loss grows with distance and `P(distance > d) = 1 - (d/radius)**2`, so the user at that level
        stands at `radius * sqrt(1 - level)`.
        """
        if not 0 <= level <= 1:
            raise ValueError(f"level must be between 0 and 1; got {level!r}")
        distance = torch.tensor(self.radius_km * math.sqrt(1 - level), dtype=torch.float64)
        return float(self.budget.snr_db(distance, warn=False))
