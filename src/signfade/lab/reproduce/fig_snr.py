"""Ours: accuracy of each method against the mean SNR of the cell, so that one sees where a claim holds."""

from __future__ import annotations

from functools import cache
from statistics import mean

import numpy as np

from signfade.lab.reproduce.artefact import Artefact, Study
from signfade.lab.reproduce.document import Block, Table, Text, picture
from signfade.lab.reproduce.drawing import legend_below, method_style, new_figure, points
from signfade.lab.reproduce.fig_accuracy import IDEAL_PAIR
from signfade.lab.reproduce.grid import FULL_COLUMNS, Column, Pair, best_pair, pair_text
from signfade.lab.reproduce.plan import Tier, Want
from signfade.lab.reproduce.records import Record, Records, accuracies
from signfade.lab.reproduce.setups import BANDWIDTHS, METHODS, Scale, training
from signfade.lab.reproduce.table_accuracy import ours_text
from signfade.lab.style import MUTED, figure_style
from signfade.learn.cell import make_cell
from signfade.settings import RunSettings

__all__ = ["FIG_SNR", "median_snr_db"]

_USERS = 5000


@cache
def median_snr_db(bandwidth_hz: float) -> float:
    """Return the median over users of the mean SNR in a cell with this budget."""
    cell = training(Scale(), "gaussian", (1e-2, 0.0), bandwidth_hz=bandwidth_hz).cell
    snr = make_cell(cell, _USERS, 0).mean_snr_db
    assert snr is not None
    return float(np.median(snr))


def _runs(scale: Scale, column: Column, pair: Pair, bandwidth: float) -> list[RunSettings]:
    return [
        training(
            scale,
            column.method,
            pair,
            seed=seed,
            downlink=column.downlink,
            rounds=scale.figure_rounds,
            bandwidth_hz=bandwidth,
        )
        for seed in range(scale.figure_seeds)
    ]


def _ideal(scale: Scale) -> list[RunSettings]:
    seeds = range(scale.figure_seeds)
    return [training(scale, "ideal", IDEAL_PAIR, seed=seed, rounds=scale.figure_rounds) for seed in seeds]


def _wants(scale: Scale, records: Records) -> list[Want]:
    wants = [Want(settings, Tier.EXTRA, ours=True) for settings in _ideal(scale)]
    for place, column in enumerate(FULL_COLUMNS):
        pair = best_pair(scale, records, column)
        if pair is not None:
            wants += [
                Want(settings, Tier.FIGURE, column.ours, place)
                for bandwidth in BANDWIDTHS
                for settings in _runs(scale, column, pair, bandwidth)
            ]
    return wants


def _points(study: Study, column: Column) -> tuple[Pair | None, dict[float, list[Record]]]:
    pair = best_pair(study.scale, study.records, column)
    if pair is None:
        return None, {}
    return pair, {b: study.records.find_all(_runs(study.scale, column, pair, b)) for b in BANDWIDTHS}


def _render(study: Study) -> list[Block]:
    rows = []
    with figure_style():
        figure = new_figure((6.4, 4.4), study.scale)
        ax = figure.add_subplot()
        for place, column in enumerate(FULL_COLUMNS):
            pair, found = _points(study, column)
            label = METHODS[column.method].label
            if pair is None:
                rows.append([label, "not settled", *(["missing"] * len(BANDWIDTHS))])
                continue
            rows.append([label, pair_text(pair), *(ours_text(found[b]) for b in BANDWIDTHS)])
            places = [median_snr_db(b) + 0.12 * (place - 2.5) for b in found]  # error bars side by side
            reached = [accuracies(records) for records in found.values()]
            points(ax, places, reached, method_style(column.method), f"{label}, {pair_text(pair)}")
        ideal = study.records.find_all(_ideal(study.scale))
        if values := accuracies(ideal):
            ax.axhline(100 * mean(values), color=MUTED, dashes=(1.2, 1.4), label="ideal (no radio)")
        chosen = median_snr_db(study.scale.bandwidth_hz)
        if ax.has_data():
            ax.axvline(chosen, color=MUTED, linewidth=0.8, label="calibrated budget")
        ax.set_xticks([median_snr_db(b) for b in BANDWIDTHS])
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:.1f}".replace("-", "−"))
        ax.set(
            xlabel="median over users of the mean SNR (dB)",
            ylabel=f"test accuracy after {study.scale.figure_rounds} rounds (%)",
        )
        ax.grid(visible=False, axis="x")
        legend_below(figure, ax, 2)
    words = (
        "The budgets of calibration and a worse one, each method with the hyper-parameters that are best "
        f"for it at the calibrated one after {study.scale.rounds} rounds. They were not tuned again for the "
        f"other budgets, nor for {study.scale.figure_rounds} rounds. Markers are moved sideways a little, so "
        "that bars do not cover each other."
    )
    if study.scale.name != "quick":
        words += " After 300 the Laplacian prior is better off with 1e-2 / 0.9 than with what is shown."
    heads = ["method", "step / momentum"]
    heads += [f"{median_snr_db(b):.0f} dB ({b / 1e6:g} MHz)".replace("-", "−") for b in BANDWIDTHS]
    note = f"Test accuracy after {study.scale.figure_rounds} rounds; mean ± deviation over seeds."
    about = "Test accuracy of each method against the median mean SNR of the cell"
    return [Text(words), picture(figure, "fig-snr", about), Table(heads, rows, note)]


FIG_SNR = Artefact("fig-snr", "Accuracy against the SNR of the cell", "ours", _render, wants=_wants)
