"""Numbers beside the points of a plot, each where it covers the least."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

__all__ = ["label_points"]

Array = NDArray[np.float64]

_ANGLES = np.radians([55, 125, -55, -125, 0, 180, 90, -90])  # where a number may stand beside its point
_RADII = (0.034, 0.06, 0.085)  # how far from it, in parts of the axes
_STEP = 0.01  # lines are sampled in steps of this length
_HEAVY, _HEAVIEST = 1e3, 1e6  # on another label is worse than on any line, outside the axes worst of all


def label_points(ax: Axes, x: Array, y: Array, **look: Any) -> None:
    """Write their numbers, from 0, beside the points that are visible.

    Call it when all else is drawn: labels keep clear of lines as far as there is room, and limits stay as
    they are.
    """
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6.5, "zorder": 4} | look
    ax.set(xlim=ax.get_xlim(), ylim=ax.get_ylim())  # those of the data drawn so far, which may not be set yet
    points = (ax.transScale + ax.transLimits).transform(np.column_stack([x, y]))
    seen = ((points >= 0) & (points <= 1)).all(axis=1)
    # Middle, half the size and weight of what is taken, in parts of the axes.
    taken = [(u, v, 0.012, 0.014, _HEAVY) for u, v in points[seen]]
    taken += [(u, v, 0.0, 0.0, 1.0) for u, v in _on_lines(ax)]
    for number in np.flatnonzero(seen):
        u, v = points[number]
        wide, high = 0.012 * len(str(number)) + 0.002, 0.02
        spots = np.array([(u + r * np.cos(a), v + r * np.sin(a)) for r in _RADII for a in _ANGLES])
        a, b, w, h, weight = np.array(taken).T
        hit = (np.abs(spots[:, :1] - a) <= wide + w) & (np.abs(spots[:, 1:] - b) <= high + h)
        out = (np.abs(spots - 0.5) + np.array([wide, high]) > 0.5).any(axis=1)
        across, up = spots[np.argmin(hit @ weight + _HEAVIEST * out)]
        taken.append((across, up, wide, high, _HEAVY))
        ax.text(across, up, str(number), transform=ax.transAxes, **style).set_in_layout(False)


def _on_lines(ax: Axes) -> Array:
    """Return points along all lines, in parts of the axes, `[N, 2]`."""
    found = [np.empty((0, 2))]
    for line in ax.lines:
        data = np.asarray(line.get_xydata(), dtype=np.float64)
        if len(data) < 2:
            continue
        shape = (line.get_transform() - ax.transAxes).transform(data)
        shape = np.clip(shape, -1, 2)  # far outside any distance will do
        length = np.concatenate([[0], np.hypot(*np.diff(shape, axis=0).T).cumsum()])
        along = np.linspace(0, length[-1], int(length[-1] / _STEP) + 2)
        found.append(np.column_stack([np.interp(along, length, part) for part in shape.T]))
    return np.concatenate(found)
