"""The correlation between devices, learned from what the server receives anyway: no uplink bit is spent.

Signal model: `y_k = h_k * s_k + n_k`, `s_k = sign(g_k - mean_k)`, real noise `n_k ~ N(0, sigma2_k)`. For
jointly Gaussian gradients with correlation r the arcsine law gives
`E[y_k * y_j] = h_k * h_j * (2/pi) * arcsin(r_kj)`: the products of received signals measure the correlation
of the bits, `b_kj = (2/pi) * arcsin(r_kj)`, each with variance `(1 + 1/gamma_k) * (1 + 1/gamma_j) / M`,
`gamma = h**2/sigma2`, and `r_kj = sin(pi/2 * b_kj)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade._check import check_finite, check_shape
from signfade.kernels.gram import pair_sums
from signfade.server.joint._inputs import check_link
from signfade.server.joint._shrink import Float64, eigenvectors, shrink_bits, shrink_bits_low_rank
from signfade.server.joint.lowrank import LowRank

__all__ = [
    "CorrelationState",
    "initial_correlation",
    "learn_correlation",
    "learn_low_rank",
    "smooth_correlation",
]

_DENSE_LIMIT = 2000
_LEAST_GAIN = 1e-6  # |h|/sqrt(h**2 + sigma2) below this counts as this: nothing is learned from either
_NO_COORDINATE = 1e-12  # what counts for M = 0
_LARGEST_BIT = 0.99


def learn_correlation(y: Tensor, h: Tensor, sigma2: Tensor) -> Tensor:
    """Estimate the correlation between the devices' gradients from one round's received signals.

    1. `b_kj = mean_m(y_k * y_j) / (h_k * h_j)`; scaled by `1/sqrt(1 + 1/gamma)` on both sides all entries
       have the noise variance 1/M.
    2. One correlation common to all pairs, shrunk by its known variance.
    3. What it leaves: eigenvalues above the edge of the noise, `2 * sqrt(K/M)`, are kept, shrunk by their
       known bias; a device's part in a kept eigenvector is shrunk by the device's own evidence.
    4. `r = sin(pi/2 * b)`, then the nearest eigenvalues that are positive, with a unit diagonal.

    With weak evidence nothing passes 2 and 3, the result is the identity, and joint rules become `sbfl` or
    `blmmse`. Cost: K**2 M / 2 multiplications.

    Args:
        y: Received signals, `[K, M]`, K up to 2000 (beyond: `learn_low_rank`).
        h: Channel gains, `[K]`. A device with gain zero gets the common correlation.
        sigma2: Variance of the real noise per symbol, `[K]`.

    Returns:
        A correlation matrix, float64 `[K, K]`: symmetric, positive definite, unit diagonal; entries may be
        negative.

    Raises:
        ValueError: Shapes that do not match, NaN, or too many devices.

    Example:
        >>> generator = torch.Generator().manual_seed(1)
        >>> common = torch.randn(20_000, generator=generator)
        >>> signs = torch.sign(common + torch.randn(3, 20_000, generator=generator))  # correlation 1/2
        >>> y = signs + torch.randn(3, 20_000, generator=generator)
        >>> learn_correlation(y, torch.ones(3), torch.ones(3)).round(decimals=1)
        tensor([[1.0000, 0.5000, 0.5000],
                [0.5000, 1.0000, 0.5000],
                [0.5000, 0.5000, 1.0000]], dtype=torch.float64)

    Reference:
        Section III-B, "Limited knowledge about the prior distribution"; docs/bfl.md.
    """
    bits, precision = _measure(y, h, sigma2)
    return _to_correlation(shrink_bits(bits, precision))


@dataclass(frozen=True)
class CorrelationState:
    """What past rounds taught about every pair of a population of N devices.

    `bits` `[N, N]` is the running estimate of the bits' correlations, `evidence` `[N, N]` one over its
    variance (zero: the pair were never received together).
    """

    bits: Tensor
    evidence: Tensor


def initial_correlation(population: int) -> CorrelationState:
    """Return the state that knows nothing about `population` devices.

    Example:
        >>> initial_correlation(3).evidence.sum()
        tensor(0.)
    """
    if population < 1:
        raise ValueError(f"population must be at least 1; got {population}")
    return CorrelationState(torch.zeros(population, population), torch.zeros(population, population))


def smooth_correlation(
    state: CorrelationState,
    y: Tensor,
    h: Tensor,
    sigma2: Tensor,
    devices: Tensor | None = None,
    drift: float = 2e-3,
) -> tuple[Tensor, CorrelationState]:
    """Learn from this round and remember the last ones: `learn_correlation` over rounds.

    A Kalman filter a pair. Between rounds correlations wander, `variance = variance + drift`; then the
    round's measurement joins, weighted by one over its variance. A clear measurement (many coordinates, high
    SNR) makes the past irrelevant, a poor one leans on it, and what is long past is forgotten.

    Args:
        state: From `initial_correlation` or the last round. Not modified.
        y: Received signals of the devices received, `[K, M]`.
        h: Their gains, `[K]`.
        sigma2: Variance of the real noise per symbol, `[K]`.
        devices: Who they are, int64 `[K]`, distinct, below N; `0 ... K-1` if None.
        drift: Variance of a bit correlation's change per round: zero averages all rounds, infinity forgets
            at once.

    Returns:
        `(correlation, state)`: float64 `[K, K]` of the devices received, and the new state.

    Raises:
        ValueError: As `learn_correlation`, ids outside the population or twice, a negative drift.

    Example:
        >>> y = torch.ones(2, 5000)
        >>> r, state = smooth_correlation(initial_correlation(9), y, y[:, 0], y[:, 0], torch.tensor([7, 4]))
        >>> bool(r[0, 1] > 0.9), bool(state.evidence[7, 4] > 0), bool(state.evidence[7, 5] > 0)
        (True, True, False)

    Reference:
        docs/bfl.md, "Learning the correlation".
    """
    return smooth_measured(state, *_measure(y, h, sigma2), devices, drift)


def smooth_measured(
    state: CorrelationState,
    measured: Float64,
    precision: Float64,
    devices: Tensor | None = None,
    drift: float = 2e-3,
    *,
    of_bits: bool = True,
) -> tuple[Tensor, CorrelationState]:
    """`smooth_correlation` from correlations `[K, K]` that were measured with variances `1/(p_k * p_j)`.

    They are those of bits, which the arcsine law maps to those of gradients, or of the gradients themselves.
    """
    if not drift >= 0:
        raise ValueError(f"drift must be non-negative; got {drift}")
    received = _identities(devices, len(measured), len(state.bits))
    # NumPy: on matrices this small a call of torch costs several times one of NumPy.
    bits = state.bits.detach().cpu().numpy().astype(np.float64)
    evidence = state.evidence.detach().cpu().numpy().astype(np.float64)
    evidence = np.zeros_like(evidence) if math.isinf(drift) else evidence / (1 + drift * evidence)
    pairs = np.ix_(received, received)
    past, new = evidence[pairs], np.outer(precision, precision)
    bits[pairs] = (past * bits[pairs] + new * measured) / (past + new)
    evidence[pairs] = past + new
    np.fill_diagonal(bits, 0.0)
    np.fill_diagonal(evidence, 0.0)
    result = _to_correlation(shrink_bits(bits[pairs], _rank_one(evidence[pairs])), of_bits=of_bits)
    new_state = (torch.from_numpy(bits).to(state.bits), torch.from_numpy(evidence).to(state.evidence))
    return result, CorrelationState(*new_state)


def known_correlation(state: CorrelationState) -> Tensor:
    """Return what `smooth_measured` of gradients' correlations has learned so far, float64 `[N, N]`."""
    bits, evidence = state.bits.double().numpy(), state.evidence.double().numpy()
    return _to_correlation(shrink_bits(bits, _rank_one(evidence)), of_bits=False)


