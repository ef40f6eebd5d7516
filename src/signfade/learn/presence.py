"""Who is there in a round: devices that drop out, that are late, that are short of power."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.keys import generator
from signfade.learn.task import Devices, LocalGradients, Task
from signfade.settings import PresenceSettings
from signfade.uplink import Link

__all__ = ["Presence"]

_FREE = -1


class Presence:
    """Keeps track of who computes what since when; the server uses whatever arrives.

    A device that is asked and free starts a gradient at the weights of that round. With probability `late` it
    needs `staleness` rounds more: until then it is busy, then it sends over that round's link, rotated as all
    others are in that round. Whatever arrives is lost with probability `dropout`, and sent at reduced power
    with probability `limited`.

    Args:
        settings: Section `presence` of the configuration.
        population: Number of devices N in the cell.
        seed: Seed of the run.

    Example:
        >>> presence = Presence(PresenceSettings(late=1.0, staleness=2), population=3, seed=0)
        >>> heard = []
        >>> for t in range(5):
        ...     presence.begin(torch.full((1,), float(t)), t)
        ...     heard.append(presence.heard(np.arange(3), t).tolist())
        >>> heard  # all start in round 0 and again in round 3
        [[], [], [0, 1, 2], [], []]
    """

    def __init__(self, settings: PresenceSettings, population: int, seed: int) -> None:
        self._settings, self._seed = settings, seed
        self._started = np.full(population, _FREE, dtype=np.int64)
        self._origin = np.zeros(population, dtype=np.int64)
        self._weights: dict[int, Tensor] = {}

    def begin(self, weights: Tensor, round: int) -> None:
        """Take note of the weights that are broadcast in a round; forget those nobody works on."""
        if self._settings.late > 0:
            oldest = round - self._settings.staleness
            self._weights = {t: kept for t, kept in self._weights.items() if t >= oldest}
            self._weights[round] = weights.clone()

    def heard(self, asked: Devices, round: int) -> Devices:
        """Return who is heard in a round, ascending, of those asked and those that were late.

        Args:
            asked: Who is asked, ascending.
            round: Round, counted from 0; rounds must come in order.
        """
        settings, population = self._settings, len(self._started)
        arriving = (self._started != _FREE) & (self._started + settings.staleness == round)
        fresh = np.zeros(population, dtype=bool)
        fresh[asked] = True
        fresh &= self._started == _FREE
        self._origin = np.where(arriving, self._started, round)
        self._started[arriving] = _FREE
        if settings.late > 0:
            late = fresh & (self._draw("late", round) < settings.late)
            self._started[late] = round
            fresh &= ~late
        there = fresh | arriving
        if settings.dropout > 0:
            there &= self._draw("dropout", round) >= settings.dropout
        return np.flatnonzero(there)

    def late(self, devices: Devices, round: int) -> NDArray[np.bool_]:
        """Tell which of the devices heard in a round began earlier, `[K]`."""
        return np.asarray(self._origin[devices] != round)

    def local_gradients(self, task: Task, weights: Tensor, devices: Devices, round: int) -> LocalGradients:
        """Return each device's gradient at the weights of the round in which it began.

        A model's buffers are those of the present: only weights are kept.
        """
        origin = self._origin[devices]
        if (origin == round).all():
            return task.local_gradients(weights, devices, round)
        gradients = torch.empty(len(devices), task.size)
        losses = torch.empty(len(devices))
        for began in np.unique(origin):
            rows = np.flatnonzero(origin == began)
            at = weights if began == round else self._weights[int(began)]
            part = task.local_gradients(at, devices[rows], int(began))
            gradients[rows], losses[rows] = part.gradients, part.losses.to(losses)
        return LocalGradients(gradients, losses)

    def limit(self, link: Link, devices: Devices, round: int) -> Link:
        """Return the links with the gains of those short of power lowered: `h * 10^(-backoff_db/20)`."""
        settings = self._settings
        if settings.limited == 0:
            return link
        short = torch.from_numpy(self._draw("power", round)[devices] < settings.limited)
        factor = 10 ** (-settings.backoff_db / 20)
        return Link(torch.where(short, factor * link.h, link.h), link.sigma2)

    def _draw(self, purpose: str, round: int) -> NDArray[np.float64]:
        return generator(self._seed, purpose, round).random(len(self._started))

    def state(self) -> dict[str, Tensor]:
        """Return what must be saved: who is busy since when, and the weights of those rounds."""
        rounds = sorted(self._weights)
        saved = {"started": torch.from_numpy(self._started.copy()), "rounds": torch.tensor(rounds)}
        if rounds:
            saved["weights"] = torch.stack([self._weights[t] for t in rounds])
        return saved

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        self._started = state["started"].numpy().copy()
        rounds = [int(t) for t in state["rounds"]]
        self._weights = {t: weights.clone() for t, weights in zip(rounds, state.get("weights", []))}
