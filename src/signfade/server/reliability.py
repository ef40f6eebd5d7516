"""Which devices to believe: reliability learned from evidence gathered over rounds.

A device's reliability c is the agreement between what it sends and the truth: 1 for an honest device, -1 for
one that flips every sign, 0 for one whose bits are random. Evidence is any statistic that an honest device
would raise on average: in a round, device k shows

    z_k = c_k*m + noise,   m >= 0 the same for all and unknown.

In training (`signfade.learn.reliability`) it is turning: when the model moves, the gradient of a loss that
curves upward turns along, and that of a liar turns against.

Evidence is averaged over rounds, each round by what it can tell. Between devices the averages scatter beyond
their noise, because data differ; the weight of the evidence is set by that scatter, so that statistics which
honest devices do not share count for nothing. The reliability is the prior log-odds of honesty and what the
evidence adds to them, over what it adds for a typical honest device, cut to one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from signfade._check import check_finite, check_positive, check_shape

__all__ = ["ReliabilityState", "gather_evidence", "initial_reliability", "judge"]

_PRIOR = 2.0  # log-odds of honesty before any evidence: seven to one
_KEEP = 0.98  # of what is known, when a round is as telling as can be
_LARGEST = 5.0  # of a statistic in units of its noise: one round must not decide alone
_SWEEPS = 5


@dataclass(frozen=True)
class ReliabilityState:
    """What is known about a population of N devices.

    Attributes:
        trust: Reliability, `[N]`, from -1 to 1; weights for the next round.
        total: Sum over rounds of weighted evidence, `[N]`.
        weight: Sum of the weights, `[N]`; zero for a device never heard.
        square: Sum of the weights times the rounds' shares: `square/weight**2` is the noise of the average.
    """

    trust: Tensor
    total: Tensor
    weight: Tensor
    square: Tensor


def initial_reliability(population: int) -> ReliabilityState:
    """Return the state that believes everybody.

    Example:
        >>> initial_reliability(3).trust
        tensor([1., 1., 1.], dtype=torch.float64)
    """
    if population < 1:
        raise ValueError(f"population must be at least 1; got {population}")
    zero = torch.zeros(population, dtype=torch.float64)
    return ReliabilityState(torch.ones(population, dtype=torch.float64), zero, zero, zero)


def gather_evidence(
    state: ReliabilityState, z: Tensor, variance: Tensor, devices: Tensor
) -> ReliabilityState:
    """Add one round's evidence.

    The round's share is `min(1, 4*m^2/v)`: m is what those believed show on average, v the variance about
    it. A round in which honest devices show nothing (m = 0) changes nothing, and what is known fades only as
    fast as news come in.

    Args:
        state: From `initial_reliability` or the last round. Not modified.
        z: The statistic, `[K]`, `E[z] = c*m` for reliability c.
        variance: Its noise, `[K]`, positive.
        devices: Who shows it, int64 `[K]`, distinct.

    Returns:
        The new state; `judge` turns it into trust.

    Raises:
        ValueError: Shapes that do not match, NaN, or a variance that is not positive.

    Example:
        >>> z, noise = torch.tensor([2.0, 3.0, 2.0, -2.0]), 0.1 * torch.ones(4)
        >>> state = gather_evidence(initial_reliability(4), z, noise, torch.arange(4))
        >>> judge(state).trust.round(decimals=1)
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
    weight = 1 / noise.square()
    trust = state.trust[devices]
    mean = _shown_by_the_believed(shown, weight, trust)
    scatter = float((weight * (shown - trust * mean).square()).sum() / weight.sum())
    share = 0.0 if mean == 0 else min(1.0, 4 * mean**2 / max(scatter, 1e-300))
    keep = 1 - share * (1 - _KEEP)
    total, known, square = keep * state.total, keep * state.weight, keep**2 * state.square
    total[devices] += share * weight * shown
    known[devices] += share * weight
    square[devices] += share**2 * weight
    return replace(state, total=total, weight=known, square=square)


def judge(state: ReliabilityState) -> ReliabilityState:
    """Turn the evidence into trust: `c = (prior + 2*a*m/v) / (prior + m^2/v)`, cut to [-1, 1].

    a is a device's average of the statistic, m the mean over those believed, v the noise of a plus the
    scatter that honest devices show beyond it. `2*a*m/v` are the log-odds of +1 against -1 for
    Gaussian evidence. A device like the others gets 1; one whose average vanishes tends to 0; a liar goes to
    -1.

    Args:
        state: With evidence. Not modified.

    Returns:
        The state with its `trust` renewed.

    Example:
        >>> judge(initial_reliability(2)).trust
        tensor([1., 1.], dtype=torch.float64)
    """
    heard = state.weight > 0
    if int(heard.sum()) < 2:
        return state
    average = state.total[heard] / state.weight[heard]
    noise = state.square[heard] / state.weight[heard].square()
    believed = state.trust[heard]
    for _ in range(_SWEEPS):
        mean = _shown_by_the_believed(average, 1 / noise, believed)
        beyond = ((average - believed * mean).square() / noise).sum() - len(average)
        variance = noise + (beyond / (1 / noise).sum()).clamp_min(0)
        odds, typical = _PRIOR + 2 * average * mean / variance, _PRIOR + mean**2 / variance
        believed = (odds / typical).clamp(-1, 1)
    trust = state.trust.clone()
    trust[heard] = believed
    return replace(state, trust=trust)


def _shown_by_the_believed(values: Tensor, weight: Tensor, trust: Tensor) -> float:
    """The common m >= 0 of `values = c*m + noise`, from those who are believed.

    Liars would tell it as well, the other way round. But if all were taken for their opposite, everything
    would fit again with the sign of m lost; so they are not asked. Where the believed show less than nothing,
    m is 0, and all are believed again.
    """
    share = weight * trust.clamp_min(0)
    known = float((share * trust).sum())
    return max(0.0, float((share * values).sum()) / known) if known > 0 else 0.0
