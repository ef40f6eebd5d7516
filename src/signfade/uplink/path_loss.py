"""Path loss: what the air takes away between a device and the base station, by model.

Every model is one entry of `PATH_LOSSES`. A model with a probability of line of sight has two losses and two
deviations of shadowing; which one a device has is drawn once per run (`Cell.propagate`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade._check import check_choice, check_finite, check_positive
from signfade.registry import Registry, user_code

__all__ = ["PATH_LOSSES", "OutsideValidity", "PathLoss", "Site", "check_number", "cost231_hata"]

Array = NDArray[np.float64]
SPEED_OF_LIGHT = 299_792_458.0  # m/s, exact
CITIES = ("medium", "large", "metropolitan")
CLOSEST_KM = 0.02  # COST-231 Hata diverges at the mast; nobody stands closer than this

Distance = TypeVar("Distance", float, Tensor, NDArray[Any])


class OutsideValidity(UserWarning):
    """A path loss is used outside the ranges its measurements covered."""


def check_number(name: str, value: float, *, positive: bool) -> None:
    """Raise unless `value` is a finite number, and above zero where it has to be."""
    if not math.isfinite(value) or (positive and value <= 0):
        kind = "positive and finite" if positive else "finite"
        raise ValueError(f"{name} must be {kind}; got {value!r}")


@dataclass(frozen=True)
class Site:
    """What a path loss depends on besides the distance."""

    carrier_mhz: float = 2000.0
    base_m: float = 25.0
    user_m: float = 1.5
    city: str = "metropolitan"  # for COST-231 Hata
    exponent: float = 3.0  # for log-distance


Loss = Callable[[Array, Site], Array]  # horizontal distances in km to dB


@dataclass(frozen=True)
class PathLoss:
    """One model: median losses in dB at horizontal distances in km, with and without line of sight.

    `ranges` are what the model was measured in, by the names of `Site` and `distance_km`; distances below
    `closest_km` count as that.
    """

    help: str
    title: str  # its name in sentences
    blocked: Loss  # without line of sight, or where the model does not tell the two apart
    clear: Loss | None = None  # in line of sight
    sight: Callable[[Array], Array] | None = None  # probability of line of sight at a distance
    base_m: float = 25.0  # height of the base station's antenna, unless it is set
    shadowing_db: tuple[float, float] = (0.0, 0.0)  # deviation in line of sight and without
    closest_km: float = 0.01
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def loss_db(self, distance_km: Array, site: Site, line_of_sight: NDArray[np.bool_]) -> Array:
        """Return the median loss in dB; all arrays have one shape.

        Example:
            >>> here, both = np.full(2, 0.2), np.array([True, False])
            >>> PATH_LOSSES.find("uma").loss_db(here, Site(), both).round(1)
            array([ 84.7, 109.6])
        """
        distance = np.maximum(distance_km, self.closest_km)
        blocked = self.blocked(distance, site)
        if self.clear is None:
            return blocked
        clear = self.clear(distance, site)
        return np.where(line_of_sight, clear, np.maximum(clear, blocked))

    def sight_probability(self, distance_km: Array) -> Array:
        """Return the probability of line of sight; zero where the model does not tell the two apart."""
        distance = np.maximum(np.asarray(distance_km, dtype=np.float64), self.closest_km)
        return np.zeros_like(distance) if self.sight is None else self.sight(distance)

    def outside(self, distance_km: Array, site: Site) -> list[str]:
        """Return every parameter outside the range that the model was measured in, with that range.

        The text holds no distances: Python shows an unchanged warning once per place in the code, so a run
        that places its users again and again stays quiet.
        """
        found = []
        for name, (low, high) in self.ranges.items():
            values = np.asarray(distance_km if name == "distance_km" else getattr(site, name))
            if ((values < low) | (values > high)).any():
                got = "" if name == "distance_km" else f" = {float(values):g}"
                found.append(f"{name}{got} ({low:g} to {high:g})")
        return found

    def warn(self, distance_km: Array, site: Site, *, stacklevel: int) -> None:
        """Warn once, naming every parameter outside its range."""
        if outside := self.outside(distance_km, site):
            text = f"{self.title} is extrapolated in {', '.join(outside)}; pass warn=False to silence this"
            warnings.warn(text, OutsideValidity, stacklevel=stacklevel + 1)


def _own(path: str, function: Callable[..., Any]) -> PathLoss:
    """Take a function of distances in km, `[K]`, and the `Site`, which returns losses in dB, `[K]`."""

    def loss(distance_km: Array, site: Site) -> Array:
        with user_code(path):
            found = np.asarray(function(distance_km, site), dtype=np.float64)
            if found.shape != distance_km.shape or not np.isfinite(found).all():
                raise ValueError(f"it must return one finite loss for each of {distance_km.size} distances")
            return found

    return PathLoss("your own", path, loss, closest_km=0.001)


PATH_LOSSES: Registry[PathLoss] = Registry("cell.path_loss", _own)


# -- 3GPP TR 38.901, Tables 7.4.1-1 and 7.4.2-1, devices outdoors --------------------------------------------


def _metres(distance_km: Array, site: Site) -> Array:
    """Return the distance from antenna to antenna, d3D."""
    return np.hypot(1e3 * distance_km, site.base_m - site.user_m)


def _two_slopes(near: tuple[float, float], bend: float) -> Loss:
    """Line of sight in a street: slope `near[1]` up to the breakpoint, 40 dB per decade beyond.

    `near[0] + near[1] log10(d3D) + 20 log10(f)`, then `near[0] + 40 log10(d3D) + 20 log10(f) - bend
    log10(dBP^2 + (hBS - hUT)^2)`, `dBP = 4 (hBS - 1)(hUT - 1) f/c` (the environment is 1 m high for devices
    below 13 m).
    """

    def loss(distance_km: Array, site: Site) -> Array:
        hertz, heights = 1e6 * site.carrier_mhz, (site.base_m - 1) * (site.user_m - 1)
        breakpoint_m = 4 * max(heights, 0.0) * hertz / SPEED_OF_LIGHT
        far, constant = np.log10(_metres(distance_km, site)), near[0] + 20 * math.log10(hertz / 1e9)
        bent = bend * math.log10(max(breakpoint_m**2 + (site.base_m - site.user_m) ** 2, 1.0))
        return constant + np.where(1e3 * distance_km <= breakpoint_m, near[1] * far, 40 * far - bent)

    return loss


def _one_slope(constant: float, slope: float, per_decade: float, per_metre: float = 0.0) -> Loss:
    """`constant + slope log10(d3D) + per_decade log10(f in GHz) - per_metre (hUT - 1.5)`."""

    def loss(distance_km: Array, site: Site) -> Array:
        fixed = constant + per_decade * math.log10(site.carrier_mhz / 1e3) - per_metre * (site.user_m - 1.5)
        return fixed + slope * np.log10(_metres(distance_km, site))

    return loss


def _street_sight(decay_m: float) -> Callable[[Array], Array]:
    """`18/d + exp(-d/decay) (1 - 18/d)`, one within 18 m."""

    def sight(distance_km: Array) -> Array:
        share = np.minimum(0.018 / distance_km, 1.0)
        return np.asarray(share + np.exp(-1e3 * distance_km / decay_m) * (1 - share))

    return sight


def _office_sight(distance_km: Array) -> Array:
    """`exp(-(d - 1.2)/4.7)` up to 6.5 m, `0.32 exp(-(d - 6.5)/32.6)` beyond: a mixed office."""
    metres = 1e3 * distance_km
    near, far = np.exp(-np.maximum(metres - 1.2, 0) / 4.7), 0.32 * np.exp(-(metres - 6.5) / 32.6)
    return np.where(metres < 6.5, near, far)


_STREET = {"carrier_mhz": (500.0, 100e3), "user_m": (1.5, 13.0), "distance_km": (0.0, 5.0)}

PATH_LOSSES.add(
    "uma",
    PathLoss(
        help="3GPP TR 38.901 urban macrocell: a mast of 25 m above the roofs, up to 5 km",
        title="3GPP UMa",
        blocked=_one_slope(13.54, 39.08, 20.0, 0.6),
        clear=_two_slopes((28.0, 22.0), 9.0),
        sight=_street_sight(63.0),
        shadowing_db=(4.0, 6.0),
        ranges=_STREET,
    ),
)
PATH_LOSSES.add(
    "umi",
    PathLoss(
        help="3GPP TR 38.901 urban microcell, street canyon: a lamp post of 10 m, up to 5 km",
        title="3GPP UMi",
        blocked=_one_slope(22.4, 35.3, 21.3, 0.3),
        clear=_two_slopes((32.4, 21.0), 9.5),
        sight=_street_sight(36.0),
        base_m=10.0,
        shadowing_db=(4.0, 7.82),
        ranges=_STREET,
    ),
)
PATH_LOSSES.add(
    "inh",
    PathLoss(
        help="3GPP TR 38.901 indoor hotspot, mixed office: a ceiling of 3 m, up to 0.15 km",
        title="3GPP InH",
        blocked=_one_slope(17.3, 38.3, 24.9),
        clear=_one_slope(32.4, 17.3, 20.0),
        sight=_office_sight,
        base_m=3.0,
        shadowing_db=(3.0, 8.03),
        closest_km=0.001,
        ranges={"carrier_mhz": (500.0, 100e3), "distance_km": (0.0, 0.15)},
    ),
)


# -- the others ----------------------------------------------------------------------------------------------


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
        check_number(name, value, positive=True)
    check_choice("city", city, CITIES)
    if warn:
        site = Site(carrier_mhz, base_m, user_m, city)
        PATH_LOSSES.find("cost231").warn(distance.numpy(), site, stacklevel=2)
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


def _cost231(distance_km: Array, site: Site) -> Array:
    return cost231_hata(distance_km, site.carrier_mhz, site.base_m, site.user_m, site.city, warn=False)


def _free_space(distance_km: Array, site: Site) -> Array:
    """`20 log10(4 pi d f / c)`, Friis."""
    return 20 * np.log10(4e6 * np.pi * _metres(distance_km, site) * site.carrier_mhz / SPEED_OF_LIGHT)


def _log_distance(distance_km: Array, site: Site) -> Array:
    """Free space up to 1 m, then `10 exponent` dB per decade."""
    metre = 20 * math.log10(4e6 * math.pi * site.carrier_mhz / SPEED_OF_LIGHT)
    return metre + 10 * site.exponent * np.log10(_metres(distance_km, site))


PATH_LOSSES.add(
    "cost231",
    PathLoss(
        help="COST-231 Hata, the paper's: a mast of 70 m, measured at 1 to 20 km",
        title="COST-231 Hata",
        blocked=_cost231,
        base_m=70.0,
        closest_km=CLOSEST_KM,
        ranges={
            "carrier_mhz": (1500.0, 2000.0),
            "base_m": (30.0, 200.0),
            "user_m": (1.0, 10.0),
            "distance_km": (1.0, 20.0),
        },
    ),
)
PATH_LOSSES.add("free-space", PathLoss("free space (Friis)", "free space", _free_space, closest_km=0.001))
PATH_LOSSES.add(
    "log-distance",
    PathLoss(
        "free space at 1 m, then 10 cell.exponent dB per decade",
        "log-distance",
        _log_distance,
        closest_km=0.001,
    ),
)
