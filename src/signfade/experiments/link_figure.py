"""The figure of `signfade link`: the cell, its SNRs, what they do to bits and words, and who errs most."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from signfade.experiments.data_table import DataTable
from signfade.experiments.point_labels import label_points
from signfade.experiments.style import INK, MUTED, SERIES, figure_style, line_style, log_ticks
from signfade.uplink.radio import make_cell

if TYPE_CHECKING:
    from signfade.experiments.link_study import LinkStudy

__all__ = ["draw_link"]

Array = NDArray[np.float64]

_NAMED = 40  # up to so many devices are marked with their numbers
_PIXELS = 400
_TITLE_PAD = 28  # points: room for two lines of legend between the title and the axes
_BOTTOM = (1e-8, 1e-4)  # share of errors at the bottom of a plot: as the devices have it, within these


def draw_link(study: LinkStudy) -> Figure:
    """Return the panels that the study has numbers for, in two rows."""
    names = study.tables.tables
    panels: list[Callable[[LinkStudy, Axes], None]] = [_cdf, _bit_errors]
    if "coverage" in names:
        panels = [_map, _distances, *panels]
    if study.needs.word_snr is not None:
        panels.append(_word_errors)
    panels.append(_shares)
    columns = -(-len(panels) // 2)
    with figure_style():
        figure = Figure((3.7 * columns, 6.9), layout="constrained")
        grid = figure.subplots(2, columns, squeeze=False).ravel()
        for ax, draw, letter in zip(grid, panels, "abcdefgh"):
            draw(study, ax)
            ax.set_title(f"{letter}  {ax.get_title(loc='left')}", pad=_TITLE_PAD)
            _legend(ax)
        for ax in grid[len(panels) :]:
            ax.set_axis_off()
    return figure


def _column(table: DataTable, key: str) -> Array:
    return np.array([row[key] for row in table.rows], dtype=np.float64)


def _device(study: LinkStudy, key: str) -> Array:
    return _column(study.tables.tables["devices"], key)


def _legend(ax: Axes) -> None:
    """Put the legend above the axes, where it covers nothing."""
    look: dict[str, Any] = {"fontsize": 7, "handlelength": 1.9, "columnspacing": 1.2, "labelspacing": 0.35}
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderpad=0.3, borderaxespad=0, **look)


def _with_fading(study: LinkStudy) -> str:
    return f"with {study.settings.cell.fading.title()} fading"


def _name_points(ax: Axes, x: Array, y: Array, **look: Any) -> None:
    """Write the devices' numbers beside their points, if they are few."""
    if len(x) <= _NAMED:
        label_points(ax, x, y, **look)


def _map(study: LinkStudy, ax: Axes) -> None:
    """Expected SNR over the whole disc, and the devices with theirs."""
    coverage, radius = study.tables.tables["coverage"], study.settings.cell.radius_km
    far, snr = _column(coverage, "distance_m") / 1e3, _column(coverage, "snr_db")
    side = np.linspace(-radius, radius, _PIXELS)
    distance = np.hypot(side[:, None], side[None, :])
    picture = np.where(distance <= radius, np.interp(distance, far, snr), np.nan)
    devices = _device(study, "mean_snr_db")
    low, high = np.nanpercentile(picture, (0, 97))  # the spot at the mast is no scale
    low, high = min(low, np.percentile(devices, 5)), max(high, np.percentile(devices, 95))
    color: dict[str, Any] = {"cmap": "cividis", "vmin": low, "vmax": high}
    edge = (-radius, radius, -radius, radius)
    image = ax.imshow(picture, extent=edge, origin="lower", interpolation="bilinear", **color)
    x, y = _device(study, "x_m") / 1e3, _device(study, "y_m") / 1e3
    ring: dict[str, Any] = {"s": 26, "edgecolors": "white", "linewidths": 0.9}
    ax.scatter(x, y, c=devices, zorder=3, **ring, **color)
    ax.scatter([], [], color=MUTED, label="devices", **ring)
    mast: dict[str, Any] = {"marker": "^", "markersize": 7, "markeredgecolor": "white", "linestyle": "none"}
    ax.plot(0, 0, color=SERIES[1], label="base station", **mast)
    ax.add_patch(Circle((0, 0), radius, fill=False, edgecolor=MUTED, linewidth=0.8))
    ax.set(
        xlim=(-1.05 * radius, 1.05 * radius), ylim=(-1.05 * radius, 1.05 * radius), xlabel="km", ylabel="km"
    )
    ax.set_aspect("equal")
    _name_points(ax, x, y, color="white", path_effects=[withStroke(linewidth=1.5, foreground=INK)])
    ax.grid(visible=False)
    ax.set_title("Coverage: mean SNR (dB)")
    bar = ax.figure.colorbar(image, ax=ax, shrink=0.85, pad=0.02)
    bar.outline.set_visible(False)


