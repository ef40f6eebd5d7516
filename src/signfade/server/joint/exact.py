"""The posterior mean by enumeration of all sign patterns, for up to twelve dependent variables.

`E[g|y] = sum_s w_s * E[g; s] / sum_s w_s * P(s)`, `w_s = prod_i P(s_i | y_i)`. The probabilities P(s) of sign
patterns and the means over their orthants depend on the covariance alone and are computed once for all
coordinates (docs/bfl.md, "The sums over orthants").
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from torch import Tensor

from signfade.kernels.integrals import sign_moments
from signfade.kernels.threads import available_threads, run_ranges
from signfade.server.joint._inputs import SAME, independent_groups, merge_copies

__all__ = ["exact_means"]

Array = NDArray[np.float64]

EXACT_LIMIT = 12
QUADRATURE_LIMIT = 10  # variables up to which the integrals are nested; beyond, orthants are sampled
_BLOCK = 16_384  # coordinates at a time
_RARE = 1e-7  # patterns below this probability have lost relative accuracy in the sum over subsets
_RARE_IF_HARD = 1e-4  # the same where the matrix is nearly singular
_CLOSED = 1e-9
_CHUNK = 1_000_000  # numbers in a working array


def exact_means(llr: Tensor, correlation: Tensor, combine: Tensor) -> Tensor:
    """Exact posterior means of linear combinations of jointly Gaussian variables seen through noisy signs.

    Half-LLRs `llr` of the signs are `[d, N]`, N independent problems; `correlation` `[d, d]` is that of the
    centred, unit-variance variables and may be singular; `combine` `[R, d]` are the combinations wanted.
    Returns `combine @ E[g | y]`, float64 `[R, N]`. Variables that do not depend on each other are enumerated
    apart, and copies (a correlation of 1 or -1) count as one.

    Reference: Section III, eq. (8), without the factorisation that follows it; docs/bfl.md.
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


def orthant_tables(correlation: Array, points: int = 4096) -> tuple[Array, Array]:
    """Return P, `[2**d]`, and the means over orthants `E[g_i; s]`, `[d, 2**d]`, of N(0, correlation).

    Patterns are counted in binary, the first variable being the leading digit and 0 meaning +1. No two
    variables may be copies of each other. Accuracy of P: 1e-15 for d up to 3. Up to 10, 1e-9 where the least
    eigenvalue is above 0.02, and 1e-5 where it is less. From 11 on, a few 1e-3 of P itself: `points`
    quasi-random paths are drawn through every orthant.
    """
    d = len(correlation)
    least = float(np.linalg.eigvalsh(correlation)[0])
    singular = least < SAME  # then eigenvalues are raised to this
    if singular:  # P moves by less than the lift over 2*pi*sqrt(1 - r**2), added up over the pairs
        lift = SAME - least
        correlation = (correlation + lift * np.eye(d)) / (1 + lift)
    if d > QUADRATURE_LIMIT:
        probability, mean = _sampled(correlation, points)
    else:
        probability, mean = _expanded(correlation)
        hard = d > 3 and least < 0.02
        rare = probability < (_RARE_IF_HARD if hard else _RARE)
        if d > 2 and rare.any():
            sampled = _sampled(correlation, points if hard else 512)
            probability[rare], mean[:, rare] = sampled[0][rare], sampled[1][:, rare]
    if singular:  # the lift opened orthants a little that the matrix excludes
        closed = probability < _CLOSED
        probability[closed], mean[:, closed] = 0.0, 0.0
    return probability, mean


def sign_moment(matrices: Array, nodes: int = 16) -> Array:
    """`E[prod_i sign(g_i)]` for correlation matrices `[B, n, n]`, n even; shape `[B]`."""
    if matrices.shape[1] == 0:
        return np.ones(len(matrices))
    x, w = np.polynomial.legendre.leggauss(nodes)
    x, w = (x + 1) / 2, w / 2
    out = np.empty(len(matrices))

    def work(first: int, last: int) -> None:
        sign_moments(matrices, x, w, first, last, out)

    run_ranges(work, len(out), available_threads())
    return out


def _normalised(covariance: Array) -> Array:
    diagonal = np.diagonal(covariance, axis1=-2, axis2=-1)
    root = np.sqrt(np.maximum(diagonal, 1e-14))
    return np.asarray(np.clip(covariance / (root[..., :, None] * root[..., None, :]), -1, 1))


