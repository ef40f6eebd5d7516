"""The three numbers that the paper does not give, chosen by its tables: devices, bandwidth, tie of a vote.

Short runs over a region (proxies) choose where to look, full runs at the nearest points decide; `rules.toml`
says by which cells. Everything here is a function of the records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from statistics import mean
from typing import NamedTuple

from signfade.experiments.studies.paper.cells import RULES, Column, Pair, find_column, training
from signfade.experiments.studies.paper.printed import CellKey, read_paper
from signfade.experiments.studies.records import Record, Records, Scale
from signfade.settings import RunSettings, Tie

__all__ = ["Point", "at", "band_text", "candidates", "decide", "decision_cells", "decision_distance", "edges"]
__all__ += [
    "decision_runs",
    "finalists",
    "places",
    "printed_of",
    "proxy_cells",
    "proxy_distance",
    "proxy_off",
    "proxy_rounds",
]
__all__ += ["proxy_runs", "proxy_target", "settle", "vote_places"]

_PROXY, _DECISION = RULES["proxy"], RULES["decision"]
_GUESS = math.log(10)  # the loss of a guess among ten classes


class Point(NamedTuple):
    """What the paper leaves open."""

    devices: int
    bandwidth_hz: float
    tie: Tie

    @property
    def text(self) -> str:
        """The point in words."""
        return f"{self.devices} devices, {band_text(self.bandwidth_hz)}, tie {self.tie}"


def band_text(bandwidth_hz: float) -> str:
    """Return a bandwidth in words."""
    return f"{bandwidth_hz / 1e3:g} kHz" if bandwidth_hz < 1e6 else f"{bandwidth_hz / 1e6:g} MHz"


def at(scale: Scale, point: Point) -> Scale:
    """Return the scale with the number of devices, bandwidth and tie of a point."""
    return replace(scale, devices=point.devices, bandwidth_hz=point.bandwidth_hz, tie=point.tie)


def places(scale: Scale) -> list[tuple[int, float]]:
    """Return the numbers of devices and bandwidths that are tried."""
    region = RULES["quick"] if scale.quick else RULES["unknown"]
    return list(product(region["devices"], region["bandwidths_hz"]))


def edges(scale: Scale, point: Point) -> str:
    """Return in words where a point is at the edge of what is tried; empty inside."""
    devices, bands = (sorted(set(values)) for values in zip(*places(scale)))
    found = [f"{point.devices} devices"] if point.devices in (devices[0], devices[-1]) else []
    found += [band_text(point.bandwidth_hz)] if point.bandwidth_hz in (bands[0], bands[-1]) else []
    return " and ".join(found)


# -- proxies: rounds to a training loss of 1.0, beside Table I -----------------------------------------------


def proxy_runs(scale: Scale, which: str, point: Point) -> list[RunSettings]:
    """Return the short runs of `sbfl` or `vote` at a point, one per seed."""
    method, step, momentum = _PROXY[which]
    there, rounds = at(scale, point), min(_PROXY["rounds"], scale.rounds)
    downlink = find_column(method).downlink(there)
    return [
        training(there, method, (step, momentum), seed=seed, downlink=downlink, rounds=rounds)
        for seed in range(_PROXY["seeds"])
    ]


def proxy_rounds(scale: Scale, records: Records, which: str, point: Point) -> tuple[float, bool] | None:
    """Return the mean rounds to a training loss of 1.0 and whether all seeds got there; None if unknown.

    Of a run that does not get there, where a straight line through its last loss would; infinite if it
    diverged or learned nothing.
    """
    runs = proxy_runs(scale, which, point)
    found = records.find_all(runs)
    if len(found) < len(runs):
        return None
    reached = [one.value("rounds_to_loss_1") if one.diverged is None else None for one in found]
    values = [_extrapolated(one) if at is None else at for one, at in zip(found, reached)]
    return mean(values), None not in reached


def _extrapolated(record: Record) -> float:
    losses = record.points("train_loss")
    if record.diverged is not None or not losses or losses[max(losses)] >= _GUESS:
        return math.inf
    return max(record.rounds, max(losses) * (_GUESS - 1.0) / (_GUESS - losses[max(losses)]))


def _proxy_cell(which: str) -> CellKey:
    method, step, momentum = _PROXY[which]
    return step, momentum, find_column(method).head, "TL"


def proxy_cells() -> list[CellKey]:
    """Return the cells of Table I that the proxies are judged by."""
    return [_proxy_cell(which) for which in ("sbfl", "vote")]


def proxy_target(which: str) -> float:
    """Return the paper's rounds to a training loss of 1.0."""
    printed = read_paper().rounds.cells[_proxy_cell(which)]
    assert printed is not None
    return printed


