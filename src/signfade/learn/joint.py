"""The joint posterior in training: the correlation is learned round by round, then one of three rules."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from signfade.learn.received import Received
from signfade.learn.task import Devices
from signfade.server import bfl
from signfade.settings import MethodSettings

__all__ = ["JointEstimate", "JointRule", "correlation_of"]

# Up to so many devices the pairs of all rounds are remembered; beyond, each round learns afresh.
_REMEMBERED_DEVICES = 1000


class JointEstimate(NamedTuple):
    """An estimate `[M]`, the correlation it assumed, and by how much it is known to shrink the sum."""

    estimate: Tensor
    correlation: Tensor | bfl.LowRank
    gain: float


class JointRule:
    """`bfl` for a run: learns the correlation and remembers it between rounds.

    Args:
        method: Section `method` of the configuration.
        population: Number of devices in the cell.
    """

    def __init__(self, method: MethodSettings, population: int) -> None:
        self._method = method
        self._memory = bfl.initial_correlation(population) if population <= _REMEMBERED_DEVICES else None

    def __call__(self, received: Received, devices: Devices, told: Tensor | None) -> JointEstimate:
        """Estimate the sum from what was received.

        Args:
            received: Signals, links and priors.
            devices: Who was heard, `[K]`.
            told: The true correlation, `[K, K]`, used if the method's is `"genie"`.
        """
        correlation = self._correlation(received, devices, told)
        links = (received.h, received.sigma2)
        gain = bfl.joint_gain(*links, received.scale, correlation, received.weights)
        y, mean, scale, weights = received.y, received.mean, received.scale, received.weights
        if self._method.joint == "linear":
            estimate = bfl.joint_blmmse(y, *links, mean, scale, correlation, weights)
        else:
            if isinstance(correlation, bfl.LowRank):
                raise ValueError(f'method.joint must be "linear" for {len(received)} devices a round')
            std = math.sqrt(math.pi / 2) * scale.double()
            if self._method.joint == "ep":
                covariance = correlation * std[:, None] * std[None, :]
                estimate = bfl.bfl(y, *links, mean, covariance, weights, method="ep")
            else:
                shared, private = bfl.fit_factor(correlation)
                estimate = bfl.factor_bfl(y, *links, mean, shared * std, private * std, weights)
        return JointEstimate(estimate, correlation, gain)

    def _correlation(self, received: Received, devices: Devices, told: Tensor | None) -> Tensor | bfl.LowRank:
        if self._method.correlation == "genie":
            if told is None:
                raise ValueError('method.correlation must be "learned" when gradients do not fit in memory')
            return told
        links = (received.y, received.h, received.sigma2)
        if self._memory is None:
            return bfl.learn_low_rank(*links)
        correlation, self._memory = bfl.smooth_correlation(self._memory, *links, torch.from_numpy(devices))
        return correlation

    def state(self) -> dict[str, Tensor]:
        """Return what must be saved."""
        if self._memory is None:
            return {}
        return {"bits": self._memory.bits, "evidence": self._memory.evidence}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        if self._memory is not None:
            self._memory = bfl.CorrelationState(state["bits"], state["evidence"])


def correlation_of(gram: Tensor, mean: Tensor, size: int) -> Tensor:
    """Return the correlation between the devices' centred gradients from their inner products.

    Args:
        gram: `<g_k, g_j>`, `[K, K]`, which a rotation leaves as they are.
        mean: Means of the coordinates that are sent, `[K]`.
        size: Number of those coordinates.

    Returns:
        Correlation, float64 `[K, K]`; a device without a gradient is uncorrelated with all.

    Example:
        >>> correlation_of(torch.tensor([[2.0, 1.0], [1.0, 2.0]]), torch.zeros(2), size=10)
        tensor([[1.0000, 0.5000],
                [0.5000, 1.0000]], dtype=torch.float64)
    """
    mean = mean.double()
    centred = gram.double() - size * mean[:, None] * mean[None, :]
    power = centred.diagonal().clamp_min(0)
    inverse = torch.where(power > 0, power.clamp_min(1e-300).rsqrt(), torch.zeros_like(power))
    correlation = (centred * inverse[:, None] * inverse[None, :]).clamp(-1, 1)
    correlation.fill_diagonal_(1.0)
    return correlation
