"""Stages that work on the scalars: bounds against lies, and the range of the quantiser."""

from __future__ import annotations

from typing import Any

import torch

from signfade.device import Encoder
from signfade.device.scale_range import RangeState, follow_scales
from signfade.server.received import Received
from signfade.server.robust import ScalarState, bound_scalars, initial_scalars

__all__ = ["BoundScalars", "FollowScales"]


class FollowScales:
    """Stage: moves the range of the scale quantiser for the next round to the scales decoded in this one."""

    name = "scale_range"

    def init(self) -> RangeState:
        """Return the range before anything was decoded."""
        return RangeState()

    def apply(self, state: RangeState, received: Received) -> tuple[RangeState, Received, dict[str, Any]]:
        """Take the scales of a round into account; those of lost codewords do not count."""
        scale = received.layer_scale
        return (
            follow_scales(state, scale if received.decoded is None else scale[received.decoded]),
            received,
            {},
        )


class BoundScalars:
    """Stage: replaces means and scales that the other devices do not make plausible.

    Args:
        encoder: The device's half of the method.
        population: Number of devices in the cell.
    """

    name = "bounds"

    def __init__(self, encoder: Encoder, population: int) -> None:
        self._layers, self._population = len(encoder.segments), population

    def init(self) -> ScalarState:
        """Return the state that has received nothing."""
        return initial_scalars(self._population, self._layers)

    def apply(self, state: ScalarState, received: Received) -> tuple[ScalarState, Received, dict[str, Any]]:
        """Bound the scalars of a round."""
        steps: dict[str, Any] = {}
        if received.encoder.quantised:
            code = received.encoder.scalar_code
            steps = {"mean_step": code.mean_step, "scale_step": code.scales.bound**2}
        sent, who = (received.layer_mean, received.layer_scale), torch.from_numpy(received.devices)
        mean, scale, state = bound_scalars(state, *sent, who, **steps)
        altered = not (torch.equal(mean, sent[0]) and torch.equal(scale, sent[1]))
        received = received.but(layer_mean=mean, layer_scale=scale, altered=received.altered or altered)
        return state, received, {}
