"""Tables I and II beside the paper's: accuracy, rounds to a level; and what the number of devices changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean
from typing import Literal

from signfade.experiments.studies.document import Block, Table, Text
from signfade.experiments.studies.paper.grid import (
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
from signfade.experiments.studies.paper.printed import (
    compare_accuracy,
    compare_rounds,
    count_verdicts,
    majority_rounds,
    read_paper,
    words_of,
)
from signfade.experiments.studies.paper.setups import METHODS, PAIRS, training
from signfade.experiments.studies.records import Record, Records, accuracies
from signfade.experiments.studies.study import Part, Results, Scale, Tier, Want
from signfade.experiments.table import spread_text
from signfade.settings import RunSettings

__all__ = ["TABLE_ACCURACY", "TABLE_DEVICES", "TABLE_ROUNDS", "ours_text", "reading_gaps", "rounds_to"]


def _diverged_text(records: list[Record]) -> str:
    """How many of a cell's runs diverged, to follow its number of seeds; empty for none."""
    lost = sum(record.diverged is not None for record in records)
    return "" if not lost else ", diverged" if lost == len(records) else f", {lost} diverged"


def ours_text(records: list[Record]) -> str:
    """Return mean ± deviation and number of seeds, and whether runs diverged or are unsteady at the end."""
    values = accuracies(records)
    if not values:
        return "missing"
    note = _diverged_text(records)
    note += ", unsteady" if any(record.unsteady for record in records) else ""
    return f"{spread_text(values, 3)} ({len(values)}{note})"


def _verdicts(blocks: Sequence[Block]) -> Iterable[str]:
    """The words in all columns of verdicts."""
    for table in (block for block in blocks if isinstance(block, Table)):
        for row in table.rows:
            yield from (word for header, word in zip(table.headers, row) if header == "verdict")


# -- Table II ------------------------------------------------------------------------------------------------

PRINTED_PAIRS: tuple[Pair, ...] = ((1e-3, 0.9), (1e-2, 0.0))


def reading_gaps(results: Results) -> dict[str, float]:
    """Return how far each reading of signSGD's "Full" is from the paper's column: mean absolute difference.

    Over the pairs for which both readings have a run.
    """
    printed = read_paper().accuracy.column("signsgd", "Full")
    shared = _pairs_of_both_readings(results)

    def gap(column: Column, pair: Pair) -> float:
        ours = mean(accuracies(cell(results.scale, results.records, column, pair)))
        return abs(ours - (printed[pair] or 0.0))

    return {name: mean(gap(column, pair) for pair in shared) for name, column in READINGS.items() if shared}


def _pairs_of_both_readings(results: Results) -> list[Pair]:
    columns = READINGS.values()
    return [pair for pair in PAIRS if all(cell(results.scale, results.records, c, pair) for c in columns)]


def _accuracy_table(results: Results, columns: list[Column], note: str) -> Table:
    paper = read_paper().accuracy
    heads, rows = ["step / momentum"], [[pair_text(pair)] for pair in PAIRS]
    for column in columns:
        name = f"{METHODS[column.method].label}, {column.quantity}"
        heads += [f"{name}: ours"] if column.ours else [f"{name}: paper", "ours", "verdict"]
        best = best_pair(results.scale, results.records, column)
        for row, pair in zip(rows, PAIRS):
            records = cell(results.scale, results.records, column, pair)
            text = f"**{ours_text(records)}**" if pair == best else ours_text(records)
            if column.ours:
                row.append(text)
                continue
            printed = paper.cells[*pair, column.head, column.quantity]
            assert printed is not None
            verdict = compare_accuracy(accuracies(records), printed)
            row += [f"{printed:.2f}", text, results.verdict(verdict.word)]
    return Table(heads, rows, note)


