"""Pictures of single devices: who shares a model over the rounds, and how well each device ends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from signfade.experiments.group import Group, Run
from signfade.experiments.panels import group_styles
from signfade.experiments.style import MUTED, SERIES, draw_line, figure_style

__all__ = ["draw_device_panels"]


def draw_device_panels(
    groups: Sequence[Group], size: tuple[float, float] = (4.1, 2.9)
) -> dict[str, tuple[str, Figure]]:
    """Return what there is to see of single devices: names, each with a title and a figure.

    One picture of who shares a model for the first seed of each method with clusters, and one of all devices'
    accuracies (or losses) at the end, sorted; nothing for runs that do not evaluate devices.
    """
    drawn: dict[str, tuple[str, Figure]] = {}
    with figure_style():
        for index, group in enumerate(groups):
            run = group.runs[0]
            if any(record.get("models", 0) > 1 for record in run.metrics):
                figure = Figure(size, layout="constrained")
                _memberships(figure.add_subplot(), run)
                drawn[f"models{index}"] = (f"Who shares a model: {group.label}, seed {run.seed}", figure)
        if any(_scores(run) is not None for group in groups for run in group.runs):
            figure = Figure(size, layout="constrained")
            _sorted_scores(figure.add_subplot(), groups)
            drawn["devices"] = ("Devices at the end, from the worst to the best", figure)
    return drawn


def _memberships(ax: Axes, run: Run) -> None:
    """One row per device over the rounds, one colour per model; grey while all share one."""
    known = {record["round"]: record["model_of"] for record in run.metrics if record.get("model_of")}
    columns, last = [], [0] * len(next(iter(known.values())))
    for record in run.metrics:
        last = known.get(record["round"], last)
        columns.append([MUTED if len(set(last)) == 1 else SERIES[model % len(SERIES)] for model in last])
    for device, colours in enumerate(zip(*columns, strict=True)):
        start = 0
        for colour, same in groupby(colours):  # a bar for as long as a device has a model
            length = len(list(same))
            ax.broken_barh([(start + 0.5, length)], (device - 0.5, 1), color=colour, linewidth=0)
            start += length
    ax.set(xlabel="round", ylabel="device", xlim=(0.5, len(columns) + 0.5), ylim=(len(last) - 0.5, -0.5))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))


def _sorted_scores(ax: Axes, groups: Sequence[Group]) -> None:
    for group, style in zip(groups, group_styles(groups)):
        found = [scores for run in group.runs if (scores := _scores(run)) is not None]
        if not found or len({len(scores) for scores in found}) > 1:
            continue
        accuracy = bool(group.values("last_accuracy"))
        values = np.mean([np.sort(scores if accuracy else -scores) for scores in found], axis=0)
        heights = 100 * values if accuracy else -values
        draw_line(ax, np.arange(1, len(values) + 1.0), heights, style, group.label)
        ax.set_ylabel("accuracy (%)" if accuracy else "loss")
    ax.set_xlabel("device, sorted")
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))


def _scores(run: Run) -> NDArray[np.float64] | None:
    """The devices' scores in the last round that has them."""
    found = [record["device_scores"] for record in run.metrics if record.get("device_scores")]
    return np.array(found[-1], dtype=np.float64) if found else None
