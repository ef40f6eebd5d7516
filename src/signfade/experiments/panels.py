"""Training curves of several methods: mean over seeds, and a band of one deviation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from signfade.experiments.group import Group, Series
from signfade.experiments.metrics import ACCURACY_GOAL, LOSS_GOAL, WINDOW
from signfade.experiments.style import (
    INK,
    MUTED,
    LineStyle,
    draw_line,
    figure_style,
    line_style,
    log_ticks,
    named_styles,
    scale_vertical,
)

__all__ = ["PANELS", "Panel", "curves", "draw_panels", "goals_shown", "group_styles", "smoothing_window"]

_POINTS = 300  # a curve of more points than pixels only makes the file larger


@dataclass(frozen=True)
class Panel:
    """One quantity of metrics.jsonl: what it is called, and how it is drawn."""

    title: str
    key: str
    against: str = "round"
    predicted: str | None = None
    smooth: bool = False
    scale: float = 1.0
    goal: float | None = None

    @property
    def limits(self) -> tuple[float, float]:
        """What the quantity can be: accuracy 0 to 100 %, cosine -1 to 1, the others from 0 up."""
        if self.key == "test_accuracy":
            return 0.0, self.scale
        return (-1.0, 1.0) if self.key == "cosine" else (0.0, np.inf)


PANELS: Mapping[str, Panel] = {
    "accuracy": Panel("Test accuracy (%)", "test_accuracy", scale=100, goal=100 * ACCURACY_GOAL),
    "excess": Panel("Excess loss", "test_loss"),
    "loss": Panel("Training loss", "train_loss", smooth=True, goal=LOSS_GOAL),
    "accuracy_bits": Panel(
        "Test accuracy (%) against bits sent", "test_accuracy", "uplink", scale=100, goal=100 * ACCURACY_GOAL
    ),
    "excess_bits": Panel("Excess loss against bits sent", "test_loss", "uplink"),
    "error": Panel("Normalised error of the estimate", "nmse", predicted="nmse_theory", smooth=True),
    "cosine": Panel("Cosine to the true sum", "cosine", smooth=True),
}


def group_styles(groups: Sequence[Group]) -> list[LineStyle]:
    """Return a style for each group: the ideal bound in grey, those that have a curve by their method."""
    drawn = [group.rounds[0] > 0 and not group.ideal for group in groups]
    styles = named_styles([group.runs[0].label if has else None for group, has in zip(groups, drawn)])
    return [line_style(0, bound=True) if group.ideal else style for group, style in zip(groups, styles)]


def smoothing_window(groups: Sequence[Group]) -> int:
    """Return the rounds of the trailing mean: that of the summary, or none for runs too short for it."""
    return WINDOW if min((g.rounds[0] for g in groups if g.rounds[0]), default=0) >= 2 * WINDOW else 1


def goals_shown(groups: Sequence[Group]) -> list[str]:
    """Return the keys in `PANELS` of those figures that have a line for their goal."""
    shown = []
    for name in _available(groups):
        window = smoothing_window(groups) if PANELS[name].smooth else 1
        heights = [PANELS[name].scale * group.series(PANELS[name].key, window).mean for group in groups]
        if _reaches(groups, PANELS[name], np.concatenate(heights)):
            shown.append(name)
    return shown


def draw_panels(groups: Sequence[Group], size: tuple[float, float] = (3.9, 2.6)) -> dict[str, Figure]:
    """Return a small figure for each quantity some group has, by its key in `PANELS`; no title, no legend."""
    drawn = {}
    for name in _available(groups):
        with figure_style():
            figure = Figure(size, layout="constrained")
            _draw(figure.add_subplot(), groups, PANELS[name])
        drawn[name] = figure
    return drawn


def curves(groups: Sequence[Group], title: str | None = None) -> Figure:
    """Return all curves of several methods in one figure: mean over seeds, and a band of one deviation.

    Training loss, test accuracy (or excess loss), the same against uplink bits, the normalised error beside
    theory's prediction (dashed), and the cosine. The legend has a place of its own and covers nothing.
    """
    names = _available(groups)
    if not names:
        raise ValueError("groups must hold at least one round; got none")
    columns = min(3, len(names) + 1)
    rows = -(-(len(names) + 1) // columns)
    with figure_style():
        layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
        figure = Figure((4.1 * columns, 3.0 * rows), layout=layout)
        if title is not None:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for ax, name in zip(grid, names):
            _draw(ax, groups, PANELS[name])
            ax.set_title(PANELS[name].title)
        for ax in grid[len(names) :]:
            ax.axis("off")
        _legend(grid[len(names)], groups, predicted="error" in names and _has(groups, "nmse_theory"))
    return figure


def _available(groups: Sequence[Group]) -> list[str]:
    """The panels for which some group has numbers; excess loss only for tasks without an accuracy."""
    accuracy = _has(groups, "test_accuracy")
    return [
        name
        for name, panel in PANELS.items()
        if _has(groups, panel.key) and not (accuracy and panel.key == "test_loss")
    ]


def _has(groups: Sequence[Group], key: str) -> bool:
    return any(len(group.series(key).rounds) > 0 for group in groups if _shows(group, key))


def _shows(group: Group, key: str) -> bool:
    """Everything but the error of the ideal, which is none."""
    return not (key == "nmse" and group.ideal)


def _draw(ax: Axes, groups: Sequence[Group], panel: Panel) -> None:
    """Draw a quantity of all groups, with its axes."""
    window = smoothing_window(groups) if panel.smooth else 1
    heights: list[NDArray[np.float64]] = []
    widths: list[NDArray[np.float64]] = []
    for group, style in zip(groups, group_styles(groups)):
        across, mean, deviation = _thinned(group, group.series(panel.key, window), panel)
        if not len(mean) or not _shows(group, panel.key):
            continue
        measured = LineStyle(style.color, (), style.marker) if panel.predicted else style
        draw_line(ax, across, mean, measured, _shown(group.label))
        if group.seeds > 1:
            low, high = panel.limits  # a band has no business where the quantity cannot be
            band = np.clip(mean - deviation, low, high), np.clip(mean + deviation, low, high)
            ax.fill_between(across, *band, color=style.color, alpha=0.16, linewidth=0)
        heights.append(mean)
        widths.append(across)
        if panel.predicted:
            x, y, _ = _thinned(group, group.series(panel.predicted, window), panel)
            draw_line(ax, x, y, LineStyle(style.color, (3, 1.8), ""), "_predicted", width=1.1)
            heights.append(y)
    values = np.concatenate(heights) if heights else np.ones(1)
    scale_vertical(ax, values)
    if panel.goal is not None and _reaches(groups, panel, values):
        ax.axhline(panel.goal, color=MUTED, linewidth=0.7, dashes=(1, 2), zorder=1)
    if panel.key == "cosine":
        ax.set_ylim(top=1.03)
    _horizontal(ax, panel, widths)


def _reaches(groups: Sequence[Group], panel: Panel, values: NDArray[np.float64]) -> bool:
    """Whether the goal lies among the values; but for classifiers a loss of 1 means nothing."""
    if panel.goal is None or not len(values) or not _has(groups, "test_accuracy"):
        return False
    return bool(values.min() <= panel.goal <= values.max())


def _thinned(group: Group, series: Series, panel: Panel) -> tuple[NDArray[np.float64], ...]:
    """Where, mean and deviation, scaled, at no more points than show."""
    across = series.rounds
    if panel.against == "uplink":
        sent = group.series("uplink_mbit")
        across = np.interp(series.rounds, sent.rounds, sent.mean) if len(sent.rounds) else across * np.nan
    step = -(-max(len(across), 1) // _POINTS)
    last = slice(None, None, -step)  # backwards, so that the last round always stays
    parts = (across, series.mean * panel.scale, series.deviation * panel.scale)
    return tuple(part[last][::-1] for part in parts)


def _horizontal(ax: Axes, panel: Panel, widths: Sequence[NDArray[np.float64]]) -> None:
    if panel.against == "round":
        ax.set_xlabel("round")
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
        return
    ax.set_xlabel("uplink per device so far (Mbit)")
    ends = [width[-1] for width in widths if len(width)]
    starts = [width[0] for width in widths if len(width)]
    if ends and min(starts) > 0 and max(ends) > 4 * min(ends):  # the ideal sends 32 times as much
        ax.set_xscale("log")
        log_ticks(ax.xaxis, 1e3)


def _legend(ax: Axes, groups: Sequence[Group], *, predicted: bool) -> None:
    handles = [
        Line2D([], [], label=_shown(group.label), **style.options())
        for group, style in zip(groups, group_styles(groups))
        if group.rounds[0]
    ]
    if predicted:
        style = LineStyle(INK, (3, 1.8), "")
        handles.append(Line2D([], [], label="error that theory predicts", **style.options(1.1)))
    ax.legend(handles=handles, loc="upper left", handlelength=3.4, labelspacing=0.7, borderaxespad=0)


def _shown(label: str) -> str:
    """A label that matplotlib does not take for a hidden one."""
    return f" {label}" if label.startswith("_") else label
