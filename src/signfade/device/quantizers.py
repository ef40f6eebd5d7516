"""B-bit quantisers for the numbers a device sends beside its bits, and the code of a mean and a scale.

A quantiser is a list of levels and the edges between their bins. Bins are half-open, `[edge, next edge)`, so
that every number has exactly one code (the paper's are closed on both sides and overlap; docs/errata.md).
Inputs beyond the range saturate to the outermost bin, NaN and infinity are refused.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from signfade._check import check_finite, check_positive

__all__ = ["LogQuantizer", "Quantizer", "ScalarCode", "UniformQuantizer"]


class Quantizer(ABC):
    """Encoding and decoding by levels and edges; every quantiser says where those lie."""

    bits: int  # of a code, 1 to 16

    @property
    @abstractmethod
    def levels(self) -> Tensor:
        """The numbers that codes 0, 1, ... stand for, increasing, float64 `[n]`."""

    @property
    @abstractmethod
    def edges(self) -> Tensor:
        """Where the bin of one code ends and that of the next begins, float64 `[n - 1]`."""

    def encode(self, x: Tensor) -> Tensor:
        """Return the int64 code of the half-open bin that holds each number: how many edges are <= x.

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

    for `low <= x <= high`. Scales below low, zero among them (the scale of an all-zero gradient), saturate to
    the first bin and come back as its level `low*bound`: choose low so small that this is harmless.

    Example:
        >>> quantizer = LogQuantizer(bits=1, low=1.0, high=16.0)
        >>> quantizer.decode(quantizer.encode(torch.tensor([0.0, 3.9, 4.0, 100.0])))
        tensor([2., 2., 8., 8.])

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
        """Largest `max(x/level, level/x)` for x in the range: a ratio, not a difference."""
        return float(2 ** (self._octaves / 2))

    def encode(self, x: Tensor) -> Tensor:
        """Return the code of the half-open bin that holds each scale; negative ones are refused."""
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


@dataclass(frozen=True)
class ScalarCode:
    """A device's mean and scale in B bits each: the mean in units of the scale, so that its range is known.

    The mean of a gradient may be a thousandth of its scale or more than all of it, and what it is rounded by
    is added to every coordinate. So its quantiser counts in scales that were decoded,

        scale = 2**exponent * scales.decode(j),    mean = means.decode(i)*scale/kept,

    and a step of it is a fraction of a scale whatever gradients shrink to. The exponent is known to both
    sides too: the server chooses it so that the quantiser's range lies around the scales.

    Example:
        >>> code = ScalarCode(UniformQuantizer(bits=4, limit=1.0), LogQuantizer(bits=4, low=1e-6, high=1.0))
        >>> mean, scale = code.rounded(torch.tensor([3e-4]), torch.tensor([1e-3]))
        >>> mean / scale
        tensor([0.1333])
    """

    means: UniformQuantizer
    scales: LogQuantizer
    # Part of the scale that noise before the sign and flipped bits leave, in (0, 1], known to both sides; the
    # mean's unit does not shrink with it.
    kept: float = 1.0
    # One for each of the S layers, which are the last dimension of means and scales, or one for all.
    exponents: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        if not 0 < self.kept <= 1:
            raise ValueError(f"kept must lie in (0, 1]; got {self.kept}")

    @property
    def mean_step(self) -> float:
        """Distance between two means, in units of the decoded scale."""
        return 2 * self.means.bound / self.kept

    @cached_property
    def _units(self) -> Tensor:
        return torch.tensor([2.0**exponent for exponent in self.exponents], dtype=torch.float64)

    def encode(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return the int64 codes of means and scales, in their shape."""
        codes = self.scales.encode(scale.double() / self._units)
        unit = self._units * self.scales.decode(codes, torch.float64) / self.kept
        return self.means.encode(mean.double() / unit), codes

    def decode(self, mean_codes: Tensor, scale_codes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means and scales that codes stand for, float32."""
        scale = self._units * self.scales.decode(scale_codes, torch.float64)
        mean = self.means.decode(mean_codes, torch.float64) * scale / self.kept
        return mean.float(), scale.float()

    def rounded(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and scales as a server decodes them, in the dtypes given."""
        decoded_mean, decoded_scale = self.decode(*self.encode(mean, scale))
        return decoded_mean.to(mean), decoded_scale.to(scale)

    def sent_scale(self, mean: Tensor, scale: Tensor) -> Tensor:
        """Return the scale to send: the true one about the mean, or more where the mean cannot be sent.

        With `top` the largest mean in units, a mean m far above its unit u comes as `top*u`, and bits that
        are all alike must carry the rest, `m - top*u = u`. So where nothing but the mean is left (a layer of
        one weight has no deviation at all) `u = m/(1 + top)`, and both together give m.
        """
        top = float(self.means.levels[-1])
        return torch.maximum(scale, self.kept * mean.abs() / (1 + top))

    def saturated(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Tell which means and which scales lie beyond their quantiser's range, bool in their shape.

        A scale of zero does not count, nor does its mean: there is nothing to send beside the mean, and
        `sent_scale` sees to it that mean and bits together carry it.

        Example:
            >>> code = ScalarCode(UniformQuantizer(4, 1.0), LogQuantizer(4, 0.125, 8.0), exponents=(10,))
            >>> code.saturated(torch.tensor([2e3, 0.0, 9.0]), torch.tensor([1e3, 1e4, 0.0]))
            (tensor([ True, False, False]), tensor([False,  True, False]))
        """
        over, some = scale.double() / self._units, scale > 0
        beyond = (over < self.scales.low) | (over > self.scales.high)
        limit = self.means.limit * self.rounded(mean, scale)[1] / self.kept
        return some & (mean.abs() > limit), some & beyond