def _distances(study: LinkStudy, ax: Axes) -> None:
    """SNR against distance, with the spread of the shadowing."""
    coverage, budget = study.tables.tables["coverage"], make_cell(study.settings.cell).budget
    far = _column(coverage, "distance_m")
    kinds = {"blocked_snr_db": ("no line of sight", budget.deviations_db[1], 0)}
    if budget.model.sight is None:
        kinds = {"blocked_snr_db": ("median", budget.deviations_db[1], 0)}
    else:
        kinds["clear_snr_db"] = ("line of sight", budget.deviations_db[0], 2)
    for key, (label, deviation, place) in kinds.items():
        snr, style = _column(coverage, key), line_style(place)
        ax.plot(far, snr, color=style.color, label=label, dashes=style.dashes or (None, None))
        if deviation > 0 and study.settings.cell.power_control == "full":
            ax.fill_between(far, snr - deviation, snr + deviation, color=style.color, alpha=0.15, linewidth=0)
    x, y = _device(study, "distance_m"), _device(study, "mean_snr_db")
    ax.scatter(x, y, s=14, color=INK, zorder=3, linewidths=0)
    _needed(study, ax.axhline)
    ax.set(xlabel="distance (m)", ylabel="mean SNR (dB)", title="SNR against distance")
    _name_points(ax, x, y)


def _needed(study: LinkStudy, draw: Callable[..., Any], word: bool = False) -> None:
    """Draw a line at the SNR that bits, or codewords, need."""
    snr_db = study.needs.word_db if word else study.needs.bit_db
    assert snr_db is not None
    text = f"{100 * study.needs.target:g} % errors: {snr_db:.1f} dB".replace("-", "−")
    draw(snr_db, color=MUTED, linewidth=1.0, dashes=(3, 2), zorder=1, label=text)


def _cdf(study: LinkStudy, ax: Axes) -> None:
    table, cell = study.tables.tables["cdf"], study.settings.cell
    snr, users = _column(table, "snr_db"), 100 * _column(table, "users_below")
    ax.plot(snr, users, color=line_style(0).color, label="mean SNR of users")
    if cell.fading != "none":
        below = 100 * _column(table, "below")
        style = line_style(1)
        ax.plot(snr, below, color=style.color, dashes=style.dashes, label=_with_fading(study))
    mine = _device(study, "mean_snr_db")
    ax.scatter(mine, np.interp(mine, snr, users), s=14, color=INK, zorder=3, linewidths=0, label="devices")
    _needed(study, ax.axvline)
    ax.set(xlabel="SNR (dB)", ylabel="below this SNR (%)", ylim=(0, 101), title="Distribution of SNRs")


def _errors(study: LinkStudy, ax: Axes, key: str, label: str) -> None:
    table, cell = study.tables.tables["curves"], study.settings.cell
    snr, faded = _column(table, "snr_db"), _column(table, f"{key}_faded")
    plain = _column(table, key)
    ax.plot(snr, plain, color=line_style(0).color, label="without fading")
    if cell.fading != "none":
        style = line_style(1)
        ax.plot(snr, faded, color=style.color, dashes=style.dashes, label=_with_fading(study))
    x = _device(study, "mean_snr_db")
    y = np.exp(np.interp(x, snr, np.log(np.maximum(faded, 1e-300))))
    ax.scatter(x, y, s=14, color=INK, zorder=3, linewidths=0)
    _needed(study, ax.axvline, key == "bler")
    bottom = float(10 ** np.floor(np.log10(np.clip(y.min(), *_BOTTOM))))
    above = snr[np.maximum(faded, plain) >= bottom]  # to the right of these there is nothing to see
    ax.set_yscale("log")
    ax.set(xlabel="SNR (dB), with fading its mean", ylabel=label, ylim=(bottom, 1.0))
    ax.set_xlim(snr[0], min(above[-1] + 0.05 * (above[-1] - snr[0]), snr[-1]))
    log_ticks(ax.yaxis, 1 / bottom)
    if hidden := int((y < bottom).sum()):
        ax.plot([], [], color=INK, marker="v", linestyle="none", label=f"{hidden} of {len(y)} devices below")
    _name_points(ax, x, y)


def _bit_errors(study: LinkStudy, ax: Axes) -> None:
    _errors(study, ax, "ber", "bit error rate")
    ax.set_title("Bits")


def _word_errors(study: LinkStudy, ax: Axes) -> None:
    _errors(study, ax, "bler", "block error rate")
    needs = study.needs
    assumed = "" if study.settings.cell.side_info == "coded" else ", if coded"
    ax.set_title(f"Scalars{assumed}: {needs.word_bits} in {needs.word_length} bits")


def _shares(study: LinkStudy, ax: Axes) -> None:
    share = 100 * _device(study, "error_share")
    if len(share) > _NAMED:
        share = np.sort(share)[::-1]
    if np.isfinite(share).all():
        ax.bar(np.arange(len(share)), share, color=line_style(0).color, width=0.8)
    equal = 100 / study.radio.devices
    ax.axhline(equal, color=MUTED, linewidth=1.0, dashes=(3, 2), label="equal shares")
    ax.set(ylabel="share (%)", xlabel="device" if len(share) <= _NAMED else "devices, sorted")
    ax.set_title("Share of the sum's error")
    ax.grid(visible=False, axis="x")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
