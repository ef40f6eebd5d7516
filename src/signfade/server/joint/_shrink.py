"""From noisy correlations of bits to believable ones: a common value plus the eigenvectors above the noise.

Scaled so that every entry has unit noise variance, the noise is a Wigner matrix: its eigenvalues end at
`2*sqrt(K)`, an eigenvalue `e` of the truth shows up at `e + K/e`, and its eigenvector tilts so that each
entry has the error variance `1/e**2`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.kernels.correlations import least_squares, shrink_common, sweeps
from signfade.server.joint.lowrank import LowRank, leading, mapped, valid_low_rank

Float64 = NDArray[np.float64]

_SWEEPS = 10  # of filling in the diagonal; the off-diagonal result settles to 1e-3 in about five
_EIGH_LIMIT = 200  # devices up to which all eigenvalues are cheaper than a subspace iteration
_LARGEST_RANK = 32
_ROWS = 4096  # devices whose signals are in double precision at a time


def shrink_bits(bits: Float64, precision: Float64) -> Float64:
    """Shrink measured correlations, `[K, K]` with a zero diagonal, of variance `1/(p_k * p_j)`.

    p is the `precision`, `[K]`.
    """
    devices = len(bits)
    root = np.sqrt(precision)
    weight = np.outer(root, root)
    seen = bits * weight
    squares = _off_diagonal_squares(precision)
    edge = _noise_edge(devices, precision)
    total = float(root @ seen @ root)
    shared = shrink_common(total, squares)
    if devices <= 2:
        return np.full_like(bits, shared)
    given = (seen, root, edge, squares, total, shared, _SWEEPS)
    if devices <= _EIGH_LIMIT:
        shared, values, vectors = sweeps(*given)
    else:
        shared, values, vectors = _sweeps(*given)
    factors, sizes = _loadings(values, vectors, edge, precision)
    shrunk: Float64 = shared + (factors * sizes) @ factors.T
    return shrunk


def _sweeps(
    seen: Float64, root: Float64, edge: float, squares: float, total: float, shared: float, count: int
) -> tuple[float, Float64, Float64]:
    """Return the common correlation, and the eigenvalues and eigenvectors above the edge of the noise."""
    devices = len(root)
    weight, precision = np.outer(root, root), root**2
    diagonal = np.zeros(devices)
    start: Tensor | None = None
    for sweep in range(count):
        rest = seen - shared * weight
        rest.flat[:: devices + 1] = diagonal
        if devices <= _EIGH_LIMIT:
            values, vectors = eigenvectors(rest)
        else:
            found = leading(
                torch.from_numpy(rest).matmul, devices, _LARGEST_RANK, 6 if sweep == 0 else 2, start
            )
            start = found[0]
            vectors, values = found[0].numpy(), found[1].numpy()
        kept = np.abs(values) > edge
        values, vectors = values[kept], vectors[:, kept]
        if len(values) == 0 and not diagonal.any():
            break  # pure noise, and so it would be again
        strength = least_squares(values, edge)
        diagonal = vectors**2 @ strength
        explained = (root @ vectors) ** 2 @ strength - precision @ diagonal
        shared = shrink_common(total - float(explained), squares)
    return shared, values, vectors


def shrink_bits_low_rank(y: Tensor, factor: Tensor, ratio: Tensor, rank: int, largest: float) -> LowRank:
    """`shrink_bits` and the sine, with products of y `[K, M]` (times `factor` `[K]`) in place of a matrix."""
    devices, size = y.shape
    precision = ratio.square() * math.sqrt(size)
    root = precision.sqrt()
    rows = y * factor.to(y)[:, None]
    squares_of = [part.double().square().sum(dim=1) for part in torch.split(rows, _ROWS)]
    power = torch.cat(squares_of) / math.sqrt(size)
    edge = _noise_edge(devices, precision.numpy())
    squares = _off_diagonal_squares(precision.numpy())

    def seen(x: Tensor) -> Tensor:
        return (rows @ (rows.T @ x.to(rows)) / math.sqrt(size)).double() - power[:, None] * x

    total = float(root @ seen(root[:, None])[:, 0])
    shared = shrink_common(total, squares)
    diagonal = torch.zeros(devices, dtype=torch.float64)
    start: Tensor | None = None
    for sweep in range(4):

        def rest(x: Tensor, shared: float = shared, diagonal: Tensor = diagonal) -> Tensor:
            return (
                seen(x) - shared * root[:, None] * (root @ x) + (shared * precision + diagonal)[:, None] * x
            )

        vectors, values = leading(rest, devices, rank, 4 if sweep == 0 else 1, start)
        start = vectors
        kept = values.abs() > edge
        values, vectors = values[kept], vectors[:, kept]
        sizes = torch.from_numpy(least_squares(values.numpy(), edge))
        diagonal = vectors.square() @ sizes
        explained = (root @ vectors).square() @ sizes - precision @ diagonal
        shared = shrink_common(total - float(explained), squares)
    factors, sizes = map(
        torch.from_numpy, _loadings(values.numpy(), vectors.numpy(), edge, precision.numpy())
    )
    if shared != 0:
        factors = torch.cat((factors, torch.ones(devices, 1, dtype=torch.float64)), dim=1)
        sizes = torch.cat((sizes, torch.tensor([shared], dtype=torch.float64)))

    def sine(x: Tensor) -> Tensor:
        return torch.sin((math.pi / 2) * x.clamp(-largest, largest))

    return valid_low_rank(mapped(LowRank(factors, sizes), sine), largest)


def eigenvectors(matrix: Float64) -> tuple[Float64, Float64]:
    """Return all eigenvalues and eigenvectors of a symmetric matrix; NumPy's take twice as long here."""
    values, vectors = torch.linalg.eigh(torch.from_numpy(matrix))
    return values.numpy(), vectors.numpy()


def _off_diagonal_squares(precision: Float64) -> float:
    return float(precision.sum() ** 2 - (precision**2).sum())


def _noise_edge(devices: int, precision: Float64) -> float:
    """Where the eigenvalues of pure noise end, with room for their fluctuation at small K."""
    # precision is at most sqrt(M); the second term is what sample covariances have beyond a Wigner matrix.
    return (2 * math.sqrt(devices) + devices / float(precision.max())) * (1 + math.pow(devices, -2 / 3))


def _loadings(values: Float64, vectors: Float64, edge: float, precision: Float64) -> tuple[Float64, Float64]:
    """Undo the scaling of kept eigenvectors: each device's entry is shrunk by the evidence it had.

    An entry divided by `sqrt(p_k)` is a loading with error variance `1/(e**2 * p_k)`; the loadings' own
    variance is what the eigenvector has beyond its error, averaged over devices.
    """
    true = (np.abs(values) + np.sqrt(values**2 - edge**2)) / 2
    signal = np.maximum(1 - len(vectors) / true**2, 0.02) / precision.sum()
    error = 1 / (true**2 * precision[:, None])
    return vectors / np.sqrt(precision)[:, None] * (signal / (signal + error)), np.sign(values) * true
