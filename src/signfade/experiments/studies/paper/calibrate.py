"""The link budget, which the paper does not give: chosen only by signSGD's columns, then kept for all.

A budget shifts the SNR of every device by the same number of decibels. Budgets are tried from the best radio
on (bandwidths of 180 kHz, 1, 3 and 10 MHz) until signSGD moves away from the paper's signSGD in Table II,
over the three pairs of hyper-parameters that separate budgets and both of its columns, under either reading
of its column Full. The nearest is taken. SBFL has no say.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from statistics import mean

from signfade.experiments.studies.document import Block, Table, Text
from signfade.experiments.studies.paper.grid import FULL_READING, READINGS, Column, Pair, pair_text
from signfade.experiments.studies.paper.printed import read_paper, words_of
from signfade.experiments.studies.paper.setups import BANDWIDTHS
from signfade.experiments.studies.records import Records, accuracies
from signfade.experiments.studies.study import Part, Results, Scale, Tier, Want
from signfade.settings import RunSettings

__all__ = ["CALIBRATE", "CALIBRATION_PAIRS", "calibrated", "gaps"]

# 1e-4 / 0.9 moves as far as 1e-3 / 0, and 1e-2 / 0 as far as 1e-3 / 0.9; 1e-2 / 0.9 fails at any SNR.
CALIBRATION_PAIRS: tuple[Pair, ...] = ((1e-3, 0.9), (1e-3, 0.0), (1e-4, 0.0))
_SEEDS = 1


def _runs(column: Column, scale: Scale, bandwidth: float, pair: Pair) -> list[RunSettings]:
    there = replace(scale, bandwidth_hz=bandwidth)
    return [column.run(there, pair, seed) for seed in range(_SEEDS)]


def _wants(scale: Scale, records: Records) -> list[Want]:
    tried = _tried(gaps(scale, records))
    return [
        Want(run, Tier.CALIBRATION, order=number * 100 + place * 10 + case)
        for place, bandwidth in enumerate(BANDWIDTHS[:tried])
        for number, pair in enumerate(CALIBRATION_PAIRS)
        for case, column in enumerate(READINGS.values())
        for run in _runs(column, scale, bandwidth, pair)
    ]


def accuracy(scale: Scale, records: Records, reading: str, bandwidth: float, pair: Pair) -> float | None:
    """Return signSGD's mean accuracy under a budget, None if it is not known."""
    found = records.find_all(_runs(READINGS[reading], scale, bandwidth, pair))
    values = accuracies(found)
    return mean(values) if values else None


def gaps(scale: Scale, records: Records) -> dict[tuple[str, float], float]:
    """Return the root mean square distance from the paper's signSGD, of finished budgets.

    By the reading of the paper's column Full, and bandwidth; the column DC is a vote under both.
    """
    table = read_paper().accuracy
    found = {}
    for reading, bandwidth in product(READINGS, BANDWIDTHS):
        squares = []
        for pair, (quantity, as_what) in product(CALIBRATION_PAIRS, (("Full", reading), ("DC", "vote"))):
            ours = accuracy(scale, records, as_what, bandwidth, pair)
            printed = table.cells[*pair, "signsgd", quantity]
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


def _render(results: Results) -> list[Block]:
    table = read_paper().accuracy
    chosen = calibrated(results.scale, results.records)
    missing = "missing" if chosen is None else "not tried"
    rows = []
    for pair, reading in product(CALIBRATION_PAIRS, READINGS):
        values = [accuracy(results.scale, results.records, reading, b, pair) for b in BANDWIDTHS]
        texts = [missing if value is None else f"{value:.3f}" for value in values]
        full, compressed = (f"{table.cells[*pair, 'signsgd', quantity]:.2f}" for quantity in ("Full", "DC"))
        rows.append([f"{pair_text(pair)}, {reading}", full, compressed if reading == "vote" else "", *texts])
    found = gaps(results.scale, results.records)
    for reading in READINGS:
        texts = [f"{found[reading, b]:.3f}" if (reading, b) in found else missing for b in BANDWIDTHS]
        rows.append([f"distance, Full as {reading}", "0", "0", *texts])
    words, budget = words_of("calibrate"), _name(results.scale.bandwidth_hz)
    if chosen is None:
        words += words_of("calibrate", "open", budget=budget)
    else:
        reading, nearest = chosen[0], _name(chosen[1])
        found_words = {"reading": reading, "nearest": nearest, "budget": budget, "ours": FULL_READING}
        words += words_of("calibrate", "chosen", None, **found_words)
    heads = ["cell", "paper, Full", "paper, DC", *map(_name, BANDWIDTHS)]
    return [Text(words), Table(heads, rows, words_of("calibrate", "note"))]


CALIBRATE = Part("calibrate", "The link budget", "not in the paper", _render, wants=_wants)
