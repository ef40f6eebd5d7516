"""Fig. 5: training loss and test accuracy over the rounds, each method with its best hyper-parameters."""

from __future__ import annotations

from signfade.lab.reproduce.artefact import Artefact, Study
from signfade.lab.reproduce.document import Block, Table, Text, picture
from signfade.lab.reproduce.drawing import band, curve_of, legend_below, log_axis, method_style, new_figure
from signfade.lab.reproduce.grid import (
    COLUMNS,
    FULL_COLUMNS,
    Column,
    Pair,
    best_pair,
    cell,
    grid_wants,
    pair_text,
)
from signfade.lab.reproduce.plan import Tier, Want
from signfade.lab.reproduce.records import Record, Records
from signfade.lab.reproduce.setups import METHODS, Scale, training
from signfade.lab.reproduce.table_accuracy import ours_text
from signfade.lab.style import MUTED, figure_style

__all__ = ["FIG_ACCURACY", "best_cells", "curves_section"]

# Until a column is finished, the paper's best pair for SBFL stands for its best.
_STAND_IN: dict[str, Pair] = {"Full": (1e-3, 0.9), "DC": (1e-3, 0.0)}
IDEAL_PAIR: Pair = (1e-2, 0.0)


def best_cells(study: Study, quantity: str) -> list[tuple[Column, Pair, bool, list[Record]]]:
    """Return each column's best cell: the column, its pair, whether that is settled, and its records."""
    found = []
    for column in COLUMNS:
        if column.quantity == quantity:
            pair = best_pair(study.scale, study.records, column)
            chosen = pair or _STAND_IN[quantity]
            records = cell(study.scale, study.records, column, chosen)
            found.append((column, chosen, pair is not None, records))
    return found


def _ideal(scale: Scale, records: Records) -> list[Record]:
    return records.find_all(
        training(scale, "ideal", IDEAL_PAIR, seed=seed) for seed in range(scale.figure_seeds)
    )


def curves_section(study: Study, quantity: str, name: str, words: str) -> list[Block]:
    """Return figure and table of the best cells of all columns with one kind of downlink."""
    cells = best_cells(study, quantity)
    with figure_style():
        figure = new_figure((8.4, 4.2), study.scale)
        panels = figure.subplots(1, 2)
        shown = [
            (column.method, f"{METHODS[column.method].label}, {pair_text(pair)}", records)
            for column, pair, _, records in cells
        ]
        if quantity == "Full":
            shown.append(
                ("ideal", f"ideal (no radio), {pair_text(IDEAL_PAIR)}", _ideal(study.scale, study.records))
            )
        for method, label, records in shown:
            if (curve := curve_of(records, "train_loss")) is not None:
                band(panels[0], curve, method_style(method), label, log=True)
            if (curve := curve_of(records, "accuracy")) is not None:
                band(panels[1], curve, method_style(method), label, (0.0, 1.0), 100)
        panels[0].set(title="Training loss", xlabel="round", yscale="log")
        panels[1].set(title="Test accuracy (%)", xlabel="round")
        panels[1].set_ylim(bottom=max(0.0, panels[1].get_ylim()[0]))
        panels[1].axhline(90, color=MUTED, linewidth=0.7, dashes=(1, 2), zorder=1)
        log_axis(panels[0].yaxis, span=30)
        panels[0].axhline(1, color=MUTED, linewidth=0.7, dashes=(1, 2), zorder=1)
        for ax in panels:
            ax.grid(visible=False, axis="x")
        legend_below(figure, panels[1])
    rows = [
        [
            METHODS[column.method].label,
            pair_text(pair) + ("" if settled else " (not settled yet)"),
            ours_text(records),
        ]
        for column, pair, settled, records in cells
    ]
    if quantity == "Full":
        rows.append(["ideal", pair_text(IDEAL_PAIR), ours_text(_ideal(study.scale, study.records))])
    note = (
        f"Mean ± deviation over seeds (number of seeds) after {study.scale.rounds} rounds. Losses are means "
        "over five rounds of what the devices see in training; dotted lines are the goals of Table I."
    )
    drawn = picture(figure, name, f"Training loss and test accuracy over the rounds, {quantity}")
    return [Text(words), drawn, Table(["method", "step / momentum", "accuracy"], rows, note)]


def _render(study: Study) -> list[Block]:
    words = (
        "Each method with the hyper-parameters that are best for it, the model sent down in full; the band "
        "is one deviation over seeds (of losses as far down as up, in decades). The ideal sends exact "
        "gradients, with one pair that was not tuned: a reference, not a bound. At that step it, too, can "
        "lose its way for some rounds."
    )
    return curves_section(study, "Full", "fig-accuracy", words)


def _wants(scale: Scale, records: Records) -> list[Want]:
    ideal = [
        Want(training(scale, "ideal", IDEAL_PAIR, seed=seed), Tier.EXTRA, ours=True)
        for seed in range(scale.figure_seeds)
    ]
    return grid_wants(scale, records, FULL_COLUMNS) + ideal


FIG_ACCURACY = Artefact("fig-accuracy", "Accuracy over the rounds", "Fig. 5", _render, wants=_wants)
