"""When ours agrees with the paper's."""

from __future__ import annotations

import pytest

from signfade.experiments.studies.paper.printed import compare_accuracy, compare_rounds, majority_rounds


@pytest.mark.parametrize(
    ("ours", "paper", "word"),
    [
        ([0.92], 0.95, "agrees"),  # three points
        ([0.919], 0.95, "differs"),
        ([0.98], 0.95, "agrees"),
        ([0.89, 0.93], 0.95, "agrees"),  # four points, and two deviations are 5.7
        ([0.905, 0.915], 0.95, "differs"),  # four points, and two deviations are 1.4
        ([0.5, 0.95], 0.95, "differs"),  # a deviation that large excuses no more than six points
        ([], 0.95, "missing"),
    ],
)
def test_accuracies(ours: list[float], paper: float, word: str) -> None:
    assert compare_accuracy(ours, paper) == word


@pytest.mark.parametrize(
    ("ours", "paper", "word"),
    [
        ([125.0], 100, "agrees"),
        ([80.0], 100, "agrees"),
        ([126.0], 100, "differs"),
        ([79.0], 100, "differs"),
        ([110.0, 170.0], 100, "agrees"),  # 140, deviation 42
        ([100.0, 240.0], 100, "differs"),  # 170 is too far, whatever the deviation
        ([None], None, "agrees"),
        ([None, None, 50.0], None, "agrees"),  # most never
        ([50.0, 60.0, None], None, "differs"),
        ([None, None, 50.0], 50, "differs"),
        ([50.0, None], 50, "differs"),  # half is not most
        ([], None, "missing"),
    ],
)
def test_rounds(ours: list[float | None], paper: float | None, word: str) -> None:
    assert compare_rounds(ours, paper) == word


def test_a_number_that_the_paper_excludes_is_not_judged() -> None:
    assert compare_rounds([None], None, contradiction=True) == "paper contradicts itself"
    assert compare_rounds([], None, contradiction=True) == "missing"


def test_the_mean_is_over_those_that_arrive_if_most_do() -> None:
    assert majority_rounds([10.0, None, 30.0]) == [10.0, 30.0]
    assert majority_rounds([10.0, None]) == []
