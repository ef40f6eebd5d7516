"""Privacy of the bits: every device flips each of its bits with a known probability before it sends them.

With randomised response no receiver can be sure of a sign, and the posterior mean stays in closed form:
`E[s | b] = (1 - 2*flip) * b`, so a scale shortened by `1 - 2*flip` is all the server needs to know. What is
protected is the bits: means and scales are sent as they are, so only rules that send no scalars (`signsgd`,
`signsum`) are covered as a whole.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["bit_epsilon", "composed_epsilon", "randomised_response"]


def bit_epsilon(flip: float) -> float:
    """Return the local differential privacy of one bit that is flipped with probability `flip`.

    `epsilon = ln((1 - flip)/flip)`: the odds of any output change by at most `exp(epsilon)` when the sign
    does. Infinite for `flip = 0` (no privacy), 0 for 1/2 (no information).

    Example:
        >>> round(bit_epsilon(0.25), 4), bit_epsilon(0.5), bit_epsilon(0.0)
        (1.0986, 0.0, inf)
    """
    _check_flip(flip)
    return math.inf if flip == 0 else math.log1p(-flip) - math.log(flip)


def composed_epsilon(flip: float, bits: int, delta: float = 1e-5) -> float:
    """Return the epsilon of `bits` flipped bits that may all differ between two data sets, at a given delta.

    Exact, not a bound: the privacy loss is `L = epsilon_1*(2*B - n)` with B binomial(n, 1 - flip), and
    epsilon is the smallest one with `P(L > epsilon) - exp(epsilon)*P'(L > epsilon) <= delta`, P' being the
    law with B binomial(n, flip). With delta = 0 it is `n*epsilon_1`. A coordinate of one device over T rounds
    is n = T; a device's whole vector of M bits over T rounds is n = M*T, since one changed sample can change
    every coordinate of a gradient.

    Example:
        >>> round(composed_epsilon(0.25, bits=1, delta=0.0), 4), round(composed_epsilon(0.45, bits=100), 2)
        (1.0986, 9.79)
        >>> round(composed_epsilon(0.45, bits=62_346))  # the paper's network, one round: no guarantee at all
        1463

    Reference: P. Kairouz, S. Oh, P. Viswanath, "The composition theorem for differential privacy": randomised
    response composes as the worst of all mechanisms with the same epsilon.
    """
    _check_flip(flip)
    if bits < 0:
        raise ValueError(f"bits must be 0 or more; got {bits}")
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be from 0 to below 1; got {delta}")
    if flip == 0:
        return math.inf if bits else 0.0
    one = bit_epsilon(flip)
    low, high = 0.0, bits * one
    if delta == 0 or high == 0:
        return high
    if _excess(low, flip, bits, one) <= delta:
        return 0.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _excess(middle, flip, bits, one) <= delta else (middle, high)
    return high


def _excess(epsilon: float, flip: float, bits: int, one: float) -> float:
    """`P(L > epsilon) - exp(epsilon)*P'(L > epsilon)`, the delta that belongs to an epsilon."""
    from scipy import stats  # takes a while to load, and few runs need it

    # L > epsilon where B > (n + epsilon/one)/2; where they are equal both terms are, and cancel.
    least = math.floor((bits + epsilon / one) / 2)
    likely = float(stats.binom.sf(least, bits, 1 - flip))
    unlikely = float(stats.binom.sf(least, bits, flip))
    # Of thousands of bits P' is below the smallest float, and exp(epsilon) beyond the largest.
    log_unlikely = math.log(unlikely) if unlikely > 1e-290 else _log_tail(least, bits, flip)
    return likely - math.exp(min(0.0, epsilon + log_unlikely))


def _log_tail(least: int, bits: int, flip: float) -> float:
    """`ln P'(B > least)` far above the mean: the first term, and the ratios of each to the one before."""
    from scipy import stats

    first = least + 1
    if first > bits:
        return -math.inf
    odds = flip / (1 - flip)
    falling = -math.log(odds * max(bits - first, 1) / (first + 1))  # the ratios themselves fall, too
    steps = first + np.arange(min(bits - first, math.ceil(40 / falling)))
    terms = np.cumprod(odds * (bits - steps) / (steps + 1))
    return float(stats.binom.logpmf(first, bits, flip)) + math.log1p(float(terms.sum()))


def randomised_response(packed: Tensor, size: int, flip: float, keys: NDArray[np.uint64]) -> Tensor:
    """Flip each of every device's bits with probability `flip`, independently; unused bits stay zero.

    `packed` are signs as `pack_signs` makes them, uint8 `[K, ceil(size/8)]`; `keys` are those of the devices'
    streams, uint64 `[K]`, see `signfade.keys.stream_keys`.

    Example:
        >>> packed = torch.tensor([[0b10100000]], dtype=torch.uint8)
        >>> randomised_response(packed, 3, 0.0, np.array([3], dtype=np.uint64)).tolist() == packed.tolist()
        True
    """
    _check_flip(flip)
    width = -(-size // 8)
    if packed.dtype != torch.uint8 or tuple(packed.shape) != (len(keys), width):
        got = f"{packed.dtype} {list(packed.shape)}"
        raise ValueError(f"packed must be uint8 [{len(keys)}, {width}]; got {got}")
    mask = np.empty((len(keys), width), dtype=np.uint8)
    for row, key in enumerate(keys):
        draw = np.random.Generator(np.random.Philox(key=int(key)))
        mask[row] = np.packbits(draw.random(size) < flip)
    return packed ^ torch.from_numpy(mask).to(packed.device)


def _check_flip(flip: float) -> None:
    if not 0 <= flip <= 0.5:
        raise ValueError(f"flip must be a probability from 0 to 1/2; got {flip}")
