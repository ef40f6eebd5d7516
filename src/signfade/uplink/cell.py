"""The cell: the link budget, and where the users stand.

All SNRs here are *mean* SNRs in dB: averaged over the fading, which has `E[h**2] = 1`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from signfade._check import check_choice, check_finite
from signfade.uplink.pathloss import CITIES, check_number, cost231_hata, warn_outside

__all__ = ["Cell", "LinkBudget", "mean_snr_db", "noise_variance", "place_users"]

BOLTZMANN = 1.380649e-23  # joule per kelvin, exact by definition of the kelvin


@dataclass(frozen=True)
class LinkBudget:
    """What a user's transmitter, the air and the base station's receiver add and take away, in dB.

    `SNR = power + gains - path loss - shadowing - noise`, `noise = 10 log10(k T B / 1 mW) + noise figure`.
    `gains_db` sums the antennas of both ends, less cables and bodies. `shadowing_db` is the deviation of
    the log-normal shadowing, zero for none.

    Example:
        >>> budget = LinkBudget()
        >>> round(budget.noise_dbm, 2)
        -116.42
        >>> round(float(budget.snr_db(torch.tensor(1.0))), 1)
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
            check_number(name, getattr(self, name), positive=False)
        for name in ("bandwidth_hz", "temperature_k", "carrier_mhz", "base_m", "user_m"):
            check_number(name, getattr(self, name), positive=True)
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
            warn_outside(distance_km, *place, stacklevel=2)
        return self.power_dbm + self.gains_db - loss - shadowing - self.noise_dbm


def place_users(count: int, generator: np.random.Generator, radius_km: float = 1.0) -> Tensor:
    """Return positions of users uniform in a disc around the base station, in km.

    Distance `radius * sqrt(u)`, angle `2 pi v`, with u and v uniform: the area within r grows as r squared.

    Args:
        count: number of users K.
        generator: see [`keys.generator`][signfade.keys.generator]. User k stands in the same place however
            many come after.
        radius_km: radius of the cell.

    Returns:
        Positions `[K, 2]`, float64.

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
    """Return each user's mean SNR in dB.

    Args:
        positions: `[K, 2]`, km from the base station.
        budget: the link budget; its defaults if None.
        generator: source of the shadowing, one draw a user; needed if the budget has any.
        warn: whether to warn, once a call, where COST-231 Hata is extrapolated (any user inside 1 km).
        stacklevel: whose line the warning names, counted as `warnings.warn` does.

    Returns:
        Mean SNR `[K]`, float64.

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
        warn_outside(distance, budget.carrier_mhz, budget.base_m, budget.user_m, stacklevel=stacklevel)
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

    Reference: docs/model.md.
    """
    if bool(snr_db.isnan().any()):
        raise ValueError("snr_db must be a number; got NaN")
    return torch.pow(10.0, -snr_db / 10)


@dataclass(frozen=True)
class Cell:
    """One cell: a disc of users and the budget of their links.

    Example:
        >>> from signfade.keys import generator
        >>> cell = Cell()
        >>> users = cell.place_users(4, generator(1, "positions"))
        >>> noise_variance(cell.mean_snr_db(users, warn=False)).shape
        torch.Size([4])
        >>> [round(cell.snr_quantile_db(level), 1) for level in (0.05, 0.5, 0.95)]
        [4.1, 8.7, 25.1]

    Reference: Sec. VI-A, "Network model".
    """

    radius_km: float = 1.0
    budget: LinkBudget = field(default_factory=LinkBudget)

    def __post_init__(self) -> None:
        check_number("radius_km", self.radius_km, positive=True)

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
