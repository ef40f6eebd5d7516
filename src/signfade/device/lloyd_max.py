"""The scalar quantiser of least mean squared error: every level is the centroid of its bin (Lloyd, Max)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import solve_banded
from scipy.special import erfcx, ndtri
from torch import Tensor

from signfade._check import check_choice, check_finite
from signfade.device.quantize import Quantizer, check_bits

__all__ = ["LloydMaxQuantizer"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LloydMaxQuantizer(Quantizer):
    """Lloyd-Max quantiser: levels are the centroids of their bins, edges lie midway between levels.

        level_c = E[x given edge_(c-1) <= x < edge_c],    edge_c = (level_c + level_(c+1))/2

    Make one with `for_density` or `fit`; the constructor takes levels that are known already.

    Args:
        bits: Bits of a code, 1 to 16.
        points: The levels, strictly increasing, 1 to `2**bits` of them.
        low: Lower end of the range, at most the first level.
        high: Upper end of the range, at least the last level. The range only says where `bound` holds.

    Raises:
        ValueError: bits is out of range, the levels are not increasing, too many or outside the range.

    Example:
        >>> quantizer = LloydMaxQuantizer(bits=1, points=(-1.0, 3.0), low=-2.0, high=4.0)
        >>> quantizer.encode(torch.tensor([0.9, 1.0])), quantizer.bound
        (tensor([0, 1]), 2.0)

    Reference: J. Max, "Quantizing for minimum distortion", 1960; paper Sec. IV-A for its use.
    """

    bits: int
    points: tuple[float, ...]
    low: float
    high: float

    def __post_init__(self) -> None:
        check_bits(self.bits)
        if not 1 <= len(self.points) <= 2**self.bits:
            raise ValueError(f"points must hold 1 to {2**self.bits} levels; got {len(self.points)}")
        if not all(a < b for a, b in zip(self.points, self.points[1:])):
            raise ValueError("points must be strictly increasing; they are not")
        if not -math.inf < self.low <= self.points[0] <= self.points[-1] <= self.high < math.inf:
            raise ValueError(
                f"low and high must be finite and enclose the points {self.points[0]:g}..{self.points[-1]:g};"
                f" got {self.low} and {self.high}"
            )

    @classmethod
    def for_density(
        cls, bits: int, family: str = "gaussian", std: float = 1.0, limit: float | None = None
    ) -> LloydMaxQuantizer:
        """Make the best quantiser for a zero-mean Gaussian or Laplacian variable.

        Newton's method on the fixed-point equations of the positive half, started from the companding
        approximation (levels at equal steps of the integral of `density**(1/3)`). Both densities are
        log-concave, so the fixed point is unique.

        Args:
            bits: Bits of a code, 1 to 16.
            family: `"gaussian"` or `"laplacian"`.
            std: Standard deviation of the variable, positive.
            limit: The range is `[-limit, limit]`. None: as far beyond the outermost level as the last edge
                lies before it.

        Returns:
            A quantiser of `2**bits` levels, symmetric about 0.

        Raises:
            ValueError: bits, family, std or limit is out of range.

        Example:
            >>> [round(level, 4) for level in LloydMaxQuantizer.for_density(2).points]
            [-1.5104, -0.4528, 0.4528, 1.5104]

        Reference: J. Max, 1960, Table I.
        """
        check_bits(bits)
        check_choice("family", family, tuple(_HALVES))
        if not 0 < std < math.inf:
            raise ValueError(f"std must be positive and finite; got {std}")
        half = std * _half_levels(2 ** (bits - 1), _HALVES[family])
        if limit is None:
            last_edge = 0.0 if len(half) == 1 else 0.5 * (half[-2] + half[-1])
            limit = float(2 * half[-1] - last_edge)
        return cls(bits, tuple(np.concatenate([-half[::-1], half]).tolist()), -limit, limit)

    @classmethod
    def fit(cls, sample: Tensor, bits: int) -> LloydMaxQuantizer:
        """Fit a quantiser to a sample by Lloyd's iteration, until no sample changes its bin.

        Args:
            sample: Numbers of any shape, at least one, finite.
            bits: Bits of a code, 1 to 16.

        Returns:
            A quantiser over `[min(sample), max(sample)]`: a fixed point, which for a finite sample need not
            be the very best. At most `2**bits` distinct numbers get one level each, and no error.

        Raises:
            ValueError: The sample is empty or not finite, or bits is out of range.

        Example:
            >>> LloydMaxQuantizer.fit(torch.tensor([0.0, 1.0, 9.0, 10.0, 11.0]), bits=1).points
            (0.5, 10.0)

        Reference: S. Lloyd, "Least squares quantization in PCM", 1982, method I.
        """
        check_bits(bits)
        if sample.numel() == 0:
            raise ValueError("sample must hold at least one number; it is empty")
        check_finite("sample", sample)
        values, counts = np.unique(sample.detach().cpu().double().numpy(), return_counts=True)
        levels = values if len(values) <= 2**bits else _lloyd(values, counts.astype(np.float64), 2**bits)
        return cls(bits, tuple(levels.tolist()), float(values[0]), float(values[-1]))

    @property
    def bound(self) -> float:
        """Largest `|x - decode(encode(x))|` for x in `[low, high]`."""
        gaps = [b - a for a, b in zip(self.points, self.points[1:])]
        return max([self.points[0] - self.low, self.high - self.points[-1], *(0.5 * gap for gap in gaps)])

    @cached_property
    def levels(self) -> Tensor:
        """Levels, float64 `[n]`."""
        return torch.tensor(self.points, dtype=torch.float64)

    @cached_property
    def edges(self) -> Tensor:
        """Edges, midway between neighbouring levels, float64 `[n - 1]`."""
        return 0.5 * self.levels[:-1] + 0.5 * self.levels[1:]


@dataclass(frozen=True)
class _Half:
    """The upper half of a symmetric density of unit variance.

    `density` need not be normalised; `tail` gives the mean and the hazard (density over probability) of what
    lies above a point; `compand` gives quantiles of the density proportional to `density**(1/3)`.
    """

    density: Callable[[Array], Array]
    tail: Callable[[float], tuple[float, float]]
    compand: Callable[[Array], Array]


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
    """Solve `level - centroid(level) = 0` for the n levels above 0, by Newton's method.

    A centroid depends on its neighbours only, so the Jacobian is tridiagonal. Lloyd's own iteration would
    need some n**2 sweeps to do the same.
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


