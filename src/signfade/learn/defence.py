"""What the server does before it believes a round: bounds on the scalars, reliability of the devices."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from signfade.learn.encode import Encoder
from signfade.learn.received import Received
from signfade.learn.reliability import Reliability
from signfade.learn.round import Uplink
from signfade.server import ScalarState, bound_scalars, initial_scalars
from signfade.settings import DefenceSettings, RunSettings

__all__ = ["Defence", "make_defence"]

_SCALARS = ("heard", "logs", "means")  # of the state that is saved


class Defence:
    """The defences of a run, with what they remember between rounds.

    Args:
        settings: Section `defence` of the configuration.
        encoder: The device's half of the method.
        population: Number of devices in the cell.
        seed: Seed of the run.

    Attributes:
        reliability: What is learned about the devices; None where nothing is.
        changed: Whether the last round was believed otherwise than it was received.
    """

    def __init__(self, settings: DefenceSettings, encoder: Encoder, population: int, seed: int) -> None:
        self._settings = settings
        self._scalars = initial_scalars(population, len(encoder.segments))
        self._mean_step, self._scale_step = 0.0, 1.0
        if encoder.method.side_bits is not None:
            code = encoder.scalar_code
            self._mean_step, self._scale_step = code.mean_step, code.scales.bound**2
        self._all_signals = encoder.method.aggregator == "bfl"
        self.changed = False
        self.reliability = Reliability(encoder, population, seed) if settings.reliability else None

    def __call__(self, uplink: Uplink, received: Received, round: int) -> Received:
        """Return what was received as far as it is to be believed.

        Args:
            uplink: The round: from whom, and the weights that were broadcast.
            received: What was received.
            round: Round, counted from 0.
        """
        if self._all_signals and self.reliability is not None:
            _ = received.y  # the rule needs all signals at once, so they may as well be made now
        if self._settings.bound_scales:
            told = (received.layer_mean, received.layer_scale)
            mean, scale, self._scalars = bound_scalars(
                self._scalars,
                *told,
                torch.from_numpy(uplink.devices),
                mean_step=self._mean_step,
                scale_step=self._scale_step,
            )
            self.changed = not (torch.equal(mean, told[0]) and torch.equal(scale, told[1]))
            received = received.believed(layer_mean=mean, layer_scale=scale)
        if self.reliability is not None:
            assert uplink.weights is not None
            fresh = np.ones(len(received), dtype=bool) if uplink.fresh is None else uplink.fresh
            trust = self.reliability.observe(received, uplink.devices, fresh, uplink.weights, round)
            weights = (received.weights.double() * trust).to(received.weights)
            received = received.believed(trust=trust, weights=weights)
            self.changed = True
        return received

    @property
    def record(self) -> dict[str, list[float]]:
        """What a round's record says: the smallest, the median and the largest reliability of all devices."""
        if self.reliability is None:
            return {}
        trust = self.reliability.known.trust
        places = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
        return {"reliability": [round(float(x), 4) for x in torch.quantile(trust, places)]}

    def state(self) -> dict[str, Tensor]:
        """Return what must be saved."""
        saved = {f"scalars.{name}": getattr(self._scalars, name) for name in _SCALARS}
        if self.reliability is not None:
            saved |= {f"reliability.{name}": value for name, value in self.reliability.state().items()}
        return saved

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        self._scalars = ScalarState(*(state[f"scalars.{name}"] for name in _SCALARS))
        if self.reliability is not None:
            prefix = "reliability."
            self.reliability.restore(
                {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
            )


def make_defence(settings: RunSettings, encoder: Encoder, population: int) -> Defence | None:
    """Return the defences of a run; None where there are none."""
    if not (settings.defence.bound_scales or settings.defence.reliability):
        return None
    return Defence(settings.defence, encoder, population, settings.seed)
