"""The paper's tables and claims (`paper.toml`), when our numbers agree with them, and the page's words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean, stdev
from typing import Any, Literal, get_args

from signfade.experiments.studies.records import Scale, read_toml

__all__ = ["CellKey", "Claim", "Paper", "PaperTable", "Verdict", "compare_accuracy", "compare_rounds"]
__all__ += ["count_verdicts", "majority_rounds", "read_paper", "words_of"]

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
    """A sentence of the paper's text, its point in short, its number if any, and what else denies it."""

    place: str
    paper: str
    text: str
    number: float | None
    contradiction: str | None


@dataclass(frozen=True)
class Paper:
    """Tables I and II, claims by name, cells that another statement excludes, and (where, what) is odd."""

    rounds: PaperTable
    accuracy: PaperTable
    claims: Mapping[str, Claim]
    contradictions: Mapping[tuple[str, CellKey], str]
    oddities: tuple[tuple[str, str], ...]


def _table(table: Mapping[str, Any]) -> PaperTable:
    columns, quantities = table["columns"], table["quantities"]
    heads = [(column, quantity) for column in columns for quantity in quantities]
    cells: dict[CellKey, float | None] = {}
    for step, momentum, *values in table["rows"]:
        for (column, quantity), value in zip(heads, values, strict=True):
            cells[step, momentum, column, quantity] = None if value == "never" else float(value)
    pairs = tuple((row[0], row[1]) for row in table["rows"])
    return PaperTable(pairs, tuple(columns), tuple(quantities), cells)


@cache
def read_paper() -> Paper:
    """Return the paper's numbers.

    >>> paper = read_paper()
    >>> paper.rounds.cells[1e-3, 0.9, "gaussian", "TA"], paper.accuracy.cells[1e-2, 0.0, "signsgd", "DC"]
    (139.0, 0.84)
    """
    tree = read_toml("paper/paper.toml")
    claims = {
        name: Claim(
            claim["place"], claim["paper"], claim["text"], claim.get("number"), claim.get("contradiction")
        )
        for name, claim in tree["claims"].items()
    }
    contradictions = {
        (entry["table"], tuple(entry["cell"])): entry["says"] for entry in tree["contradictions"]
    }
    oddities = tuple((entry["where"], entry["says"]) for entry in tree["oddities"])
    return Paper(_table(tree["rounds"]), _table(tree["accuracy"]), claims, contradictions, oddities)


def words_of(part: str, key: str = "text", scale: Scale | None = None, **values: Any) -> str:
    """Return a sentence of a part with the fields of the scale and `values` filled in.

    >>> words_of("table-rounds", "TA ours", Scale(every=20))
    '**TA, ours**: rounds to test accuracy 0.9, evaluated every 20 rounds'
    """
    values = vars(scale or Scale()) | {"rules": read_toml("paper/rules.toml")} | values
    return str(read_toml("paper/words.toml")[part][key]).format(**values)


# -- when our numbers agree ----------------------------------------------------------------------------------

Verdict = Literal["agrees", "differs", "paper contradicts itself", "missing"]
_RULE: dict[str, float] = read_toml("paper/rules.toml")["cell"]


def count_verdicts(words: Iterable[str]) -> str:
    """Return how often each verdict was given, in words; other words do not count.

    >>> count_verdicts(["agrees", "differs", "agrees", "0.95"])
    'Of 3 cells, 2 agree and 1 differs.'
    """
    count = Counter(words)
    agree, differ, deny, missing = (count[word] for word in get_args(Verdict))
    parts = [f"{agree} agree{'s' * (agree == 1)}", f"{differ} differ{'s' * (differ == 1)}"]
    if deny:
        parts.append(f"in {deny} the paper contradicts itself")
    if missing:
        parts.append(f"{missing} are missing")
    return f"Of {agree + differ + deny + missing} cells, {', '.join(parts[:-1])} and {parts[-1]}."


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def compare_accuracy(ours: Sequence[float], paper: float) -> Verdict:
    """Compare our accuracies, one per seed, with the paper's mean after the same number of rounds.

    >>> compare_accuracy([0.93, 0.94], 0.95), compare_accuracy([0.80, 0.81], 0.95)
    ('agrees', 'differs')
    """
    if not ours:
        return "missing"
    allowed = max(_RULE["points"], min(2 * _deviation(ours), _RULE["most_points"])) + 1e-9
    return "agrees" if abs(mean(ours) - paper) <= allowed else "differs"


def majority_rounds(ours: Sequence[float | None]) -> list[float]:
    """Return the rounds of the seeds that reached a goal, none if half of the seeds or more did not.

    >>> majority_rounds([60.0, 80.0, None]), majority_rounds([60.0, None])
    ([60.0, 80.0], [])
    """
    reached = [value for value in ours if value is not None]
    return reached if 2 * len(reached) > len(ours) else []


def compare_rounds(
    ours: Sequence[float | None], paper: float | None, contradiction: bool = False, every: int = 1
) -> Verdict:
    """Compare rounds to a goal, one per seed, with the printed mean; None for never and for the paper's dash.

    With `every` rounds between evaluations a goal may have been reached up to `every` - 1 rounds earlier; the
    round in that span which is nearest to the paper's is compared.

    >>> compare_rounds([60.0, 70.0], 62), compare_rounds([None, None], None), compare_rounds([None], 62)
    ('agrees', 'agrees', 'differs')
    >>> compare_rounds([180.0], 139), compare_rounds([180.0], 139, every=20)
    ('differs', 'agrees')
    """
    if not ours:
        return "missing"
    if contradiction:
        return "paper contradicts itself"
    reached = majority_rounds(ours)
    if not reached or paper is None:
        return "agrees" if not reached and paper is None else "differs"
    nearest = min(max(paper, mean(reached) - every + 1), mean(reached))
    ratio = max(nearest / paper, paper / nearest)
    spread = abs(nearest - paper) <= 2 * _deviation(reached) and ratio <= _RULE["largest_factor"]
    return "agrees" if ratio <= _RULE["factor"] + 1e-9 or spread else "differs"
