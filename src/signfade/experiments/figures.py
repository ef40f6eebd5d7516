"""Figures of the radio: the cell, and errors against the SNR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from numpy.typing import ArrayLike

from signfade.experiments.style import (
    GRID,
    INK,
    MUTED,
    SERIES,
    draw_line,
    figure_style,
    named_styles,
    scale_vertical,
)

__all__ = ["cell_map", "mse_curves"]


def cell_map(positions_km: ArrayLike, snr_db: ArrayLike, radius_km: float) -> Figure:
    """Return a map of the cell: the base station, its users, and the mean SNR of each as a colour.

    `positions_km` `[K, 2]`, the base station being at the origin; `snr_db` `[K]`.
    """
    positions, snr = np.asarray(positions_km, dtype=float), np.asarray(snr_db, dtype=float)
    if positions.ndim != 2 or positions.shape[1] != 2 or snr.shape != positions.shape[:1]:
        got = f"{list(positions.shape)} and {list(snr.shape)}"
        raise ValueError(f"positions_km must have shape [K, 2] and snr_db [K]; got {got}")
    with figure_style():
        figure = Figure((5.2, 4.4), layout="constrained")
        ax = figure.add_subplot(aspect="equal")
        ax.add_patch(Circle((0, 0), radius_km, fill=False, edgecolor=MUTED, linewidth=0.8))
        for part in (1 / 3, 2 / 3):
            ax.add_patch(Circle((0, 0), radius_km * part, fill=False, edgecolor=GRID, linewidth=0.7))
        # One user at the mast is no scale.
        low, high = np.percentile(snr, (5, 95)) if len(snr) else (0.0, 1.0)
        x, y = positions.T
        color: dict[str, Any] = {"c": snr, "cmap": "cividis", "vmin": low, "vmax": high}
        dots = ax.scatter(x, y, s=34, edgecolors=INK, linewidths=0.5, zorder=3, **color)
        ax.plot(0, 0, marker="^", color=SERIES[1], markersize=8, linestyle="none", label="base station")
        reach = radius_km * 1.06
        ax.set(xlim=(-reach, reach), ylim=(-reach, reach), xlabel="km", ylabel="km")
        ax.grid(visible=False)
        ax.set_title(f"{len(snr)} users")
        ax.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2, handletextpad=0.1)
        bar = figure.colorbar(dots, ax=ax, shrink=0.8, extend="both", label="mean SNR (dB)")
        bar.outline.set_visible(False)
    return figure


def mse_curves(
    snr_db: ArrayLike,
    values: Mapping[str, ArrayLike],
    label: str = "mean squared error / variance",
    across: str = "SNR (dB)",
) -> Figure:
    """Return errors, `values[rule]` `[N]`, against the SNR `[N]`, one line per rule.

    1 is the error of guessing the mean. `label` and `across` are those of the two axes.
    """
    snr = np.asarray(snr_db, dtype=float)
    with figure_style():
        figure = Figure((6.4, 3.8), layout="constrained")
        ax = figure.add_subplot()
        finite = []
        for style, (name, one) in zip(named_styles(list(values)), values.items()):
            curve = np.asarray(one, dtype=float)
            if curve.shape != snr.shape:
                got = f"{list(snr.shape)}; got {list(curve.shape)}"
                raise ValueError(f"values[{name!r}] must have shape {got}")
            draw_line(ax, snr, curve, style, name)
            finite.append(curve[np.isfinite(curve)])
        scale_vertical(ax, np.concatenate(finite) if finite else np.ones(1), span=5)
        ax.axhline(1.0, color=MUTED, linewidth=0.8, label="_guess", zorder=1)
        ax.set(xlabel=across, ylabel=label)
        figure.legend(loc="outside right upper", handlelength=3.2)
    return figure