def learn_low_rank(y: Tensor, h: Tensor, sigma2: Tensor, rank: int = 16) -> LowRank:
    """`learn_correlation` for thousands of devices: the K x K matrix is never formed.

    The kept eigenvectors come from a subspace iteration on y itself, O(K M rank) a sweep, and the sine is
    applied to blocks of rows. Memory beyond y: O((K + M) * rank).

    Args:
        y: Received signals, `[K, M]`.
        h: Channel gains, `[K]`.
        sigma2: Variance of the real noise per symbol, `[K]`.
        rank: At most so many factors.

    Returns:
        A `LowRank` correlation; no factor at all where the evidence is weak.

    Raises:
        ValueError: Shapes that do not match, NaN, or a rank below one.

    Example:
        >>> y = torch.ones(50, 400)
        >>> learned = learn_low_rank(y, torch.ones(50), torch.ones(50), rank=2)
        >>> len(learned), bool(learned.dense()[0, 1] > 0.9)
        (50, True)

    Reference:
        docs/bfl.md, "Learning the correlation".
    """
    check_link(y, h, sigma2)
    if rank < 1:
        raise ValueError(f"rank must be at least 1; got {rank}")
    check_finite("y", y)
    if y.shape[1] == 0:
        return LowRank(torch.zeros(len(y), 0).double(), torch.zeros(0).double())
    factor, ratio = map(torch.from_numpy, _unit_power(h, sigma2))
    return shrink_bits_low_rank(y.detach(), factor, ratio, rank, _LARGEST_BIT)


