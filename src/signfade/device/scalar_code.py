"""A device's mean and scale in B bits each: the mean in units of the scale, so that its range is known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from signfade.device.quantize import LogQuantizer, UniformQuantizer

__all__ = ["ScalarCode"]


@dataclass(frozen=True)
class ScalarCode:
    """Codes for means and scales.

    The mean of a gradient may be a thousandth of its scale or more than all of it, and what it is rounded by
    is added to every coordinate. So its quantiser counts in scales that were decoded,

        scale = 2**exponent * scales.decode(j),    mean = means.decode(i)*scale/kept,

    and a step of it is a fraction of a scale whatever gradients shrink to. The exponent is known to both
    sides too: the server chooses it so that the quantiser's range lies around the scales.

    Args:
        means: Quantiser of the mean over the scale.
        scales: Quantiser of the scale over `2**exponent`.
        kept: Part of the scale that noise before the sign and flipped bits leave, in (0, 1], known to both
            sides; the mean's unit does not shrink with it.
        exponents: One for each of the S layers, which are the last dimension of means and scales, or one for
            all.

    Raises:
        ValueError: kept is out of range.

    Example:
        >>> code = ScalarCode(UniformQuantizer(bits=4, limit=1.0), LogQuantizer(bits=4, low=1e-6, high=1.0))
        >>> mean, scale = code.rounded(torch.tensor([3e-4]), torch.tensor([1e-3]))
        >>> mean / scale
        tensor([0.1333])
    """

    means: UniformQuantizer
    scales: LogQuantizer
    kept: float = 1.0
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
        """Return the int64 codes of means and scales, in their shape.

        Raises:
            ValueError: NaN or infinity, a negative scale.
        """
        codes = self.scales.encode(scale.double() / self._units)
        unit = self._units * self.scales.decode(codes, torch.float64) / self.kept
        return self.means.encode(mean.double() / unit), codes

    def decode(self, mean_codes: Tensor, scale_codes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means and scales that codes stand for, float32.

        Raises:
            ValueError: A code that stands for nothing.
        """
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

        Args:
            mean: Means before quantisation.
            scale: Scales about them, `kept` included.
        """
        top = float(self.means.levels[-1])
        return torch.maximum(scale, self.kept * mean.abs() / (1 + top))

    def saturated(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Tell which means and which scales lie beyond their quantiser's range, bool in their shape.

        A scale of zero does not count, nor does its mean: there is nothing to send beside the mean, and
        `sent_scale` sees to it that mean and bits together carry it.

        Args:
            mean: Means before quantisation.
            scale: Scales before quantisation, `kept` included.

        Example:
            >>> code = ScalarCode(UniformQuantizer(4, 1.0), LogQuantizer(4, 0.125, 8.0), exponents=(10,))
            >>> code.saturated(torch.tensor([2e3, 0.0, 9.0]), torch.tensor([1e3, 1e4, 0.0]))
            (tensor([ True, False, False]), tensor([False,  True, False]))
        """
        over, some = scale.double() / self._units, scale > 0
        beyond = (over < self.scales.low) | (over > self.scales.high)
        limit = self.means.limit * self.rounded(mean, scale)[1] / self.kept
        return some & (mean.abs() > limit), some & beyond
