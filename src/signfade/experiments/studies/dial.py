"""What a model costs in uplink bits: the tables and the figure of docs/dial.md."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from importlib.resources import files
from statistics import fmean
from typing import Any

import numpy as np

from signfade.experiments.config import resolve
from signfade.experiments.studies.drawing import log_axis, new_figure
from signfade.experiments.studies.records import Record, Records, Results, Scale, Tier, Want
from signfade.experiments.studies.study import Block, Part, Study, Table, picture_or_missing
from signfade.experiments.style import INK, line_style
from signfade.settings import RunSettings

__all__ = ["DIAL"]

_DATA: dict[str, Any] = tomllib.loads(files(__package__).joinpath("dial.toml").read_text(encoding="utf-8"))
_CELLS = list(_DATA["cells"])
_TARGETS = (0.9, 0.95)


def _methods(cell: str) -> list[str]:
    return list(_DATA["compared"]["first" if cell == _CELLS[0] else "others"])


def _runs(scale: Scale, cell: str, method: str) -> list[RunSettings]:
    tree = _DATA["base"] | _DATA["cells"][cell] | _DATA["methods"][method]
    tree |= {"label": method, "name": "dial", "rounds": min(tree["rounds"], scale.rounds)}
    if scale.data == "digits":
        tree |= {"data.name": "digits", "model.name": "small-cnn"}
    return [resolve(tree | {"seed": seed}) for seed in range(scale.figure_seeds)]


def _wants(*cells: str) -> Callable[[Scale, Records], list[Want]]:
    return lambda scale, records: [
        Want(run, Tier.EXTRA, ours=True, order=_CELLS.index(cell))
        for cell in cells
        for method in _methods(cell)
        for run in _runs(scale, cell, method)
    ]


def _kbit(record: Record, devices: int) -> float:
    """Uplink kbit that the average device sends in one round, all items counted."""
    return (record.value("uplink_bits") or 0.0) / (1e3 * devices * record.rounds)


def _reached(record: Record, target: float) -> float | None:
    """The first evaluated round at or above a target accuracy."""
    return next((t for t, value in sorted(record.points("accuracy").items()) if value >= target), None)


def _text(values: Sequence[float | None], digits: int = 0) -> str:
    """Mean of a number over seeds, or what is missing of it."""
    known = [value for value in values if value is not None]
    if not known:
        return "never" if values else ""
    shown = f"{fmean(known):.{digits}f}" if fmean(known) < 100 else f"{fmean(known):,.0f}"
    return shown if len(known) == len(values) else f"{shown} ({len(known)} of {len(values)} seeds)"


def _row(results: Results, cell: str, method: str) -> list[str]:
    runs = _runs(results.scale, cell, method)
    found, devices = results.records.find_all(runs), runs[0].data.devices
    cells = [method, str(len(found))]
    for target in _TARGETS:
        rounds = [_reached(record, target) for record in found]
        bits = [None if t is None else t * _kbit(record, devices) for t, record in zip(rounds, found)]
        cells += [_text(bits, 1), _text(rounds)]
    return [*cells, _text([100 * record.late_accuracy(3) for record in found], 1)] if found else []


def _table(cell: str) -> Part:
    def render(results: Results) -> list[Block]:
        heads = [
            "method",
            "seeds",
            *(f"{w} to {t:g}" for t in _TARGETS for w in ("kbit", "rounds")),
            "end, %",
        ]
        rows = [row for method in _methods(cell) if (row := _row(results, cell, method))]
        blocks: list[Block] = [Table(heads, rows, name=cell)] if rows else []
        return [*_figure(results, cell), *blocks] if cell == _CELLS[0] else blocks

    return Part(f"dial-{_CELLS.index(cell) + 1}", cell, "ours", render, _wants(cell), partial=True)


def _figure(results: Results, cell: str) -> list[Block]:
    with new_figure((7.2, 4.2), results.scale) as (figure, axes):
        for index, method in enumerate(_methods(cell)):
            runs = _runs(results.scale, cell, method)
            curves = [(record, record.points("accuracy")) for record in results.records.find_all(runs)]
            if not curves:
                continue
            rounds = sorted(set.intersection(*(set(points) for _, points in curves)))
            kbit = fmean(_kbit(record, runs[0].data.devices) for record, _ in curves)
            mean = [fmean(points[t] for _, points in curves) for t in rounds]
            style = line_style(index)
            line = {"color": style.color, "dashes": style.dashes, "marker": style.marker, "markersize": 3}
            axes.plot(kbit * np.array(rounds), mean, label=method, **line)
        axes.axhline(0.9, color=INK, linewidth=0.8, linestyle=":")
        axes.set(xscale="log", xlabel="uplink kbit per device so far", ylabel="test accuracy", ylim=(0, 1))
        log_axis(axes.xaxis)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7, ncols=2, loc="lower right")
    return [picture_or_missing(figure, "dial", f"Accuracy against uplink bits, {cell}, mean over seeds")]


DIAL = Study("dial", "The rate dial", "dial", tuple(map(_table, _CELLS)), host="dial.md")
