"""Correlation matrices of very many devices: a few factors off the diagonal, ones on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from signfade._check import check_finite, check_shape

__all__ = ["LowRank", "solve_low_rank"]

_BLOCK = 512  # rows of the K x K matrix that exist at a time
_LANDMARKS = (
    1024  # columns from which a function of all entries is learned, with more devices than twice this
)


@dataclass(frozen=True)
class LowRank:
    """`r_kj = sum_i values_i * vectors_ki * vectors_ji` off the diagonal, 1 on it; never stored as K x K.

    `vectors` is `[K, r]`, `values` `[r]`, of either sign: devices that cancel have a negative one. Memory is
    O(K r); a thousand devices and fewer are better served by the dense matrix.

    Example:
        >>> LowRank(vectors=torch.full((3, 1), 0.5), values=torch.ones(1)).dense()[0]
        tensor([1.0000, 0.2500, 0.2500], dtype=torch.float64)

    Reference: docs/bfl.md, "Learning the correlation".
    """

    vectors: Tensor
    values: Tensor

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2:
            raise ValueError(f"vectors must have shape [K, r]; got {list(self.vectors.shape)}")
        check_shape("values", self.values, (self.vectors.shape[1],))
        check_finite("vectors", self.vectors)
        check_finite("values", self.values)

    def __len__(self) -> int:
        return len(self.vectors)

    def private(self) -> Tensor:
        """What the factors leave of each device's unit variance, `[K]`."""
        return 1 - (self.vectors.double().square() * self.values.double()).sum(dim=1)

    def times(self, vector: Tensor) -> Tensor:
        """The matrix times a vector `[K]` or `[K, n]`."""
        v, values, private = self.vectors.double(), self.values.double(), self.private()
        if vector.ndim == 2:
            values, private = values.unsqueeze(1), private.unsqueeze(1)
        return v @ (values * (v.T @ vector)) + private * vector

    @cached_property
    def bits(self) -> LowRank:
        """The correlation of the signs, `(2/pi) * arcsin(r_kj)`; its own diagonal is not one."""
        return mapped(self, lambda x: (2 / math.pi) * torch.asin(x.clamp(-1, 1)))

    def dense(self) -> Tensor:
        """The matrix itself, float64 `[K, K]`."""
        v = self.vectors.double()
        matrix = (v * self.values.double()) @ v.T
        matrix.fill_diagonal_(1.0)
        return matrix


