"""A picture of who holds what: one column per device, one row per class, darker for more samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from signfade.data.splits import Split

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["count_classes", "plot_split"]

_FEW = 30  # up to so many devices: in their own order, with the counts written out
_COLUMNS = 1000  # more devices than this share columns
_INK = "#1b2a41"
_FAINT = "#8a94a3"


def count_classes(labels: ArrayLike, split: Split, classes: int) -> NDArray[np.int64]:
    """Return how many samples of each class each device holds, `[K, C]`, given all labels `[N]` from 0.

    Example:
        >>> parts = Split(np.array([0, 1, 2]), np.array([0, 2, 3]))
        >>> count_classes([1, 1, 0], parts, classes=2).tolist()
        [[0, 2], [1, 0]]
    """
    mine = np.asarray(labels)[split.indices]
    if mine.size and not (mine.min() >= 0 and mine.max() < classes):
        raise ValueError(f"labels must be from 0 to {classes - 1}; got {mine.min()} to {mine.max()}")
    device = np.repeat(np.arange(split.devices), split.counts)
    return np.bincount(device * classes + mine, minlength=split.devices * classes).reshape(-1, classes)


def plot_split(labels: ArrayLike, split: Split, classes: int) -> Figure:
    """Draw who holds what: samples per class and device as a heat grid, and samples per device above it.

    Up to 30 devices stand in their own order with their counts written out. More are sorted by the class they
    have most of, then by the next, so that the kind of split shows; above 1000, neighbours share a column,
    which shows their mean. The colours differ in lightness only, so they read the same in print and to every
    eye. Arguments as in `count_classes`; of text, with labels `[N, T]`, only the samples per device are
    drawn, devices with most first. Save the figure with `figure.savefig(path)`.

    Example:
        >>> from signfade.data.splits import split
        >>> labels = np.repeat(np.arange(10), 60)
        >>> figure = plot_split(labels, split(labels, devices=20), classes=10)
        >>> [axes.get_ylabel() for axes in figure.axes]
        ['samples', 'class', 'samples of a class']
    """
    from matplotlib.figure import Figure

    if np.ndim(labels) == 2:
        return _plot_sizes(split)
    counts = count_classes(labels, split, classes)
    devices, few = split.devices, split.devices <= _FEW
    label = "device"
    if not few:
        counts = counts[_by_main_class(counts)]
        label = f"{devices} devices, sorted by their main classes"
    group = -(-devices // _COLUMNS)
    edges = np.arange(0, devices, group)
    sizes = np.diff(np.append(edges, devices))
    grid = np.add.reduceat(counts, edges, axis=0) / sizes[:, None]
    if group > 1:
        label += f"; a column is the mean of {group}"

    figure = Figure(figsize=(9.0, min(9.0, 1.9 + 0.26 * max(classes, 6))), dpi=150, layout="constrained")
    top, main = figure.subplots(2, 1, sharex=True, height_ratios=[1, 4])
    _draw_totals(top, grid.sum(axis=1), few)
    _draw_grid(figure, main, grid, label, few)
    figure.align_ylabels([top, main])
    return figure


def _plot_sizes(split: Split) -> Figure:
    """Draw the samples per device alone."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.2), dpi=150, layout="constrained")
    axes = figure.subplots()
    few = split.devices <= _FEW
    totals = split.counts if few else np.sort(split.counts)[::-1]
    _draw_totals(axes, totals.astype(np.float64), few)
    axes.set_xlim(-0.6, split.devices - 0.4)
    axes.locator_params(axis="y", nbins=6, integer=True)
    axes.set_xlabel("device" if few else f"{split.devices} devices, sorted by size", color=_INK)
    if few:
        axes.set_xticks(range(split.devices))
        axes.tick_params(axis="x", labelbottom=True, colors=_INK, labelsize=8)
    return figure


def _by_main_class(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an order of the devices: by main class, then by the second, then by how much of the first."""
    ranks = np.argsort(-counts, axis=1, kind="stable")
    second = ranks[:, 1] if counts.shape[1] > 1 else ranks[:, 0]
    # Two chunks of about one size have no main class; the lower number leads: equal pairs stand together.
    most = np.take_along_axis(counts, ranks[:, :2], axis=1)
    tied = (most[:, -1] > 0) & (most[:, -1] >= 0.75 * most[:, 0])
    first = np.where(tied, np.minimum(ranks[:, 0], second), ranks[:, 0])
    second = np.where(tied, np.maximum(ranks[:, 0], second), second)
    return np.lexsort((-counts.max(axis=1), second, first))


def _draw_totals(axes: Axes, totals: NDArray[np.float64], few: bool) -> None:
    axes.bar(np.arange(len(totals)), totals, width=0.82 if few else 1.0, color=_FAINT, linewidth=0)
    axes.set_ylabel("samples", color=_INK)
    axes.set_ylim(0, 1.12 * totals.max())
    axes.tick_params(axis="x", length=0, labelbottom=False)
    axes.tick_params(axis="y", colors=_INK, labelsize=8)
    axes.locator_params(axis="y", nbins=3, integer=True)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)


def _draw_grid(figure: Figure, axes: Axes, grid: NDArray[np.float64], label: str, few: bool) -> None:
    from matplotlib.colors import PowerNorm

    columns, classes = grid.shape
    # The square root keeps small holdings visible beside large ones; no samples at all is no colour.
    norm = PowerNorm(0.5, vmin=0, vmax=max(grid.max(), 1.0))
    mesh = axes.pcolormesh(
        np.arange(columns + 1) - 0.5,
        np.arange(classes + 1) - 0.5,
        np.ma.masked_equal(grid.T, 0),
        cmap="Blues",
        norm=norm,
        edgecolors="white" if few else "none",
        linewidth=1.2 if few else 0,
        rasterized=True,
    )
    axes.set_facecolor("#f5f7fa" if few else "white")
    axes.set_xlabel(label, color=_INK)
    axes.set_ylabel("class", color=_INK)
    axes.set_ylim(classes - 0.5, -0.5)
    step = -(-classes // 20)
    axes.set_yticks(range(0, classes, step), labels=[str(c) for c in range(0, classes, step)])
    axes.tick_params(colors=_INK, labelsize=8, length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if few:
        axes.set_xticks(range(columns))
        for device, row in zip(*np.nonzero(grid)):
            count = grid[device, row]
            text = axes.text(device, row, f"{count:.0f}", ha="center", va="center")
            text.set(fontsize=7 if count < 1000 else 6, color="white" if norm(count) > 0.55 else _INK)
    else:
        axes.set_xticks([])
        for row in np.arange(classes + 1) - 0.5:
            axes.axhline(row, color="#e3e7ee", linewidth=0.6, zorder=0)
    bar = figure.colorbar(mesh, ax=axes, pad=0.01, aspect=18)
    bar.set_label("samples of a class", color=_INK)
    bar.ax.tick_params(colors=_INK, labelsize=8, length=2)
    bar.outline.set_visible(False)