def _readings(results: Results) -> list[Block]:
    gaps = reading_gaps(results)
    if not gaps:
        return [Text("Two readings of signSGD's Full: no runs yet.")]
    best = min(gaps, key=lambda name: gaps[name])
    distances = ", ".join(f"{name} {100 * gap:.1f} points" for name, gap in gaps.items())
    rows = []
    printed = read_paper().accuracy.column("signsgd", "Full")
    for pair in _pairs_of_both_readings(results):
        cells = [cell(results.scale, results.records, column, pair) for column in READINGS.values()]
        rows.append([pair_text(pair), f"{printed[pair]:.2f}", *map(ours_text, cells)])
    words = words_of("table-accuracy", "readings")
    if not results.scale.quick:
        words += words_of("table-accuracy", "nearer", distances=distances, best=best, ours=FULL_READING)
    return [Text(words), Table(["step / momentum", "paper, Full", *READINGS], rows)]


def _printed_runs(scale: Scale, pair: Pair) -> list[RunSettings]:
    return [training(scale, "published", pair, seed=seed) for seed in range(scale.seeds)]


def _as_printed(results: Results) -> list[Block]:
    """SBFL with the paper's printed tanh(2l) in two cells: what the slip is worth."""
    (gaussian,) = (column for column in FULL_COLUMNS if column.head == "gaussian")
    paper = read_paper().accuracy.column("gaussian", "Full")
    rows = [
        [
            pair_text(pair),
            f"{paper[pair]:.2f}",
            ours_text(cell(results.scale, results.records, gaussian, pair)),
            ours_text(results.records.find_all(_printed_runs(results.scale, pair))),
        ]
        for pair in PRINTED_PAIRS
    ]
    heads = ["step / momentum", "paper, Full", "corrected", "as printed"]
    return [Text(words_of("table-accuracy", "printed")), Table(heads, rows)]


def _accuracy_wants(scale: Scale, records: Records) -> list[Want]:
    printed = [run for pair in PRINTED_PAIRS for run in _printed_runs(scale, pair)]
    return grid_wants(scale, records) + [Want(settings, Tier.EXTRA, ours=True) for settings in printed]


def _render_accuracy(results: Results) -> list[Block]:
    blocks: list[Block] = []
    for quantity, title in (("Full", "the model is sent down in full"), ("DC", "downlink compression")):
        columns = [column for column in COLUMNS if column.quantity == quantity]
        note = words_of("table-accuracy", "note", results.scale, quantity=quantity, title=title)
        blocks.append(_accuracy_table(results, [column for column in columns if not column.ours], note))
        note = f"The same cells and seeds by rules of ours, {quantity}."
        blocks.append(_accuracy_table(results, [column for column in columns if column.ours], note))
    verdicts = count_verdicts(_verdicts(blocks))
    words = words_of("table-accuracy", "full", verdicts=verdicts)
    if not results.scale.quick:
        blocks.insert(0, Text(words))
    return blocks + _readings(results) + _as_printed(results)


TABLE_ACCURACY = Part(
    "table-accuracy", "Accuracy after 1000 rounds", "Table II", _render_accuracy, wants=_accuracy_wants
)

# -- Table I -------------------------------------------------------------------------------------------------

_KEYS = {"TL": "rounds_to_loss_1", "TA": "rounds_to_accuracy_09"}


def rounds_to(records: list[Record], quantity: str) -> list[float | None]:
    """Return the rounds to training loss 1.0 (TL) or test accuracy 0.9 (TA), one per seed, None for never."""
    return [record.value(_KEYS[quantity]) for record in records]


def _rounds_text(records: list[Record], quantity: str) -> str:
    values = rounds_to(records, quantity)
    if not values:
        return "missing"
    reached = majority_rounds(values)
    some = sum(value is not None for value in values)
    count = f"{len(values)}" if some in (0, len(values)) else f"{some} of {len(values)} seeds"
    return f"{spread_text(reached, 0) if reached else 'never'} ({count}{_diverged_text(records)})"


def _beside_paper(results: Results, column: Column, pair: Pair, quantity: str) -> list[str]:
    """The paper's rounds, ours, and the verdict."""
    paper, key = read_paper(), (*pair, column.head, quantity)
    records = cell(results.scale, results.records, column, pair)
    printed = paper.rounds.cells[key]
    every = results.scale.every if quantity == "TA" else 1
    contradiction = ("rounds", key) in paper.contradictions
    verdict = compare_rounds(rounds_to(records, quantity), printed, contradiction, every)
    text = "never" if printed is None else f"{printed:.0f}"
    return [text, _rounds_text(records, quantity), results.verdict(verdict.word)]


