"""Figs. 5 to 7: accuracy over the rounds, with full and one-bit downlink, and bits for the scalars; and ours:
accuracy against the SNR of the cell."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from statistics import mean
from typing import Any

import numpy as np

from signfade.experiments.studies.document import Block, Table, Text, picture_or_missing
from signfade.experiments.studies.drawing import (
    band,
    curve_of,
    legend_below,
    log_axis,
    method_style,
    new_figure,
    points,
)
from signfade.experiments.studies.paper.grid import (
    COLUMNS,
    Column,
    Pair,
    best_pair,
    cell,
    grid_wants,
    pair_text,
)
from signfade.experiments.studies.paper.printed import words_of
from signfade.experiments.studies.paper.setups import BANDWIDTHS, METHODS, training
from signfade.experiments.studies.paper.tables import ours_text
from signfade.experiments.studies.records import Record, Records, accuracies
from signfade.experiments.studies.study import Part, Results, Scale, Tier, Want
from signfade.experiments.style import MUTED, figure_style
from signfade.settings import RunSettings
from signfade.uplink.radio import make_radio

__all__ = [
    "FIG_ACCURACY",
    "FIG_DOWNLINK",
    "FIG_QUANTISATION",
    "FIG_SNR",
    "QUANTISATION_PAIR",
    "at_bits",
    "best_cells",
    "median_snr_db",
]

# Until a column is finished, the paper's best pair for SBFL stands for its best.
_STAND_IN: dict[str, Pair] = {"Full": (1e-3, 0.9), "DC": (1e-3, 0.0)}
_IDEAL_PAIR: Pair = (1e-2, 0.0)


def _ideal(scale: Scale, rounds: int | None = None) -> list[RunSettings]:
    seeds = range(scale.figure_seeds)
    return [training(scale, "ideal", _IDEAL_PAIR, seed=seed, rounds=rounds) for seed in seeds]


# -- Figs. 5 and 7 -------------------------------------------------------------------------------------------


def best_cells(results: Results, quantity: str) -> list[tuple[Column, Pair, bool, list[Record]]]:
    """Return each column's best cell: the column, its pair, whether that is settled, and its records."""
    found = []
    for column in (column for column in COLUMNS if column.quantity == quantity):
        pair = best_pair(results.scale, results.records, column)
        chosen = pair or _STAND_IN[quantity]
        records = cell(results.scale, results.records, column, chosen)
        found.append((column, chosen, pair is not None, records))
    return found


def _curves(name: str, quantity: str) -> Callable[[Results], list[Block]]:
    """Figure and table of the best cells of all columns with one kind of downlink."""

    def render(results: Results) -> list[Block]:
        shown = []
        for column, pair, settled, records in best_cells(results, quantity):
            label, when = METHODS[column.method].label, "" if settled else " (not settled yet)"
            shown.append((column.method, label, pair_text(pair), when, records))
        if quantity == "Full":
            ideal = results.records.find_all(_ideal(results.scale))
            shown.append(("ideal", "ideal", pair_text(_IDEAL_PAIR), "", ideal))
        with figure_style():
            figure = new_figure((8.4, 4.2), results.scale)
            panels = figure.subplots(1, 2)
            for method, label, at, _, records in shown:
                legend = f"{'ideal (no radio)' if method == 'ideal' else label}, {at}"
                if (curve := curve_of(records, "train_loss")) is not None:
                    band(panels[0], curve, method_style(method), legend, log=True)
                if (curve := curve_of(records, "accuracy")) is not None:
                    band(panels[1], curve, method_style(method), legend, (0.0, 1.0), 100)
            panels[0].set(title="Training loss", xlabel="round", yscale="log")
            panels[1].set(title="Test accuracy (%)", xlabel="round")
            panels[1].set_ylim(bottom=max(0.0, panels[1].get_ylim()[0]))
            panels[1].axhline(90, color=MUTED, linewidth=0.7, dashes=(1, 2), zorder=1)
            log_axis(panels[0].yaxis, span=30)
            panels[0].axhline(1, color=MUTED, linewidth=0.7, dashes=(1, 2), zorder=1)
            for ax in panels:
                ax.grid(visible=False, axis="x")
            legend_below(figure, panels[1])
        rows = [[label, at + when, ours_text(records)] for _, label, at, when, records in shown]
        note = words_of("fig-accuracy", "note", results.scale)
        about = f"Training loss and test accuracy over the rounds, {quantity}"
        table = Table(["method", "step / momentum", "accuracy"], rows, note)
        return [Text(words_of(name)), picture_or_missing(figure, name, about), table]

    return render


