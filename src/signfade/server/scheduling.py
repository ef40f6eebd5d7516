"""Who sends in a round, where fewer than all are asked.

A scheduler scores all devices of the cell and asks those of the highest scores. It knows every link of the
round, as a base station does from sounding, and what devices sent before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from signfade.keys import generator
from signfade.server.received import Devices, Received
from signfade.settings import RunSettings
from signfade.theory.rules import rho
from signfade.uplink import Radio

__all__ = ["Schedule", "Scheduler", "choose_devices"]

_WINDOW = 50  # rounds over which proportional fairness averages a device's rate
_LEAST_RATE = 1e-9  # bit/s/Hz of a device that was never served


@dataclass(frozen=True)
class Schedule:
    """What is remembered of each device, `[N]`: its average rate and its last scale, -1 if unknown."""

    rate: Tensor
    scale: Tensor


def choose_devices(count: int, participation: float, seed: int, round: int) -> Devices:
    """Draw who is asked to take part in a round, at least one, in ascending order.

    Example:
        >>> len(choose_devices(1000, participation=0.01, seed=0, round=3))
        10
    """
    if participation >= 1:
        return np.arange(count)
    draw = generator(seed, "participation", round)
    return np.sort(draw.choice(count, size=_asked(count, participation), replace=False))


def _asked(count: int, participation: float) -> int:
    return max(1, int(np.floor(count * participation + 0.5)))


def _best_channel(snr: Tensor, state: Schedule) -> Tensor:
    return snr


def _proportional_fair(snr: Tensor, state: Schedule) -> Tensor:
    """The rate that a link would carry over the average that its device was given."""
    return torch.log2(1 + snr) / state.rate


def _posterior(snr: Tensor, state: Schedule) -> Tensor:
    """`kappa_k**2 rho(gamma_k)`, what a device's bits take from the error of the sum; see docs/radio.md.

    A scale not known yet counts as the largest that is, so that everybody is asked once.
    """
    largest = state.scale.max() if bool((state.scale > 0).any()) else torch.ones(()).double()
    scale = torch.where(state.scale < 0, largest, state.scale)
    return scale.square() * torch.as_tensor(rho(snr.numpy()))


_SCORES: dict[str, Callable[[Tensor, Schedule], Tensor]] = {
    "best-channel": _best_channel,
    "proportional-fair": _proportional_fair,
    "posterior": _posterior,
}


class Scheduler:
    """Chooses the devices of a round."""

    def __init__(self, settings: RunSettings, radio: Radio) -> None:
        self._settings, self._radio = settings, radio
        self._score = _SCORES.get(settings.cell.scheduling)

    def init(self) -> Schedule | None:
        """Return what is remembered before the first round; None where nothing is."""
        if self._score is None:
            return None
        rate = torch.full((self._radio.devices,), _LEAST_RATE, dtype=torch.float64)
        return Schedule(rate, torch.full_like(rate, -1.0))

    def choose(self, state: Schedule | None, round: int) -> tuple[Schedule | None, Devices]:
        """Return who is asked, ascending, and what is remembered then."""
        settings, count = self._settings, self._radio.devices
        if self._score is None or state is None:
            return state, choose_devices(count, settings.data.participation, settings.seed, round)
        snr = self._radio.link(np.arange(count), round).snr.double()
        score = self._score(snr, state)
        best = torch.argsort(score, descending=True, stable=True)[
            : _asked(count, settings.data.participation)
        ]
        devices = best.sort().values
        rate = (1 - 1 / _WINDOW) * state.rate
        rate[devices] += torch.log2(1 + snr[devices]) / _WINDOW
        return replace(state, rate=rate.clamp(min=_LEAST_RATE)), devices.numpy()

    def learn(self, state: Schedule | None, received: Received) -> Schedule | None:
        """Return the state with the scales that arrived in a round."""
        if state is None or not received.encoder.sends_scalars:
            return state
        scale = state.scale.clone()
        scale[received.devices] = received.layer_scale.double().square().mean(dim=1).sqrt()
        return replace(state, scale=scale)
