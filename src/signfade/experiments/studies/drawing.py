"""What the figures share: one style per method, bands over seeds, a line that says what is smaller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from signfade.experiments.studies.records import Record
from signfade.experiments.studies.study import Scale
from signfade.experiments.style import MUTED, PLACES, LineStyle, draw_line, figure_style, line_style

__all__ = [
    "Curve",
    "band",
    "curve_of",
    "legend_below",
    "log_axis",
    "method_style",
    "new_figure",
    "note_scale",
    "points",
    "tail_mean",
]

Array = NDArray[np.float64]
Curve = tuple[Array, Array, Array]  # rounds, mean and deviation, all [T]

# The same line in every figure, and in those of other comparisons.
_PLACES = {
    "vote": PLACES["signsgd"],
    "gaussian": PLACES["sbfl"],
    "rotated": PLACES["rotated-sbfl"],
    "best": PLACES["best"],
    "laplacian": 4,
    "signsum": 5,
    "blmmse": 7,
}


def method_style(method: str) -> LineStyle:
    """Return colour, dashes and marker of a method; the ideal is a bound, in grey, as printed is dotted."""
    if method == "published":
        return replace(line_style(_PLACES["gaussian"]), dashes=(1, 1), marker="x")
    return line_style(_PLACES.get(method, 8), bound=method == "ideal")


def new_figure(size: tuple[float, float], scale: Scale) -> Figure:
    """Return an empty figure of `size` inches; if the scale is quick, its first line says so."""
    with figure_style():
        figure = Figure(size, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06))
        note_scale(figure, scale)
    return figure


def note_scale(figure: Figure, scale: Scale) -> None:
    """Write above a figure what is smaller than the paper's."""
    if scale.words:
        figure.suptitle(scale.words, color=MUTED, fontsize=8, fontweight="normal", x=0.01, ha="left")


def log_axis(axis: Axis, span: float = 1e6) -> None:
    """Label a logarithmic axis with plain numbers, 2 and 5 as well if largest over smallest is small."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if span < 300 else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))
    axis.set_minor_formatter(NullFormatter())


def _power(value: float) -> str:
    text = f"{value:g}"
    digits, _, exponent = text.partition("e")
    return f"{digits}e{int(exponent)}".replace("-", "−") if exponent else text


def curve_of(records: Sequence[Record], key: str) -> Curve | None:
    """Return mean and sample deviation over seeds of a curve, at the rounds that all of them have.

    None without a number. A record that diverged ends early, and so does the curve.
    """
    curves = [
        {t: v for t, v in zip(record.curve["round"], record.curve.get(key, [])) if v is not None}
        for record in records
    ]
    shared = sorted(set.intersection(*map(set, curves)), key=float) if curves else []  # type: ignore[arg-type]
    if not shared:
        return None
    values = np.array([[curve[t] for t in shared] for curve in curves], dtype=np.float64)
    deviation = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(len(shared))
    return np.array(shared, dtype=np.float64), values.mean(axis=0), deviation


def tail_mean(record: Record, key: str, part: float = 0.1) -> float | None:
    """Return the mean of a curve over the last part of the rounds; None if the run diverged."""
    pairs = zip(record.curve["round"], record.curve.get(key, []))
    values = [v for t, v in pairs if v is not None and t is not None and t > (1 - part) * record.rounds]
    return float(np.mean(values)) if values and record.diverged is None else None


def band(
    ax: Axes,
    curve: Curve,
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
    rounds, mean, deviation = curve
    draw_line(ax, rounds, scale * mean, style, label)
    if deviation.any():
        high = np.clip(mean + deviation, *limits)
        low = np.square(mean) / (mean + deviation) if log else np.clip(mean - deviation, *limits)
        ax.fill_between(rounds, scale * low, scale * high, color=style.color, alpha=0.16, linewidth=0)


def points(
    ax: Axes, places: Sequence[float], values: Sequence[Sequence[float]], style: LineStyle, label: str
) -> None:
    """Draw the mean of the values at each place, in percent, with a bar of one sample deviation."""
    known = [(x, 100 * np.array(some)) for x, some in zip(places, values, strict=True) if some]
    if not known:
        return
    line = ax.errorbar(
        [x for x, _ in known],
        [float(some.mean()) for _, some in known],
        yerr=[float(some.std(ddof=1)) if len(some) > 1 else 0.0 for _, some in known],
        color=style.color,
        marker=style.marker,
        capsize=3,
        linewidth=1.4,
        label=label,
    )
    if style.dashes:
        line[0].set_dashes(style.dashes)


def legend_below(figure: Figure, ax: Axes, columns: int = 3) -> None:
    """Put the legend of one panel below all of them, where it covers nothing."""
    handles, labels = ax.get_legend_handles_labels()
    # points with error bars first, then lines that mark something
    order = sorted(range(len(handles)), key=lambda i: isinstance(handles[i], Line2D))
    handles, labels = [handles[i] for i in order], [labels[i] for i in order]
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=3.4)