def _accuracy_wants(scale: Scale, records: Records) -> list[Want]:
    grid = grid_wants(scale, records, [column for column in COLUMNS if column.quantity == "Full"])
    return grid + [Want(settings, Tier.EXTRA, ours=True) for settings in _ideal(scale)]


def _downlink_wants(scale: Scale, records: Records) -> list[Want]:
    return grid_wants(scale, records, [column for column in COLUMNS if column.quantity == "DC"])


FIG_ACCURACY = Part(
    "fig-accuracy",
    "Accuracy over the rounds",
    "Fig. 5",
    _curves("fig-accuracy", "Full"),
    wants=_accuracy_wants,
)
FIG_DOWNLINK = Part(
    "fig-downlink",
    "Accuracy with downlink compression",
    "Fig. 7",
    _curves("fig-downlink", "DC"),
    wants=_downlink_wants,
)

# -- Fig. 6 --------------------------------------------------------------------------------------------------

_BITS: tuple[int | None, ...] = (1, 2, 4, 8, None)  # None is float
_PRIORS = ("gaussian", "laplacian")
QUANTISATION_PAIR: Pair = (1e-3, 0.9)  # the paper's best for both priors


def _quantised(scale: Scale, prior: str, bits: int | None) -> list[RunSettings]:
    more: dict[str, Any] = {} if bits is None else {"method__side_bits": bits}
    return [
        training(scale, prior, QUANTISATION_PAIR, seed=seed, rounds=scale.figure_rounds, **more)
        for seed in range(scale.figure_seeds)
    ]


def _quantisation_wants(scale: Scale, records: Records) -> list[Want]:
    return [
        Want(settings, Tier.FIGURE, order=(bits or 0) * 10 + place)
        for place, prior in enumerate(_PRIORS)
        for bits in _BITS
        for settings in _quantised(scale, prior, bits)
    ]


def at_bits(results: Results, prior: str, bits: int | None) -> list[Record]:
    """Return the records with this many bits per scalar, None for full precision."""
    return results.records.find_all(_quantised(results.scale, prior, bits))


def _render_quantisation(results: Results) -> list[Block]:
    names = ["32 (float)" if bits is None else str(bits) for bits in _BITS]
    with figure_style():
        figure = new_figure((5.6, 3.6), results.scale)
        ax = figure.add_subplot()
        for shift, prior in zip((-0.06, 0.06), _PRIORS):
            beside = [x + shift for x in range(len(_BITS))]
            values = [accuracies(at_bits(results, prior, bits)) for bits in _BITS]
            points(ax, beside, values, method_style(prior), METHODS[prior].label)
        ax.set_xticks(range(len(_BITS)), names)
        ax.set_xlim(-0.3, len(_BITS) - 0.7)
        ax.set(xlabel="bits a scalar", ylabel=f"test accuracy after {results.scale.figure_rounds} rounds (%)")
        ax.grid(visible=False, axis="x")
        if ax.get_legend_handles_labels()[0]:
            figure.legend(loc="outside upper center", ncols=2)
    rows = [
        [name, *(ours_text(at_bits(results, prior, bits)) for prior in _PRIORS)]
        for name, bits in zip(names, _BITS)
    ]
    coarse = [record for prior in _PRIORS for bits in _BITS[:-1] for record in at_bits(results, prior, bits)]
    older = any(record.value("payload_bits") is None for record in coarse)  # not kept by older versions
    grid = words_of("fig-quantisation", "older" if older else "following")
    words = words_of("fig-quantisation", pair=pair_text(QUANTISATION_PAIR), range=grid)
    note = words_of("fig-quantisation", "note", results.scale)
    about = "Test accuracy against the bits for each scalar, for both priors"
    heads = ["bits per scalar", *(METHODS[prior].label for prior in _PRIORS)]
    return [Text(words), picture_or_missing(figure, "fig-quantisation", about), Table(heads, rows, note)]


