"""The parts `calibrate` and `decide`, which choose what the paper does not give; how the pages begin."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from signfade.experiments.studies.drawing import new_figure
from signfade.experiments.studies.paper.cells import RULES, Column, Pair, ours_text, pair_text
from signfade.experiments.studies.paper.point import (
    Place,
    Point,
    Region,
    alike,
    candidates,
    decide,
    decision_cells,
    decision_runs,
    decision_seeds,
    edges,
    elsewhere,
    finalists,
    first_seeds,
    here,
    judged,
    least_distance,
    nearest,
    places,
    printed_of,
    proxy_distance,
    proxy_off,
    proxy_rounds,
    proxy_runs,
    proxy_target,
    regions,
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
from signfade.settings import Tie

__all__ = ["CALIBRATE", "DECIDE", "opening", "tables_opening"]

_TIES = RULES["ties"]


def _where(results: Results) -> str:
    """At which point the pages are, and whether that was decided."""
    scale, records = results.scale, results.records
    decided = not scale.quick and decide(scale, records) is not None
    where, there = here(settle(scale, records)).text, elsewhere(scale, records)
    if there is not None:
        points, near = len(finalists(scale, records)), here(there)
        distance = judged(scale, records, near)
        return words_of(
            "opening", "moving", scale, where=where, point=near.text, points=points, distance=distance
        )
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


def _rows(region: Region) -> dict[Place, str]:
    """Name the row of every place of a region: its devices, or its reading where those are all the same."""
    same = len({place.devices for place in region.places}) == 1
    return {place: place.reading if same else f"{place.devices} devices" for place in region.places}


def _surface(ax: Axes, distances: dict[Place, float], rows: dict[Place, str], chosen: Place | None) -> Any:
    """Draw distances over bandwidth and rows, a number in each field; what was not tried stays empty."""
    bands, names = sorted({place.bandwidth_hz for place in rows}), list(dict.fromkeys(rows.values()))
    fields = {place: (bands.index(place.bandwidth_hz), names.index(row)) for place, row in rows.items()}
    grid = np.full((len(names), len(bands)), np.nan)
    for place, value in distances.items():
        x, y = fields[place]
        grid[y, x] = value
        color = "white" if value < 0.8 else INK
        ax.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=8, color=color)
    image = ax.imshow(grid, origin="lower", aspect="auto", cmap="YlGnBu_r", vmin=0, vmax=3, alpha=0.75)
    if chosen in fields:
        look: Any = {"markeredgecolor": INK, "markerfacecolor": "none", "markeredgewidth": 1.8}
        ax.plot(*fields[chosen], "s", label="chosen", markersize=26, **look)
    ax.set_xticks(range(len(bands)), [f"{band / 1e6:g}" for band in bands])
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.grid(visible=False)
    return image


def _calibration(results: Results) -> list[Block]:
    scale, records = results.scale, results.records
    if not any(_off(results, place) is not None for place in places(scale)):
        raise Missing
    words = words_of("calibrate", rounds=min(RULES["proxy"]["rounds"], scale.rounds))
    blocks: list[Block] = [Text(words), _surfaces(results)]
    return [*blocks, _proxy_table(results)] if vote_places(scale, records) else blocks


def _off(results: Results, place: Place, tie: Tie | None = None) -> float | None:
    """The distance of a place by SBFL alone, or by SBFL and the vote with a tie."""
    scale, records = results.scale, results.records
    if tie is not None:
        return proxy_distance(scale, records, place.with_tie(tie))
    off = proxy_off(scale, records, "sbfl", place.with_tie(scale.tie))
    return None if off is None else abs(off)


def _surfaces(results: Results) -> Picture:
    """Draw the distance of SBFL, and with the vote for each tie, a row of surfaces for each region."""
    point, tried = decide(results.scale, results.records), regions(results.scale)
    size, shape = (10.6, 2.3 * len(tried) + 0.4), (len(tried), 1 + len(_TIES))
    with new_figure(size, *shape, sharey="row", squeeze=False) as (figure, panels):
        for row, region in zip(panels, tried):
            rows, some = _rows(region), region.places[0]
            where = some.reading or "pixels in [0, 1]"
            where = f"{some.devices} devices" if rows[some] == some.reading else where
            for ax, tie in zip(row, (None, *_TIES)):
                found = {place: _off(results, place, tie) for place in region.places}
                known = {place: value for place, value in found.items() if value is not None}
                shown = point is not None and tie in (None, point.tie)
                image = _surface(ax, known, rows, point.place if point and shown else None)
                ax.set_title(f"{where}: SBFL" if tie is None else f"and vote, tie {tie}", fontsize=8)
        for ax in panels[-1]:
            ax.set_xlabel("bandwidth of a device, MHz", fontsize=8)
        figure.colorbar(image, ax=list(panels.flat), label="distance, factors of 2", shrink=0.85)
    about = "Distance from Table I over what the paper leaves open, of SBFL alone and with votes"
    return Picture(figure, "calibrate", about)


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
    known = {point: value for point in points if (value := judged(scale, records, point)) is not None}
    points = sorted(points, key=lambda point: known.get(point, math.inf))
    cells = decision_cells()
    printed = [f"{printed_of(*cell):.2f}" for cell in cells]
    rows = []
    for point in points:
        found = [ours_text(_decision_records(results, *cell, point)) for cell in cells]
        rows.append([point.text, *found, _distance_text(results, point)])
    if all(text == "–" for row in rows for text in row[1:]):
        raise Missing
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
    names = [f"{column.label}, {column.quantity}, {pair_text(pair)}" for column, pair in cells]
    rows = [["the paper", *printed, ""], *rows]
    return [Text(words), Table(["where", *names, "distance"], rows, words_of("decide", "note", scale))]


def _distance_text(results: Results, point: Point) -> str:
    """The distance of a point, and in brackets that by each seed alone."""
    scale, records = results.scale, results.records
    whole = judged(scale, records, point)
    alone = ", ".join(f"{value:.3f}" for value in seed_distances(scale, records, point))
    return "–" if whole is None else f"{whole:.3f} ({alone})"


def _nearest_words(results: Results, best: Point) -> str:
    """How near the nearest point is, and from which others the seeds cannot tell it."""
    scale, records = results.scale, results.records
    verdicts = [
        compare_accuracy(accuracies(_decision_records(results, column, pair, best)), printed_of(column, pair))
        for column, pair in decision_cells()
    ]
    distance = judged(scale, records, best)
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
