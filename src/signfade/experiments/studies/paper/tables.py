"""Tables I and II beside the paper's, what the number of devices changes, and how the budget was chosen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from statistics import mean
from typing import Any

from signfade.experiments.studies.paper.cells import (
    BANDWIDTHS,
    COLUMNS,
    FULL_COLUMNS,
    FULL_READING,
    GOALS,
    METHODS,
    PAIRS,
    READINGS,
    Column,
    Downlink,
    Pair,
    best_pair,
    cell,
    diverged_text,
    grid_wants,
    ours_text,
    pair_text,
    rounds_to,
    training,
)
from signfade.experiments.studies.paper.printed import (
    compare_accuracy,
    compare_rounds,
    count_verdicts,
    majority_rounds,
    read_paper,
    words_of,
)
from signfade.experiments.studies.records import Record, Records, Results, Scale, Tier, Want, accuracies
from signfade.experiments.studies.study import Block, Part, Table, Text
from signfade.experiments.table import spread_text
from signfade.settings import RunSettings

__all__ = ["CALIBRATE", "CALIBRATION_PAIRS", "TABLE_ACCURACY", "TABLE_DEVICES", "TABLE_ROUNDS", "calibrated"]
__all__ += ["gaps", "reading_gaps"]


def _count(blocks: Sequence[Block]) -> str:
    """How often each verdict stands in the tables, in words."""
    tables = [block for block in blocks if isinstance(block, Table)]
    cells = [zip(table.headers, row) for table in tables for row in table.rows]
    return count_verdicts(word for row in cells for header, word in row if header == "verdict")


# -- Table II ------------------------------------------------------------------------------------------------

_PRINTED_PAIRS: tuple[Pair, ...] = ((1e-3, 0.9), (1e-2, 0.0))


def _pairs_of_both_readings(results: Results) -> list[Pair]:
    return [pair for pair in PAIRS if all(cell(results, column, pair) for column in READINGS.values())]


def reading_gaps(results: Results) -> dict[str, float]:
    """Return how far each reading of signSGD's "Full" is from the paper's column: mean absolute difference.

    Over the pairs for which both readings have a run.
    """
    printed = read_paper().accuracy.column("signsgd", "Full")
    shared = _pairs_of_both_readings(results)

    def gap(column: Column, pair: Pair) -> float:
        return abs(mean(accuracies(cell(results, column, pair))) - (printed[pair] or 0.0))

    return {name: mean(gap(column, pair) for pair in shared) for name, column in READINGS.items() if shared}


def _accuracy_table(results: Results, columns: Iterable[Column], note: str) -> Table:
    heads, rows = ["step / momentum"], [[pair_text(pair)] for pair in PAIRS]
    for column in columns:
        name = f"{METHODS[column.method].label}, {column.quantity}"
        heads += [f"{name}: ours"] if column.ours else [f"{name}: paper", "ours", "verdict"]
        best = best_pair(results.scale, results.records, column)
        for row, pair in zip(rows, PAIRS):
            records = cell(results, column, pair)
            text = f"**{ours_text(records)}**" if pair == best else ours_text(records)
            if column.ours:
                row.append(text)
                continue
            printed = read_paper().accuracy.cells[*pair, column.head, column.quantity]
            assert printed is not None
            verdict = compare_accuracy(accuracies(records), printed)
            row += [f"{printed:.2f}", text, results.verdict(verdict)]
    return Table(heads, rows, note)


def _readings(results: Results) -> list[Block]:
    gaps = reading_gaps(results)
    if not gaps:
        return [Text("Two readings of signSGD's Full: no runs yet.")]
    printed = read_paper().accuracy.column("signsgd", "Full")
    rows = []
    for pair in _pairs_of_both_readings(results):
        cells = [cell(results, column, pair) for column in READINGS.values()]
        rows.append([pair_text(pair), f"{printed[pair]:.2f}", *map(ours_text, cells)])
    words = words_of("table-accuracy", "readings")
    if not results.scale.quick:
        best = min(gaps, key=lambda name: gaps[name])
        distances = ", ".join(f"{name} {100 * gap:.1f} points" for name, gap in gaps.items())
        words += words_of("table-accuracy", "nearer", distances=distances, best=best, ours=FULL_READING)
    return [Text(words), Table(["step / momentum", "paper, Full", *READINGS], rows)]


def _printed_runs(scale: Scale, pair: Pair) -> list[RunSettings]:
    return [training(scale, "published", pair, seed=seed) for seed in range(scale.seeds)]


def _as_printed(results: Results) -> list[Block]:
    """SBFL with the paper's tanh(2l), about the mean, in two cells: what that slip alone is worth."""
    (gaussian,) = (column for column in FULL_COLUMNS if column.head == "gaussian")
    paper = read_paper().accuracy.column("gaussian", "Full")
    rows = []
    for pair in _PRINTED_PAIRS:
        printed = results.records.find_all(_printed_runs(results.scale, pair))
        cells = map(ours_text, (cell(results, gaussian, pair), printed))
        rows.append([pair_text(pair), f"{paper[pair]:.2f}", *cells])
    heads = ["step / momentum", "paper, Full", "corrected", "tanh(2l)"]
    return [Text(words_of("table-accuracy", "printed")), Table(heads, rows)]


