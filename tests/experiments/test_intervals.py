"""Intervals are Student's, and a jackknife of a mean is one."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import numpy as np
import pytest
from scipy import stats

from signfade.experiments.intervals import Interval, half_width, interval_text, jackknife, mean_interval


def test_the_interval_of_paired_differences_is_that_of_the_paired_t_test() -> None:
    random = np.random.default_rng(0)
    ours, theirs = random.normal(0.9, 0.02, 7), random.normal(0.85, 0.05, 7)
    found = mean_interval((ours - theirs).tolist())
    expected = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.seeds == 7


def test_few_seeds_have_no_interval() -> None:
    for values in ([0.5], [0.5, 0.6]):
        found = mean_interval(values)
        assert (found.low, found.high) == (-math.inf, math.inf)
        assert found.above(0.0) is found.within(10.0) is None
    assert mean_interval([0.5, 0.6]).text(2) == "+0.55 (2 seeds)"
    assert mean_interval([0.5]).short == "+0.5 (1)"
    assert interval_text([2.0]) == "2.0"


def test_an_interval_says_yes_no_or_nothing() -> None:
    one = Interval(0.05, 0.02, 0.08, 5)
    assert (one.above(0.01), one.above(0.02), one.above(0.03), one.above(0.09)) == (True, None, None, False)
    assert (one.within(0.1), one.within(0.05), one.within(0.01)) == (True, None, False)
    assert Interval(-0.05, -0.08, -0.02, 5).within(0.01) is False
    assert one.through(lambda value: -2 * value) == pytest.approx((-0.1, -0.16, -0.04, 5))
    assert one.short == "+0.1 ± 0.0 (5)"


def test_a_seed_that_diverged_leaves_nothing_known() -> None:
    for lost in (math.inf, -math.inf, math.nan):
        found = mean_interval([0.5, lost, 0.6])
        assert found.above(0.0) is found.above(9.0) is found.within(10.0) is None
        assert found.text(2) == "diverged in some of 3 seeds"


def test_equal_methods_are_not_above_each_other() -> None:
    assert mean_interval([0.0, 0.0, 0.0]).above(0.0) is None


def test_the_jackknife_of_a_mean_is_its_interval_and_of_a_deviation_covers_it() -> None:
    values = np.random.default_rng(1).normal(0, 1, 9).tolist()
    assert jackknife(fmean, values) == pytest.approx(mean_interval(values))
    random = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        found = jackknife(stdev, random.normal(0, 1, 12).tolist())
        hits += found.low <= 1 <= found.high
    assert hits > 170  # 95 % but for the bias of a deviation of twelve values; 170 is 5 deviations below 190
    assert half_width([1.0, 1.0, 1.0]) == 0


def test_the_jackknife_never_asks_for_the_statistic_of_no_seeds() -> None:
    assert jackknife(fmean, [0.5]) == (0.5, -math.inf, math.inf, 1)
    assert jackknife(fmean, [0.5, 0.6]) == mean_interval([0.5, 0.6])
