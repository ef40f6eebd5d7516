"""What the figures share: one style per method, panels, bands over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from signfade.experiments.studies.records import Curve, Record, curve_of
from signfade.experiments.style import PLACES, LineStyle, draw_line, figure_style, line_style, named_styles

__all__ = ["band", "label_styles", "legend_below", "log_axis", "method_style", "new_figure", "points"]
__all__ += ["training_panels"]

# The same line in every figure, and in those of other comparisons.
_PLACES = {"vote": PLACES["signsgd"], "gaussian": PLACES["sbfl"], "rotated": PLACES["rotated-sbfl"]}
_PLACES |= {"best": PLACES["best"], "laplacian": 4, "signsum": 5}


def method_style(method: str) -> LineStyle:
    """Return colour, dashes and marker of a method; the ideal is in grey, as printed is corrected in dots."""
    name = method.removeprefix("printed-")
    style = line_style(_PLACES.get(name, 8), bound=name == "ideal")
    return style if name == method else replace(style, dashes=(1, 1), marker="x")


def label_styles(labels: Iterable[str]) -> dict[str, LineStyle]:
    """Return the style of the method that each label names; FedAvg is a bound, in grey.

    >>> styles = label_styles(["FedAvg", "EDEN at 0.1 bit", "top-k at 0.03 bit", "mine"])
    >>> [style.marker for style in styles.values()] == ["", *(line_style(i).marker for i in (5, 8, 4))]
    True
    """
    labels = list(labels)
    names = [label.partition(" at ")[0].lower().replace("top-k", "topk") for label in labels]
    styles = named_styles([None if label == "FedAvg" else name for label, name in zip(labels, names)])
    bound = line_style(0, bound=True)
    return {label: bound if label == "FedAvg" else style for label, style in zip(labels, styles)}


@contextmanager
def new_figure(
    size: tuple[float, float], rows: int = 1, columns: int = 1, **more: Any
) -> Iterator[tuple[Figure, Any]]:
    """Give a figure of `size` inches and its panels to draw on."""
    with figure_style():
        figure = Figure(size, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06))
        yield figure, figure.subplots(rows, columns, **more)


def log_axis(axis: Axis, span: float = 1e6) -> None:
    """Label a logarithmic axis with plain numbers, 2 and 5 as well if largest over smallest is small."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if span < 300 else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))
    axis.set_minor_formatter(NullFormatter())


def _power(value: float) -> str:
    digits, _, exponent = f"{value:g}".partition("e")
    return f"{digits}e{int(exponent)}".replace("-", "−") if exponent else digits


def band(
    ax: Axes,
    curve: Curve | None,
    style: LineStyle,
    label: str,
    limits: tuple[float, float] = (0.0, np.inf),
    scale: float = 1.0,
    log: bool = False,
) -> None:
    """Draw a mean as a line and one deviation as a band, which stays where the quantity can be.

    On a logarithmic axis (`log`) the band reaches as far down as up, in decades: a deviation larger than the
    mean would otherwise reach zero.
    """
    if curve is None:
        return
    rounds, mean, deviation = curve
    draw_line(ax, rounds, scale * mean, style, label)
    if deviation.any():
        high = np.clip(mean + deviation, *limits)
        low = np.square(mean) / (mean + deviation) if log else np.clip(mean - deviation, *limits)
        ax.fill_between(rounds, scale * low, scale * high, color=style.color, alpha=0.16, linewidth=0)


def training_panels(
    loss: Axes, accuracy: Axes, shown: Iterable[tuple[LineStyle, str, Sequence[Record]]]
) -> None:
    """Draw training loss and test accuracy over the rounds, with bands over seeds."""
    for style, label, records in shown:
        band(loss, curve_of(records, "train_loss"), style, label, log=True)
        band(accuracy, curve_of(records, "accuracy"), style, label, (0.0, 1.0), 100)
    loss.set(title="Training loss", xlabel="round", yscale="log")
    log_axis(loss.yaxis, span=30)
    accuracy.set(title="Test accuracy (%)", xlabel="round")


def points(
    ax: Axes, places: Sequence[float], values: Sequence[Sequence[float]], style: LineStyle, label: str
) -> None:
    """Draw the mean of the values at each place, in percent, with a bar of one sample deviation."""
    known = [(x, 100 * np.array(some)) for x, some in zip(places, values, strict=True) if some]
    if not known:
        return
    means = [float(some.mean()) for _, some in known]
    bars = [float(some.std(ddof=1)) if len(some) > 1 else 0.0 for _, some in known]
    look: Any = {"color": style.color, "marker": style.marker, "capsize": 3, "linewidth": 1.4}
    line = ax.errorbar([x for x, _ in known], means, yerr=bars, label=label, **look)
    if style.dashes:
        line[0].set_dashes(style.dashes)


def legend_below(figure: Figure, ax: Axes, columns: int = 3) -> None:
    """Put the legend of one panel below all of them, in as many columns as there is room for."""
    handles, labels = ax.get_legend_handles_labels()
    # points with error bars first, then lines that mark something
    order = sorted(range(len(handles)), key=lambda i: isinstance(handles[i], Line2D))
    handles, labels = [handles[i] for i in order], [labels[i] for i in order]
    for count in range(columns, 0, -1) if handles else ():
        legend = figure.legend(handles, labels, loc="outside lower center", ncols=count, handlelength=3.4)
        if count == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()
