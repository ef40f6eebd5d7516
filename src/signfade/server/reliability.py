"""Which devices to rely on: reliability learned from evidence gathered over rounds.

A device's reliability c is the agreement between what it sends and the truth: 1 for an honest device, -1 for
one that flips every sign, 0 for one whose bits are random. Evidence is any statistic `z_k = c_k*m + noise`
with `m >= 0` the same for all and unknown. What is typical, and how much honest devices scatter about it, are
medians over the devices: while fewer than half are hostile, the typical value lies between honest ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from signfade._check import check_finite, check_positive, check_shape

__all__ = ["ReliabilityState", "gather_evidence", "initial_reliability", "update_trust"]

_PRIOR = 2.0  # log-odds of honesty before any evidence: seven to one
_AGAINST = 10.0  # log-odds against it before a device's bits are turned round; up to there they are left out
_KEEP = 0.98  # of what is known, when a round is as telling as can be
_LARGEST = 5.0  # of a statistic in units of its noise: no single round may decide
_SWEEPS = 5
_TO_DEVIATION = 1.4826  # a Gaussian's deviation over its median absolute deviation


@dataclass(frozen=True)
class ReliabilityState:
    """What is known about a population of N devices, `[N]` each."""

    trust: Tensor  # reliability, from -1 to 1; weights for the next round
    total: Tensor  # sum over rounds of weighted evidence
    weight: Tensor  # sum of the weights; zero for a device never received
    square: Tensor  # sum of the weights times the rounds' shares: `square/weight**2` is the average's noise


def initial_reliability(population: int) -> ReliabilityState:
    """Return the state that relies on everybody."""
    if population < 1:
        raise ValueError(f"population must be at least 1; got {population}")
    zero = torch.zeros(population, dtype=torch.float64)
    return ReliabilityState(torch.ones(population, dtype=torch.float64), zero, zero, zero)


def gather_evidence(
    state: ReliabilityState, z: Tensor, variance: Tensor, devices: Tensor
) -> ReliabilityState:
    """Add one round's evidence.

    The round's share is `min(1, 4*m^2/v)`: m is the median of what the devices show, v the squared robust
    deviation about it, at least the noise. A round in which the median device shows nothing (m <= 0) changes
    nothing, and what is known fades only as fast as news come in.

    The statistic z, `[K]`, has the mean `c*m` for reliability c and a positive `variance`, `[K]`; `devices`,
    int64 `[K]`, are those that show it. `update_trust` turns the new state into trust.

    Example:
        >>> z, noise = torch.tensor([2.0, 3.0, 2.0, -2.0]), 0.1 * torch.ones(4)
        >>> state = gather_evidence(initial_reliability(4), z, noise, torch.arange(4))
        >>> update_trust(state).trust.round(decimals=1)
        tensor([ 1.,  1.,  1., -1.], dtype=torch.float64)
    """
    check_shape("z", z, (len(devices),))
    check_shape("variance", variance, (len(devices),))
    check_finite("z", z)
    check_positive("variance", variance)
    if len(devices) == 0:
        return state
    noise = variance.double().sqrt()
    shown = torch.maximum(torch.minimum(z.double(), _LARGEST * noise), -_LARGEST * noise)
    typical, scatter = _typical(shown, torch.ones_like(shown))
    share = min(1.0, 4 * typical**2 / max(scatter, float(variance.double().median())))
    keep = 1 - share * (1 - _KEEP)
    weight = 1 / noise.square()
    total, known, square = keep * state.total, keep * state.weight, keep**2 * state.square
    total[devices] += share * weight * shown
    known[devices] += share * weight
    square[devices] += share**2 * weight
    return replace(state, total=total, weight=known, square=square)


def update_trust(state: ReliabilityState) -> ReliabilityState:
    """Turn the evidence into trust: `c = odds/(prior + m^2/v)`, cut to [-1, 1], `odds = prior + 2*a*m/v`.

    a is a device's average of the statistic, m the median of the averages, v the noise of a or the robust
    variance of the averages about m, whichever is larger; then again with the devices weighted by c.
    `2*a*m/v` are the log-odds of +1 against -1 for Gaussian evidence. A device with half of the typical
    average or more gets 1; one whose average vanishes tends to 0; one whose odds are negative gets 0, and
    less only by what they are below -10. So a device must have turned against the model for long before its
    bits are turned round, and where the evidence says nothing, everybody counts.
    """
    reported = state.weight > 0
    if int(reported.sum()) < 2:
        return state
    average = state.total[reported] / state.weight[reported]
    noise = state.square[reported] / state.weight[reported].square()
    found = torch.ones_like(average)
    for _ in range(_SWEEPS):
        typical, scatter = _typical(average, found.clamp_min(0))
        variance = noise.clamp_min(scatter)
        odds = _PRIOR + 2 * average * typical / variance
        odds = odds.clamp_min(0) + (odds + _AGAINST).clamp_max(0)
        found = (odds / (_PRIOR + typical**2 / variance)).clamp(-1, 1)
    trust = state.trust.clone()
    trust[reported] = found
    return replace(state, trust=trust)


def _typical(values: Tensor, weight: Tensor) -> tuple[float, float]:
    """Weighted median of what devices show, at least 0, and the squared robust deviation about it."""
    middle = _weighted_median(values, weight)
    deviation = _TO_DEVIATION * _weighted_median((values - middle).abs(), weight)
    return max(0.0, middle), deviation**2


def _weighted_median(values: Tensor, weight: Tensor) -> float:
    """The smallest value with at least half of the weight at or below it."""
    order = torch.argsort(values)
    total = weight[order].cumsum(0)
    return float(values[order][int(torch.searchsorted(total, total[-1] / 2))])
