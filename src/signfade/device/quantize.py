"""B-bit scalar quantisers for the numbers a device sends beside its bits.

A quantiser is a list of levels and the edges between their bins. Bins are half-open, `[edge, next edge)`, so
that every number has exactly one code (the paper's are closed on both sides and overlap; docs/errata.md).
The range is explicit: inputs beyond it saturate to the outermost bin, NaN and infinity are refused.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from signfade._check import check_finite, check_positive

__all__ = ["LogQuantizer", "Quantizer", "UniformQuantizer"]


class Quantizer(ABC):
    """Encoding and decoding by levels and edges; every quantiser says where those lie.

    Attributes:
        bits: Bits of a code, 1 to 16.
    """

    bits: int

    @property
    @abstractmethod
    def bound(self) -> float:
        """Largest error of an input within the range: a difference, or for `LogQuantizer` a ratio."""

    @property
    @abstractmethod
    def levels(self) -> Tensor:
        """The numbers that codes 0, 1, ... stand for, increasing, float64 `[n]`."""

    @property
    @abstractmethod
    def edges(self) -> Tensor:
        """Where the bin of one code ends and that of the next begins, float64 `[n - 1]`."""

    def encode(self, x: Tensor) -> Tensor:
        """Return the code of the half-open bin that holds each number.

            code = number of edges that are <= x

        Args:
            x: Numbers of any shape, floating point, finite; those beyond the range saturate.

        Returns:
            Codes, int64, in x's shape.

        Raises:
            ValueError: x holds NaN or infinity, or is not floating point.

        Example:
            >>> UniformQuantizer(bits=2, limit=3.0).encode(torch.tensor([-9.0, -1.0, 0.9, 1.0]))
            tensor([0, 1, 1, 2])
        """
        if not x.is_floating_point():
            raise ValueError(f"x must be floating point; got {x.dtype}")
        check_finite("x", x)
        return torch.searchsorted(self.edges.to(x.device), x.detach().double().contiguous(), right=True)

    def decode(self, codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the level of every code.

        Args:
            codes: Integers of any shape, from 0 to the number of levels less one.
            dtype: Type of the result.

        Returns:
            Levels, in the codes' shape.

        Raises:
            ValueError: A code is out of range, or the codes are not integers.

        Example:
            >>> UniformQuantizer(bits=2, limit=3.0).decode(torch.tensor([0, 1, 2]))
            tensor([-2.,  0.,  2.])
        """
        if codes.dtype == torch.bool or codes.is_floating_point() or codes.is_complex():
            raise ValueError(f"codes must be integers; got {codes.dtype}")
        indices = codes.long()
        if bool(((indices < 0) | (indices >= len(self.levels))).any()):
            low, high = int(indices.min()), int(indices.max())
            raise ValueError(f"codes must lie in 0..{len(self.levels) - 1}; got {low}..{high}")
        return self.levels.to(indices.device)[indices].to(dtype)


@dataclass(frozen=True)
class UniformQuantizer(Quantizer):
    """Uniform mid-tread quantiser, for the mean: `n = 2**bits - 1` levels, the middle one exactly 0.

        step = 2*limit/n,    level of code c = (c - (n - 1)/2)*step,    |x - level| <= bound = step/2

    for `|x| <= limit`. The bins tile the range evenly. The largest of the 2**bits codes stays unused: the
    price of sending a mean of zero as zero. With one bit the only level is 0.

    Args:
        bits: Bits of a code, 1 to 16.
        limit: The range is `[-limit, limit]`; positive and finite.

    Raises:
        ValueError: bits or limit is out of range.

    Example:
        >>> quantizer = UniformQuantizer(bits=3, limit=7.0)
        >>> quantizer.decode(quantizer.encode(torch.tensor([0.0, 1.2, -100.0])))
        tensor([ 0.,  2., -6.])
        >>> quantizer.bound
        1.0

    Reference: paper Sec. IV-A, quantisation of mu; docs/errata.md on its bins.
    """

    bits: int
    limit: float

    def __post_init__(self) -> None:
        check_bits(self.bits)
        if not 0 < self.limit < math.inf:
            raise ValueError(f"limit must be positive and finite; got {self.limit}")

    @property
    def bound(self) -> float:
        """Largest `|x - decode(encode(x))|` for x in the range."""
        return self.limit / float(2**self.bits - 1)

    @cached_property
    def levels(self) -> Tensor:
        """Levels, float64 `[2**bits - 1]`."""
        half = 2 ** (self.bits - 1) - 1
        return torch.arange(-half, half + 1, dtype=torch.float64) * (2 * self.bound)

    @cached_property
    def edges(self) -> Tensor:
        """Edges, odd multiples of the bound, float64 `[2**bits - 2]`."""
        half = 2 ** (self.bits - 1) - 1
        return (2 * torch.arange(-half, half, dtype=torch.float64) + 1) * self.bound


