"""What the paper does not give, chosen by its tables: devices, bandwidth, ties, pixels and the network.

Short runs over regions (proxies) choose where to look, full runs at the nearest points decide; `rules.toml`
says by which cells. Everything here is a function of the records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import mean
from typing import NamedTuple, TypeVar

from signfade.experiments.intervals import jackknife
from signfade.experiments.studies.paper.cells import (
    RULES,
    Column,
    Pair,
    find_column,
    grid_wants,
    training,
)
from signfade.experiments.studies.paper.printed import CellKey, read_paper
from signfade.experiments.studies.records import Missing, Record, Records, Results, Scale, Tier
from signfade.settings import InitialWeights, RunSettings, Tie

__all__ = ["Place", "Point", "Region", "alike", "at", "at_nearest", "band_text", "candidates", "decide"]
__all__ += ["decided", "decision_cells", "decision_distance", "decision_runs", "decision_seeds", "edges"]
__all__ += [
    "elsewhere",
    "finalists",
    "first_seeds",
    "here",
    "judged",
    "least_distance",
    "nearest",
    "nearest_so_far",
    "places",
    "printed_of",
    "proxy_cells",
]
__all__ += ["proxy_distance", "proxy_off", "proxy_rounds", "proxy_runs", "proxy_target", "regions"]
__all__ += ["seed_distances", "settle", "shortlist", "vote_places"]

_PROXY, _DECISION = RULES["proxy"], RULES["decision"]
Key = TypeVar("Key")
_GUESS = math.log(10)  # the loss of a guess among ten classes


def band_text(bandwidth_hz: float) -> str:
    """Return a bandwidth in words."""
    return f"{bandwidth_hz / 1e3:g} kHz" if bandwidth_hz < 1e6 else f"{bandwidth_hz / 1e6:g} MHz"


class Place(NamedTuple):
    """What SBFL depends on, of what the paper leaves open."""

    devices: int
    bandwidth_hz: float
    standardise: bool = False
    initial: InitialWeights = "torch"
    model: str = "paper-cnn"

    @property
    def reading(self) -> str:
        """How pixels, initial weights and kernels are read, in words; empty for what this page began with."""
        words = ["standardised"] * self.standardise + [self.initial] * (self.initial != "torch")
        words += [self.model.removeprefix("paper-cnn-")] * (self.model != "paper-cnn")
        return ", ".join(words)

    @property
    def text(self) -> str:
        """The place in words."""
        words = [f"{self.devices} devices", band_text(self.bandwidth_hz), self.reading]
        return ", ".join(filter(None, words))

    def with_tie(self, tie: Tie) -> Point:
        """Return the point of a tie."""
        return Point(self.devices, self.bandwidth_hz, tie, self.standardise, self.initial, self.model)


class Point(NamedTuple):
    """A place, and what a tied vote is there."""

    devices: int
    bandwidth_hz: float
    tie: Tie
    standardise: bool = False
    initial: InitialWeights = "torch"
    model: str = "paper-cnn"

    @property
    def place(self) -> Place:
        """The point without its tie."""
        return Place(self.devices, self.bandwidth_hz, self.standardise, self.initial, self.model)

    @property
    def text(self) -> str:
        """The point in words."""
        return f"{self.place.text}, tie {self.tie}"


def at(scale: Scale, point: Point) -> Scale:
    """Return the scale at a point."""
    return replace(scale, **point._asdict())


def here(scale: Scale) -> Point:
    """Return the point of a scale."""
    return Point(*(getattr(scale, name) for name in Point._fields))


@dataclass(frozen=True)
class Region:
    """Places that are compared with one another: votes at the `nearest` of them, full runs at `points`."""

    places: tuple[Place, ...]
    nearest: int
    points: int


def regions(scale: Scale) -> list[Region]:
    """Return the regions, in the order in which they are tried."""
    found = []
    for rule in RULES["quick" if scale.quick else "region"]:
        names = ("standardise", "initial", "devices", "bandwidths_hz")
        tried, model = product(*(rule[name] for name in names)), rule["model"]
        region = tuple(
            Place(devices, band, scaled, initial, model) for scaled, initial, devices, band in tried
        )
        found.append(Region(region, rule["nearest"], rule["points"]))
    return found


def places(scale: Scale) -> list[Place]:
    """Return the places of all regions."""
    return [place for region in regions(scale) for place in region.places]


def edges(scale: Scale, point: Point) -> str:
    """Return in words where a point is at the edge of what full runs can try; empty inside."""
    tried = [one for one in places(scale) if one.devices <= _DECISION["most_devices"]]
    tried = [place for place in tried if place.reading == point.place.reading]
    devices, bands = sorted({one.devices for one in tried}), sorted({one.bandwidth_hz for one in tried})
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


def vote_places(scale: Scale, records: Records, region: Region | None = None) -> list[Place]:
    """Return where votes are tried: where SBFL is nearest, of a region of which all places are known."""
    if region is None:
        return [place for one in regions(scale) for place in vote_places(scale, records, one)]
    off = {place: proxy_off(scale, records, "sbfl", place.with_tie(scale.tie)) for place in region.places}
    known = {place: abs(value) for place, value in off.items() if value is not None}
    return sorted(known, key=lambda place: known[place])[: region.nearest] if len(known) == len(off) else []


def candidates(scale: Scale, records: Records, region: Region | None = None) -> list[Point]:
    """Return the points at which votes are tried, of a region or of all of them."""
    ties = RULES["ties"]
    return [place.with_tie(tie) for place, tie in product(vote_places(scale, records, region), ties)]


def proxy_distance(scale: Scale, records: Records, point: Point) -> float | None:
    """Return the root mean square of how far both proxies are from Table I; None if unknown."""
    off = [proxy_off(scale, records, which, point) for which in ("sbfl", "vote")]
    known = [value**2 for value in off if value is not None]
    return math.sqrt(mean(known)) if len(known) == len(off) else None


def finalists(scale: Scale, records: Records) -> list[Point]:
    """Return the points for full runs: the nearest affordable ones of each region, and further ones.

    None until all candidates are known.
    """
    near: list[Point] = []
    for region in regions(scale):
        points = candidates(scale, records, region)
        points = [point for point in points if point.devices <= _DECISION["most_devices"]]
        found = {point: proxy_distance(scale, records, point) for point in points}
        known = {point: value for point, value in found.items() if value is not None}
        if not found or len(known) < len(found):
            return []
        near += sorted(known, key=lambda point: known[point])[: region.points]
    also = [] if scale.quick else [Point(*one) for one in _DECISION["also"]]
    return list(dict.fromkeys([*near, *also]))


# -- the decision: accuracy at the end, beside Table II ------------------------------------------------------


def decision_cells() -> list[tuple[Column, Pair]]:
    """Return the cells that decide, each as its column and its pair."""
    return [(find_column(method, quantity), (step, m)) for method, quantity, step, m in _DECISION["cells"]]


def first_seeds(scale: Scale) -> Sequence[int]:
    """Return the seeds of the full runs of every finalist."""
    return range(min(_DECISION["seeds"], scale.seeds))


def decision_seeds(scale: Scale, records: Records, point: Point) -> Sequence[int]:
    """Return the seeds that a point is judged by: more on the shortlist."""
    more = range(min(_DECISION["more_seeds"], scale.seeds))
    return more if point in shortlist(scale, records) else first_seeds(scale)


def decision_runs(
    scale: Scale, column: Column, pair: Pair, point: Point, seeds: Sequence[int]
) -> list[RunSettings]:
    """Return the full runs of a cell at a point, one per seed; the tables use them again."""
    return [column.run(at(scale, point), pair, seed) for seed in seeds]


def printed_of(column: Column, pair: Pair) -> float:
    """Return the paper's accuracy in a cell."""
    printed = read_paper().accuracy.cells[*pair, column.head, column.quantity]
    assert printed is not None
    return printed


