"""From noisy correlations of bits to believable ones: a common value plus the eigenvectors above the noise.

Scaled so that every entry has unit noise variance, the noise is a Wigner matrix: its eigenvalues end at
`2*sqrt(K)`, an eigenvalue `e` of the truth shows up at `e + K/e`, and its eigenvector tilts so that each
entry has the error variance `1/e**2`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from signfade.server.bfl.lowrank import LowRank, leading, mapped, valid_low_rank

_SWEEPS = 10  # of filling in the diagonal; the off-diagonal result settles to 1e-3 in about five
_EIGH_LIMIT = 200  # devices up to which all eigenvalues are cheaper than a subspace iteration
_LARGEST_RANK = 32
_ROWS = 4096  # devices whose signals are in double precision at a time


def shrink_bits(bits: Tensor, precision: Tensor) -> Tensor:
    """Shrink measured correlations, `[K, K]` with a zero diagonal, of variance `1/(p_k * p_j)`.

    p is the `precision`, `[K]`.
    """
    devices = len(bits)
    root = precision.sqrt()
    weight = root[:, None] * root[None, :]
    seen = bits * weight
    squares = _off_diagonal_squares(precision)
    edge = _noise_edge(devices, precision)
    shared = _shrink_common(float((seen * weight).sum()), squares)
    if devices <= 2:
        return torch.full_like(bits, shared)
    diagonal = torch.zeros(devices, dtype=torch.float64)
    start: Tensor | None = None
    for _ in range(_SWEEPS):
        rest = seen - shared * weight
        rest.diagonal().copy_(diagonal)
        if devices <= _EIGH_LIMIT:
            values, vectors = torch.linalg.eigh(rest)
        else:
            sweeps = 6 if start is None else 2
            vectors, values = leading(rest.matmul, devices, _LARGEST_RANK, sweeps, start)
            start = vectors
        kept = values.abs() > edge
        values, vectors = values[kept], vectors[:, kept]
        structure = (vectors * _least_squares(values, edge)) @ vectors.T
        diagonal = structure.diagonal().clone()
        structure.fill_diagonal_(0.0)
        shared = _shrink_common(float(((seen - structure) * weight).sum()), squares)
    factors, sizes = _loadings(values, vectors, edge, precision)
    return shared + (factors * sizes) @ factors.T


def shrink_bits_low_rank(y: Tensor, factor: Tensor, ratio: Tensor, rank: int, largest: float) -> LowRank:
    """`shrink_bits` and the sine, with products of y `[K, M]` (times `factor` `[K]`) in place of a matrix."""
    devices, size = y.shape
    precision = ratio.square() * math.sqrt(size)
    root = precision.sqrt()
    rows = y * factor.to(y)[:, None]
    squares_of = [part.double().square().sum(dim=1) for part in torch.split(rows, _ROWS)]
    power = torch.cat(squares_of) / math.sqrt(size)
    edge = _noise_edge(devices, precision)
    squares = _off_diagonal_squares(precision)

    def seen(x: Tensor) -> Tensor:
        return (rows @ (rows.T @ x.to(rows)) / math.sqrt(size)).double() - power[:, None] * x

    total = float(root @ seen(root[:, None])[:, 0])
    shared = _shrink_common(total, squares)
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
        sizes = _least_squares(values, edge)
        diagonal = vectors.square() @ sizes
        explained = (root @ vectors).square() @ sizes - precision @ diagonal
        shared = _shrink_common(total - float(explained), squares)
    factors, sizes = _loadings(values, vectors, edge, precision)
    if shared != 0:
        factors = torch.cat((factors, torch.ones(devices, 1, dtype=torch.float64)), dim=1)
        sizes = torch.cat((sizes, torch.tensor([shared], dtype=torch.float64)))

    def sine(x: Tensor) -> Tensor:
        return torch.sin((math.pi / 2) * x.clamp(-largest, largest))

    return valid_low_rank(mapped(LowRank(factors, sizes), sine), largest)


def _off_diagonal_squares(precision: Tensor) -> float:
    return float(precision.sum().square() - precision.square().sum())


def _shrink_common(product: float, squares: float) -> float:
    """The correlation common to all pairs: `product/squares`, of variance `2/squares`, shrunk.

    Below two standard deviations it is nothing; and no more is believed than that correlations of bits have
    a variance of about 0.1.
    """
    if squares <= 0:
        return 0.0
    value, variance = product / squares, 2 / squares
    if value**2 <= 4 * variance:
        return 0.0
    return value * math.sqrt(1 - 4 * variance / value**2) * 0.1 / (0.1 + variance)


def _noise_edge(devices: int, precision: Tensor) -> float:
    """Where the eigenvalues of pure noise end, with room for their fluctuation at small K."""
    # precision is at most sqrt(M); the second term is what sample covariances have beyond a Wigner matrix.
    return (2 * math.sqrt(devices) + devices / float(precision.max())) * (1 + math.pow(devices, -2 / 3))


def _least_squares(values: Tensor, edge: float) -> Tensor:
    """The eigenvalues that bring the kept eigenvectors' matrix closest to the truth."""
    return values.sign() * (values.square() - edge**2).sqrt()


def _loadings(values: Tensor, vectors: Tensor, edge: float, precision: Tensor) -> tuple[Tensor, Tensor]:
    """Undo the scaling of kept eigenvectors: each device's entry is shrunk by the evidence it had.

    An entry divided by `sqrt(p_k)` is a loading with error variance `1/(e**2 * p_k)`; the loadings' own
    variance is what the eigenvector has beyond its error, averaged over devices.
    """
    true = (values.abs() + (values.square() - edge**2).sqrt()) / 2
    signal = (1 - len(vectors) / true.square()).clamp_min(0.02) / precision.sum()
    error = 1 / (true.square()[None, :] * precision[:, None])
    shrunk = vectors / precision.sqrt()[:, None] * (signal / (signal + error))
    return shrunk, values.sign() * true
