"""Tables I and II beside the paper's: printed, corrected, ours; paired differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple, get_args

from signfade.experiments.intervals import mean_interval
from signfade.experiments.studies.paper.cells import (
    COLUMNS,
    FULL_COLUMNS,
    PAIRS,
    Column,
    Group,
    Pair,
    best_cell,
    best_pair,
    cell,
    diverged_text,
    find_column,
    grid_wants,
    ours_text,
    pair_text,
    rounds_to,
)
from signfade.experiments.studies.paper.point import (
    decide,
    decision_cells,
    here,
    proxy_cells,
    settle,
)
from signfade.experiments.studies.paper.printed import (
    Verdict,
    compare_accuracy,
    compare_rounds,
    count_verdicts,
    majority_rounds,
    read_paper,
    words_of,
)
from signfade.experiments.studies.records import (
    Missing,
    Record,
    Records,
    Results,
    Scale,
    Want,
    accuracies,
    paired,
)
from signfade.experiments.studies.study import Block, Part, Table, Text
from signfade.experiments.table import spread_text

__all__ = [
    "TABLE_ACCURACY",
    "TABLE_ROUNDS",
    "accuracy_blocks",
    "accuracy_verdicts",
    "agreement",
    "gains_of",
    "rounds_blocks",
    "rounds_verdicts",
]

_GROUPS: tuple[Group, ...] = get_args(Group)


class Judged(NamedTuple):
    """The verdict on a cell, whether it is signSGD's, and whether the paper never reached its goal."""

    verdict: Verdict
    vote: bool
    never: bool = False


Verdicts = Callable[[Results, Group, bool], list[Judged]]  # the last: without the cells that chose the point
_TITLES: dict[Group, str] = {"printed": "As printed", "corrected": "Corrected"}


def _columns(columns: Sequence[Column], group: Group) -> list[Column]:
    """The columns of a group; signSGD, whose algorithm is not corrected, counts for both of the paper's."""
    return [one for one in columns if one.group == group or (group == "corrected" and one.method == "vote")]


def _ran(results: Results, column: Column) -> bool:
    return any(cell(results, column, pair) for pair in PAIRS)


