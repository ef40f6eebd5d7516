"""Table II: test accuracy after 1000 rounds, six pairs of hyper-parameters, full and one-bit downlink."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from signfade.lab.reproduce.artefact import Artefact, Study
from signfade.lab.reproduce.document import Block, Table, Text
from signfade.lab.reproduce.grid import (
    COLUMNS,
    FULL_COLUMNS,
    FULL_READING,
    READINGS,
    Column,
    Pair,
    best_pair,
    cell,
    grid_wants,
    pair_text,
)
from signfade.lab.reproduce.paper import read_paper
from signfade.lab.reproduce.plan import Tier, Want
from signfade.lab.reproduce.records import Record, Records, accuracies
from signfade.lab.reproduce.setups import METHODS, PAIRS, Scale, training
from signfade.lab.reproduce.verdict import judge_accuracy, tally
from signfade.lab.table import spread_text
from signfade.settings import RunSettings

__all__ = ["TABLE_ACCURACY", "reading_gaps"]

MISSING = "missing"
PRINTED_PAIRS: tuple[Pair, ...] = ((1e-3, 0.9), (1e-2, 0.0))


def lost_text(records: list[Record]) -> str:
    """Return how many of a cell's runs diverged, to follow its number of seeds; empty for none."""
    lost = sum(record.diverged is not None for record in records)
    return "" if not lost else ", diverged" if lost == len(records) else f", {lost} diverged"


def ours_text(records: list[Record]) -> str:
    """Return mean ± deviation and number of seeds, and whether runs diverged or are unsteady at the end."""
    values = accuracies(records)
    if not values:
        return MISSING
    note = lost_text(records)
    note += ", unsteady" if any(record.unsteady for record in records) else ""
    return f"{spread_text(values, 3)} ({len(values)}{note})"


def reading_gaps(study: Study) -> dict[str, float]:
    """Return how far each reading of signSGD's "Full" is from the paper's column: mean absolute difference.

    Over the pairs for which both readings have a run, so that they are judged alike.
    """
    printed = read_paper().accuracy.column("signsgd", "Full")
    shared = _read_both(study)

    def gap(column: Column, pair: Pair) -> float:
        return abs(mean(accuracies(cell(study.scale, study.records, column, pair))) - (printed[pair] or 0.0))

    return {name: mean(gap(column, pair) for pair in shared) for name, column in READINGS.items() if shared}


def _read_both(study: Study) -> list[Pair]:
    """The pairs that were played in both readings."""
    columns = READINGS.values()
    return [pair for pair in PAIRS if all(cell(study.scale, study.records, c, pair) for c in columns)]


def _rows(study: Study, columns: list[Column]) -> list[list[str]]:
    paper = read_paper().accuracy
    rows = []
    for pair in PAIRS:
        row = [pair_text(pair)]
        for column in columns:
            records = cell(study.scale, study.records, column, pair)
            text = _marked(study, column, pair, ours_text(records))
            if column.ours:
                row.append(text)
                continue
            printed = paper.cells[*pair, column.head, column.quantity]
            assert printed is not None
            verdict = judge_accuracy(accuracies(records), printed)
            row += [f"{printed:.2f}", text, study.verdict(verdict.word)]
        rows.append(row)
    return rows


def _marked(study: Study, column: Column, pair: Pair, text: str) -> str:
    return f"**{text}**" if best_pair(study.scale, study.records, column) == pair else text


def _headers(columns: list[Column]) -> list[str]:
    heads = ["step / momentum"]
    for column in columns:
        name = f"{METHODS[column.method].label}, {column.quantity}"
        heads += [f"{name}: ours"] if column.ours else [f"{name}: paper", "ours", "verdict"]
    return heads


def verdicts(blocks: Sequence[Block]) -> list[str]:
    """Return the words in all columns of verdicts."""
    return [
        cell
        for block in blocks
        if isinstance(block, Table)
        for row in block.rows
        for header, cell in zip(block.headers, row)
        if header == "verdict"
    ]


