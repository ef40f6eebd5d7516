"""A difference counts by one rule: Student's paired test, or a floor where there are too few seeds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_rel

from signfade.experiments.findings import ENOUGH, difference


@pytest.mark.parametrize("seeds", [3, 5, 20])
def test_with_enough_seeds_it_is_the_paired_t_test_at_five_per_cent(seeds: int) -> None:
    draws = np.random.default_rng(seeds)
    verdicts = []
    for _ in range(300):
        shared = draws.normal(0.9, 0.03, seeds)  # hard and easy seeds, the same for both
        one = shared + draws.normal(0.01, 0.01, seeds)
        other = shared + draws.normal(0, 0.01, seeds)
        found = difference(dict(enumerate(one)), dict(enumerate(other)), floor=0.01)
        test = ttest_rel(one, other)
        assert found.mean == pytest.approx(np.mean(one - other))
        low, high = test.confidence_interval()
        assert found.half == pytest.approx((high - low) / 2)
        if abs(found.mean) > 0.0005:
            assert found.counts == (test.pvalue < 0.05)
        verdicts.append(found.counts)
    assert 0 < sum(verdicts) < len(verdicts)


@pytest.mark.parametrize("seeds", [1, 2, 3, 4, 10])
def test_two_methods_may_change_places(seeds: int) -> None:
    draws = np.random.default_rng(100 + seeds)
    for _ in range(300):
        one, other = (dict(enumerate(draws.normal(0.9, 0.01, seeds))) for _ in range(2))
        there, back = difference(one, other, floor=0.01), difference(other, one, floor=0.01)
        assert there.counts == back.counts
        assert there.mean == pytest.approx(-back.mean)
        assert (there.half is None) == (seeds < ENOUGH)
        assert there.half == pytest.approx(back.half)


def test_with_few_seeds_a_larger_difference_never_counts_less() -> None:
    for seeds in (1, 2):
        counted = [
            difference(dict.fromkeys(range(seeds), 0.9 + gap), dict.fromkeys(range(seeds), 0.9), 0.01).counts
            for gap in np.linspace(0, 0.03, 301)
        ]
        assert counted == sorted(counted)
        assert counted[99] is False
        assert counted[102] is True


def test_only_shared_seeds_are_paired() -> None:
    one = {0: 0.92, 1: 0.93, 2: 0.94, 7: 0.1}
    other = {0: 0.90, 1: 0.92, 2: 0.92, 8: 0.99}
    assert difference(one, other, 0.01).mean == pytest.approx(0.05 / 3)
    apart = difference({0: 0.9, 1: 0.9, 2: 0.9}, {3: 0.88, 4: 0.88, 5: 0.88}, 0.01)
    assert apart.half is None
    assert apart.counts


def test_equal_methods_are_level_and_equal_gaps_are_not() -> None:
    same = dict.fromkeys(range(5), 0.9)
    assert not difference(same, same, 0.01).counts
    assert difference({s: v + 0.002 for s, v in same.items()}, same, 0.01).counts
    assert not difference({s: v + 1e-5 for s, v in same.items()}, same, 0.01).counts  # 0.0 points, as shown
