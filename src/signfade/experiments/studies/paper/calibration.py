"""The parts `calibrate` and `decide`, which choose what the paper does not give; how the pages begin."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from signfade.experiments.studies.drawing import new_figure
from signfade.experiments.studies.paper.cells import RULES, ours_text, pair_text
from signfade.experiments.studies.paper.point import (
    Point,
    band_text,
    candidates,
    decide,
    decision_cells,
    decision_distance,
    decision_runs,
    edges,
    finalists,
    places,
    printed_of,
    proxy_distance,
    proxy_off,
    proxy_rounds,
    proxy_runs,
    proxy_target,
    settle,
    vote_places,
)
from signfade.experiments.studies.paper.printed import words_of
from signfade.experiments.studies.records import Missing, Records, Results, Scale, Tier, Want
from signfade.experiments.studies.study import Block, Part, Picture, Table, Text
from signfade.experiments.style import INK

__all__ = ["CALIBRATE", "DECIDE", "opening", "tables_opening"]

_TIES = RULES["unknown"]["ties"]


def _where(results: Results) -> str:
    """At which point the pages are, and whether that was decided."""
    decided = not results.scale.quick and decide(results.scale, results.records) is not None
    scale = settle(results.scale, results.records)
    where = Point(scale.devices, scale.bandwidth_hz, scale.tie).text
    return words_of("opening", "decided" if decided else "open", where=where)


def opening(results: Results) -> list[str]:
    """Return the paragraphs at the start of the results."""
    parts = [words_of("opening", name, results.scale) for name in ("about", "terms", "choices")]
    return [parts[0], _where(results), *parts[1:]]


def tables_opening(results: Results) -> list[str]:
    """Return the paragraphs at the start of the tables."""
    return [words_of("opening", "tables"), _where(results), words_of("opening", "rule", results.scale)]


# -- proxies -------------------------------------------------------------------------------------------------


def _proxy_wants(scale: Scale, records: Records) -> list[Want]:
    """SBFL in the whole region, then votes where it is nearest: known once the first are finished."""
    runs = [run for place in places(scale) for run in proxy_runs(scale, "sbfl", Point(*place, scale.tie))]
    votes = [run for point in candidates(scale, records) for run in proxy_runs(scale, "vote", point)]
    return [Want(run, Tier.CALIBRATION, order=order) for order, run in enumerate(runs + votes)]


def _surface(ax: Axes, distances: dict[tuple[int, float], float], scale: Scale, chosen: Point | None) -> Any:
    """Draw distances over devices and bandwidth, a number in each field; what was not tried stays empty."""
    devices, bands = (sorted(set(values)) for values in zip(*places(scale)))
    grid = np.full((len(bands), len(devices)), np.nan)
    for (number, band), value in distances.items():
        row, column = bands.index(band), devices.index(number)
        grid[row, column] = value
        ax.text(
            column,
            row,
            f"{value:.2f}",
            ha="center",
            va="center",
            fontsize=8,
            color="white" if value < 0.8 else INK,
        )
    image = ax.imshow(grid, origin="lower", aspect="auto", cmap="YlGnBu_r", vmin=0, vmax=3, alpha=0.75)
    if chosen is not None and (chosen.devices, chosen.bandwidth_hz) in distances:
        x, y = devices.index(chosen.devices), bands.index(chosen.bandwidth_hz)
        look: Any = {
            "markersize": 26,
            "markeredgecolor": INK,
            "markerfacecolor": "none",
            "markeredgewidth": 1.8,
        }
        ax.plot([x], [y], "s", label="chosen", **look)
    ax.set_xticks(range(len(devices)), map(str, devices))
    ax.set_yticks(range(len(bands)), map(band_text, bands))
    ax.grid(visible=False)
    return image


def _calibration(results: Results) -> list[Block]:
    scale, records = results.scale, results.records
    off = [(place, proxy_off(scale, records, "sbfl", Point(*place, scale.tie))) for place in places(scale)]
    alone = {place: abs(value) for place, value in off if value is not None}
    if not alone:
        raise Missing
    point = decide(scale, records)
    with new_figure((9.6, 3.4), 1, 1 + len(_TIES), sharey=True) as (figure, panels):
        image = _surface(panels[0], alone, scale, point)
        panels[0].set_title("SBFL alone", fontsize=9)
        for ax, tie in zip(panels[1:], _TIES):
            both = [(place, proxy_distance(scale, records, Point(*place, tie))) for place in places(scale)]
            known = {place: value for place, value in both if value is not None}
            _surface(ax, known, scale, point if point is not None and point.tie == tie else None)
            ax.set_title(f"and vote, tie {tie}", fontsize=9)
        panels[0].set_ylabel("bandwidth of a device")
        for ax in panels:
            ax.set_xlabel("devices")
        figure.colorbar(image, ax=list(panels), label="distance, factors of 2", shrink=0.85)
    about = "Distance from Table I over devices and bandwidth, of SBFL alone and with the vote for each tie"
    rounds = min(RULES["proxy"]["rounds"], scale.rounds)
    words = words_of("calibrate", rounds=rounds, nearest=RULES["proxy"]["nearest"])
    blocks: list[Block] = [Text(words), Picture(figure, "calibrate", about)]
    return [*blocks, _proxy_table(results)] if vote_places(scale, records) else blocks


def _proxy_table(results: Results) -> Table:
    scale, records = results.scale, results.records

    def text(which: str, point: Point) -> str:
        found = proxy_rounds(scale, records, which, point)
        if found is None:
            return "–"
        return f"{found[0]:.0f}" if found[1] else f"about {found[0]:.0f}" if found[0] < 1e4 else "never"

    targets = [f"{proxy_target(which):.0f}" for which in ("sbfl", *["vote"] * len(_TIES))]
    rows = [["the paper", *targets, ""]]
    for place in sorted(vote_places(scale, records)):
        points = [Point(*place, tie) for tie in _TIES]
        near = [value for point in points if (value := proxy_distance(scale, records, point)) is not None]
        votes = [text("vote", point) for point in points]
        least = f"{min(near):.2f}" if near else "–"
        rows.append([f"{place[0]} devices, {band_text(place[1])}", text("sbfl", points[0]), *votes, least])
    heads = ["where", "SBFL", *(f"vote, tie {tie}" for tie in _TIES), "least distance"]
    return Table(heads, rows, words_of("calibrate", "note"))


CALIBRATE = Part("calibrate", "What the paper does not say", "ours", _calibration, _proxy_wants, early=True)

# -- the decision --------------------------------------------------------------------------------------------


def _decision_wants(scale: Scale, records: Records) -> list[Want]:
    cells = product(enumerate(finalists(scale, records)), decision_cells())
    return [
        Want(run, Tier.CALIBRATION, order=1000 + 10 * place)
        for (place, point), (column, pair) in cells
        for run in decision_runs(scale, column, pair, point)
    ]


def _decision(results: Results) -> list[Block]:
    scale, records = results.scale, results.records
    points = finalists(scale, records)
    rows = []
    for column, pair in decision_cells():
        found = [records.find_all(decision_runs(scale, column, pair, p)) for p in points]
        name = f"{column.label}, {column.quantity}, {pair_text(pair)}"
        rows.append([name, f"{printed_of(column, pair):.2f}", *map(ours_text, found)])
    if all(text == "–" for row in rows for text in row[2:]):
        raise Missing
    distances = [decision_distance(scale, records, point) for point in points]
    rows.append(["distance", "", *("–" if value is None else f"{value:.3f}" for value in distances)])
    chosen = decide(scale, records)
    words = words_of("decide", seeds=min(RULES["decision"]["seeds"], scale.seeds))
    words += words_of("decide", "open") if chosen is None else words_of("decide", "chosen", point=chosen.text)
    if chosen is not None and (what := edges(scale, chosen)):
        words += words_of("decide", "edge", what=what)
    heads = ["cell", "paper", *(point.text for point in points)]
    return [Text(words), Table(heads, rows, words_of("decide", "note", scale))]


DECIDE = Part(
    "decide", "The point that was chosen", "ours", _decision, _decision_wants, early=True, also=(CALIBRATE,)
)
