"""How a claim is judged: tests by paired differences over seeds, and the word that follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from signfade.experiments.intervals import Interval, mean_interval
from signfade.experiments.studies.paper.cells import Group
from signfade.experiments.studies.records import Missing, Record, paired

__all__ = ["Finding", "Test", "Word", "difference", "factor_text", "judge", "points_text", "sbfl"]

Word = Literal["held", "in part", "not held", "open"]


class Finding(NamedTuple):
    """Our side of a claim: the verdict, and the numbers."""

    word: Word
    words: str


class Test(NamedTuple):
    """One way to test a claim: whether it holds, None if the interval leaves it open, and the numbers."""

    holds: bool | None
    words: str


def judge(tests: Iterable[Test], start: str = "") -> Finding:
    """Return what all tests of a claim say: held in all ways, in some, in none, or open."""
    found = list(tests)
    ways = {test.holds for test in found}
    word: Word = "held" if ways == {True} else "not held" if ways == {False} else "open"
    if {True, False} <= ways:
        word = "in part"
    return Finding(word, start + "; ".join(test.words for test in found))


def sbfl(form: Group, prior: str = "gaussian") -> str:
    """Return the key of SBFL in `METHODS`, printed or corrected."""
    return f"printed-{prior}" if form == "printed" else prior


def difference(
    value: Callable[[Record], float | None], ours: Sequence[Record], theirs: Sequence[Record]
) -> Interval:
    """Return ours less theirs over the seeds that both have, with its interval; `Missing` without one."""
    found = paired(value, ours, theirs)
    if not found:
        raise Missing
    return mean_interval([*found.values()])


def points_text(gain: Interval) -> str:
    """Return a difference of accuracies in points."""
    return gain.text(1, 100, " points")


def factor_text(logs: Interval) -> str:
    """Return a difference of logarithms as a factor."""
    return logs.through(math.exp).text(1, sign="")