FIG_QUANTISATION = Part(
    "fig-quantisation", "Bits for the scalars", "Fig. 6", _render_quantisation, wants=_quantisation_wants
)

# -- accuracy against the SNR --------------------------------------------------------------------------------

_SNR_COLUMNS = [column for column in COLUMNS if column.quantity == "Full"]


@cache
def median_snr_db(bandwidth_hz: float) -> float:
    """Return the median over 5000 users of the mean SNR in a cell with this budget."""
    settings = training(Scale(), "gaussian", (1e-2, 0.0), bandwidth_hz=bandwidth_hz)
    snr = make_radio(settings.cell, 5000, 0).mean_snr_db
    assert snr is not None
    return float(np.median(snr))


def _at_budget(scale: Scale, column: Column, pair: Pair, bandwidth: float) -> list[RunSettings]:
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


def _snr_wants(scale: Scale, records: Records) -> list[Want]:
    wants = [Want(settings, Tier.EXTRA, ours=True) for settings in _ideal(scale, scale.figure_rounds)]
    for place, column in enumerate(_SNR_COLUMNS):
        if (pair := best_pair(scale, records, column)) is not None:
            runs = [run for bandwidth in BANDWIDTHS for run in _at_budget(scale, column, pair, bandwidth)]
            wants += [Want(settings, Tier.FIGURE, column.ours, place) for settings in runs]
    return wants


def _render_snr(results: Results) -> list[Block]:
    scale, rows = results.scale, []
    with figure_style():
        figure = new_figure((6.4, 4.4), scale)
        ax = figure.add_subplot()
        for place, column in enumerate(_SNR_COLUMNS):
            label, pair = METHODS[column.method].label, best_pair(scale, results.records, column)
            if pair is None:
                rows.append([label, "not settled", *(["missing"] * len(BANDWIDTHS))])
                continue
            found = [results.records.find_all(_at_budget(scale, column, pair, b)) for b in BANDWIDTHS]
            rows.append([label, pair_text(pair), *map(ours_text, found)])
            places = [median_snr_db(b) + 0.12 * (place - 2.5) for b in BANDWIDTHS]  # bars side by side
            style = method_style(column.method)
            points(ax, places, [*map(accuracies, found)], style, f"{label}, {pair_text(pair)}")
        if values := accuracies(results.records.find_all(_ideal(scale, scale.figure_rounds))):
            ax.axhline(100 * mean(values), color=MUTED, dashes=(1.2, 1.4), label="ideal (no radio)")
        if ax.has_data():
            at = median_snr_db(scale.bandwidth_hz)
            ax.axvline(at, color=MUTED, linewidth=0.8, label="calibrated budget")
        ax.set_xticks([median_snr_db(b) for b in BANDWIDTHS])
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:.1f}".replace("-", "−"))
        ax.set(
            xlabel="median over users of the mean SNR (dB)",
            ylabel=f"test accuracy after {scale.figure_rounds} rounds (%)",
        )
        ax.grid(visible=False, axis="x")
        legend_below(figure, ax, 2)
    words = words_of("fig-snr", scale=scale)
    if not scale.quick:
        words += words_of("fig-snr", "full")
    heads = ["method", "step / momentum"]
    heads += [f"{median_snr_db(b):.0f} dB ({b / 1e6:g} MHz)".replace("-", "−") for b in BANDWIDTHS]
    note = words_of("fig-quantisation", "note", scale)
    about = "Test accuracy of each method against the median mean SNR of the cell"
    return [Text(words), picture_or_missing(figure, "fig-snr", about), Table(heads, rows, note)]


FIG_SNR = Part("fig-snr", "Accuracy against the SNR of the cell", "ours", _render_snr, wants=_snr_wants)
