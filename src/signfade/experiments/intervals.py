"""95 % intervals over seeds: of a mean (Student), and of any other number of the seeds (jackknife)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import NamedTuple, TypeVar

from scipy.special import stdtrit

__all__ = ["ENOUGH", "Interval", "half_width", "interval_text", "jackknife", "mean_interval"]

Item = TypeVar("Item")


ENOUGH = 3  # seeds from which on there is an interval: that of two is too wide to say anything


class Interval(NamedTuple):
    """An estimate with the ends of its 95 % interval, which are infinite for fewer than `ENOUGH` seeds.

    An estimate of NaN is one over seeds of which some diverged: nothing is known, and the ends are infinite.
    """

    mean: float
    low: float
    high: float
    seeds: int

    def above(self, level: float) -> bool | None:
        """Whether all of the interval is above `level`; False if all of it is below, None otherwise."""
        return True if self.low > level else False if self.high < level else None

    def within(self, size: float) -> bool | None:
        """Whether all of it is between -size and size; False if none of it is, None otherwise."""
        if self.low >= -size and self.high <= size:
            return True
        return False if self.low > size or self.high < -size else None

    def through(self, function: Callable[[float], float]) -> Interval:
        """Return the interval of a monotonic function of the estimate, such as a factor of a logarithm."""
        low, high = sorted((function(self.low), function(self.high)))
        return Interval(function(self.mean), low, high, self.seeds)

    @property
    def short(self) -> str:
        """The mean ± half the width, one digit each, and the seeds in brackets."""
        half = f" ± {self.high - self.mean:.1f}" if self.seeds >= ENOUGH else ""
        return f"{self.mean:+.1f}{half} ({self.seeds})".replace("-", "−")

    def text(self, digits: int = 1, scale: float = 1.0, unit: str = "", sign: str = "+") -> str:
        """Return `mean (low to high; n seeds)` in words, each times `scale`; without ends for few seeds.

        Example:
            >>> Interval(0.05, 0.01, 0.09, 5).text(scale=100, unit=" points")
            '+5.0 points (+1.0 to +9.0; 5 seeds)'
        """
        middle, *ends = (f"{scale * value:{sign}.{digits}f}" for value in self[:3])
        seeds = f"{self.seeds} seed{'s' * (self.seeds != 1)}"
        if math.isnan(self.mean):
            return f"diverged in some of {seeds}"
        span = f"{ends[0]} to {ends[1]}; {seeds}" if self.seeds >= ENOUGH else seeds
        return f"{middle}{unit} ({span})".replace("-", "−")


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of the mean of two values or more.

    Example:
        >>> round(half_width([1.0, 2.0, 3.0]), 2)
        2.48
    """
    return float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / math.sqrt(len(values))


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean of one value per seed with its interval; of differences, that of the paired test.

    A value that is not finite is that of a run that diverged.
    """
    if not all(map(math.isfinite, values)):
        return Interval(math.nan, -math.inf, math.inf, len(values))
    middle, half = fmean(values), half_width(values) if len(values) >= ENOUGH else math.inf
    return Interval(middle, middle - half, middle + half, len(values))


def interval_text(values: Sequence[float], digits: int = 1) -> str:
    """Return mean ± half the 95 % interval over seeds; the mean alone for one value.

    Example:
        >>> interval_text([1.0, 2.0, 3.0])
        '2.0 ± 2.5'
    """
    half = f" ± {half_width(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{half}"


def jackknife(statistic: Callable[[Sequence[Item]], float], seeds: Sequence[Item]) -> Interval:
    """Return a number of the seeds with its interval, from what it is without each of them in turn.

    Of a mean it is `mean_interval`. The statistic must be defined for one seed less than there are.
    """
    count, whole = len(seeds), statistic(seeds)
    if count < ENOUGH:
        return Interval(whole, -math.inf, math.inf, count)
    parts = [count * whole - (count - 1) * statistic([*seeds[:i], *seeds[i + 1 :]]) for i in range(count)]
    return mean_interval(parts)
