"""The scalar quantiser of least mean squared error: every level is the centroid of its bin (Lloyd, Max)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import solve_banded
from scipy.special import erfcx, ndtri
from torch import Tensor

from signfade._check import check_choice
from signfade.device.quantizers import Quantizer, check_bits
from signfade.settings import Family

__all__ = ["LloydMaxQuantizer"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LloydMaxQuantizer(Quantizer):
    """The best quantiser of `2**bits` levels for a zero-mean Gaussian or Laplacian variable.

        level_c = E[x given edge_(c-1) <= x < edge_c],    edge_c = (level_c + level_(c+1))/2

    Both densities are log-concave, so these equations have one solution. It is symmetric about 0.

    Example:
        >>> [round(level, 4) for level in LloydMaxQuantizer(bits=2).levels.tolist()]
        [-1.5104, -0.4528, 0.4528, 1.5104]

    Reference: J. Max, "Quantizing for minimum distortion", 1960, Table I; paper Sec. IV-A for its use.
    """

    bits: int
    family: str = "gaussian"
    std: float = 1.0

    def __post_init__(self) -> None:
        check_bits(self.bits)
        check_choice("family", self.family, get_args(Family))
        if not 0 < self.std < math.inf:
            raise ValueError(f"std must be positive and finite; got {self.std}")

    @cached_property
    def levels(self) -> Tensor:
        """Levels, the centroids of their bins, float64 `[2**bits]`."""
        half = self.std * _half_levels(2 ** (self.bits - 1), _HALVES[self.family])
        return torch.from_numpy(np.concatenate([-half[::-1], half]))

    @cached_property
    def edges(self) -> Tensor:
        """Edges, midway between neighbouring levels, float64 `[2**bits - 1]`."""
        return 0.5 * self.levels[:-1] + 0.5 * self.levels[1:]


@dataclass(frozen=True)
class _Half:
    """The upper half of a symmetric density of unit variance."""

    density: Callable[[Array], Array]  # need not be normalised
    tail: Callable[[float], tuple[float, float]]  # mean and hazard of what lies above a point
    compand: Callable[[Array], Array]  # quantiles of the density proportional to density**(1/3)


def _gaussian_tail(a: float) -> tuple[float, float]:
    hazard = math.sqrt(2 / math.pi) / float(erfcx(a / math.sqrt(2)))
    return hazard, hazard


_HALVES = {
    "gaussian": _Half(
        density=lambda x: np.exp(-0.5 * x * x),
        tail=_gaussian_tail,
        compand=lambda u: math.sqrt(3) * np.asarray(ndtri(0.5 + 0.5 * u), dtype=np.float64),
    ),
    "laplacian": _Half(
        density=lambda x: np.exp(-math.sqrt(2) * x),
        tail=lambda a: (a + math.sqrt(0.5), math.sqrt(2)),
        compand=lambda u: -3 * math.sqrt(0.5) * np.log1p(-u),
    ),
}


def _half_levels(n: int, half: _Half) -> Array:
    """Solve `level - centroid(level) = 0` for the n levels above 0.

    Newton's method from the companding approximation (levels at equal steps of the integral of
    `density**(1/3)`). A centroid depends on its neighbours only, so the Jacobian is tridiagonal. Lloyd's own
    iteration would need some n**2 sweeps to do the same.
    """
    nodes, weights = np.polynomial.legendre.leggauss(16)
    levels: Array = half.compand((np.arange(n) + 0.5) / n)
    for _ in range(50):
        edges = np.concatenate([[0.0], 0.5 * (levels[:-1] + levels[1:])])
        left, right = edges[:-1], edges[1:]
        middle, radius = 0.5 * (left + right), 0.5 * (right - left)
        # Quadrature about the middle: differences of distribution functions lose a narrow bin's digits.
        mass = weights * half.density(middle[:, None] + radius[:, None] * nodes)
        probability = mass.sum(axis=1)
        inner = middle + radius * (mass @ nodes) / probability
        outer, hazard = half.tail(float(edges[-1]))

        by_left = np.append(
            half.density(left) * (inner - left) / (radius * probability), hazard * (outer - edges[-1])
        )
        by_right = half.density(right) * (right - inner) / (radius * probability)
        by_left[0] = 0.0  # the edge at 0 stays where it is
        jacobian = np.zeros((3, n))
        jacobian[0, 1:] = -0.5 * by_right
        jacobian[1] = 1 - 0.5 * (by_left + np.append(by_right, 0.0))
        jacobian[2, :-1] = -0.5 * by_left[1:]
        residual = levels - np.append(inner, outer)
        levels = levels - solve_banded((1, 1), jacobian, residual)
        if np.abs(residual).max() <= 8 * np.finfo(np.float64).eps * levels[-1]:
            return levels
    raise RuntimeError(f"the Lloyd-Max levels did not converge for n = {n}")
