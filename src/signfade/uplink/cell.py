"""The cell: the link budget, where the users stand, and how their signals get through.

All SNRs here are *mean* SNRs in dB: averaged over the fading, which has `E[h**2] = 1`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, special
from torch import Tensor

from signfade._check import check_choice, check_finite, check_positive
from signfade.uplink.path_loss import CITIES, PATH_LOSSES, PathLoss, Site, check_number

__all__ = ["Cell", "LinkBudget", "Propagation", "mean_snr_db", "noise_variance", "place_users"]

Array = NDArray[np.float64]
BOLTZMANN = 1.380649e-23  # joule per kelvin, exact by definition of the kelvin
_RINGS = 4096  # rings of equal area that stand for a disc


@dataclass(frozen=True)
class Propagation:
    """How the signals of K users reach the base station; all `[K]`, losses in dB."""

    line_of_sight: NDArray[np.bool_]
    path_loss_db: Array  # median at the user's distance
    shadowing_db: Array  # on top of it

    @property
    def loss_db(self) -> Array:
        """Path loss and shadowing together."""
        return self.path_loss_db + self.shadowing_db


@dataclass(frozen=True)
class LinkBudget:
    """What a user's transmitter, the air and the base station's receiver add and take away, in dB.

    `SNR = power + gains - path loss - shadowing - noise`, `noise = 10 log10(k T B / 1 mW) + noise figure`.
    `gains_db` sums the antennas of both ends, less cables and bodies. `shadowing_db` is the deviation of
    the log-normal shadowing, zero for none; `base_m` the height of the base station. Both are the path-loss
    model's own if they are `"auto"`.

    Example:
        >>> budget = LinkBudget(path_loss="cost231")
        >>> round(float(budget.snr_db(torch.tensor(1.0))), 1), budget.site.base_m
        (3.7, 70.0)

    Reference: Sec. VI-A, "Network model". The paper gives the two heights; the rest is our choice.
    """

    power_dbm: float = 23.0
    gains_db: float = 0.0
    bandwidth_hz: float = 180e3
    noise_figure_db: float = 5.0
    temperature_k: float = 290.0
    path_loss: str = "uma"
    carrier_mhz: float = 2000.0
    base_m: float | Literal["auto"] = "auto"
    user_m: float = 1.5
    city: str = "metropolitan"
    exponent: float = 3.0
    shadowing_db: float | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        for name in ("power_dbm", "gains_db", "noise_figure_db"):
            check_number(name, getattr(self, name), positive=False)
        for name in ("bandwidth_hz", "temperature_k", "carrier_mhz", "user_m", "exponent"):
            check_number(name, getattr(self, name), positive=True)
        if self.base_m != "auto":
            check_number("base_m", self.base_m, positive=True)
        if self.shadowing_db != "auto" and not 0 <= self.shadowing_db < math.inf:
            raise ValueError(f"shadowing_db must be non-negative and finite; got {self.shadowing_db!r}")
        check_choice("city", self.city, CITIES)
        PATH_LOSSES.check(self.path_loss)

    @cached_property
    def model(self) -> PathLoss:
        """The path-loss model."""
        return PATH_LOSSES.find(self.path_loss)

    @property
    def site(self) -> Site:
        """What the path loss depends on besides the distance."""
        base_m = self.model.base_m if self.base_m == "auto" else self.base_m
        return Site(self.carrier_mhz, base_m, self.user_m, self.city, self.exponent)

    @property
    def deviations_db(self) -> tuple[float, float]:
        """Deviation of the shadowing in line of sight and without."""
        return self.model.shadowing_db if self.shadowing_db == "auto" else (self.shadowing_db,) * 2

    @property
    def noise_dbm(self) -> float:
        """Power of the thermal noise in the band, with the receiver's noise figure, in dBm."""
        thermal_mw = 1e3 * BOLTZMANN * self.temperature_k * self.bandwidth_hz
        return 10 * math.log10(thermal_mw) + self.noise_figure_db

    def snr_db(
        self,
        distance_km: Tensor,
        shadowing: Tensor | float = 0.0,
        *,
        line_of_sight: bool = False,
        warn: bool = True,
    ) -> Tensor:
        """Return the mean SNR in dB at `distance_km`, less the `shadowing` losses in dB (broadcast).

        Warns where the path loss is extrapolated; the result is float64.
        """
        check_finite("shadowing", torch.as_tensor(shadowing))
        check_positive("distance_km", distance_km, zero=True)
        check_finite("distance_km", distance_km)
        distance = distance_km.double().numpy()
        if warn:
            self.model.warn(distance, self.site, stacklevel=2)
        loss = self.model.loss_db(distance, self.site, np.full(distance.shape, line_of_sight))
        return (
            self.power_dbm + self.gains_db - torch.from_numpy(np.asarray(loss)) - shadowing - self.noise_dbm
        )

    def propagate(self, distance_km: Array, generator: np.random.Generator | None) -> Propagation:
        """Draw line of sight and shadowing of users at these distances, `[K]`.

        User k's draw does not depend on how many come after. A generator is needed where there is something
        to draw.
        """
        model, deviations = self.model, self.deviations_db
        if generator is None and (model.sight is not None or any(deviations)):
            raise ValueError("generator must be given when there is shadowing or line of sight; got None")
        sight, normal = np.zeros(len(distance_km), dtype=bool), np.zeros(len(distance_km))
        if generator is not None and model.sight is not None:
            normal, other = generator.standard_normal((len(distance_km), 2)).T
            sight = special.ndtr(other) < model.sight_probability(distance_km)
        elif generator is not None and any(deviations):
            normal = generator.standard_normal(len(distance_km))
        shadowing = np.where(sight, *deviations) * normal
        return Propagation(sight, model.loss_db(distance_km, self.site, sight), shadowing)


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
    check_number("radius_km", radius_km, positive=True)
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

    The generator is the source of line of sight and shadowing, one draw per user, and needed if the budget
    has any. Warns once per call where the path loss is extrapolated; `stacklevel` says whose line the warning
    names, as in `warnings.warn`.

    Example:
        >>> places = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> [round(x, 1) for x in mean_snr_db(places, LinkBudget(path_loss="cost231")).tolist()]
        [3.7, -6.2]

    Reference: Sec. VI-A, "Network model"; docs/model.md.
    """
    budget = budget or LinkBudget()
    distance = _distances(positions)
    if warn:
        budget.model.warn(distance, budget.site, stacklevel=stacklevel)
    loss = budget.propagate(distance, generator).loss_db
    return torch.from_numpy(budget.power_dbm + budget.gains_db - loss - budget.noise_dbm)


def _distances(positions: Tensor) -> Array:
    if positions.ndim != 2 or positions.shape[1] != 2:
        raise ValueError(f"positions must have shape [K, 2]; got {list(positions.shape)}")
    check_finite("positions", positions)
    return np.asarray(positions.double().norm(dim=1))


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
        [-2.9, 9.9, 35.6]

    Reference: Sec. VI-A, "Network model".
    """

    radius_km: float = 1.0
    budget: LinkBudget = field(default_factory=LinkBudget)

    def __post_init__(self) -> None:
        check_number("radius_km", self.radius_km, positive=True)

    def place_users(self, count: int, generator: np.random.Generator) -> Tensor:
        """Return `count` positions `[K, 2]` uniform in the cell; see `place_users`."""
        return place_users(count, generator, self.radius_km)

    def propagate(self, positions: Tensor, generator: np.random.Generator | None = None) -> Propagation:
        """Draw line of sight and shadowing of users at these positions, `[K, 2]`."""
        return self.budget.propagate(_distances(positions), generator)

    def mean_snr_db(
        self, positions: Tensor, generator: np.random.Generator | None = None, *, warn: bool = True
    ) -> Tensor:
        """Return each user's mean SNR `[K]` in dB; see `mean_snr_db`."""
        return mean_snr_db(positions, self.budget, generator, warn=warn, stacklevel=3)

    def snr_cdf(self, snr_db: Array | float) -> Array:
        """Return the fraction of all users whose mean SNR is at most `snr_db`, of its shape.

        `E[p Phi((x - clear)/s_clear) + (1 - p) Phi((x - blocked)/s_blocked)]` over users uniform in the disc,
        with the probability p of line of sight, the median SNRs and the deviations of the shadowing.
        """
        distance, total = self._rings, np.zeros(np.shape(snr_db))
        level = np.asarray(snr_db, dtype=np.float64)[..., None]
        sight = self.budget.model.sight_probability(distance)
        for clear, deviation in zip((True, False), self.budget.deviations_db):
            weight = sight if clear else 1 - sight
            if weight.any():
                median = self.budget.snr_db(torch.from_numpy(distance), line_of_sight=clear, warn=False)
                over = level - median.numpy()
                below = special.ndtr(over / deviation) if deviation > 0 else over >= 0
                total = total + (weight * below).mean(axis=-1)
        return np.asarray(total)

    @property
    def _rings(self) -> Array:
        """Distances in km that stand for rings of equal area."""
        return self.radius_km * np.sqrt((np.arange(_RINGS) + 0.5) / _RINGS)

    def snr_quantile_db(self, level: float) -> float:
        """Return the mean SNR in dB that a fraction `level` of all users stays below.

        Without shadowing and line of sight the loss grows with distance and `P(distance > d) = 1 -
        (d/radius)**2`, so the user at that level stands at `radius * sqrt(1 - level)`. Otherwise `snr_cdf` is
        inverted.
        """
        if not 0 <= level <= 1:
            raise ValueError(f"level must be between 0 and 1; got {level!r}")
        if self.budget.model.sight is None and not any(self.budget.deviations_db):
            distance = torch.tensor(self.radius_km * math.sqrt(1 - level), dtype=torch.float64)
            return float(self.budget.snr_db(distance, warn=False))
        if level in (0, 1):
            return math.copysign(math.inf, level - 0.5)
        found = optimize.brentq(lambda x: float(self.snr_cdf(x)) - level, -1000.0, 1000.0, xtol=1e-6)
        return float(found)