def _even_moments(correlation: Array) -> Array:
    """`m_T` for every subset T of the variables, `[2**n]`, counted in binary, the first variable leading."""
    n = len(correlation)
    nodes = {0: 1, 2: 1, 4: 48, 6: 32, 8: 20 if n <= 8 else 14, 10: 12}
    out = np.zeros(2**n)
    for size in range(0, n + 1, 2):
        subsets = list(combinations(range(n), size))
        index = [sum(1 << (n - 1 - i) for i in subset) for subset in subsets]
        matrices = np.stack([correlation[np.ix_(subset, subset)] for subset in subsets])
        out[index] = sign_moment(matrices, nodes[size])
    return out


def _expanded(correlation: Array) -> tuple[Array, Array]:
    d = len(correlation)
    even = _even_moments(correlation)
    odd = np.zeros((d, 2**d))
    for j in range(d):
        rest = [k for k in range(d) if k != j]
        column = correlation[rest, j]
        given = _normalised(correlation[np.ix_(rest, rest)] - np.outer(column, column))
        moments = _even_moments(given)
        own = 1 << (d - 1 - j)
        for subset in np.flatnonzero(moments):
            low = subset & (own - 1)
            whole = ((subset - low) << 1) | own | low  # the subset of the rest, with j put back in
            odd[:, whole] += np.sqrt(2 / np.pi) * correlation[:, j] * moments[subset]
    return _walsh(even) / 2**d, _walsh(odd) / 2**d


def _walsh(x: Array) -> Array:
    """`sum_T x_T * prod_{i in T} s_i` for all patterns s, along the last axis."""
    step = 1
    while step < x.shape[-1]:
        pairs = x.reshape(*x.shape[:-1], -1, 2, step)
        x = np.stack((pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]), axis=-2)
        x = x.reshape(*x.shape[:-3], -1)
        step *= 2
    return x


def _sampled(correlation: Array, points: int) -> tuple[Array, Array]:
    """Draw one quasi-random path through all orthants at a time, each variable given those before it.

    Every pattern is reached by every path, weighted by the probability of its turns: rare patterns are as
    accurate, relatively, as common ones.
    """
    from scipy.stats import qmc  # takes a second to load, and few runs need it

    d = len(correlation)
    root = np.linalg.cholesky(correlation)
    uniform = qmc.Sobol(d - 1, scramble=True, rng=np.random.default_rng(d)).random_base2(int(np.log2(points)))
    uniform = np.clip(uniform, 1e-12, 1 - 1e-12)
    probability, mean = np.zeros(2**d), np.zeros((d, 2**d))
    chunk = max(1, _CHUNK // (d * 2**d))
    for first in range(0, len(uniform), chunk):
        u = uniform[first : first + chunk]
        white = np.zeros((len(u), 1, 0))  # independent normals drawn so far, path by path
        drawn = np.zeros((len(u), 1, 0))
        weight = np.ones((len(u), 1))
        for i in range(d):
            centre = white @ root[i, :i]
            turn = centre / root[i, i]
            up, down = ndtr(turn), ndtr(-turn)
            if i == d - 1:
                bell = np.exp(-(turn**2) / 2) / np.sqrt(2 * np.pi)
                last = np.stack((centre * up + root[i, i] * bell, centre * down - root[i, i] * bell), axis=-1)
                leaf = weight[..., None] * np.stack((up, down), axis=-1)
                probability += leaf.sum(axis=0).reshape(-1)
                for k in range(d - 1):
                    mean[k] += (leaf * drawn[..., k, None]).sum(axis=0).reshape(-1)
                mean[d - 1] += (weight[..., None] * last).sum(axis=0).reshape(-1)
                break
            v = u[:, i, None]
            # Tails are drawn in the tail, where the quantile function is accurate.
            normal = np.stack(
                (-ndtri(np.maximum(up * v, 1e-300)), ndtri(np.maximum(down * v, 1e-300))), axis=-1
            )
            weight = (weight[..., None] * np.stack((up, down), axis=-1)).reshape(len(u), -1)
            value = centre[..., None] + root[i, i] * normal
            white = _extended(white, normal)
            drawn = _extended(drawn, value)
    probability, mean = probability / len(uniform), mean / len(uniform)
    return (probability + probability[::-1]) / 2, (mean - mean[:, ::-1]) / 2


def _extended(paths: Array, children: Array) -> Array:
    """Append two children `[N, B, 2]` to each of the paths `[N, B, i]`: `[N, 2*B, i + 1]`."""
    n, b, i = paths.shape
    both = np.broadcast_to(paths[:, :, None, :], (n, b, 2, i))
    return np.concatenate((both, children[..., None]), axis=-1).reshape(n, 2 * b, i + 1)