@dataclass(frozen=True)
class LogQuantizer(Quantizer):
    """Quantiser uniform in the log domain, for the scale: `n = 2**bits` bins of equal ratio.

        ratio = (high/low)**(1/n),    bin of code c = [low*ratio**c, low*ratio**(c + 1)),
        level of code c = low*ratio**(c + 1/2),    max(x/level, level/x) <= bound = sqrt(ratio)

    for `low <= x <= high`. The bound is a ratio, not a difference. Scales below low, zero among them (the
    scale of an all-zero gradient), saturate to the first bin and come back as its level `low*bound`: choose
    low so small that this is harmless.

    Args:
        bits: Bits of a code, 1 to 16.
        low: Lower end of the range, positive.
        high: Upper end of the range, finite, above low.

    Raises:
        ValueError: bits is out of range, or not `0 < low < high`.

    Example:
        >>> quantizer = LogQuantizer(bits=1, low=1.0, high=16.0)
        >>> quantizer.decode(quantizer.encode(torch.tensor([0.0, 3.9, 4.0, 100.0])))
        tensor([2., 2., 8., 8.])
        >>> quantizer.bound
        2.0

    Reference: paper Sec. IV-A, quantisation of nu, and its figure on quantisation levels.
    """

    bits: int
    low: float
    high: float

    def __post_init__(self) -> None:
        check_bits(self.bits)
        if not 0 < self.low < self.high < math.inf:
            raise ValueError(
                f"low and high must satisfy 0 < low < high < inf; got {self.low} and {self.high}"
            )

    @property
    def bound(self) -> float:
        """Largest `max(x/level, level/x)` for x in the range."""
        return float(2 ** (self._octaves / 2))

    def encode(self, x: Tensor) -> Tensor:
        """Return the code of the half-open bin that holds each scale; see `Quantizer.encode`.

        Raises:
            ValueError: x holds a negative number, NaN or infinity, or is not floating point.

        Example:
            >>> LogQuantizer(bits=2, low=1.0, high=16.0).encode(torch.tensor([0.0, 2.0, 3.9, 4.0, 16.0]))
            tensor([0, 1, 1, 2, 3])
        """
        check_finite("x", x)
        check_positive("x", x, zero=True)
        return super().encode(x)

    @cached_property
    def levels(self) -> Tensor:
        """Levels, the geometric centres of the bins, float64 `[2**bits]`."""
        return self._at(torch.arange(2**self.bits, dtype=torch.float64) + 0.5)

    @cached_property
    def edges(self) -> Tensor:
        """Inner edges of the bins, float64 `[2**bits - 1]`."""
        return self._at(torch.arange(1, 2**self.bits, dtype=torch.float64))

    @property
    def _octaves(self) -> float:
        """Width of a bin: `log2(ratio)`, from two logarithms because high/low may overflow."""
        return (math.log2(self.high) - math.log2(self.low)) / float(2**self.bits)

    def _at(self, position: Tensor) -> Tensor:
        return torch.exp2(math.log2(self.low) + position * self._octaves)


def check_bits(bits: int) -> None:
    """Raise unless `bits` is a whole number of bits that a code may have."""
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 16:
        raise ValueError(f"bits must be an integer in 1..16; got {bits!r}")