def _unit_power(h: Tensor, sigma2: Tensor) -> tuple[Float64, Float64]:
    """Return what scales y to unit power and positive gain, and `|h|/sqrt(E[y**2])`; both `[K]`."""
    gain = h.detach().cpu().double().numpy()
    root = np.maximum(np.sqrt(gain**2 + sigma2.detach().cpu().double().numpy()), 1e-150)
    return np.sign(gain) / root, np.maximum(np.abs(gain) / root, _LEAST_GAIN)


def _measure(y: Tensor, h: Tensor, sigma2: Tensor) -> tuple[Float64, Float64]:
    """Return b, `[K, K]` with a zero diagonal, and p, `[K]`: b_kj has the variance `1/(p_k * p_j)`.

    Without a coordinate there is next to no precision, and nothing is learned.
    """
    check_link(y, h, sigma2)
    devices, size = y.shape
    if devices > _DENSE_LIMIT:
        raise ValueError(f"y must have at most {_DENSE_LIMIT} devices; for {devices} use learn_low_rank")
    factor, ratio = _unit_power(h, sigma2)
    products = pair_sums(y).numpy()
    if not np.isfinite(products).all():
        raise ValueError("y must be finite; got NaN or infinity")
    scale = factor / ratio
    bits = products * np.outer(scale, scale) / max(size, 1)
    np.fill_diagonal(bits, 0.0)
    return bits, ratio**2 * math.sqrt(max(size, _NO_COORDINATE))


def _identities(devices: Tensor | None, received: int, population: int) -> NDArray[np.int64]:
    if devices is None:
        devices = torch.arange(received)
    check_shape("devices", devices, (received,))
    found: NDArray[np.int64] = devices.detach().cpu().long().numpy()
    numbers = found.tolist()
    if len(set(numbers)) != received or min(numbers) < 0 or max(numbers) >= population:
        raise ValueError(f"devices must be {received} distinct numbers below {population}; got {numbers[:9]}")
    return found


def _rank_one(evidence: Float64) -> Float64:
    """Return p, `[K]`, with `p_k * p_j` close to the evidence off the diagonal: least squares of logs."""
    devices = len(evidence)
    if devices == 1:
        return np.ones(1)
    logs = np.log(np.maximum(evidence, 1e-12))
    np.fill_diagonal(logs, 0.0)
    rows = logs.sum(axis=1)
    if devices > 2:
        rows = 2 * (rows - rows.sum() / (2 * (devices - 1))) / (devices - 2)
    root: Float64 = np.exp(rows / 2)
    return root


def _to_correlation(bits: Float64, floor: float = 1e-2, *, of_bits: bool = True) -> Tensor:
    """Map the bits' correlations to the gradients' and to a valid correlation matrix.

    Negative eigenvalues are raised to `floor` and the diagonal is scaled back to one, until both hold.
    """
    matrix = np.clip(bits, -_LARGEST_BIT, _LARGEST_BIT)
    if of_bits:
        matrix = np.sin((math.pi / 2) * matrix)
    np.fill_diagonal(matrix, 1.0)
    margin = 0.5 * floor * np.eye(len(matrix))
    for _ in range(50):
        if int(torch.linalg.cholesky_ex(torch.from_numpy(matrix - margin)).info) == 0:
            return torch.from_numpy(matrix)
        values, vectors = eigenvectors(matrix)
        matrix = (vectors * np.maximum(values, floor)) @ vectors.T
        scale = 1 / np.sqrt(matrix.diagonal())
        matrix = matrix * np.outer(scale, scale)
        matrix = (matrix + matrix.T) / 2
        np.fill_diagonal(matrix, 1.0)
    return torch.from_numpy((matrix + 2 * margin) / (1 + floor))