def decision_distance(scale: Scale, records: Records, point: Point, seeds: Sequence[int]) -> float | None:
    """Return the root mean square distance from Table II over the cells that decide; None if unknown.

    Of the mean over the seeds.
    """
    squares: list[float] = []
    for column, pair in decision_cells():
        runs = decision_runs(scale, column, pair, point, seeds)
        found = [value for one in records.find_all(runs) if (value := one.accuracy) is not None]
        if len(found) < len(runs):
            return None
        squares.append((mean(found) - printed_of(column, pair)) ** 2)
    return math.sqrt(mean(squares))


def judged(scale: Scale, records: Records, point: Point) -> float | None:
    """Return the distance of a point by the seeds that it is judged by; None if unknown."""
    return decision_distance(scale, records, point, decision_seeds(scale, records, point))


def least_distance() -> float:
    """Return the least distance of a point where Full and DC of a vote are the same run.

    That run can only lie halfway between the paper's two numbers.
    """
    cells = [(pair, printed_of(column, pair)) for column, pair in decision_cells() if column.method == "vote"]
    middles = {pair: mean(value for other, value in cells if other == pair) for pair, _ in cells}
    return math.sqrt(sum((value - middles[pair]) ** 2 for pair, value in cells) / len(decision_cells()))


def seed_distances(scale: Scale, records: Records, point: Point) -> list[float]:
    """Return the distance by each seed alone, empty if one is unknown."""
    seeds = decision_seeds(scale, records, point)
    return list(_known({seed: decision_distance(scale, records, point, [seed]) for seed in seeds}).values())


