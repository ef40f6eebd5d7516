"""The parts `calibrate` and `decide`, which choose what the paper does not give; how the pages begin."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from signfade.experiments.studies.drawing import new_figure
from signfade.experiments.studies.paper.cells import RULES, Column, Pair, ours_text, pair_text
from signfade.experiments.studies.paper.point import (
    Place,
    Point,
    alike,
    band_text,
    candidates,
    decide,
    decision_cells,
    decision_distance,
    decision_runs,
    decision_seeds,
    edges,
    elsewhere,
    finalists,
    first_seeds,
    here,
    least_distance,
    nearest,
    places,
    printed_of,
    proxy_distance,
    proxy_off,
    proxy_rounds,
    proxy_runs,
    proxy_target,
    seed_distances,
    settle,
    vote_places,
)
from signfade.experiments.studies.paper.printed import compare_accuracy, words_of
from signfade.experiments.studies.records import (
    Missing,
    Record,
    Records,
    Results,
    Scale,
    Tier,
    Want,
    accuracies,
)
from signfade.experiments.studies.study import Block, Part, Picture, Table, Text
from signfade.experiments.style import INK

__all__ = ["CALIBRATE", "DECIDE", "opening", "tables_opening"]

_TIES = RULES["ties"]


def _where(results: Results) -> str:
    """At which point the pages are, and whether that was decided."""
    scale, records = results.scale, results.records
    decided = not scale.quick and decide(scale, records) is not None
    where, there = here(settle(scale, records)).text, elsewhere(scale, records)
    if there is not None:
        points = len(finalists(scale, records))
        return words_of("opening", "moving", scale, where=where, point=here(there).text, points=points)
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
    runs = [run for place in places(scale) for run in proxy_runs(scale, "sbfl", place.with_tie(scale.tie))]
    votes = [run for point in candidates(scale, records) for run in proxy_runs(scale, "vote", point)]
    return [Want(run, Tier.CALIBRATION, order=order) for order, run in enumerate(runs + votes)]


def _surface(ax: Axes, distances: dict[Place, float], region: list[Place], chosen: Point | None) -> Any:
    """Draw distances over devices and bandwidth, a number in each field; what was not tried stays empty."""
    devices, bands = sorted({one.devices for one in region}), sorted({one.bandwidth_hz for one in region})
    grid = np.full((len(bands), len(devices)), np.nan)
    for place, value in ((place, distances[place]) for place in region if place in distances):
        row, column = bands.index(place.bandwidth_hz), devices.index(place.devices)
        grid[row, column] = value
        color = "white" if value < 0.8 else INK
        ax.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color=color)
    image = ax.imshow(grid, origin="lower", aspect="auto", cmap="YlGnBu_r", vmin=0, vmax=3, alpha=0.75)
    if chosen is not None and chosen.place in region:
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
    off = {place: proxy_off(scale, records, "sbfl", place.with_tie(scale.tie)) for place in places(scale)}
    alone = {place: abs(value) for place, value in off.items() if value is not None}
    if not alone:
        raise Missing
    rounds, names = min(RULES["proxy"]["rounds"], scale.rounds), ("calibrate", "calibrate-weights")
    blocks: list[Block] = [Text(words_of("calibrate", rounds=rounds))]
    for name, weights in zip(names, (False, True)):
        rows: dict[str, list[Place]] = {}
        for place in alone:
            if (place.initial != "torch") == weights:
                rows.setdefault(place.reading, []).append(place)
        if rows:
            blocks.append(_surfaces(results, name, alone, list(rows.values())))
    return [*blocks, _proxy_table(results)] if vote_places(scale, records) else blocks


def _surfaces(results: Results, name: str, alone: dict[Place, float], rows: list[list[Place]]) -> Picture:
    """Draw the distance of SBFL, and with the vote for each tie, a row of surfaces for each reading."""
    scale, records = results.scale, results.records
    point, shape = decide(scale, records), (len(rows), 1 + len(_TIES))
    with new_figure((9.6, 2.9 * len(rows)), *shape, sharey="row", squeeze=False) as (figure, panels):
        for panel, region in zip(panels, rows):
            image = _surface(panel[0], alone, region, point)
            panel[0].set_title(f"{region[0].reading or 'pixels in [0, 1]'}: SBFL", fontsize=9)
            for ax, tie in zip(panel[1:], _TIES):
                both = {place: proxy_distance(scale, records, place.with_tie(tie)) for place in region}
                known = {place: value for place, value in both.items() if value is not None}
                _surface(ax, known, region, point if point is not None and point.tie == tie else None)
                ax.set_title(f"and vote, tie {tie}", fontsize=9)
            panel[0].set_ylabel("bandwidth of a device")
        for ax in panels[-1]:
            ax.set_xlabel("devices")
        figure.colorbar(image, ax=list(panels.flat), label="distance, factors of 2", shrink=0.85)
    about = "Distance from Table I over devices and bandwidth, of SBFL alone and with the vote for each tie"
    return Picture(figure, name, about)


def _proxy_table(results: Results) -> Table:
    scale, records = results.scale, results.records

    def text(which: str, point: Point) -> str:
        found = proxy_rounds(scale, records, which, point)
        if found is None:
            return "–"
        return f"{found[0]:.0f}" if found[1] else f"about {found[0]:.0f}" if found[0] < 1e4 else "never"

    targets = [f"{proxy_target(which):.0f}" for which in ("sbfl", *["vote"] * len(_TIES))]
    rows = [["the paper", *targets, ""]]
    for place in sorted(vote_places(scale, records), key=lambda place: (place.reading, place)):
        points = [place.with_tie(tie) for tie in _TIES]
        near = [value for point in points if (value := proxy_distance(scale, records, point)) is not None]
        votes = [text("vote", point) for point in points]
        least = f"{min(near):.2f}" if near else "–"
        rows.append([place.text, text("sbfl", points[0]), *votes, least])
    heads = ["where", "SBFL", *(f"vote, tie {tie}" for tie in _TIES), "least distance"]
    return Table(heads, rows, words_of("calibrate", "note"))


CALIBRATE = Part("calibrate", "What the paper does not say", "ours", _calibration, _proxy_wants, early=True)

# -- the decision --------------------------------------------------------------------------------------------


def _decision_wants(scale: Scale, records: Records) -> list[Want]:
    cells = product(enumerate(finalists(scale, records)), decision_cells())
    return [
        Want(run, Tier.CALIBRATION, order=1000 + 10 * place)
        for (place, point), (column, pair) in cells
        for run in decision_runs(scale, column, pair, point, decision_seeds(scale, records, point))
    ]


def _decision_records(results: Results, column: Column, pair: Pair, point: Point) -> list[Record]:
    """The full runs of a cell at a point that are there."""
    scale, records = results.scale, results.records
    seeds = decision_seeds(scale, records, point)
    return records.find_all(decision_runs(scale, column, pair, point, seeds))


def _decision(results: Results) -> list[Block]:
    scale, records = results.scale, results.records
    points = finalists(scale, records)
    rows = []
    for column, pair in decision_cells():
        found = [_decision_records(results, column, pair, point) for point in points]
        name = f"{column.label}, {column.quantity}, {pair_text(pair)}"
        rows.append([name, f"{printed_of(column, pair):.2f}", *map(ours_text, found)])
    if all(text == "–" for row in rows for text in row[2:]):
        raise Missing
    rows.append(["distance", "", *(_distance_text(results, point) for point in points)])
    where, seeds = {point.place for point in points}, len(first_seeds(scale))
    words = words_of("decide", scale=scale, seeds=seeds, points=len(points), places=len(where))
    chosen, best = decide(scale, records), nearest(scale, records)
    words += words_of("decide", "open") if best is None else _nearest_words(results, best)
    if chosen is not None and elsewhere(scale, records) is not None:
        words += words_of("decide", "moving")
    elif chosen is not None and chosen != best:
        words += words_of("decide", "alike", point=chosen.text)
    elif chosen is not None:
        words += words_of("decide", "chosen")
    if chosen is not None and (what := edges(scale, chosen)):
        words += words_of("decide", "edge", what=what)
    heads = ["cell", "paper", *(point.text for point in points)]
    return [Text(words), Table(heads, rows, words_of("decide", "note", scale))]


def _distance_text(results: Results, point: Point) -> str:
    """The distance of a point, and in brackets that by each seed alone."""
    scale, records = results.scale, results.records
    whole = decision_distance(scale, records, point, decision_seeds(scale, records, point))
    alone = ", ".join(f"{value:.3f}" for value in seed_distances(scale, records, point))
    return "–" if whole is None else f"{whole:.3f} ({alone})"


def _nearest_words(results: Results, best: Point) -> str:
    """How near the nearest point is, and from which others the seeds cannot tell it."""
    scale, records = results.scale, results.records
    verdicts = [
        compare_accuracy(accuracies(_decision_records(results, column, pair, best)), printed_of(column, pair))
        for column, pair in decision_cells()
    ]
    distance = decision_distance(scale, records, best, decision_seeds(scale, records, best))
    agree = verdicts.count("agrees")
    words = words_of(
        "decide", "nearest", point=best.text, distance=distance, agree=agree, least=least_distance()
    )
    if others := alike(scale, records):
        words += words_of("decide", "unclear", others="; ".join(one.text for one in others))
    return words


DECIDE = Part(
    "decide", "The point that was chosen", "ours", _decision, _decision_wants, early=True, also=(CALIBRATE,)
)