def _lloyd(values: Array, counts: Array, n: int) -> Array:
    """Alternate edges and centroids over sorted distinct values until no value changes its bin."""
    shift = float(values.mean())  # keeps the running sums, and what their differences lose, small
    weight = np.concatenate([[0.0], np.cumsum(counts)])
    moment = np.concatenate([[0.0], np.cumsum(counts * (values - shift))])

    # Start at values spaced evenly along the integral of density**(1/3); a gap d stands for density 1/d.
    arc = np.concatenate([[0.0], np.cumsum(np.diff(values) ** (2 / 3))])
    rank = np.arange(n)
    nearest = np.searchsorted(0.5 * (arc[:-1] + arc[1:]), (rank + 0.5) / n * arc[-1])
    levels = values[np.minimum(np.maximum.accumulate(nearest - rank), len(values) - n) + rank]

    cuts = np.full(n - 1, -1)
    for _ in range(10_000):  # hundreds suffice; the limit is for rounding that might go round in circles
        previous, cuts = cuts, np.searchsorted(values, 0.5 * levels[:-1] + 0.5 * levels[1:])
        if np.array_equal(previous, cuts):
            break
        first, last = np.append(0, cuts), np.append(cuts, len(values))
        filled = last > first  # an empty bin keeps its level
        first, last = first[filled], last[filled]
        centroid = shift + (moment[last] - moment[first]) / (weight[last] - weight[first])
        levels = levels.copy()
        levels[filled] = np.clip(centroid, values[first], values[last - 1])
    return np.unique(levels)
