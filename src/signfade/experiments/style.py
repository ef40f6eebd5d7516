"""How figures look: one palette that colour-blind readers can tell apart, and files of reproducible bytes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from signfade.experiments.files import FolderError, why

__all__ = [
    "GRID",
    "INK",
    "MUTED",
    "PLACES",
    "SERIES",
    "LineStyle",
    "draw_line",
    "figure_style",
    "inline_svg",
    "line_style",
    "log_ticks",
    "named_styles",
    "save_figure",
    "scale_vertical",
    "swatch_svg",
]

INK = "#1d2329"
MUTED = "#6b737c"
GRID = "#dfe3e7"
# Okabe and Ito's colours, the ones that show on white first; their yellow does not and is left out
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--rule)"} | {
    color: f"var(--s{index})" for index, color in enumerate(SERIES)
}
_DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (5, 1.6),
    (5, 1.4, 1.2, 1.4),
    (2.4, 1.2),
    (7, 1.4, 2.4, 1.4),
    (3, 2.6),
)
_MARKERS = "osD^vPX"
_DATES = {"svg": {"Date": None}, "png": {"Software": None}, "pdf": {"CreationDate": None}}
# The same method has the same line in every figure, table and report: its index for `line_style`.
PLACES = {"signsgd": 0, "sbfl": 1, "corrected": 1, "rotated-sbfl": 2, "best": 3}
_RIVALS = {"low-rate": 4, "eden": 5, "drive": 6, "qsgd": 7, "topk": 8, "ef-sign": 9}
_STYLE: Any = mpl.rc_params_from_file(
    Path(__file__).with_name("figures.mplstyle"), use_default_template=False
)


@dataclass(frozen=True)
class LineStyle:
    """Colour, dashes (in line widths; none is solid) and marker of one method: each alone tells it apart."""

    color: str
    dashes: tuple[float, ...]
    marker: str

    def options(self, width: float = 1.6) -> dict[str, Any]:
        """Return it as matplotlib's keywords for a line."""
        look = {"color": self.color, "marker": self.marker or None, "linewidth": width}
        return look | ({"dashes": self.dashes} if self.dashes else {})


def line_style(index: int, *, bound: bool = False) -> LineStyle:
    """Return the style of the method with this index; a bound is drawn in grey dots."""
    if bound:
        return LineStyle(MUTED, (1.2, 1.4), "")
    turn = index // len(SERIES)  # a colour that comes again has other dashes
    dashes = _DASHES[(index + turn) % len(_DASHES)]
    return LineStyle(SERIES[index % len(SERIES)], dashes, _MARKERS[index % len(_MARKERS)])


def named_styles(names: Sequence[str | None]) -> list[LineStyle]:
    """Return a style for each name: its own if it is a known method or rival, else the next that is free.

    Free are first the styles that no method owns, then those whose methods are not drawn. The second of two
    equal methods, such as one rule with two steps, is treated as an unknown one. None needs no line.

    Example:
        >>> [style.color for style in named_styles(["mine", "best", "signsgd"])]
        ['#e69f00', '#cc79a7', '#0072b2']
    """
    places = PLACES | _RIVALS
    drawn = frozenset(places[name] for name in names if name in places)
    owned_last = sorted(range(len(SERIES)), key=lambda place: place in PLACES.values())
    free = (place for place in chain(owned_last, count(len(SERIES))) if place not in drawn)
    given: set[int] = set()
    styles = []
    for name in names:
        place = places.get(name or "")
        if place is None or place in given:
            place = 0 if name is None else next(free)
        else:
            given.add(place)
        styles.append(line_style(place))
    return styles


