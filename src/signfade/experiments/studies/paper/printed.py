"""The paper's tables and claims (`paper.toml`), when our numbers agree with them, and the page's words."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import mean, stdev
from typing import Any, Literal, get_args

from signfade.experiments.studies.study import Scale

__all__ = [
    "FACTOR",
    "LARGEST_FACTOR",
    "MOST_POINTS",
    "POINTS",
    "CellKey",
    "Claim",
    "Paper",
    "PaperTable",
    "Verdict",
    "compare_accuracy",
    "compare_rounds",
    "count_verdicts",
    "majority_rounds",
    "read_paper",
    "words_of",
]

CellKey = tuple[float, float, str, str]  # step, momentum, column, quantity


@dataclass(frozen=True)
class PaperTable:
    """One table: pairs (step, momentum) and columns in the paper's order; a dash is a cell of None."""

    pairs: tuple[tuple[float, float], ...]
    columns: tuple[str, ...]
    quantities: tuple[str, ...]
    cells: Mapping[CellKey, float | None]

    def column(self, column: str, quantity: str) -> dict[tuple[float, float], float | None]:
        """Return one column: value by (step, momentum)."""
        return {pair: self.cells[*pair, column, quantity] for pair in self.pairs}


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper's text, with its number if it has one, and what else in the paper denies it."""

    name: str
    place: str
    text: str
    number: float | None
    contradiction: str | None = None


@dataclass(frozen=True)
class Paper:
    """Tables I and II, claims by name, cells that another statement excludes, and (where, what) is odd."""

    rounds: PaperTable
    accuracy: PaperTable
    claims: Mapping[str, Claim]
    contradictions: Mapping[tuple[str, CellKey], str]
    oddities: tuple[tuple[str, str], ...]


def _cells(table: Mapping[str, Any]) -> Iterator[tuple[CellKey, float | None]]:
    heads = [(column, quantity) for column in table["columns"] for quantity in table["quantities"]]
    for step, momentum, *values in table["rows"]:
        for (column, quantity), value in zip(heads, values, strict=True):
            yield (step, momentum, column, quantity), None if value == "never" else float(value)


def _table(table: Mapping[str, Any]) -> PaperTable:
    return PaperTable(
        tuple((row[0], row[1]) for row in table["rows"]),
        tuple(table["columns"]),
        tuple(table["quantities"]),
        dict(_cells(table)),
    )


@cache
def read_paper() -> Paper:
    """Return the paper's numbers.

    Example:
        >>> paper = read_paper()
        >>> paper.rounds.cells[1e-3, 0.9, "gaussian", "TA"], paper.accuracy.cells[1e-2, 0.0, "signsgd", "DC"]
        (139.0, 0.84)
        >>> paper.rounds.cells[1e-2, 0.0, "signsgd", "TL"] is None
        True
    """
    tree = tomllib.loads(
        files("signfade.experiments.studies.paper").joinpath("paper.toml").read_text(encoding="utf-8")
    )
    return Paper(
        _table(tree["rounds"]),
        _table(tree["accuracy"]),
        {
            name: Claim(name, claim["place"], claim["text"], claim.get("number"), claim.get("contradiction"))
            for name, claim in tree["claims"].items()
        },
        {(entry["table"], tuple(entry["cell"])): entry["says"] for entry in tree["contradictions"]},
        tuple((entry["where"], entry["says"]) for entry in tree["oddities"]),
    )


Word = Literal["agrees", "differs", "paper contradicts itself", "missing"]

POINTS, MOST_POINTS = 0.03, 0.06
FACTOR, LARGEST_FACTOR = 1.25, 1.5


def count_verdicts(words: Iterable[str]) -> str:
    """Return how often each verdict was given, in words; other words do not count.

    Example:
        >>> count_verdicts(["agrees", "differs", "agrees", "0.95"])
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


def compare_accuracy(ours: Sequence[float], paper: float, contradiction: bool = False) -> Verdict:
    """Compare our accuracies, one per seed, with the paper's mean after the same number of rounds.

    Example:
        >>> compare_accuracy([0.93, 0.94], 0.95).word, compare_accuracy([0.80, 0.81], 0.95).word
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


def compare_rounds(
    ours: Sequence[float | None], paper: float | None, contradiction: bool = False, every: int = 1
) -> Verdict:
    """Compare rounds to a goal.

    Args:
        ours: one per seed, None where the goal was never reached.
        paper: the printed mean, None for its dash.
        contradiction: whether the paper excludes its own number.
        every: rounds between evaluations: a goal may have been reached up to `every` - 1 rounds earlier, and
            the round in that span which is nearest to the paper's is compared.

    Example:
        >>> compare_rounds([60.0, 70.0], 62).word, compare_rounds([None, None], None).word
        ('agrees', 'agrees')
        >>> compare_rounds([None, None], 62).word, compare_rounds([60.0, 61.0], 200).word
        ('differs', 'differs')
        >>> compare_rounds([180.0], 139).word, compare_rounds([180.0], 139, every=20).word
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


@cache
def _words() -> dict[str, dict[str, str]]:
    text = files("signfade.experiments.studies.paper").joinpath("words.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def words_of(part: str, key: str = "text", scale: Scale | None = None, **values: Any) -> str:
    """Return a sentence of a part with the fields of the scale and `values` filled in.

    Example:
        >>> words_of("table-rounds", "TA", Scale(every=20))
        'We evaluate every 20 rounds, so ours are rounded up to a multiple of 20.'
    """
    return _words()[part][key].format(**(vars(scale or Scale()) | values))
