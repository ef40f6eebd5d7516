"""When a difference between two methods counts: one rule for every sentence of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from scipy.special import stdtrit

__all__ = ["ENOUGH", "Difference", "difference"]

ENOUGH = 3  # shared seeds from which on there is an interval


@dataclass(frozen=True)
class Difference:
    """One method less another.

    Attributes:
        mean: over the seeds.
        half: half the width of its 95 % interval over seeds; None for too few seeds.
        counts: whether the two differ; if not, they are level.
    """

    mean: float
    half: float | None
    counts: bool


def difference(one: Mapping[Any, float], other: Mapping[Any, float], floor: float) -> Difference:
    """Compare two methods by what each reached with each seed.

    With three or more shared seeds, `d_s = one_s - other_s` and the difference counts if `|mean(d)|` exceeds
    `t * stdev(d) / sqrt(n)`, with `t` the 97.5 % quantile of Student's distribution with `n - 1` degrees of
    freedom (and a twentieth of the floor, below which nothing shows). With fewer it counts if it exceeds the
    floor. Either way the two methods may change places: the mean changes its sign and nothing else.

    Args:
        one: value by seed, at least one.
        other: value by seed, at least one.
        floor: what a difference must exceed where there is no interval; positive.

    Example:
        >>> difference({0: 0.925}, {0: 0.92}, floor=0.01).counts
        False
        >>> found = difference({0: 0.92, 1: 0.93, 2: 0.94}, {0: 0.90, 1: 0.92, 2: 0.92}, floor=0.01)
        >>> f"{found.mean:.4f} +- {found.half:.4f} {found.counts}"
        '0.0167 +- 0.0143 True'
    """
    shared = [seed for seed in one if seed in other]
    if len(shared) < ENOUGH:
        gap = fmean(one.values()) - fmean(other.values())
        return Difference(gap, None, abs(gap) > floor)
    gaps = [one[seed] - other[seed] for seed in shared]
    half = float(stdtrit(len(gaps) - 1, 0.975)) * stdev(gaps) / math.sqrt(len(gaps))
    return Difference(fmean(gaps), half, abs(fmean(gaps)) > max(half, floor / 20))