def _accuracy_wants(scale: Scale, records: Records) -> list[Want]:
    printed = [run for pair in _PRINTED_PAIRS for run in _printed_runs(scale, pair)]
    return grid_wants(scale, records) + [Want(settings, Tier.EXTRA, ours=True) for settings in printed]


def _accuracy(results: Results) -> list[Block]:
    blocks: list[Block] = []
    for quantity, title in (("Full", "the model is sent down in full"), ("DC", "downlink compression")):
        columns = [column for column in COLUMNS if column.quantity == quantity]
        note = words_of("table-accuracy", "note", results.scale, quantity=quantity, title=title)
        blocks.append(_accuracy_table(results, (c for c in columns if not c.ours), note))
        note = f"The same cells and seeds by rules of ours, {quantity}."
        blocks.append(_accuracy_table(results, (c for c in columns if c.ours), note))
    if not results.scale.quick:
        blocks.insert(0, Text(words_of("table-accuracy", "full", verdicts=_count(blocks))))
    return blocks + _readings(results) + _as_printed(results)


TABLE_ACCURACY = Part("table-accuracy", "Accuracy after 1000 rounds", "Table II", _accuracy, _accuracy_wants)

# -- Table I -------------------------------------------------------------------------------------------------


def _rounds_text(records: list[Record], quantity: str) -> str:
    values = rounds_to(records, quantity)
    if not values:
        return "missing"
    reached = majority_rounds(values)
    some = sum(value is not None for value in values)
    count = f"{len(values)}" if some in (0, len(values)) else f"{some} of {len(values)} seeds"
    return f"{spread_text(reached, 0) if reached else 'never'} ({count}{diverged_text(records)})"


def _beside_paper(results: Results, column: Column, pair: Pair, quantity: str) -> list[str]:
    """The paper's rounds, ours, and the verdict."""
    paper, key = read_paper(), (*pair, column.head, quantity)
    records, printed = cell(results, column, pair), paper.rounds.cells[key]
    every = results.scale.every if quantity == "TA" else 1
    contradiction = ("rounds", key) in paper.contradictions
    verdict = compare_rounds(rounds_to(records, quantity), printed, contradiction, every)
    text = "never" if printed is None else f"{printed:.0f}"
    return [text, _rounds_text(records, quantity), results.verdict(verdict)]