def _readings(study: Study) -> list[Block]:
    gaps = reading_gaps(study)
    if not gaps:
        return [Text("Two readings of signSGD's Full: no runs yet.")]
    best = min(gaps, key=lambda name: gaps[name])
    told = ", ".join(f"{name} {100 * gap:.1f} points" for name, gap in gaps.items())
    rows = []
    printed = read_paper().accuracy.column("signsgd", "Full")
    for pair in _read_both(study):
        texts = [ours_text(cell(study.scale, study.records, column, pair)) for column in READINGS.values()]
        rows.append([pair_text(pair), f"{printed[pair]:.2f}", *texts])
    words = (
        'What "Full" means for signSGD is unclear (see the link budget); both readings at the budget of this '
        "page."
    )
    if study.scale.name != "quick":
        words += (
            f" Mean absolute distance from the paper's column: {told}. The nearer is **{best}**; the table "
            f"above has the {FULL_READING}."
        )
    return [Text(words), Table(["step / momentum", "paper, Full", *READINGS], rows)]


def _printed_runs(scale: Scale, pair: Pair) -> list[RunSettings]:
    return [training(scale, "published", pair, seed=seed) for seed in range(scale.seeds)]


def _printed(study: Study) -> list[Block]:
    """SBFL with the paper's printed tanh(2l) in two cells: what the slip is worth."""
    (gaussian,) = (column for column in FULL_COLUMNS if column.head == "gaussian")
    paper = read_paper().accuracy.column("gaussian", "Full")
    rows = [
        [
            pair_text(pair),
            f"{paper[pair]:.2f}",
            ours_text(cell(study.scale, study.records, gaussian, pair)),
            ours_text(study.records.find_all(_printed_runs(study.scale, pair))),
        ]
        for pair in PRINTED_PAIRS
    ]
    words = (
        "The columns above have SBFL in its corrected form, `tanh(h y / sigma2)`. The paper prints "
        "`tanh(2 h y / sigma2)`, which may or may not be what it ran; in two cells we ran it too."
    )
    return [Text(words), Table(["step / momentum", "paper, Full", "corrected", "as printed"], rows)]


def _wants(scale: Scale, records: Records) -> list[Want]:
    printed = [
        Want(settings, Tier.EXTRA, ours=True)
        for pair in PRINTED_PAIRS
        for settings in _printed_runs(scale, pair)
    ]
    return grid_wants(scale, records) + printed


def _render(study: Study) -> list[Block]:
    blocks: list[Block] = []
    for quantity, title in (("Full", "the model is sent down in full"), ("DC", "downlink compression")):
        columns = [column for column in COLUMNS if column.quantity == quantity]
        note = (
            f"{quantity}: {title}. Test accuracy after {study.scale.rounds} rounds; mean ± deviation over "
            "seeds (number of seeds). Bold: the best cell of a column, by the seeds that all its cells "
            "have. A model that diverged counts as chance, 0.1. Unsteady: over its last ten evaluations "
            "a run goes up and down by more than 3 points (standard deviation), so that the last is partly "
            "luck."
        )
        paper_columns = [column for column in columns if not column.ours]
        ours = [column for column in columns if column.ours]
        blocks.append(Table(_headers(paper_columns), _rows(study, paper_columns), note))
        blocks.append(
            Table(
                _headers(ours), _rows(study, ours), f"The same cells and seeds by rules of ours, {quantity}."
            )
        )
    words = (
        f"{tally(verdicts(blocks))} signSGD's two columns are the same runs here, and three of their rows "
        "chose the link budget. Where ours differ: with small steps SBFL is slower here (the number of "
        "devices, above); with long ones, 1e-2 / 0.9 and in part with DC, its runs learn and then collapse, "
        "some sooner and some later, so that cells with a deviation of 0.1 and more have two kinds of seeds, "
        "and two of them tell little about the mean of the paper's thirty."
    )
    told = [] if study.scale.name == "quick" else [Text(words)]
    return [*told, *blocks, *_readings(study), *_printed(study)]


TABLE_ACCURACY = Artefact("table-accuracy", "Accuracy after 1000 rounds", "Table II", _render, wants=_wants)
