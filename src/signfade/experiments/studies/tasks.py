"""Tasks that people train today, against uplink bits: the tables and the figure of docs/tasks.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from signfade.experiments.config import overlay, resolve
from signfade.experiments.intervals import mean_interval
from signfade.experiments.methods import method_settings
from signfade.experiments.studies.drawing import label_styles, log_axis, new_figure
from signfade.experiments.studies.records import (
    Record,
    Records,
    Results,
    Scale,
    Tier,
    Want,
    paired,
    read_toml,
)
from signfade.experiments.studies.study import Block, Part, Study, Table, picture_or_missing
from signfade.experiments.table import spread_text
from signfade.settings import RunSettings

__all__ = ["TASKS"]

_FILES = {
    "adapters": "adapters",
    "Shakespeare": "shakespeare",
    "CIFAR-10": "cifar10",
    "Fashion-MNIST": "fashion",
}
_CONFIGS = {task: read_toml(f"tasks_{name}.toml") for task, name in _FILES.items()}
_TASKS = list(_CONFIGS)
_BANDWIDTHS = {"1 MHz": 1e6, "180 kHz": 180e3}
_BASELINE = "FedAvg"
_LATE = 3  # evaluations that the accuracy at the end is a mean of
_SHORTER = 40  # rounds of FedAvg, in a row of its own: two thirds of the bits
_AIMED = "low-rate at 0.1 bit"  # what the aim is judged by
# These are run again with a running average of the models, the same for all.
_AVERAGED = ", averaged"
_AVERAGING = 0.8
_ALSO_AVERAGED = (_BASELINE, "EDEN at 0.1 bit", _AIMED)


def _rows(task: str) -> Iterator[tuple[str, str]]:
    """Yield method and bandwidth of each row; digital messages arrive at any."""
    variants = _CONFIGS[task]["variants"]
    ends = {name: ("", _AVERAGED) if name in _ALSO_AVERAGED else ("",) for name in variants}
    names = [name + end for name in variants for end in ends[name]]
    ideal = {name for name, layer in variants.items() if layer.get("method.aggregator") == "ideal"}
    digital = [name for name in names if name.removesuffix(_AVERAGED) in ideal]
    yield from ((name, "any") for name in digital)
    for band in _BANDWIDTHS:
        yield from ((name, band) for name in names if name not in digital)


def _runs(scale: Scale, task: str, name: str, band: str) -> list[RunSettings]:
    config = _CONFIGS[task]
    layer: dict[str, Any] = {"name": "tasks", "rounds": min(config["rounds"], scale.rounds)}
    if band in _BANDWIDTHS:
        layer["cell.bandwidth_hz"] = _BANDWIDTHS[band]
    if scale.data == "digits":
        layer |= {"data.name": "digits", "data.split": "iid", "model.name": "mlp", "data.devices": 20}
        layer |= {"model.lora_rank": 0, "model.trained": []}
    if name.endswith(_AVERAGED):
        layer["server.averaging"] = _AVERAGING
    settings = method_settings(resolve(overlay(config, layer)), name.removesuffix(_AVERAGED))
    return [settings.model_copy(update={"seed": seed}) for seed in range(scale.figure_seeds)]


def _wants(task: str) -> Callable[[Scale, Records], list[Want]]:
    return lambda scale, records: [
        Want(run, Tier.EXTRA, ours=True, order=order)
        for order, (name, band) in enumerate(_rows(task))
        for run in _runs(scale, task, name, band)
    ]


def _late(record: Record) -> float:
    """Accuracy at the end."""
    return record.late_accuracy(_LATE)


def _mbit(records: Sequence[Record]) -> float:
    """Uplink Mbit of all devices in all rounds, all items counted."""
    return fmean((record.value("uplink_bits") or 0.0) / 1e6 for record in records)


def _table(results: Results, task: str) -> list[Block]:
    found = [
        (name, band, results.records.find_all(_runs(results.scale, task, name, band)))
        for name, band in _rows(task)
    ]
    full = next(records for name, _, records in found if name == _BASELINE)
    rows = []
    for name, band, records in found:
        if records:
            rows.append([name, band, *_cells(task, records, full)])
        if name.removesuffix(_AVERAGED) == _BASELINE and (shorter := _cut(records)):
            rows.append([f"{name}, {_SHORTER} rounds", band, *_cells(task, shorter, full, _SHORTER)])
    text = ["perplexity"] if _reads(task) else []
    heads = ["method", "bandwidth", "seeds", "accuracy, %", *text, "uplink, Mbit", "of FedAvg's"]
    return [Table(heads, rows, name=task)] if rows else []


def _cut(records: Sequence[Record]) -> list[Record]:
    """Return the records as those of shorter runs."""
    return [record.until(_SHORTER) for record in records if record.rounds > _SHORTER]


def _aims(results: Results) -> list[Block]:
    """Return how far a tenth of a bit ends from FedAvg with 200 and 300 times its bits, seed by seed."""
    rows = []
    for task, band in product(_TASKS, _BANDWIDTHS):
        cells = []
        for end in ("", _AVERAGED):
            found = [
                results.records.find_all(_runs(results.scale, task, name + end, where))
                for name, where in ((_AIMED, band), (_BASELINE, "any"))
            ]
            for other in (_cut(found[1]), found[1]):
                off = [100 * value for value in paired(_late, found[0], other).values()]
                cells.append(mean_interval(off).short if off else "–")
        if any(cell != "–" for cell in cells):
            rows.append([task, band, *cells])
    heads = ["task", "bandwidth", "newest model, 1/200", "1/300", "averaged, 1/200", "1/300"]
    return [Table(heads, rows, name="aims")] if rows else []


def _cells(task: str, records: Sequence[Record], full: Sequence[Record], rounds: int = 0) -> list[str]:
    """Number of seeds, accuracy and bits of a row; of a run cut to `rounds`, if any."""
    cells = [str(len(records)), spread_text([100 * _late(r) for r in records], 1)]
    if _reads(task):  # the loss is kept of the last round alone
        losses = [r.value("last_test_loss") for r in records]
        cells.append(spread_text([math.exp(loss) for loss in losses if loss], 2) if all(losses) else "–")
    mbit = _mbit(records) * (rounds / _CONFIGS[task]["rounds"] if rounds else 1.0)
    return [*cells, _digits(mbit), f"1/{_digits(_mbit(full) / mbit)}" if full else ""]


def _digits(value: float) -> str:
    """Three digits, or all of them before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _reads(task: str) -> bool:
    """Whether the task predicts every character of a text, so that perplexity makes sense."""
    return str(_CONFIGS[task]["model"]["name"]).startswith("char-")