def leading(
    times: Callable[[Tensor], Tensor], size: int, rank: int, sweeps: int = 6, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Eigenvectors `[size, rank]` and eigenvalues, largest in magnitude, of a matrix seen by products.

    Subspace iteration from `start` `[size, n]`, or from a fixed random one, with four spare columns.
    """
    width = min(size, rank + 4)
    columns = torch.randn(size, width, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    if start is not None:
        columns = torch.cat((start, columns), dim=1)[:, :width]
    basis = torch.linalg.qr(columns).Q
    for _ in range(sweeps):
        basis = torch.linalg.qr(times(basis)).Q
    small = basis.T @ times(basis)
    values, vectors = torch.linalg.eigh((small + small.T) / 2)
    order = values.abs().argsort(descending=True)[:rank]
    return basis @ vectors[:, order], values[order]


def mapped(matrix: LowRank, function: Callable[[Tensor], Tensor], spare: int = 4) -> LowRank:
    """A low-rank copy of `matrix` with `function` applied to every entry off the diagonal.

    The rank may grow by `spare`: sine and arcsine are nearly linear for the correlations of many devices.
    An entry is a function of two devices' factors, a kernel, so the eigenvectors for a thousand of many
    devices extend to all (Nystroem): `phi_k = sum_l f(r_kl) u_l / value`. Cost: O(K), not O(K**2).
    """
    v, values = matrix.vectors.double(), matrix.values.double()
    size, rank = len(v), v.shape[1] + spare
    if v.shape[1] == 0:
        return matrix
    few = v if size <= 2 * _LANDMARKS else v[torch.linspace(0, size - 1, _LANDMARKS).round().long()]

    # The products see the factors' own diagonal, not the ones: a diagonal of ones would be of full rank.
    def times(rows: Tensor, x: Tensor) -> Tensor:
        out = torch.empty(len(rows), x.shape[1], dtype=torch.float64)
        for first in range(0, len(rows), _BLOCK):
            part = slice(first, first + _BLOCK)
            out[part] = function((rows[part] * values) @ few.T) @ x
        return out

    vectors, found = leading(lambda x: times(few, x), len(few), rank)
    kept = found.abs() > 1e-9 * found.abs().max()
    vectors, found = vectors[:, kept], found[kept]
    return LowRank(vectors if few is v else times(v, vectors / found), found)


def valid_low_rank(matrix: LowRank, largest: float = 0.99, floor: float = 1e-2) -> LowRank:
    """The low-rank matrix, changed where it was not positive definite.

    No device's factors may exceed `largest` of its unit variance, and eigenvalues in the space of the factors
    are raised to `floor`; then the diagonal is scaled back to one, until all hold. What is still negative
    outside that space is mended by mixing with the identity.
    """
    v, values = matrix.vectors.double(), matrix.values.double()
    for _ in range(20 if v.shape[1] else 0):
        load = (v.square() * values).sum(dim=1)
        v = v * (largest / load.clamp_min(largest)).sqrt()[:, None]
        basis = torch.linalg.qr(v).Q
        whole = basis.T @ LowRank(v, values).times(basis)
        least, turn = torch.linalg.eigh((whole + whole.T) / 2)
        if float(least[0]) >= 0.5 * floor:
            break
        lift = basis @ turn
        raised = (floor - least).clamp_min(0.0)
        inside = basis.T @ v
        inner = (inside * values) @ inside.T + (turn * raised) @ turn.T
        diagonal = 1 + lift.square() @ raised
        values, turn = torch.linalg.eigh(inner)
        v = basis @ turn / diagonal.sqrt()[:, None]
    if v.shape[1] == 0:
        return matrix
    lowest = _least_eigenvalue(LowRank(v, values), 0.5 * floor)
    return LowRank(v, values if lowest >= 0.5 * floor else values * (1 - floor) / (1 - lowest))


def _least_eigenvalue(matrix: LowRank, enough: float) -> float:
    """The least eigenvalue, from below and to 1e-3, or `enough` if it is not less; O(K r**2).

    With private parts D, `D + V diag(values) V^T - level` is positive definite for a level below all of D if
    and only if `1 + R diag(values) R^T` is, where `R` is the triangle of `(D - level)^(-1/2) V`.
    """
    v, values, private = matrix.vectors, matrix.values, matrix.private()

    def above(level: float) -> bool:
        return 1 + _least_of_factors(v / (private - level).sqrt()[:, None], values) > 0

    ceiling = float(private.min())
    if ceiling > enough and above(enough):
        return enough
    low, high = ceiling + min(0.0, _least_of_factors(v, values)) - 1e-6, min(ceiling, enough)
    while high - low > 1e-3 * max(abs(low), enough):
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) else (low, middle)
    return low


def _least_of_factors(vectors: Tensor, values: Tensor) -> float:
    """The least eigenvalue of `V diag(values) V^T` within the space of V."""
    triangle = torch.linalg.qr(vectors, mode="r").R
    return float(torch.linalg.eigvalsh((triangle * values) @ triangle.T)[0])


def solve_low_rank(correlation: LowRank, shared: Tensor, target: Tensor, ridge: float) -> Tensor:
    """Solve `Cov(y) x = target` scaled to a unit diagonal, by Woodbury's identity: O(K r**2)."""
    if correlation.vectors.shape[1] == 0:
        return target / (1 + ridge)
    bits = correlation.bits
    u = bits.vectors * shared[:, None]
    diagonal = (1 + ridge - (u.square() * bits.values).sum(dim=1)).clamp_min(ridge)
    scaled = u / diagonal[:, None]
    inner = torch.diag(1 / bits.values) + u.T @ scaled
    correction: Tensor = scaled @ torch.linalg.solve(inner, scaled.T @ target)
    return target / diagonal - correction
