"""Figs. 5 and 7: accuracy over the rounds, with full and one-bit downlink; ours: against the SNR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from statistics import mean

import numpy as np

from signfade.experiments.studies.drawing import (
    legend_below,
    method_style,
    new_figure,
    points,
    training_panels,
)
from signfade.experiments.studies.paper.cells import (
    COLUMNS,
    FULL_COLUMNS,
    Column,
    Pair,
    best_cell,
    best_pair,
    find_column,
    grid_wants,
    ours_text,
    pair_text,
    training,
)
from signfade.experiments.studies.paper.point import settle
from signfade.experiments.studies.paper.printed import words_of
from signfade.experiments.studies.records import Missing, Records, Results, Scale, Tier, Want, accuracies
from signfade.experiments.studies.study import Block, Part, Picture, Table, Text
from signfade.experiments.style import MUTED
from signfade.settings import RunSettings
from signfade.uplink.radio import make_radio

__all__ = ["BANDWIDTHS", "FIG_ACCURACY", "FIG_DOWNLINK", "FIG_SNR", "median_snr_db"]

# -- Figs. 5 and 7 -------------------------------------------------------------------------------------------


def _curves(name: str, quantity: str) -> Callable[[Results], list[Block]]:
    """Figure and table of the best cells of all columns with one kind of downlink."""

    def render(results: Results) -> list[Block]:
        shown, rows = [], []
        for column in (column for column in COLUMNS if column.quantity == quantity):
            pair, records = best_cell(results, column)
            if pair is not None:
                label = f"{column.label}, {pair_text(pair)} ({len(records)})"
                shown.append((method_style(column.method), label, records))
                rows.append([column.label, pair_text(pair), ours_text(records)])
        if not rows:
            raise Missing
        with new_figure((8.4, 4.2), 1, 2) as (figure, panels):
            training_panels(panels[0], panels[1], shown)
            panels[1].set_ylim(bottom=max(0.0, panels[1].get_ylim()[0]))
            for ax, goal in zip(panels, (1, 90)):
                ax.axhline(goal, color=MUTED, linewidth=0.7, dashes=(1, 2), zorder=1)
                ax.grid(visible=False, axis="x")
            legend_below(figure, panels[1])
        about = f"Training loss and test accuracy over the rounds, {quantity}"
        note = words_of("fig-accuracy", "note", results.scale)
        table = Table(["method", "step / momentum", "accuracy"], rows, note)
        return [Text(words_of(name)), Picture(figure, name, about), table]

    return render


_DC_COLUMNS = [column for column in COLUMNS if column.quantity == "DC"]
FIG_ACCURACY = Part(
    "fig-accuracy",
    "Accuracy over the rounds",
    "Fig. 5",
    _curves("fig-accuracy", "Full"),
    partial(grid_wants, columns=FULL_COLUMNS),
    settle=settle,
)
FIG_DOWNLINK = Part(
    "fig-downlink",
    "Accuracy with downlink compression",
    "Fig. 7",
    _curves("fig-downlink", "DC"),
    partial(grid_wants, columns=_DC_COLUMNS),
    settle=settle,
)

# -- accuracy against the SNR --------------------------------------------------------------------------------


# The bandwidth of a device's subchannel: 0, 7, 12 and 17 dB less than 180 kHz.
BANDWIDTHS = (180e3, 1e6, 3e6, 10e6)
_SHOWN = [
    find_column(name) for name in ("vote", "printed-gaussian", "gaussian", "laplacian", "rotated", "best")
]
_IDEAL = find_column("ideal")


@cache
def median_snr_db(bandwidth_hz: float) -> float:
    """Return the median over 5000 users of the mean SNR in a cell with this budget."""
    settings = training(Scale(bandwidth_hz=bandwidth_hz), "gaussian", (1e-2, 0.0))
    snr = make_radio(settings.cell, 5000, 0).mean_snr_db
    assert snr is not None
    return float(np.median(snr))


def _at_budget(scale: Scale, column: Column, pair: Pair, bandwidth_hz: float) -> list[RunSettings]:
    there, seeds = replace(scale, bandwidth_hz=bandwidth_hz), range(scale.figure_seeds)
    run = partial(
        training, there, column.method, pair, downlink=column.downlink(scale), rounds=scale.figure_rounds
    )
    return [run(seed=seed) for seed in seeds]


def _snr_wants(scale: Scale, records: Records) -> list[Want]:
    """The grid of the methods shown, and at every budget the pair that turns out to be best."""
    wants = grid_wants(scale, records, [*_SHOWN, _IDEAL])
    for place, column in enumerate(_SHOWN):
        pair, settled = best_pair(scale, records, column)
        if pair is not None and settled:
            runs = [run for bandwidth in BANDWIDTHS for run in _at_budget(scale, column, pair, bandwidth)]
            wants += [Want(run, Tier.FIGURE, column.group != "printed", place) for run in runs]
    return wants


def _snr(results: Results) -> list[Block]:
    scale, rows = results.scale, []
    with new_figure((6.4, 4.4)) as (figure, ax):
        for place, column in enumerate(_SHOWN):
            pair, _ = best_pair(scale, results.records, column)
            if pair is None:
                continue
            found = [results.records.find_all(_at_budget(scale, column, pair, b)) for b in BANDWIDTHS]
            if not any(found):
                continue
            rows.append([column.label, pair_text(pair), *map(ours_text, found)])
            beside = [median_snr_db(b) + 0.12 * (place - 2.5) for b in BANDWIDTHS]  # bars side by side
            style, label = method_style(column.method), f"{column.label}, {pair_text(pair)}"
            points(ax, beside, [*map(accuracies, found)], style, label)
        if not rows:
            raise Missing
        pair, whole = best_cell(results, _IDEAL)
        values = [one.until(scale.figure_rounds).accuracy for one in whole]
        if pair is not None and (known := [value for value in values if value is not None]):
            name = f"{_IDEAL.label}, {pair_text(pair)}"
            ax.axhline(100 * mean(known), color=MUTED, dashes=(1.2, 1.4), label=name)
        ax.axvline(median_snr_db(scale.bandwidth_hz), color=MUTED, linewidth=0.8, label="budget of this page")
        ax.set_xticks([median_snr_db(b) for b in BANDWIDTHS])
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:.1f}".replace("-", "−"))
        ax.set_xlabel("median over users of the mean SNR (dB)")
        ax.set_ylabel(f"test accuracy after {scale.figure_rounds} rounds (%)")
        ax.grid(visible=False, axis="x")
        legend_below(figure, ax, 2)
    heads = ["method", "step / momentum"]
    heads += [f"{median_snr_db(b):.0f} dB ({b / 1e6:g} MHz)".replace("-", "−") for b in BANDWIDTHS]
    about = "Test accuracy of each method against the median mean SNR of the cell"
    table = Table(heads, rows, words_of("fig-snr", "note", scale))
    return [Text(words_of("fig-snr", scale=scale)), Picture(figure, "fig-snr", about), table]


FIG_SNR = Part("fig-snr", "Accuracy against the SNR of the cell", "ours", _snr, _snr_wants, settle=settle)
