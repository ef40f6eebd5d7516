"""Who takes part in a round: devices that drop out, that are late, that are short of power."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.keys import generator
from signfade.server import Devices
from signfade.settings import AvailabilitySettings
from signfade.uplink import Link

__all__ = ["Availability", "AvailabilityState", "Present", "choose_devices"]

_FREE = -1


def choose_devices(count: int, participation: float, seed: int, round: int) -> Devices:
    """Draw who is asked to take part in a round, at least one, in ascending order.

    Example:
        >>> len(choose_devices(1000, participation=0.01, seed=0, round=3))
        10
    """
    if participation >= 1:
        return np.arange(count)
    asked = max(1, int(np.floor(count * participation + 0.5)))
    return np.sort(generator(seed, "participation", round).choice(count, size=asked, replace=False))


@dataclass(frozen=True)
class AvailabilityState:
    """Since when each device has been computing, `[N]`, -1 if it is free; and the models of those rounds."""

    started: NDArray[np.int64]
    models: dict[str, Tensor]


class Present(NamedTuple):
    """Who is received in a round, ascending, and in which round each began its gradient, `[K]` each."""

    devices: Devices
    began: NDArray[np.int64]


class Availability:
    """Stage: which of the devices that were asked are received.

    A late device begins in one round and is received `staleness` rounds later, with the gradient of the model
    it began with. It is not asked again in between.

    Args:
        settings: Section `availability` of the configuration.
        population: Number of devices in the cell.
        seed: Seed of the run.

    Example:
        >>> late = Availability(AvailabilitySettings(late=1.0, staleness=2), population=3, seed=0)
        >>> state, received = late.init(), []
        >>> for t in range(5):
        ...     state, present = late.apply(state, np.arange(3), torch.full((1,), float(t)), t)
        ...     received.append(present.devices.tolist())
        >>> received
        [[], [], [0, 1, 2], [], []]
    """

    def __init__(self, settings: AvailabilitySettings, population: int, seed: int) -> None:
        self._settings, self._population, self._seed = settings, population, seed

    def init(self) -> AvailabilityState:
        """Return the state in which every device is free."""
        return AvailabilityState(np.full(self._population, _FREE, dtype=np.int64), {})

    def apply(
        self, state: AvailabilityState, asked: Devices, model: Tensor, round: int
    ) -> tuple[AvailabilityState, Present]:
        """Return who is received in a round, maybe nobody.

        Args:
            state: From the last round. Not modified.
            asked: Who is asked, ascending.
            model: The weights that are broadcast, `[M]`.
            round: Counted from 0; rounds must come in order.
        """
        settings = self._settings
        if max(settings.dropout, settings.late) == 0:
            return state, Present(asked, np.full(len(asked), round))
        started, models = state.started.copy(), state.models
        if settings.late > 0:
            oldest = round - settings.staleness
            models = {t: kept for t, kept in models.items() if int(t) >= oldest} | {str(round): model.clone()}
        arriving = (started != _FREE) & (started + settings.staleness == round)
        fresh = np.zeros(self._population, dtype=bool)
        fresh[asked] = True
        fresh &= started == _FREE
        began = np.where(arriving, started, round)
        started[arriving] = _FREE
        if settings.late > 0:
            late = fresh & (self._draw("late", round) < settings.late)
            started[late] = round
            fresh &= ~late
        there = fresh | arriving
        if settings.dropout > 0:
            there &= self._draw("dropout", round) >= settings.dropout
        devices = np.flatnonzero(there)
        return AvailabilityState(started, models), Present(devices, began[devices])

    def limit(self, link: Link, devices: Devices, round: int) -> Link:
        """Return the links with the gains of those short of power lowered: `h * 10^(-backoff_db/20)`."""
        settings = self._settings
        if settings.limited == 0:
            return link
        short = torch.from_numpy(self._draw("power", round)[devices] < settings.limited)
        factor = 10 ** (-settings.backoff_db / 20)
        return Link(torch.where(short, factor * link.h, link.h), link.sigma2)

    def _draw(self, purpose: str, round: int) -> NDArray[np.float64]:
        return generator(self._seed, purpose, round).random(self._population)
