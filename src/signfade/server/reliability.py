"""Which devices to believe: reliability learned from evidence gathered over rounds.

A device's reliability c is the agreement between what it sends and the truth: 1 for an honest device, -1 for
one that flips every sign, 0 for one whose bits are random. Evidence is any statistic that an honest device
would raise on average: in a round, device k shows

    z_k = c_k*m + noise,   m >= 0 the same for all and unknown.

Two are used in training (`signfade.learn.reliability`): agreement with the sum of the others, and turning:
when the model moves, the gradient of a loss that curves upward turns along, and that of a liar turns against.

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
        total: Sum over rounds of weighted evidence, `[kinds, N]`.
        weight: Sum of the weights, `[kinds, N]`; zero for a device never heard.
        square: Sum of the weights times the rounds' shares: `square/weight**2` is the noise of the average.
    """

    trust: Tensor
    total: Tensor
    weight: Tensor
    square: Tensor


def initial_reliability(population: int, kinds: int = 2) -> ReliabilityState:
    """Return the state that believes everybody.

    Example:
        >>> initial_reliability(3).trust
        tensor([1., 1., 1.], dtype=torch.float64)
    """
    if population < 1 or kinds < 1:
        raise ValueError(f"population and kinds must be at least 1; got {population} and {kinds}")
    zero = torch.zeros(kinds, population, dtype=torch.float64)
    return ReliabilityState(torch.ones(population, dtype=torch.float64), zero, zero, zero)


def gather_evidence(
    state: ReliabilityState, kind: int, z: Tensor, variance: Tensor, devices: Tensor
) -> ReliabilityState:
    """Add one round's evidence of one kind.

    The round's share is `min(1, 4*m^2/v)`: m is the mean of z under what is believed so far, v the variance
    about it. A round in which honest devices show nothing (m = 0) changes nothing, and what is known fades
    only as fast as news come in.

    Args:
        state: From `initial_reliability` or the last round. Not modified.
        kind: Which statistic, from 0.
        z: The statistic, `[K]`, `E[z] = c*m` for reliability c.
        variance: Its noise, `[K]`, positive.
        devices: Who shows it, int64 `[K]`, distinct.

    Returns:
        The new state; `judge` turns it into trust.

    Raises:
        ValueError: Shapes that do not match, NaN, or a variance that is not positive.

    Example:
        >>> z, noise = torch.tensor([2.0, 3.0, 2.0, -2.0]), 0.1 * torch.ones(4)
        >>> state = gather_evidence(initial_reliability(4), 0, z, noise, torch.arange(4))
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
    mean = _mean(shown, weight, trust)
    scatter = float((weight * (shown - trust * mean).square()).sum() / weight.sum())
    share = 0.0 if mean == 0 else min(1.0, 4 * mean**2 / max(scatter, 1e-300))
    keep = 1 - share * (1 - _KEEP)
    total, known, square = state.total.clone(), state.weight.clone(), state.square.clone()
    total[kind] *= keep
    known[kind] *= keep
    square[kind] *= keep**2
    total[kind, devices] += share * weight * shown
    known[kind, devices] += share * weight
    square[kind, devices] += share**2 * weight
    return replace(state, total=total, weight=known, square=square)


def judge(state: ReliabilityState) -> ReliabilityState:
    """Turn the evidence into trust: `c = (prior + 2*a*m/v) / (prior + m^2/v)`, cut to [-1, 1].

    a is a device's average of the statistic, m the mean over those believed, v the noise of a plus the
    scatter that honest devices show beyond it; kinds add up. `2*a*m/v` are the log-odds of +1 against -1 for
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
    trust = state.trust
    for _ in range(_SWEEPS):
        odds = torch.full_like(trust, _PRIOR)
        typical = torch.full_like(trust, _PRIOR)
        for total, weight, square in zip(state.total, state.weight, state.square):
            heard = weight > 0
            if int(heard.sum()) < 2:
                continue
            average = total[heard] / weight[heard]
            noise = square[heard] / weight[heard].square()
            mean = _mean(average, 1 / noise, trust[heard])
            beyond = ((average - trust[heard] * mean).square() / noise).sum() - heard.sum()
            variance = noise + (beyond / (1 / noise).sum()).clamp_min(0)
            odds[heard] += 2 * average * mean / variance
            typical[heard] += mean**2 / variance
        trust = (odds / typical).clamp(-1, 1)
    return replace(state, trust=trust)


def _mean(values: Tensor, weight: Tensor, trust: Tensor) -> float:
    """The common mean m >= 0 of `values = trust*m + noise`."""
    known = float((weight * trust.square()).sum())
    return max(0.0, float((weight * trust * values).sum()) / known) if known > 0 else 0.0
