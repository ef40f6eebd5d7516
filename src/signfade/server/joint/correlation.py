"""The correlation between devices, learned from what the server receives anyway: no uplink bit is spent.

For jointly Gaussian gradients with correlation r the arcsine law gives `E[y_k * y_j] = h_k * h_j * b_kj`,
`b_kj = (2/pi) * arcsin(r_kj)`: the products of received signals measure the correlation of the bits, with
variance `(1 + 1/gamma_k) * (1 + 1/gamma_j) / M`, `gamma = h**2/sigma2`. Scaled to unit variance the noise is
a Wigner matrix: its eigenvalues end at `2*sqrt(K)`, an eigenvalue `e` of the truth shows up at `e + K/e`, and
each entry of its eigenvector has the error variance `1/e**2`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade._check import check_finite, check_shape, check_tensor
from signfade.kernels.correlations import least_squares, pair_sums, shrink_common, sweeps
from signfade.server._sum import check_devices, check_symbols
from signfade.server.joint.lowrank import LowRank, leading, mapped, valid_low_rank

__all__ = [
    "CorrelationState",
    "initial_correlation",
    "learn_correlation",
    "learn_low_rank",
    "smooth_correlation",
]

Float64 = NDArray[np.float64]

_DENSE_LIMIT = 2000
_COMPILED_LIMIT = 200  # devices up to which all eigenvalues are cheaper than a subspace iteration
_SWEEPS = 10  # of filling in the diagonal; the off-diagonal result settles to 1e-3 in about five
_LARGEST_RANK = 32
_ROWS = 4096  # devices whose signals are in double precision at a time
_LEAST_GAIN = 1e-6  # |h|/sqrt(h**2 + sigma2) below this counts as this: nothing is learned from either
_NO_COORDINATE = 1e-12  # what counts for M = 0
_LARGEST_BIT = 0.99


def learn_correlation(y: Tensor, h: Tensor, sigma2: Tensor) -> Tensor:
    """Estimate the correlation between the devices' gradients from one round's received signals.

    The measured correlations of the bits are shrunk to one that is common to all pairs, plus the eigenvectors
    above the noise; `r = sin(pi/2 * b)` is then made positive definite. With weak evidence the result is the
    identity, and joint rules become `sbfl` or `blmmse`. y is `[K, M]`, K up to 2000 (beyond:
    `learn_low_rank`); h and sigma2 are `[K]`, and a device with gain zero gets the common correlation. Cost:
    K**2 M / 2 multiplications.

    Example:
        >>> draw = torch.Generator().manual_seed(1)
        >>> g = torch.randn(20_000, generator=draw) + torch.randn(3, 20_000, generator=draw)  # r = 1/2
        >>> y = torch.sign(g) + torch.randn(3, 20_000, generator=draw)
        >>> learn_correlation(y, torch.ones(3), torch.ones(3))[0].round(decimals=1)
        tensor([1.0000, 0.5000, 0.5000], dtype=torch.float64)

    Reference: Section III-B, "Limited knowledge about the prior distribution"; docs/bfl.md.
    """
    bits, precision = _measure(y, h, sigma2)
    return _to_correlation(shrink_bits(bits, precision))


@dataclass(frozen=True)
class CorrelationState:
    """What past rounds taught about every pair of a population of N devices."""

    bits: Tensor  # running estimate of the bits' correlations, `[N, N]`
    evidence: Tensor  # one over its variance, `[N, N]`; zero: the pair were never received together


def initial_correlation(population: int) -> CorrelationState:
    """Return the state that knows nothing about `population` devices."""
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

    One Kalman filter per pair. Between rounds correlations wander, `variance = variance + drift`; then the
    round's measurement joins, weighted by one over its variance. A clear measurement (many coordinates, high
    SNR) makes the past irrelevant, a poor one leans on it, and what is long past is forgotten.

    `devices`, int64 `[K]`, says who was received; `0 ... K-1` if None. A `drift` of zero averages all rounds,
    infinity forgets at once. Returns the correlation, float64 `[K, K]`, of the devices received, and the new
    state.

    Example:
        >>> y = torch.ones(2, 5000)
        >>> r, state = smooth_correlation(initial_correlation(9), y, y[:, 0], y[:, 0], torch.tensor([7, 4]))
        >>> bool(r[0, 1] > 0.9), bool(state.evidence[7, 4] > 0), bool(state.evidence[7, 5] > 0)
        (True, True, False)

    Reference: docs/bfl.md, "Learning the correlation".
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
    """`learn_correlation` for thousands of devices, with at most `rank` factors: K x K is never formed.

    The kept eigenvectors come from a subspace iteration on y itself, O(K M rank) per sweep, and the sine is
    applied to blocks of rows. Memory beyond y: O((K + M) * rank).

    Example:
        >>> learned = learn_low_rank(torch.ones(50, 400), torch.ones(50), torch.ones(50), rank=2)
        >>> len(learned), bool(learned.dense()[0, 1] > 0.9)
        (50, True)

    Reference: docs/bfl.md, "Learning the correlation".
    """
    check_symbols(y)
    check_devices(len(y), h=h, sigma2=sigma2)
    if rank < 1:
        raise ValueError(f"rank must be at least 1; got {rank}")
    check_finite("y", y)
    devices, size = y.shape
    if size == 0:
        return LowRank(torch.zeros(devices, 0).double(), torch.zeros(0).double())
    factor, ratio = map(torch.from_numpy, _unit_power(h, sigma2))
    rows = y.detach() * factor.to(y)[:, None]
    squares_of = [part.double().square().sum(dim=1) for part in torch.split(rows, _ROWS)]
    power = torch.cat(squares_of) / math.sqrt(size)

    def seen(x: Tensor) -> Tensor:
        return (rows @ (rows.T @ x.to(rows)) / math.sqrt(size)).double() - power[:, None] * x

    def sine(x: Tensor) -> Tensor:
        return torch.sin((math.pi / 2) * x.clamp(-_LARGEST_BIT, _LARGEST_BIT))

    shared, *loadings = _shrunk(seen, ratio.square() * math.sqrt(size), rank, (4, 1, 1, 1))
    factors, sizes = map(torch.from_numpy, loadings)
    if shared != 0:
        factors = torch.cat((factors, torch.ones(devices, 1, dtype=torch.float64)), dim=1)
        sizes = torch.cat((sizes, torch.tensor([shared], dtype=torch.float64)))
    return valid_low_rank(mapped(LowRank(factors, sizes), sine), _LARGEST_BIT)


def _unit_power(h: Tensor, sigma2: Tensor) -> tuple[Float64, Float64]:
    """Return what scales y to unit power and positive gain, and `|h|/sqrt(E[y**2])`; both `[K]`."""
    for name, value in (("h", h), ("sigma2", sigma2)):
        check_tensor(name, value)
    gain = h.detach().cpu().double().numpy()
    root = np.maximum(np.sqrt(gain**2 + sigma2.detach().cpu().double().numpy()), 1e-150)
    return np.sign(gain) / root, np.maximum(np.abs(gain) / root, _LEAST_GAIN)


def _measure(y: Tensor, h: Tensor, sigma2: Tensor) -> tuple[Float64, Float64]:
    """Return b, `[K, K]` with a zero diagonal, and p, `[K]`: b_kj has the variance `1/(p_k * p_j)`.

    Without a coordinate there is next to no precision, and nothing is learned.
    """
    check_symbols(y)
    devices, size = y.shape
    check_devices(devices, h=h, sigma2=sigma2)
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


def shrink_bits(bits: Float64, precision: Float64) -> Float64:
    """Shrink measured correlations, `[K, K]` with a zero diagonal, of variance `1/(p_k * p_j)`."""
    devices, root = len(bits), np.sqrt(precision)
    seen = bits * np.outer(root, root)
    if devices > _COMPILED_LIMIT:
        times, counts = torch.from_numpy(seen).matmul, [6] + [2] * (_SWEEPS - 1)
        shared, factors, sizes = _shrunk(times, torch.from_numpy(precision), _LARGEST_RANK, counts)
    else:
        squares, edge = _noise(precision)
        total = float(root @ seen @ root)
        shared = shrink_common(total, squares)
        if devices <= 2:
            return np.full_like(bits, shared)
        shared, values, vectors = sweeps(seen, root, edge, squares, total, shared, _SWEEPS)
        factors, sizes = _loadings(values, vectors, edge, precision)
    shrunk: Float64 = shared + (factors * sizes) @ factors.T
    return shrunk


def _shrunk(
    seen: Callable[[Tensor], Tensor], precision: Tensor, rank: int, counts: Sequence[int]
) -> tuple[float, Float64, Float64]:
    """Return the common correlation and the loadings `[K, r]` and sizes `[r]` of factors above the noise.

    `seen` multiplies by the measured correlations, scaled to unit noise, with a zero diagonal; `counts` are
    the iterations for the leading eigenvectors in each sweep.
    """
    devices, root = len(precision), precision.sqrt()
    squares, edge = _noise(precision.numpy())
    total = float(root @ seen(root[:, None])[:, 0])
    shared = shrink_common(total, squares)
    diagonal = torch.zeros(devices, dtype=torch.float64)
    start: Tensor | None = None
    for count in counts:

        def rest(x: Tensor, shared: float = shared, diagonal: Tensor = diagonal) -> Tensor:
            inside = (shared * precision + diagonal)[:, None] * x
            return seen(x) - shared * root[:, None] * (root @ x) + inside

        start, values = leading(rest, devices, rank, count, start)
        kept = values.abs() > edge
        values, vectors = values[kept], start[:, kept]
        if len(values) == 0 and not bool(diagonal.any()):
            break  # pure noise, and so it would be again
        strength = torch.from_numpy(least_squares(values.numpy(), edge))
        diagonal = vectors.square() @ strength
        explained = (root @ vectors).square() @ strength - precision @ diagonal
        shared = shrink_common(total - float(explained), squares)
    return shared, *_loadings(values.numpy(), vectors.numpy(), edge, precision.numpy())


def _noise(precision: Float64) -> tuple[float, float]:
    """Return the evidence about a common correlation, and where the eigenvalues of pure noise end."""
    devices = len(precision)
    # Room for the edge's fluctuation at small K. precision is at most sqrt(M); the second term is what sample
    # covariances have beyond a Wigner matrix.
    edge = (2 * math.sqrt(devices) + devices / float(precision.max())) * (1 + math.pow(devices, -2 / 3))
    return float(precision.sum() ** 2 - (precision**2).sum()), edge


def _loadings(values: Float64, vectors: Float64, edge: float, precision: Float64) -> tuple[Float64, Float64]:
    """Undo the scaling of kept eigenvectors: each device's entry is shrunk by the evidence it had.

    An entry divided by `sqrt(p_k)` is a loading with error variance `1/(e**2 * p_k)`; the loadings' own
    variance is what the eigenvector has beyond its error, averaged over devices.
    """
    true = (np.abs(values) + np.sqrt(values**2 - edge**2)) / 2
    signal = np.maximum(1 - len(vectors) / true**2, 0.02) / precision.sum()
    error = 1 / (true**2 * precision[:, None])
    return vectors / np.sqrt(precision)[:, None] * (signal / (signal + error)), np.sign(values) * true


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
        values, vectors = (
            x.numpy() for x in torch.linalg.eigh(torch.from_numpy(matrix))
        )  # twice NumPy's speed
        matrix = (vectors * np.maximum(values, floor)) @ vectors.T
        scale = 1 / np.sqrt(matrix.diagonal())
        matrix = matrix * np.outer(scale, scale)
        matrix = (matrix + matrix.T) / 2
        np.fill_diagonal(matrix, 1.0)
    return torch.from_numpy((matrix + 2 * margin) / (1 + floor))
