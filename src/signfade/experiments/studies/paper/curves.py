"""Figs. 5 to 7: accuracy over the rounds, with full and one-bit downlink, and bits for the scalars; and ours:
accuracy against the SNR of the cell."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import product
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
    BANDWIDTHS,
    COLUMNS,
    FULL_COLUMNS,
    METHODS,
    Column,
    Pair,
    at_bits,
    best_cells,
    best_pair,
    grid_wants,
    ours_text,
    pair_text,
    quantised,
    training,
)
from signfade.experiments.studies.paper.printed import words_of
from signfade.experiments.studies.records import Records, Results, Scale, Tier, Want, accuracies
from signfade.experiments.studies.study import Block, Part, Table, Text, picture_or_missing
from signfade.experiments.style import MUTED
from signfade.settings import RunSettings
from signfade.uplink.radio import make_radio

__all__ = ["FIG_ACCURACY", "FIG_DOWNLINK", "FIG_QUANTISATION", "FIG_SNR", "median_snr_db"]

_IDEAL_PAIR: Pair = (1e-2, 0.0)


def _ideal(scale: Scale, rounds: int | None = None) -> list[RunSettings]:
    seeds = range(scale.figure_seeds)
    return [training(scale, "ideal", _IDEAL_PAIR, seed=seed, rounds=rounds) for seed in seeds]


# -- Figs. 5 and 7 -------------------------------------------------------------------------------------------


def _curves(name: str, quantity: str) -> Callable[[Results], list[Block]]:
    """Figure and table of the best cells of all columns with one kind of downlink."""

    def render(results: Results) -> list[Block]:
        shown, rows = [], []
        for column, pair, settled, records in best_cells(results, quantity):
            label, at = METHODS[column.method].label, pair_text(pair)
            shown.append((method_style(column.method), f"{label}, {at}", records))
            rows.append([label, at if settled else f"{at} (not settled yet)", ours_text(records)])
        if quantity == "Full":
            ideal, at = results.records.find_all(_ideal(results.scale)), pair_text(_IDEAL_PAIR)
            shown.append((method_style("ideal"), f"ideal (no radio), {at}", ideal))
            rows.append(["ideal", at, ours_text(ideal)])
        with new_figure((8.4, 4.2), results.scale, 1, 2) as (figure, panels):
            training_panels(panels[0], panels[1], shown)
            panels[1].set_ylim(bottom=max(0.0, panels[1].get_ylim()[0]))
            for ax, goal in zip(panels, (1, 90)):
                ax.axhline(goal, color=MUTED, linewidth=0.7, dashes=(1, 2), zorder=1)
                ax.grid(visible=False, axis="x")
            legend_below(figure, panels[1])
        about = f"Training loss and test accuracy over the rounds, {quantity}"
        note = words_of("fig-accuracy", "note", results.scale)
        table = Table(["method", "step / momentum", "accuracy"], rows, note)
        return [Text(words_of(name)), picture_or_missing(figure, name, about), table]

    return render


def _accuracy_wants(scale: Scale, records: Records) -> list[Want]:
    ideal = [Want(settings, Tier.EXTRA, ours=True) for settings in _ideal(scale)]
    return grid_wants(scale, records, FULL_COLUMNS) + ideal


_full, _compressed = _curves("fig-accuracy", "Full"), _curves("fig-downlink", "DC")
_downlink_wants = partial(grid_wants, columns=[column for column in COLUMNS if column.quantity == "DC"])
FIG_ACCURACY = Part("fig-accuracy", "Accuracy over the rounds", "Fig. 5", _full, _accuracy_wants)
FIG_DOWNLINK = Part(
    "fig-downlink", "Accuracy with downlink compression", "Fig. 7", _compressed, _downlink_wants
)

# -- Fig. 6 --------------------------------------------------------------------------------------------------

_BITS: tuple[int | None, ...] = (1, 2, 4, 8, None)  # None is float
_PRIORS = ("gaussian", "laplacian")


def _quantisation_wants(scale: Scale, records: Records) -> list[Want]:
    return [
        Want(settings, Tier.FIGURE, order=(bits or 0) * 10 + place)
        for (place, prior), bits in product(enumerate(_PRIORS), _BITS)
        for settings in quantised(scale, prior, bits)
    ]


def _quantisation(results: Results) -> list[Block]:
    names = ["32 (float)" if bits is None else str(bits) for bits in _BITS]
    found = {prior: [at_bits(results, prior, bits) for bits in _BITS] for prior in _PRIORS}
    with new_figure((5.6, 3.6), results.scale) as (figure, ax):
        for shift, prior in zip((-0.06, 0.06), _PRIORS):
            beside = [x + shift for x in range(len(_BITS))]
            points(ax, beside, [*map(accuracies, found[prior])], method_style(prior), METHODS[prior].label)
        ax.set_xticks(range(len(_BITS)), names)
        ax.set_xlim(-0.3, len(_BITS) - 0.7)
        ax.set(
            xlabel="bits per scalar", ylabel=f"test accuracy after {results.scale.figure_rounds} rounds (%)"
        )
        ax.grid(visible=False, axis="x")
        if ax.get_legend_handles_labels()[0]:
            figure.legend(loc="outside upper center", ncols=2)
    rows = [[name, *map(ours_text, cells)] for name, *cells in zip(names, *found.values())]
    coarse = [record for prior in _PRIORS for cell in found[prior][:-1] for record in cell]
    older = any(record.value("payload_bits") is None for record in coarse)  # not kept by older versions
    grid = words_of("fig-quantisation", "older" if older else "following")
    words = words_of("fig-quantisation", pair=pair_text((1e-3, 0.9)), range=grid)
    about = "Test accuracy against the bits for each scalar, for both priors"
    heads = ["bits per scalar", *(METHODS[prior].label for prior in _PRIORS)]
    table = Table(heads, rows, words_of("fig-quantisation", "note", results.scale))
    return [Text(words), picture_or_missing(figure, "fig-quantisation", about), table]


FIG_QUANTISATION = Part(
    "fig-quantisation", "Bits for the scalars", "Fig. 6", _quantisation, _quantisation_wants
)

# -- accuracy against the SNR --------------------------------------------------------------------------------


@cache
def median_snr_db(bandwidth_hz: float) -> float:
    """Return the median over 5000 users of the mean SNR in a cell with this budget."""
    settings = training(Scale(), "gaussian", (1e-2, 0.0), bandwidth_hz=bandwidth_hz)
    snr = make_radio(settings.cell, 5000, 0).mean_snr_db
    assert snr is not None
    return float(np.median(snr))


def _at_budget(scale: Scale, column: Column, pair: Pair, bandwidth_hz: float) -> list[RunSettings]:
    run = partial(training, scale, column.method, pair, downlink=column.downlink, rounds=scale.figure_rounds)
    return [run(seed=seed, bandwidth_hz=bandwidth_hz) for seed in range(scale.figure_seeds)]


def _snr_wants(scale: Scale, records: Records) -> list[Want]:
    wants = [Want(settings, Tier.EXTRA, ours=True) for settings in _ideal(scale, scale.figure_rounds)]
    for place, column in enumerate(FULL_COLUMNS):
        if (pair := best_pair(scale, records, column)) is not None:
            runs = [run for bandwidth in BANDWIDTHS for run in _at_budget(scale, column, pair, bandwidth)]
            wants += [Want(settings, Tier.FIGURE, column.ours, place) for settings in runs]
    return wants


def _snr(results: Results) -> list[Block]:
    scale, rows = results.scale, []
    with new_figure((6.4, 4.4), scale) as (figure, ax):
        for place, column in enumerate(FULL_COLUMNS):
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
        ax.set_xlabel("median over users of the mean SNR (dB)")
        ax.set_ylabel(f"test accuracy after {scale.figure_rounds} rounds (%)")
        ax.grid(visible=False, axis="x")
        legend_below(figure, ax, 2)
    words = words_of("fig-snr", scale=scale)
    if not scale.quick:
        words += words_of("fig-snr", "full")
    heads = ["method", "step / momentum"]
    heads += [f"{median_snr_db(b):.0f} dB ({b / 1e6:g} MHz)".replace("-", "−") for b in BANDWIDTHS]
    about = "Test accuracy of each method against the median mean SNR of the cell"
    table = Table(heads, rows, words_of("fig-quantisation", "note", scale))
    return [Text(words), picture_or_missing(figure, "fig-snr", about), table]


FIG_SNR = Part("fig-snr", "Accuracy against the SNR of the cell", "ours", _snr, _snr_wants)
