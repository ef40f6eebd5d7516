"""What a majority vote knows of the summed gradient.

Device k's bit `s_k` arrives as `shat_k`, flipped with probability `Pe_k = Q(sqrt(gamma_k))`; the vote is
`v = sign(sum_k shat_k)`, and a sum of zero gives 0, +1, or either sign by a coin, as `tie` says. Devices are
independent, their priors symmetric about their means. Signs are ±1 with unit power, sigma2 is the variance of
the real noise per symbol, the SNR is `gamma = h**2/sigma2`. A device that never votes (`h = 0` exactly) is
not part of K here.

Arguments are floats, sequences, NumPy arrays or torch tensors; results float64 NumPy arrays or floats.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
from scipy import special

from signfade._check import check_choice
from signfade.settings import Family, Tie
from signfade.theory._numbers import Array, Numbers, non_negative, per_device, plain, real
from signfade.theory.errors import kappa_of
from signfade.theory.rules import bit_error

__all__ = ["tie_probability", "vote_correlation", "vote_nmse", "vote_probability"]


def tie_probability(devices: int) -> float:
    """Probability that one bit decides the vote of K fair, independent bits.

    `C(n, n/2)/2**n`, `n = 2*floor(K/2)`: about `sqrt(2/(pi*K))`. For odd K the others' sum is 0. For even K
    it is -1 where a tie counts as +1; where it counts as zero or a coin, the others' sum is 1 or -1, twice as
    likely, and the bit decides between a vote and a tie: half as much. For even K it is also the
    probability of a tie.

    Args:
        devices: K, at least 1.

    Returns:
        The probability.

    Example:
        >>> [round(tie_probability(k), 12) for k in (1, 2, 3, 4, 5)]
        [1.0, 0.5, 0.5, 0.375, 0.375]
    """
    if devices < 1:
        raise ValueError(f"devices must be at least 1; got {devices}")
    half = devices // 2
    # C(2m, m)/4**m = Gamma(m + 1/2)/(Gamma(m + 1)*Gamma(1/2)); poch is exact where factorials overflow.
    return float(1 / (special.poch(half + 0.5, 0.5) * np.sqrt(np.pi)))


def _tally(up: Array) -> Array:
    """Distribution of the number of +1 among independent bits, `[K + 1]`: the Poisson-binomial, O(K**2)."""
    count = np.zeros(len(up) + 1)
    count[0] = 1.0
    for n, chance in enumerate(up, start=1):
        count[1 : n + 1] = (1 - chance) * count[1 : n + 1] + chance * count[:n]
        count[0] *= 1 - chance
    return count


def _without_each(count: Array, up: Array) -> Array:
    """Distributions of the tally without bit k, `[K, K]`, by dividing its factor out of the polynomial.

    From the bottom for chances up to one half and from the top for the others, so that an error is never
    amplified: what is left is of the order of K roundings.
    """
    mirrored = up > 0.5
    chance = np.where(mirrored, 1 - up, up)
    total = np.where(mirrored, count[::-1, None], count[:, None])  # [K + 1, K]
    rest = np.empty((len(up), len(up)))
    rest[0] = total[0] / (1 - chance)
    for n in range(1, len(up)):
        rest[n] = (total[n] - chance * rest[n - 1]) / (1 - chance)
    return np.where(mirrored, rest[::-1], rest).T


def vote_probability(up: Numbers, tie: Tie = "zero") -> float:
    """Probability that the vote is +1, given the chance of each received bit to be +1.

    Exact, through the Poisson-binomial distribution of the number of +1. With the true signs known,
    `up_k = 1 - Pe_k` where `s_k = +1` and `Pe_k` where it is -1.

    Args:
        up: `P(shat_k = +1)`, `[K]`.
        tie: What the vote is where the sum is zero: "zero", "plus" (+1) or "random" (either sign by a coin).

    Returns:
        `P(v = +1)`.

    Example:
        >>> [vote_probability([0.5, 0.5], tie) for tie in ("zero", "plus", "random")]
        [0.25, 0.75, 0.5]

    Reference:
        Section II, majority vote.
    """
    check_choice("tie", tie, get_args(Tie))
    chance = _chances(up)
    count = _tally(chance)
    won = float(count[len(chance) // 2 + 1 :].sum())
    share = {"zero": 0.0, "plus": 1.0, "random": 0.5}[tie]
    return won + share * _tied(count)


def _tied(count: Array) -> float:
    """Probability of a tie, from the distribution `[K + 1]` of the number of +1; zero for odd K."""
    devices = len(count) - 1
    return 0.0 if devices % 2 else float(count[devices // 2])


def _chances(up: Numbers) -> Array:
    chance = non_negative("up", up)
    if chance.ndim != 1 or len(chance) == 0 or (chance > 1).any():
        raise ValueError(f"up must be probabilities of shape [K]; got shape {list(chance.shape)}: {up!r}")
    return chance


def vote_correlation(snr: Numbers, up: Numbers | None = None, tie: Tie = "zero") -> Array:
    """How much the vote says about each device's bit, `c_k = E[v*s_k]`.

    If every sign is +1 as often as -1 (a symmetric prior, centred), so is every received bit, whatever its
    error probability, and `c_k = (1 - 2*Pe_k) * tie_probability(K)` whatever becomes of ties. With other
    chances `up_k = P(s_k = +1)` the sum over the others' tallies is taken exactly, in O(K**2).

    Args:
        snr: Instantaneous SNR of each device, `[K]`.
        up: `P(s_k = +1)`, `[K]`; one half if None.
        tie: As in `vote_probability`.

    Returns:
        `c_k`, `[K]`.

    Example:
        >>> vote_correlation([float("inf"), float("inf"), 0.0])
        array([0.5, 0.5, 0. ])

    Reference:
        Section II, majority vote.
    """
    check_choice("tie", tie, get_args(Tie))
    gamma = _per_device("snr", snr, infinite=True)
    error = bit_error(gamma)
    if up is None:
        return (1 - 2 * error) * tie_probability(len(gamma))
    positive = _chances(up)
    if len(positive) != len(gamma):
        raise ValueError(f"up must have shape [{len(gamma)}] like snr; got {list(positive.shape)}")
    received = positive * (1 - error) + (1 - positive) * error
    others = _without_each(_tally(received), received)
    # The vote for a number of +1 from 0 to K, and given that shat_k is one of them, or is not.
    excess = 2 * np.arange(len(gamma) + 1) - len(gamma)
    vote = np.where((excess == 0) & (tie == "plus"), 1, np.sign(excess))
    with_up, with_down = others @ vote[1:], others @ vote[:-1]
    given_up = (1 - error) * with_up + error * with_down
    given_down = error * with_up + (1 - error) * with_down
    return plain(positive * given_up - (1 - positive) * given_down)


def _per_device(name: str, value: Numbers, *, infinite: bool = False) -> Array:
    array = non_negative(name, value, infinite=infinite)
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(f"{name} must have shape [K]; got {list(array.shape)}")
    return array


def vote_nmse(
    snr: Numbers,
    std: Numbers = 1.0,
    weights: Numbers | None = None,
    *,
    family: Family = "gaussian",
    mean_abs: Numbers | None = None,
    tie: Tie = "zero",
) -> float:
    """Normalised error of the best-scaled majority vote as an estimate of the weighted sum of the gradients.

    `1 - (sum_k alpha_k*kappa_k*c_k)**2 / (E[v**2] * sum_k alpha_k**2*Var_k)`

    For a target t the best multiple of v leaves `E[t**2] - E[t*v]**2/E[v**2]`: one minus the squared cosine.
    `E[g_k*v] = E|g_k| * E[s_k*v]` because the vote knows `g_k` by its sign only. `E[v**2]` is 1, but for
    ties that count as zero `1 - P(tie)`: what a vote without a majority would add is noise.

    Args:
        snr: Instantaneous SNR of each device, `[K]`.
        std: Standard deviation of each device's coordinates, `[K]` or one for all.
        weights: `alpha_k`, `[K]`; ones if None.
        family: As in `mse`.
        mean_abs: As in `mse`.
        tie: As in `vote_probability`.

    Returns:
        The error over the energy of the target, in [0, 1].

    Example:
        >>> round(vote_nmse([1e9] * 101), 3)
        0.593
        >>> [round(vote_nmse([1e9] * 20, tie=tie), 3) for tie in ("zero", "plus", "random")]
        [0.52, 0.605, 0.605]

    Reference:
        Section II, majority vote.
    """
    gamma = _per_device("snr", snr, infinite=True)
    deviation = per_device("std", non_negative("std", std), len(gamma))
    alpha = per_device("weights", real("weights", 1.0 if weights is None else weights), len(gamma))
    kappa = kappa_of(deviation, family, mean_abs)
    energy = (alpha**2 * deviation**2).sum()
    if energy == 0:
        raise ValueError("std and weights must not all be zero: the target has no energy")
    product = (alpha * kappa * vote_correlation(gamma, tie=tie)).sum()
    tied = tie_probability(len(gamma)) if len(gamma) % 2 == 0 and tie == "zero" else 0.0
    return float(1 - product**2 / ((1 - tied) * energy))
