"""The posterior mean by enumeration of all sign patterns, for up to twelve dependent variables.

`p(g|y) ~ N(g; 0, C) * prod_i exp(s_i * l_i)`, `s = sign(g)`: inside one orthant the likelihood is constant,
so `E[g|y] = sum_s w_s * E[g; s] / sum_s w_s * P(s)`, `w_s = prod_i P(s_i | y_i)`. The probabilities P(s) and
the means over orthants depend on C alone and are computed once for all coordinates.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from signfade.server.joint._copies import merge_copies
from signfade.server.joint._inputs import independent_groups
from signfade.server.joint._orthants import orthant_tables

__all__ = ["EXACT_LIMIT", "exact_means"]

EXACT_LIMIT = 12
_BLOCK = 16_384  # coordinates at a time


def exact_means(llr: Tensor, correlation: Tensor, combine: Tensor) -> Tensor:
    """Exact posterior means of linear combinations of jointly Gaussian variables seen through noisy signs.

    Variables that do not depend on each other are enumerated apart: only the largest group of dependent ones
    is limited, and copies (a correlation of 1 or -1) count as one. The matrix may be singular. Accuracy as in
    `_orthants.py`: where that gives P to 1e-5, all bits are certain and their pattern has a prior probability
    of P, the mean is off by 1e-5/P of itself.

    Args:
        llr: Half-LLRs of the signs, `[d, N]`; coordinates are independent problems.
        correlation: Of the centred, unit-variance variables, `[d, d]`.
        combine: The combinations wanted, `[R, d]`: `R = 1` for a weighted sum, the identity for all
            variables.

    Returns:
        `combine @ E[g | y]`, float64 `[R, N]`.

    Raises:
        ValueError: More than twelve dependent variables.

    Example:
        >>> certain = torch.tensor([[50.0], [50.0]])
        >>> r = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
        >>> exact_means(certain, r, torch.eye(2))  # E[g_1 | both positive]
        tensor([[0.8976],
                [0.8976]], dtype=torch.float64)

    Reference:
        Section III, eq. (8), without the factorisation that follows it; docs/bfl.md.
    """
    llr, correlation, combine, _ = merge_copies(llr, correlation, combine)
    matrix = correlation.detach().double().cpu().numpy()
    groups = independent_groups(correlation)
    largest = max(map(len, groups))
    if largest > EXACT_LIMIT:
        raise ValueError(
            f"covariance has {largest} dependent variables; method 'exact' can do {EXACT_LIMIT}: "
            "use 'gibbs' (up to hundreds), 'ep' (up to hundreds, fast), or joint_blmmse (any number)"
        )
    total = torch.zeros(len(combine), llr.shape[1], dtype=torch.float64)
    for members in groups:
        probability, mean = orthant_tables(np.ascontiguousarray(matrix[np.ix_(members, members)]))
        wanted = combine[:, members].double() @ torch.from_numpy(mean)
        total += _posterior(llr[members].double(), torch.from_numpy(probability), wanted)
    return total


def _posterior(llr: Tensor, probability: Tensor, wanted: Tensor) -> Tensor:
    """Return `[R, N]` from tables over patterns, `[2**d]` and `[R, 2**d]`."""
    d = len(llr)
    left = d // 2
    tables = torch.cat((probability[None], wanted)).reshape(-1, 2**left, 2 ** (d - left))
    out = torch.empty(len(wanted), llr.shape[1], dtype=torch.float64)
    for first in range(0, llr.shape[1], _BLOCK):
        part = llr[:, first : first + _BLOCK]
        sums = _contract(part, tables, left)
        impossible = ~(sums[0] > 1e-290)
        if bool(impossible.any()):  # certain bits that the prior excludes: believe them a little less
            sums[:, impossible] = _contract(part[:, impossible].clamp(-15, 15), tables, left)
        out[:, first : first + _BLOCK] = sums[1:] / sums[0].clamp_min(1e-300)
    return out


def _contract(llr: Tensor, tables: Tensor, left: int) -> Tensor:
    """Return `sum_s w_s * table(s)` for every table, `[R + 1, N]`: two halves of the pattern at a time."""
    turns = torch.sigmoid(torch.stack((2 * llr, -2 * llr)))  # [2, d, N]
    first, second = _patterns(turns[:, :left]), _patterns(turns[:, left:])
    return torch.stack([((first @ table) * second).sum(dim=1) for table in tables])


def _patterns(turns: Tensor) -> Tensor:
    """Return the products over all patterns, `[N, 2**n]`, of `[2, n, N]`."""
    products = torch.ones(turns.shape[2], 1, dtype=torch.float64)
    for i in range(turns.shape[1]):
        products = (products[:, :, None] * turns[:, i].T[:, None, :]).reshape(len(products), -1)
    return products
