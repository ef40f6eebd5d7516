"""Ours beside the paper's: when two numbers agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Literal, get_args

__all__ = ["RULE", "Verdict", "judge_accuracy", "judge_rounds", "majority_rounds", "tally"]

Word = Literal["agrees", "differs", "paper contradicts itself", "missing"]

POINTS, MOST_POINTS = 0.03, 0.06
FACTOR, LARGEST_FACTOR = 1.25, 1.5
RULE = (
    f"**Agrees**: an accuracy whose mean lies within {100 * POINTS:g} points of the paper's, or within two "
    f"of our deviations but never more than {100 * MOST_POINTS:g} points; a number of rounds within a factor "
    f"of {FACTOR:g}, or within two of our deviations but never more than a factor of {LARGEST_FACTOR:g} "
    "(an accuracy may have been reached up to 19 rounds before we looked); "
    "never reached where the paper has a dash. The paper's are means of 30 repetitions, without their "
    "deviations; ours are of two seeds, five in the best cell of a column. A cell reaches a "
    "goal if more than half of its seeds do, and the mean is over those. **Paper contradicts itself**: "
    "another statement of the paper excludes the number; ours stands beside it without a judgement."
)


def tally(words: Iterable[str]) -> str:
    """Return how often each verdict was given, in words; other words do not count.

    Example:
        >>> tally(["agrees", "differs", "agrees", "0.95"])
        'Of 3 cells, 2 agree and 1 differs.'
    """
    count = Counter(words)
    agree, differ, deny, missing = (count[word] for word in get_args(Word))
    parts = [f"{agree} agree{'s' * (agree == 1)}", f"{differ} differ{'s' * (differ == 1)}"]
    parts += [f"in {deny} the paper contradicts itself"] * (deny > 0) + [f"{missing} are missing"] * (
        missing > 0
    )
    return f"Of {agree + differ + deny + missing} cells, {', '.join(parts[:-1])} and {parts[-1]}."


@dataclass(frozen=True)
class Verdict:
    """A word, and by how much ours is away where both are numbers."""

    word: Word
    gap: float | None = None


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def judge_accuracy(ours: Sequence[float], paper: float, contradiction: bool = False) -> Verdict:
    """Compare accuracies after the same number of rounds.

    Args:
        ours: one a seed.
        paper: the printed mean.
        contradiction: whether the paper excludes its own number.

    Example:
        >>> judge_accuracy([0.93, 0.94], 0.95).word, judge_accuracy([0.80, 0.81], 0.95).word
        ('agrees', 'differs')
    """
    if not ours:
        return Verdict("missing")
    gap = mean(ours) - paper
    if contradiction:
        return Verdict("paper contradicts itself", gap)
    close = abs(gap) <= max(POINTS, min(2 * _deviation(ours), MOST_POINTS)) + 1e-9
    return Verdict("agrees" if close else "differs", gap)


def majority_rounds(ours: Sequence[float | None]) -> list[float]:
    """Return the rounds of the seeds that reached a goal, none if half of the seeds or more did not.

    Example:
        >>> majority_rounds([60.0, 80.0, None]), majority_rounds([60.0, None])
        ([60.0, 80.0], [])
    """
    reached = [value for value in ours if value is not None]
    return reached if 2 * len(reached) > len(ours) else []


def judge_rounds(
    ours: Sequence[float | None], paper: float | None, contradiction: bool = False, every: int = 1
) -> Verdict:
    """Compare rounds to a goal.

    Args:
        ours: one a seed, None where it was never reached.
        paper: the printed mean, None for its dash.
        contradiction: whether the paper excludes its own number.
        every: how often we looked: a goal may have been reached up to `every` - 1 rounds earlier, and the
            round in that span which is nearest to the paper's is compared.

    Example:
        >>> judge_rounds([60.0, 70.0], 62).word, judge_rounds([None, None], None).word
        ('agrees', 'agrees')
        >>> judge_rounds([None, None], 62).word, judge_rounds([60.0, 61.0], 200).word
        ('differs', 'differs')
        >>> judge_rounds([180.0], 139).word, judge_rounds([180.0], 139, every=20).word
        ('differs', 'agrees')
    """
    if not ours:
        return Verdict("missing")
    reached = majority_rounds(ours)
    gap = mean(reached) / paper - 1 if reached and paper is not None else None
    if contradiction:
        return Verdict("paper contradicts itself", gap)
    if gap is None:
        return Verdict("agrees" if not reached and paper is None else "differs")
    assert paper is not None
    nearest = min(max(paper, mean(reached) - every + 1), mean(reached))
    ratio = max(nearest / paper, paper / nearest)
    spread = abs(nearest - paper) <= 2 * _deviation(reached) and ratio <= LARGEST_FACTOR
    close = ratio <= FACTOR + 1e-9 or spread
    return Verdict("agrees" if close else "differs", gap)