def proxy_off(scale: Scale, records: Records, which: str, point: Point) -> float | None:
    """Return how far a proxy is from the paper's number, in factors of two; None if it is not known."""
    ours, most = proxy_rounds(scale, records, which, point), _PROXY["most"]
    return None if ours is None else min(most, max(-most, math.log2(ours[0] / proxy_target(which))))


def vote_places(scale: Scale, records: Records) -> list[tuple[int, float]]:
    """Return where votes are tried: where SBFL is nearest; nowhere until that is known of all places."""
    off = {place: proxy_off(scale, records, "sbfl", Point(*place, scale.tie)) for place in places(scale)}
    known = {place: abs(value) for place, value in off.items() if value is not None}
    if len(known) < len(off):
        return []
    return sorted(known, key=lambda place: known[place])[: _PROXY["nearest"]]


def candidates(scale: Scale, records: Records) -> list[Point]:
    """Return the points at which votes are tried."""
    ties = RULES["unknown"]["ties"]
    return [Point(*place, tie) for place, tie in product(vote_places(scale, records), ties)]


def proxy_distance(scale: Scale, records: Records, point: Point) -> float | None:
    """Return the root mean square of how far both proxies are from Table I; None if unknown."""
    off = [proxy_off(scale, records, which, point) for which in ("sbfl", "vote")]
    known = [value**2 for value in off if value is not None]
    return math.sqrt(mean(known)) if len(known) == len(off) else None


def finalists(scale: Scale, records: Records) -> list[Point]:
    """Return the nearest points, nearest first; none until all candidates are known."""
    points = candidates(scale, records)
    found = {point: proxy_distance(scale, records, point) for point in points}
    known = {point: value for point, value in found.items() if value is not None}
    if not points or len(known) < len(points):
        return []
    return sorted(points, key=lambda point: known[point])[: _DECISION["points"]]


# -- the decision: accuracy at the end, beside Table II ------------------------------------------------------


def decision_cells() -> list[tuple[Column, Pair]]:
    """Return the cells that decide, each as its column and its pair."""
    return [(find_column(method, quantity), (step, m)) for method, quantity, step, m in _DECISION["cells"]]


def decision_runs(scale: Scale, column: Column, pair: Pair, point: Point) -> list[RunSettings]:
    """Return the full runs of a cell at a point, one per seed; the tables use them again."""
    seeds = range(min(_DECISION["seeds"], scale.seeds))
    return [column.run(at(scale, point), pair, seed) for seed in seeds]


def printed_of(column: Column, pair: Pair) -> float:
    """Return the paper's accuracy in a cell."""
    printed = read_paper().accuracy.cells[*pair, column.head, column.quantity]
    assert printed is not None
    return printed


def decision_distance(scale: Scale, records: Records, point: Point) -> float | None:
    """Return the root mean square distance from Table II over the cells that decide; None if unknown."""
    squares: list[float] = []
    for column, pair in decision_cells():
        runs = decision_runs(scale, column, pair, point)
        found = [value for one in records.find_all(runs) if (value := one.accuracy) is not None]
        if len(found) < len(runs):
            return None
        squares.append((mean(found) - printed_of(column, pair)) ** 2)
    return math.sqrt(mean(squares))


def decide(scale: Scale, records: Records) -> Point | None:
    """Return the finalist whose full runs are nearest to Table II; None until all of them are there."""
    points = finalists(scale, records)
    return _nearest((point, decision_distance(scale, records, point)) for point in points)


def _nearest(found: Iterable[tuple[Point, float | None]]) -> Point | None:
    known = dict(found)
    distances = {point: value for point, value in known.items() if value is not None}
    if not known or len(distances) < len(known):
        return None
    return min(distances, key=lambda point: distances[point])


def settle(scale: Scale, records: Records) -> Scale:
    """Return the scale at the point that was decided; as it is while none is, and at quick scale.

    A quick study has other data, so it says nothing about the paper's.
    """
    point = None if scale.quick else decide(scale, records)
    return scale if point is None else at(scale, point)
