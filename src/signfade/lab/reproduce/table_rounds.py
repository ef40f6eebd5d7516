"""Table I: rounds to training loss 1.0 and to test accuracy 0.9, from the runs of Table II's Full columns."""

from __future__ import annotations

from signfade.lab.reproduce.artefact import Artefact, Study
from signfade.lab.reproduce.document import Block, Table, Text
from signfade.lab.reproduce.grid import FULL_COLUMNS, Column, cell, grid_wants, pair_text
from signfade.lab.reproduce.paper import read_paper
from signfade.lab.reproduce.plan import Want
from signfade.lab.reproduce.records import Record, Records
from signfade.lab.reproduce.setups import METHODS, Scale
from signfade.lab.reproduce.table_accuracy import lost_text, verdicts
from signfade.lab.reproduce.verdict import judge_rounds, majority_rounds, tally
from signfade.lab.table import spread_text

__all__ = ["TABLE_ROUNDS", "rounds_to"]

KEYS = {"TL": "rounds_to_loss_1", "TA": "rounds_to_accuracy_09"}


def rounds_to(records: list[Record], quantity: str) -> list[float | None]:
    """Return the rounds to training loss 1.0 (TL) or test accuracy 0.9 (TA), one a seed, None for never."""
    return [record.value(KEYS[quantity]) for record in records]


def _text(records: list[Record], quantity: str) -> str:
    values = rounds_to(records, quantity)
    if not values:
        return "missing"
    reached = majority_rounds(values)
    some = sum(value is not None for value in values)
    count = f"{len(values)}" if some in (0, len(values)) else f"{some} of {len(values)} seeds"
    return f"{spread_text(reached, 0) if reached else 'never'} ({count}{lost_text(records)})"


def _paper_rows(study: Study, columns: list[Column], quantity: str) -> list[list[str]]:
    paper = read_paper()
    rows = []
    for pair in paper.rounds.pairs:
        row = [pair_text(pair)]
        for column in columns:
            key = (*pair, column.head, quantity)
            records = cell(study.scale, study.records, column, pair)
            values = rounds_to(records, quantity)
            printed = paper.rounds.cells[key]
            every = study.scale.every if quantity == "TA" else 1
            verdict = judge_rounds(values, printed, ("rounds", key) in paper.contradictions, every).word
            told = "never" if printed is None else f"{printed:.0f}"
            row += [told, _text(records, quantity), study.verdict(verdict)]
        rows.append(row)
    return rows


def _our_rows(study: Study, columns: list[Column]) -> list[list[str]]:
    return [
        [
            pair_text(pair),
            *(
                _text(cell(study.scale, study.records, column, pair), quantity)
                for column in columns
                for quantity in KEYS
            ),
        ]
        for pair in read_paper().rounds.pairs
    ]


def _render(study: Study) -> list[Block]:
    every = study.scale.every
    blocks: list[Block] = []
    paper_columns = [column for column in FULL_COLUMNS if not column.ours]
    for quantity, goal in (("TL", "training loss 1.0"), ("TA", "test accuracy 0.9")):
        heads = ["step / momentum"]
        for column in paper_columns:
            heads += [f"{METHODS[column.method].label}: paper", "ours", "verdict"]
        how = (
            "The loss is a mean over five rounds."
            if quantity == "TL"
            else f"We look every {every} rounds, so ours are rounded up to a multiple of {every}."
        )
        note = f"Rounds to {goal}; mean ± deviation over seeds (number of seeds). {how}"
        blocks.append(Table(heads, _paper_rows(study, paper_columns, quantity), note))
    ours = [column for column in FULL_COLUMNS if column.ours]
    heads = ["step / momentum"]
    heads += [f"{METHODS[column.method].label}: {quantity}" for column in ours for quantity in KEYS]
    blocks.append(Table(heads, _our_rows(study, ours), "The same cells and seeds by rules of ours."))
    why = (
        "Most differences are in the training loss. It is probably another quantity in the paper, whose "
        "signSGD reaches accuracy 0.9 without ever a loss of 1.0, where ours has a loss of 0.5 at an "
        "accuracy of 0.85. The others are small steps, with which the paper's SBFL is faster than ours: "
        "see the number of devices below. Momentum is meant alike: 0.9 acts as a step ten times as long, "
        "in the paper (258 and 265 rounds) and here. A dash of the paper, read here as never, might also "
        "mean that not all of its 30 repetitions got there; two of its contradictions would then be none."
    )
    told = [] if study.scale.name == "quick" else [Text(tally(verdicts(blocks))), Text(why)]
    return [*told, *blocks, _slips()]


def _slips() -> Table:
    paper = read_paper()
    rows = [
        [f"Table I, {column}, {pair_text((step, momentum))}, {quantity}", says, "contradiction"]
        for (_, (step, momentum, column, quantity)), says in paper.contradictions.items()
    ]
    rows += [[where, says, "odd, but possible"] for where, says in paper.oddities]
    return Table(["where the paper does not fit itself", "what", "kind"], rows, words=True)


def _wants(scale: Scale, records: Records) -> list[Want]:
    return grid_wants(scale, records, FULL_COLUMNS)


TABLE_ROUNDS = Artefact("table-rounds", "Rounds to a level", "Table I", _render, wants=_wants)