def _table(
    results: Results,
    columns: Sequence[Column],
    pairs: Sequence[Pair],
    texts: Callable[[Column, Pair], list[str]],
) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the columns that have runs: of the paper's the paper's number, ours and verdict."""
    heads, rows = ["step / momentum"], [[pair_text(pair)] for pair in pairs]
    for column in columns:
        if _ran(results, column):
            name = column.label
            heads += [name] if column.group == "ours" else [f"{name}: paper", "ours", "verdict"]
            for row, pair in zip(rows, pairs):
                row += texts(column, pair)
    return heads, rows


def agreement(results: Results, verdicts: Verdicts, group: Group) -> str:
    """Return how many cells of the printed or the corrected algorithm agree; empty if it was never run.

    Where few seeds are there, how many; at the point that was decided, also how many agree without the
    cells that chose it.
    """
    ran = any(
        _ran(results, column) for column in COLUMNS if column.group == group and column.method != "vote"
    )
    if not ran:
        return ""
    found = verdicts(results, group, False)
    words = _count_words(found)
    seeds = [len(cell(results, *one)) for one in product(_columns(COLUMNS, group), PAIRS)]
    if min(seeds) < results.scale.seeds:
        words += f" Seeds per cell: {' to '.join(map(str, sorted({min(seeds), max(seeds)})))}."
    if group != "printed" or decide(results.scale, results.records) != here(results.scale):
        return words
    out = _count_words(verdicts(results, group, True))
    return f"{words} {words_of('table-accuracy', 'held_out', counts=out)}"


def _count_words(found: Sequence[Judged]) -> str:
    """How many cells agree: of all, of SBFL and of signSGD, and how many because nobody reached a goal."""
    parts = {"SBFL": [one for one in found if not one.vote], "signSGD": [one for one in found if one.vote]}
    agree = {name: sum(one.verdict == "agrees" for one in some) for name, some in parts.items()}
    share = ", ".join(f"{name} {agree[name]} of {len(some)}" for name, some in parts.items())
    never = sum(one.never and one.verdict == "agrees" for one in found)
    both = f"; in {never} of those that agree neither gets there" if never else ""
    return f"{count_verdicts(one.verdict for one in found)[:-1]} ({share}{both})."


def _agreements(results: Results, verdicts: Verdicts) -> str:
    """Return how many cells agree, for both algorithms, as a list in Markdown."""
    found = {title: agreement(results, verdicts, group) for group, title in _TITLES.items()}
    return "\n".join(f"- {title}: {words}" for title, words in found.items() if words)


# -- Table II ------------------------------------------------------------------------------------------------


def _judge_accuracy(results: Results, column: Column, pair: Pair) -> Verdict:
    printed = read_paper().accuracy.cells[*pair, column.head, column.quantity]
    assert printed is not None
    return compare_accuracy(accuracies(cell(results, column, pair)), printed)


def accuracy_verdicts(results: Results, group: Group, held_out: bool = False) -> list[Judged]:
    """Return the verdicts on the cells of Table II; `held_out`, of those that did not choose the point."""
    used = decision_cells()
    return [
        Judged(_judge_accuracy(results, column, pair), column.method == "vote")
        for column in _columns(COLUMNS, group)
        for pair in PAIRS
        if not (held_out and (column, pair) in used)
    ]


def _accuracy_texts(results: Results, column: Column, pair: Pair) -> list[str]:
    text = ours_text(cell(results, column, pair))
    if pair == best_pair(results.scale, results.records, column)[0]:
        text = f"**{text}**"
    if column.group == "ours":
        return [text]
    printed = read_paper().accuracy.cells[*pair, column.head, column.quantity]
    return [f"{printed:.2f}", text, results.verdict(_judge_accuracy(results, column, pair))]


def accuracy_blocks(results: Results) -> list[Block]:
    """Return Table II: Full and DC, a table for each group, and paired differences."""
    blocks: list[Block] = []
    for quantity in ("Full", "DC"):
        for group in _GROUPS:
            columns = [c for c in COLUMNS if c.group == group and c.quantity == quantity]
            texts = lambda column, pair: _accuracy_texts(results, column, pair)  # noqa: E731
            heads, rows = _table(results, columns, PAIRS, texts)
            if len(heads) > 1:
                blocks += [Text(words_of("table-accuracy", f"{quantity} {group}")), Table(heads, rows)]
        heads, rows = _differences(results, quantity)
        if rows:
            blocks += [Text(words_of("table-accuracy", "differences", quantity=quantity)), Table(heads, rows)]
    if not blocks:
        raise Missing
    words = [words_of("table-accuracy", scale=results.scale)]
    if not results.scale.quick:
        words.append(_agreements(results, accuracy_verdicts))
    return [Text("\n\n".join(words)), *blocks]


# What is compared with what, seed by seed.
_COMPARED = (
    ("printed-gaussian", "vote"),
    ("printed-laplacian", "vote"),
    ("gaussian", "vote"),
    ("gaussian", "printed-gaussian"),
    ("laplacian", "printed-laplacian"),
    ("rotated", "gaussian"),
    ("best", "rotated"),
    ("ideal", "best"),
)


def gains_of(ours: list[Record], theirs: list[Record]) -> list[float]:
    """Return one accuracy less another in points, one per seed that both have."""
    return [100 * gain for gain in paired(lambda record: record.accuracy, ours, theirs).values()]


def _differences(results: Results, quantity: str) -> tuple[list[str], list[list[str]]]:
    """Paired differences at every pair, and of best cell against best cell."""
    rows = []
    for names in _COMPARED:
        if quantity == "DC" and "ideal" in names:
            continue
        columns = [find_column(name, quantity) for name in names]
        gains = [gains_of(*(cell(results, column, pair) for column in columns)) for pair in PAIRS]
        gains.append(gains_of(*(best_cell(results, column)[1] for column in columns)))
        if any(gains):
            texts = [mean_interval(some).short if some else "–" for some in gains]
            rows.append([f"{columns[0].label} less {columns[1].label}", *texts])
    return ["accuracy, points", *map(pair_text, PAIRS), "best cells"], rows


TABLE_ACCURACY = Part(
    "table-accuracy", "Accuracy after 1000 rounds", "Table II", accuracy_blocks, grid_wants, settle=settle
)

# -- Table I -------------------------------------------------------------------------------------------------

# The paper's two goals, and its training loss read as that over all data.
_GOALS = {"TL": "TL", "TG": "TL", "TA": "TA"}


def _reached(records: list[Record], goal: str) -> list[float | None]:
    """Rounds to a goal, one per seed that has evaluated it."""
    if goal != "TG":
        return rounds_to(records, goal)
    return [one.first_below("global_train_loss", 1.0) for one in records if one.points("global_train_loss")]


def _rounds_text(records: list[Record], goal: str) -> str:
    values = _reached(records, goal)
    if not values:
        return "–"
    reached = majority_rounds(values)
    some = sum(value is not None for value in values)
    count = f"{len(values)}" if some in (0, len(values)) else f"{some} of {len(values)} seeds"
    return f"{spread_text(reached, 0) if reached else 'never'} ({count}{diverged_text(records)})"


def _judge_rounds(results: Results, column: Column, pair: Pair, goal: str) -> Verdict:
    paper, key = read_paper(), (*pair, column.head, _GOALS[goal])
    every = 1 if goal == "TL" else results.scale.every
    ours = _reached(cell(results, column, pair), goal)
    return compare_rounds(ours, paper.rounds.cells[key], ("rounds", key) in paper.contradictions, every)


def rounds_verdicts(
    results: Results, group: Group, held_out: bool = False, goals: Sequence[str] = ("TL", "TA")
) -> list[Judged]:
    """Return the verdicts on the cells of Table I, by the batch loss (TL) or that of all data (TG).

    `held_out`, of those that did not choose the point: neither by themselves nor, as another number of the
    same runs, by their accuracy at the end.
    """
    used = [*proxy_cells(), *((*pair, column.head, "TA") for column, pair in decision_cells())]
    found, paper = list[Judged](), read_paper()
    for column, pair, goal in product(_columns(FULL_COLUMNS, group), paper.rounds.pairs, goals):
        key = (*pair, column.head, _GOALS[goal])
        if not (held_out and key in used):
            never = paper.rounds.cells[key] is None
            found.append(Judged(_judge_rounds(results, column, pair, goal), column.method == "vote", never))
    return found


def _rounds_texts(results: Results, column: Column, pair: Pair, goal: str) -> list[str]:
    text = _rounds_text(cell(results, column, pair), goal)
    if column.group == "ours":
        return [text]
    printed = read_paper().rounds.cells[*pair, column.head, _GOALS[goal]]
    verdict = results.verdict(_judge_rounds(results, column, pair, goal))
    return ["never" if printed is None else f"{printed:.0f}", text, verdict]


def rounds_blocks(results: Results) -> list[Block]:
    """Return Table I by both readings of the training loss, a table for each group."""
    pairs = read_paper().rounds.pairs
    blocks: list[Block] = []
    for goal in _GOALS:
        for group in _GROUPS:
            columns = [column for column in FULL_COLUMNS if column.group == group]
            if goal == "TG":
                columns = [
                    c for c in columns if any(_reached(cell(results, c, pair), goal) for pair in pairs)
                ]
            texts = lambda column, pair: _rounds_texts(results, column, pair, goal)  # noqa: B023, E731
            heads, rows = _table(results, columns, pairs, texts)
            if len(heads) > 1:
                title = words_of("table-rounds", f"{goal} {group}", results.scale)
                blocks += [Text(title), Table(heads, rows)]
    if not blocks:
        raise Missing
    words = list[str]()
    if not results.scale.quick:
        words = [_agreements(results, rounds_verdicts)]
        if any(
            one.points("global_train_loss")
            for c in FULL_COLUMNS
            for p in pairs
            for one in cell(results, c, p)
        ):
            by_all = _agreements(results, partial(rounds_verdicts, goals=("TG", "TA")))
            words.append(f"With the training loss over all data (TG) in place of TL:\n\n{by_all}")
    start: list[Block] = [Text("\n\n".join(words))] if any(words) else []
    return [*start, *blocks]


def _slips() -> Table:
    paper = read_paper()
    rows = [
        [f"Table I, {column}, {pair_text((step, momentum))}, {quantity}", says, "contradiction"]
        for (_, (step, momentum, column, quantity)), says in paper.contradictions.items()
    ]
    rows += [[where, says, "odd, but possible"] for where, says in paper.oddities]
    return Table(["where the paper does not fit itself", "what", "kind"], rows)


def _rounds_wants(scale: Scale, records: Records) -> list[Want]:
    return grid_wants(scale, records, FULL_COLUMNS)


TABLE_ROUNDS = Part(
    "table-rounds",
    "Rounds to a level",
    "Table I",
    lambda results: [*rounds_blocks(results), _slips()],
    _rounds_wants,
    settle=settle,
)