def _figure(results: Results) -> list[Block]:
    begun = [task for task in _TASKS if _table(results, task)] or _TASKS[:1]
    rows = 1 + (len(begun) > 2)
    columns = -(-len(begun) // rows)
    styles = label_styles(dict.fromkeys(name for task in _TASKS for name in _CONFIGS[task]["variants"]))
    with new_figure((9.6, 3.4 * rows), rows, columns) as (figure, panels):
        for task, axes in zip(begun, np.ravel(panels)):
            for name, band in _rows(task):
                if name.endswith(_AVERAGED) or band not in ("any", next(iter(_BANDWIDTHS))):
                    continue
                records = results.records.find_all(_runs(results.scale, task, name, band))
                curves = [(record, record.points("accuracy")) for record in records]
                if not curves:
                    continue
                rounds = sorted(set.intersection(*(set(points) for _, points in curves)))
                each = _mbit(records) / records[0].rounds
                mean = [100 * fmean(points[t] for _, points in curves) for t in rounds]
                style = styles[name]
                line = {"color": style.color, "dashes": style.dashes, "marker": style.marker, "markersize": 3}
                axes.plot(each * np.array(rounds), mean, label=name, **line)
            axes.set(title=task, xscale="log", xlabel="uplink Mbit so far", ylabel="test accuracy (%)")
            log_axis(axes.xaxis)
        handles, labels = max(
            (axes.get_legend_handles_labels() for axes in np.ravel(panels)), key=lambda p: len(p[1])
        )
        if labels:
            figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    return [picture_or_missing(figure, "tasks", "Accuracy against uplink bits of all devices at 1 MHz")]


def _part(task: str) -> Part:
    def render(results: Results) -> list[Block]:
        shared = [*_figure(results), *_aims(results)] if task == _TASKS[0] else []
        return [*shared, *_table(results, task)]

    return Part(f"tasks-{_TASKS.index(task) + 1}", task, "ours", render, _wants(task), partial=True)


TASKS = Study("tasks", "Images, text and adapters", "tasks", tuple(map(_part, _TASKS)), host="tasks.md")