def _render_rounds(results: Results) -> list[Block]:
    pairs = read_paper().rounds.pairs
    blocks: list[Block] = []
    paper_columns = [column for column in FULL_COLUMNS if not column.ours]
    for quantity, goal in (("TL", "training loss 1.0"), ("TA", "test accuracy 0.9")):
        heads, rows = ["step / momentum"], [[pair_text(pair)] for pair in pairs]
        for column in paper_columns:
            heads += [f"{METHODS[column.method].label}: paper", "ours", "verdict"]
            for row, pair in zip(rows, pairs):
                row += _beside_paper(results, column, pair, quantity)
        how = words_of("table-rounds", quantity, results.scale)
        note = words_of("table-rounds", "note", goal=goal, how=how)
        blocks.append(Table(heads, rows, note))
    ours = [(column, quantity) for column in FULL_COLUMNS if column.ours for quantity in _KEYS]
    heads = ["step / momentum", *(f"{METHODS[c.method].label}: {quantity}" for c, quantity in ours)]
    rows = [[pair_text(pair)] for pair in pairs]
    for row, pair in zip(rows, pairs):
        row += [_rounds_text(cell(results.scale, results.records, c, pair), quantity) for c, quantity in ours]
    blocks.append(Table(heads, rows, "The same cells and seeds by rules of ours."))
    if not results.scale.quick:
        words = count_verdicts(_verdicts(blocks)), words_of("table-rounds", "full")
        blocks = [*map(Text, words), *blocks]
    return [*blocks, _slips()]


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


TABLE_ROUNDS = Part("table-rounds", "Rounds to a level", "Table I", _render_rounds, wants=_rounds_wants)

# -- the number of devices -----------------------------------------------------------------------------------

_DEVICES_PAIR: Pair = (1e-3, 0.0)  # a step so small that no method is unstable: only its size decides
# Devices, and by how much the rounds are divided; in half of them the paper's slowest method arrives.
_DEVICES = {20: 1, 60: 2}
# Methods, the heads of the paper's columns, what is sent down.
_METHODS: tuple[tuple[str, str, Literal["full", "sign"]], ...] = (
    ("vote", "signsgd", "sign"),
    ("gaussian", "gaussian", "full"),
    ("published", "gaussian", "full"),
    ("laplacian", "laplacian", "full"),
)


def _devices_run(scale: Scale, method: str, downlink: Literal["full", "sign"], devices: int) -> RunSettings:
    rounds = scale.rounds // _DEVICES[devices]
    return training(scale, method, _DEVICES_PAIR, downlink=downlink, rounds=rounds, data__devices=devices)


def _devices_wants(scale: Scale, records: Records) -> list[Want]:
    return [
        Want(_devices_run(scale, method, downlink, devices), Tier.EXTRA, order=devices)
        for devices in _DEVICES
        for method, _, downlink in _METHODS
    ]


def _render_devices(results: Results) -> list[Block]:
    paper = read_paper().rounds.cells
    rows = []
    for method, head, downlink in _METHODS:
        row = [METHODS[method].label, f"{paper[*_DEVICES_PAIR, head, 'TL']:.0f}"]
        for devices in _DEVICES:
            run = _devices_run(results.scale, method, downlink, devices)
            record = results.records.find(run)
            value = record and record.value(_KEYS["TL"])
            late = "missing" if record is None else f"not in {run.rounds}"
            row.append(late if value is None else f"{value:.0f}")
        rows.append(row)
    words = words_of("table-devices", pair=pair_text(_DEVICES_PAIR))
    note = words_of("table-devices", "note")
    if not results.scale.quick:
        note += words_of("table-devices", "full")
    return [Text(words), Table(["method", "paper", *(f"{n} devices" for n in _DEVICES)], rows, note)]


TABLE_DEVICES = Part("table-devices", "The number of devices", "ours", _render_devices, wants=_devices_wants)