def draw_line(
    ax: Axes, x: NDArray[np.float64], y: NDArray[np.float64], style: LineStyle, label: str, width: float = 1.6
) -> None:
    """Draw `y` over `x` with a few markers, so that lines differ even without colour."""
    every = max(1, len(x) // 7)
    ax.plot(x, y, markevery=(every // 2, every), label=label, markeredgewidth=0, **style.options(width))


def scale_vertical(ax: Axes, values: NDArray[np.float64], span: float = 25) -> None:
    """Take a logarithmic axis where positive numbers differ by more than the factor `span`."""
    finite = values[np.isfinite(values)]
    if len(finite) and finite.min() > 0 and finite.max() > span * finite.min():
        ax.set_yscale("log")
        log_ticks(ax.yaxis, finite.max() / finite.min())
    else:
        ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    ax.grid(visible=False, axis="x")


def log_ticks(axis: Axis, span: float) -> None:
    """Write plain numbers on a logarithmic axis; 2 and 5 as well where there are few powers of ten."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if span < 1e3 else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("e-0", "e-")))
    axis.set_minor_formatter(NullFormatter())


@contextmanager
def figure_style() -> Iterator[None]:
    """Draw in our style inside, leave matplotlib's settings as they were outside."""
    with mpl.rc_context(_STYLE):
        yield


def save_figure(figure: Figure, stem: str | Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Save a figure as `stem` + each suffix and return the paths; equal figures give equal bytes."""
    stem = Path(stem)
    paths = [stem.with_name(f"{stem.name}.{suffix}") for suffix in formats]
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        for suffix, path in zip(formats, paths):
            with figure_style():
                figure.savefig(path, format=suffix, metadata=_DATES.get(suffix))
    except OSError as error:
        raise FolderError(f"cannot write the figure {paths[0]}: {why(error)}") from error
    return paths


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """Return a figure as an `<svg>` element for a page: no ids that clash, the page's font and its colours.

    Our colours become CSS variables (`--ink`, `--muted`, `--rule`, `--s0`, `--s1`, ...), so that a page can
    show the same figure on white and on black. `name`, unique in the page, goes in front of its ids;
    `description` must be escaped.
    """
    buffer = io.StringIO()
    with figure_style(), mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.S)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.S)
    svg = re.sub(r"<[^>]*>", _shorten, svg)  # not the numbers people read
    svg = re.sub(r"font: (bold )?([\d.]+)px [^;\"]*", r"font: \1\2px var(--sans)", svg)
    used = set(re.findall(r"(?:#)([\w-]+)(?=[\")])", svg))
    svg = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, variable)
    box = re.search(r'viewBox="[^"]*"', svg)
    head = f'<svg {box[0] if box else ""} role="img" aria-label="{description}">'
    return head + svg[svg.index(">") + 1 :].strip()


def _shorten(tag: re.Match[str]) -> str:
    """An element with no more than two digits after the point of its numbers."""
    return re.sub(r"-?\d+\.\d{3,}", lambda n: f"{float(n[0]):.2f}".rstrip("0").rstrip("."), tag[0])


_MARKER_PATHS = {
    "o": "M16.6 6a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0-6.8 0Z",
    "s": "M16.8 2.8h6.4v6.4h-6.4Z",
    "D": "M20 1.6 24.4 6 20 10.4 15.6 6Z",
    "^": "M20 2 24 9.4H16Z",
    "v": "M20 10 24 2.6H16Z",
    "P": "M18.6 2h2.8v2.6H24v2.8h-2.6V10h-2.8V7.4H16V4.6h2.6Z",
    "X": "M16 3.4 17.4 2 20 4.6 22.6 2 24 3.4 21.4 6 24 8.6 22.6 10 20 7.4 17.4 10 16 8.6 18.6 6Z",
}


def swatch_svg(style: LineStyle) -> str:
    """Return a short piece of a line as an `<svg>` element, for the legend of a page."""
    color = _VARIABLES[style.color]
    dashes = " ".join(f"{2 * length:g}" for length in style.dashes)
    line = f'<path d="M1 6H39" stroke="{color}" stroke-width="2" stroke-dasharray="{dashes or "none"}"/>'
    marker = f'<path d="{_MARKER_PATHS[style.marker]}" fill="{color}"/>' if style.marker else ""
    return f'<svg class="swatch" viewBox="0 0 40 12" aria-hidden="true">{line}{marker}</svg>'