def _rounds(results: Results) -> list[Block]:
    pairs = read_paper().rounds.pairs
    blocks: list[Block] = []
    for quantity, goal in (("TL", "training loss 1.0"), ("TA", "test accuracy 0.9")):
        heads, rows = ["step / momentum"], [[pair_text(pair)] for pair in pairs]
        for column in (column for column in FULL_COLUMNS if not column.ours):
            heads += [f"{METHODS[column.method].label}: paper", "ours", "verdict"]
            for row, pair in zip(rows, pairs):
                row += _beside_paper(results, column, pair, quantity)
        how = words_of("table-rounds", quantity, results.scale)
        blocks.append(Table(heads, rows, words_of("table-rounds", "note", goal=goal, how=how)))
    ours = [(column, quantity) for column in FULL_COLUMNS if column.ours for quantity in GOALS]
    heads = ["step / momentum", *(f"{METHODS[c.method].label}: {quantity}" for c, quantity in ours)]
    rows = [
        [pair_text(pair), *(_rounds_text(cell(results, c, pair), quantity) for c, quantity in ours)]
        for pair in pairs
    ]
    blocks.append(Table(heads, rows, "The same cells and seeds by rules of ours."))
    if not results.scale.quick:
        blocks = [Text(_count(blocks)), Text(words_of("table-rounds", "full")), *blocks]
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


TABLE_ROUNDS = Part("table-rounds", "Rounds to a level", "Table I", _rounds, _rounds_wants)

# -- the number of devices -----------------------------------------------------------------------------------

_DEVICES_PAIR: Pair = (1e-3, 0.0)  # a step so small that no method is unstable: only its size decides
# Devices, and by how much the rounds are divided; in half of them the paper's slowest method arrives.
_DEVICES = {20: 1, 60: 2}
# Methods, the heads of the paper's columns, what is sent down.
_METHODS: tuple[tuple[str, str, Downlink], ...] = (
    ("vote", "signsgd", "sign"),
    ("gaussian", "gaussian", "full"),
    ("published", "gaussian", "full"),
    ("laplacian", "laplacian", "full"),
)


def _devices_run(scale: Scale, method: str, downlink: Downlink, devices: int) -> RunSettings:
    rounds = scale.rounds // _DEVICES[devices]
    return training(scale, method, _DEVICES_PAIR, downlink=downlink, rounds=rounds, data__devices=devices)


def _devices_wants(scale: Scale, records: Records) -> list[Want]:
    return [
        Want(_devices_run(scale, method, downlink, devices), Tier.EXTRA, order=devices)
        for devices, (method, _, downlink) in product(_DEVICES, _METHODS)
    ]


def _devices(results: Results) -> list[Block]:
    paper = read_paper().rounds.cells
    rows = []
    for method, head, downlink in _METHODS:
        row = [METHODS[method].label, f"{paper[*_DEVICES_PAIR, head, 'TL']:.0f}"]
        for devices in _DEVICES:
            run = _devices_run(results.scale, method, downlink, devices)
            record = results.records.find(run)
            value = record and record.value(GOALS["TL"])
            late = "missing" if record is None else f"not in {run.rounds}"
            row.append(late if value is None else f"{value:.0f}")
        rows.append(row)
    note = words_of("table-devices", "note")
    if not results.scale.quick:
        note += words_of("table-devices", "full")
    words = words_of("table-devices", pair=pair_text(_DEVICES_PAIR))
    return [Text(words), Table(["method", "paper", *(f"{n} devices" for n in _DEVICES)], rows, note)]


TABLE_DEVICES = Part("table-devices", "The number of devices", "ours", _devices, _devices_wants)

# -- the link budget, which the paper does not give ----------------------------------------------------------
#
# Chosen only by signSGD's columns, then kept for all. A budget shifts the SNR of every device by the same
# number of decibels. Budgets are tried from the best radio on until signSGD moves away from the paper's in
# Table II, over the three pairs that separate budgets and both of its columns, under either reading of its
# column Full. The nearest is taken. SBFL has no say.

# 1e-4 / 0.9 moves as far as 1e-3 / 0, and 1e-2 / 0 as far as 1e-3 / 0.9; 1e-2 / 0.9 fails at any SNR.
CALIBRATION_PAIRS: tuple[Pair, ...] = ((1e-3, 0.9), (1e-3, 0.0), (1e-4, 0.0))


def _budget_run(scale: Scale, reading: str, bandwidth: float, pair: Pair) -> RunSettings:
    return READINGS[reading].run(replace(scale, bandwidth_hz=bandwidth), pair, seed=0)