def _known(found: dict[Key, float | None]) -> dict[Key, float]:
    """All values, or nothing until all are known."""
    known = {key: value for key, value in found.items() if value is not None}
    return known if len(known) == len(found) else {}


def shortlist(scale: Scale, records: Records) -> list[Point]:
    """Return the finalists that the first seeds put less than `alike` above the nearest, nearest first.

    None until the first seeds of all finalists are known.
    """
    seeds = first_seeds(scale)
    known = _known(
        {point: decision_distance(scale, records, point, seeds) for point in finalists(scale, records)}
    )
    near = [point for point in known if known[point] - min(known.values()) < _DECISION["alike"]]
    return sorted(near, key=lambda point: known[point])


def _distances(scale: Scale, records: Records) -> dict[Point, float]:
    """The distance of every point on the shortlist; empty until all of them are known."""
    return _known({point: judged(scale, records, point) for point in shortlist(scale, records)})


def nearest(scale: Scale, records: Records) -> Point | None:
    """Return the point whose full runs are nearest to Table II; None until all of them are there."""
    known = _distances(scale, records)
    return min(known, key=lambda point: known[point], default=None)


def alike(scale: Scale, records: Records) -> list[Point]:
    """Return the points on the shortlist that seeds cannot tell from the nearest.

    The 95 % interval (jackknife over the seeds) of the difference of their distances has zero inside.
    """
    best = nearest(scale, records)
    if best is None:
        return []
    seeds = decision_seeds(scale, records, best)

    def further(point: Point, seeds: Sequence[int]) -> float:
        ours, least = (decision_distance(scale, records, one, seeds) for one in (point, best))
        assert ours is not None
        assert least is not None
        return ours - least

    others = [point for point in shortlist(scale, records) if point != best]
    return [point for point in others if not jackknife(partial(further, point), seeds).above(0)]


def decide(scale: Scale, records: Records) -> Point | None:
    """Return the nearest point, or the scale's own if that is less than `alike` further away.

    None until all of the shortlist is known.
    """
    known = _distances(scale, records)
    current = here(scale)
    if current in known and known[current] - min(known.values()) < _DECISION["alike"]:
        return current
    return min(known, key=lambda point: known[point], default=None)


def elsewhere(scale: Scale, records: Records) -> Scale | None:
    """Return the scale at the point that was decided while the pages are not there; None if they are."""
    there = decided(scale, records)
    return None if there == scale or _complete(there, records) else there


def at_nearest(results: Results) -> Results:
    """Return the results at the nearest point so far; `Missing` if there is none or the pages are there."""
    there = nearest_so_far(results.scale, results.records)
    if there == settle(results.scale, results.records):
        raise Missing
    return replace(results, scale=there)


def nearest_so_far(scale: Scale, records: Records) -> Scale:
    """Return the scale at the point that was decided; until then at the nearest whose full runs are there."""
    if scale.quick or decide(scale, records) is not None:
        return decided(scale, records)
    found = {point: judged(scale, records, point) for point in finalists(scale, records)}
    known = {point: value for point, value in found.items() if value is not None}
    return at(scale, min(known, key=lambda point: known[point])) if known else scale


def settle(scale: Scale, records: Records) -> Scale:
    """Return the scale at the point that was decided once all cells are there; as it is until then."""
    return decided(scale, records) if elsewhere(scale, records) is None else scale


def decided(scale: Scale, records: Records) -> Scale:
    """Return the scale at the point that was decided; a quick study has other data, so it decides nothing."""
    point = None if scale.quick else decide(scale, records)
    return scale if point is None else at(scale, point)


def _complete(scale: Scale, records: Records) -> bool:
    """Whether every cell of the tables has all its seeds."""
    runs = (want.settings for want in grid_wants(scale, records) if want.tier == Tier.GRID)
    return all(records.find(run) is not None for run in runs)