def _budget_wants(scale: Scale, records: Records) -> list[Want]:
    tried = _tried(gaps(scale, records))
    return [
        Want(
            _budget_run(scale, reading, bandwidth, pair), Tier.CALIBRATION, order=100 * i + 10 * place + case
        )
        for place, bandwidth in enumerate(BANDWIDTHS[:tried])
        for i, pair in enumerate(CALIBRATION_PAIRS)
        for case, reading in enumerate(READINGS)
    ]


def _budget_accuracy(
    scale: Scale, records: Records, reading: str, bandwidth: float, pair: Pair
) -> float | None:
    """Return signSGD's accuracy under a budget, None if it is not known."""
    record = records.find(_budget_run(scale, reading, bandwidth, pair))
    return None if record is None else record.accuracy


def gaps(scale: Scale, records: Records) -> dict[tuple[str, float], float]:
    """Return the root mean square distance from the paper's signSGD, of finished budgets.

    By the reading of the paper's column Full, and bandwidth; the column DC is a vote under both.
    """
    found = {}
    for reading, bandwidth in product(READINGS, BANDWIDTHS):
        squares = []
        for pair, (quantity, as_what) in product(CALIBRATION_PAIRS, (("Full", reading), ("DC", "vote"))):
            ours = _budget_accuracy(scale, records, as_what, bandwidth, pair)
            printed = read_paper().accuracy.cells[*pair, "signsgd", quantity]
            if ours is not None and printed is not None:
                squares.append((ours - printed) ** 2)
        if len(squares) == 2 * len(CALIBRATION_PAIRS):
            found[reading, bandwidth] = mean(squares) ** 0.5
    return found


def _tried(found: dict[tuple[str, float], float]) -> int:
    """Return how many budgets are to be tried: three, and one more as long as the last is the nearest."""
    nearest = [min(found.get((reading, b), math.inf) for reading in READINGS) for b in BANDWIDTHS]
    tried = 3
    while tried < len(BANDWIDTHS) and nearest[tried - 1] == min(nearest[:tried]) < math.inf:
        tried += 1
    return tried


def calibrated(scale: Scale, records: Records) -> tuple[str, float] | None:
    """Return the reading of Full and the bandwidth that fit signSGD's columns best, None while unknown."""
    found = gaps(scale, records)
    finished = len(found) >= len(READINGS) * _tried(found)
    return min(found, key=lambda both: found[both]) if finished else None


def _name(bandwidth: float) -> str:
    return f"{bandwidth / 1e3:g} kHz" if bandwidth < 1e6 else f"{bandwidth / 1e6:g} MHz"


def _budget(results: Results) -> list[Block]:
    scale, records, table = results.scale, results.records, read_paper().accuracy
    chosen = calibrated(scale, records)
    missing = "missing" if chosen is None else "not tried"
    rows = []
    for pair, reading in product(CALIBRATION_PAIRS, READINGS):
        values = [_budget_accuracy(scale, records, reading, b, pair) for b in BANDWIDTHS]
        texts = [missing if value is None else f"{value:.3f}" for value in values]
        full, compressed = (f"{table.cells[*pair, 'signsgd', quantity]:.2f}" for quantity in ("Full", "DC"))
        rows.append([f"{pair_text(pair)}, {reading}", full, compressed if reading == "vote" else "", *texts])
    found = gaps(scale, records)
    for reading in READINGS:
        texts = [f"{found[reading, b]:.3f}" if (reading, b) in found else missing for b in BANDWIDTHS]
        rows.append([f"distance, Full as {reading}", "0", "0", *texts])
    words, budget = words_of("calibrate"), _name(scale.bandwidth_hz)
    if chosen is None:
        words += words_of("calibrate", "open", budget=budget)
    else:
        found_words: dict[str, Any] = {"reading": chosen[0], "nearest": _name(chosen[1])}
        words += words_of("calibrate", "chosen", budget=budget, ours=FULL_READING, **found_words)
    heads = ["cell", "paper, Full", "paper, DC", *map(_name, BANDWIDTHS)]
    return [Text(words), Table(heads, rows, words_of("calibrate", "note"))]


CALIBRATE = Part("calibrate", "The link budget", "not in the paper", _budget, _budget_wants)
