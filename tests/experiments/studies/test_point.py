"""The point that the paper does not give follows from the records by the declared rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from signfade.experiments.studies.catalogue import parts_by_name
from signfade.experiments.studies.paper.cells import RULES, find_column, grid_wants
from signfade.experiments.studies.paper.point import (
    Place,
    Point,
    alike,
    at,
    at_nearest,
    candidates,
    decide,
    decision_cells,
    decision_distance,
    decision_runs,
    edges,
    elsewhere,
    finalists,
    here,
    nearest,
    nearest_so_far,
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
    shortlist,
    vote_places,
)
from signfade.experiments.studies.records import FULL, QUICK, Record, Records, Results, run_name
from signfade.experiments.studies.runner import wanted
from signfade.experiments.studies.study import Picture, Table
from signfade.settings import RunSettings

from .conftest import record

PARTS = parts_by_name()
TRUE = Point(30, 1e6, "random")
HERE = here(FULL)
SEEDS = range(RULES["decision"]["more_seeds"])


def names(part: str, records: Records) -> set[str]:
    return {run_name(want.settings) for want in PARTS[part].needs(FULL, records)}


def sbfl(slow: float = 1.0) -> list[Record]:
    """SBFL needs the paper's rounds with 30 devices at 1 MHz, more with fewer devices or a wider band."""
    found = []
    for place in places(FULL):
        factor = slow * (30 / place.devices) * (place.bandwidth_hz / 1e6) ** 0.5
        for run in proxy_runs(FULL, "sbfl", place.with_tie("plus")):
            rounds = round(proxy_target("sbfl") * factor)
            found.append(record(run, loss_at=rounds if rounds <= run.rounds else None))
    return found


def votes(records: list[Record], best: Point = TRUE) -> list[Record]:
    """Votes need the paper's rounds at one point, and more the further it is away."""
    found = []
    for point in candidates(FULL, Records(records)):
        elsewhere = (point.devices, point.bandwidth_hz) != (best.devices, best.bandwidth_hz)
        off = 1 + (point.tie != best.tie) + 2 * elsewhere + (point.place.reading != best.place.reading)
        for run in proxy_runs(FULL, "vote", point):
            found.append(record(run, loss_at=round(proxy_target("vote") / off)))
    return found


def finished(run: RunSettings, end: float, known: Records) -> Record:
    """A proxy that went on to `end`; any other run never reached a loss of 1.0."""
    short = known.find(run.model_copy(update={"rounds": RULES["proxy"]["rounds"]}))
    return record(run, end, None if short is None else short.summary["rounds_to_loss_1"])


def full_runs(records: list[Record], best: Point) -> list[Record]:
    """Proxies that go on; votes end at the paper's accuracy at one point, 0.3 above it elsewhere.

    Where Full and DC are the same run, it is that of DC; a run that two points share is that of the best.
    """
    found, known = [], Records(records)
    for point in sorted(finalists(FULL, known), key=lambda point: point == best):
        for column, pair in decision_cells():
            for run in decision_runs(FULL, column, pair, point, SEEDS):
                end = printed_of(column, pair) + (0.3 if column.method == "vote" and point != best else 0.0)
                found.append(finished(run, end, known))
    return found


def test_the_rules_are_about_cells_of_the_paper() -> None:
    assert (proxy_target("sbfl"), proxy_target("vote")) == (258, 210)  # Table I, typed in a second time
    assert [printed_of(*one) for one in decision_cells()] == [0.86, 0.77, 0.71, 0.51, 0.89, 0.54]
    assert (FULL.seeds, FULL.best_seeds) == (RULES["seeds"]["cell"], RULES["seeds"]["best"])
    assert [len(region.places) for region in regions(FULL)] == [20, 12, 30, 12]
    assert len(set(places(FULL))) == 74
    named = {method for method, *_ in RULES["seeds"]["named"]}
    assert all(find_column(method).group == "printed" for method in named)


def test_votes_are_tried_where_sbfl_is_nearest_and_only_then() -> None:
    found = sbfl()
    first, second, *_ = (len(region.places) for region in regions(FULL))
    assert vote_places(FULL, Records(found[: first - 1])) == []
    assert {place.reading for place in vote_places(FULL, Records(found[: first + second - 1]))} == {""}
    near, many = vote_places(FULL, Records(found)), [region.nearest for region in regions(FULL)]
    firsts = [near[sum(many[:place])] for place in range(len(many))]
    assert firsts[:3] == [Place(30, 1e6), Place(30, 1e6, True), Place(10, 1e6, False, "he")]
    assert firsts[3] == Place(30, 1e6, True, model="paper-cnn-3x3")
    assert len(near) == sum(many)
    assert len(PARTS["calibrate"].wants(FULL, Records())) == 74
    assert len(wanted(PARTS["calibrate"].wants(FULL, Records(found)))) == 74 + 3 * sum(many)


def test_no_full_run_before_all_candidates_of_all_regions_are_known() -> None:
    found = sbfl()
    some = found + votes(found)
    plain = [one for one in found if one in some]
    assert finalists(FULL, Records(some)) != []
    assert finalists(FULL, Records(some[:-1])) == []
    half = plain[:20]  # the places with pixels in [0, 1]
    assert finalists(FULL, Records(half + votes(half))) == []


def test_a_zero_tie_needs_a_downlink_that_has_a_zero() -> None:
    for tie, downlink in (("plus", "sign"), ("zero", "full")):
        (run,) = proxy_runs(FULL, "vote", Point(20, 1e6, tie))
        assert (run.method.tie, run.server.downlink) == (tie, downlink)


def test_the_tie_does_not_change_sbfl() -> None:
    runs = [
        run for tie in ("plus", "zero", "random") for run in proxy_runs(FULL, "sbfl", Point(10, 1e6, tie))
    ]
    assert all(Records([record(runs[0])]).find(run) for run in runs)


def test_a_proxy_that_diverged_is_farthest_whenever_it_got_there() -> None:
    (run,) = proxy_runs(FULL, "sbfl", TRUE)
    assert proxy_off(FULL, Records([record(run, loss_at=258)]), "sbfl", TRUE) == 0
    assert proxy_off(FULL, Records([record(run, loss_at=258, diverged=300)]), "sbfl", TRUE) == 3


def test_a_point_at_the_edge_of_the_region_is_called_so() -> None:
    assert edges(FULL, Point(20, 1e6, "plus")) == ""
    assert edges(FULL, Point(20, 300e3, "plus")) == "300 kHz"
    assert edges(FULL, Point(30, 10e6, "plus")) == "30 devices and 10 MHz"  # more are out of reach


def test_a_run_that_does_not_get_there_is_far_not_near() -> None:
    (run,) = proxy_runs(FULL, "sbfl", TRUE)
    one = record(run, loss_at=None)

    def rounds(last: float) -> float:
        losses = [2.3] * (len(one.curve["round"]) - 1) + [last]
        found = proxy_rounds(
            FULL, Records([replace(one, curve={**one.curve, "train_loss": losses})]), "sbfl", TRUE
        )
        assert found is not None
        assert not found[1]
        return found[0]

    assert rounds(1.01) == pytest.approx(run.rounds, rel=0.01)
    assert rounds((2.302585 + 1) / 2) == pytest.approx(2 * run.rounds, rel=1e-3)  # half of the way
    assert rounds(2.4) == float("inf")
    lost = proxy_rounds(FULL, Records([replace(one, diverged=9)]), "sbfl", TRUE)
    assert lost == (float("inf"), False)


def test_the_distance_is_in_factors_of_two() -> None:
    (ours,), (theirs,) = (proxy_runs(FULL, which, TRUE) for which in ("sbfl", "vote"))
    found = Records([record(ours, loss_at=129), record(theirs, loss_at=210)])
    assert proxy_distance(FULL, found, TRUE) == pytest.approx(0.5**0.5)  # 258/129 = 2, and exact
    assert proxy_distance(FULL, Records([record(ours, loss_at=129)]), TRUE) is None
    far = Records([record(ours, loss_at=1), record(theirs, loss_at=1)])
    assert proxy_distance(FULL, far, TRUE) == RULES["proxy"]["most"]


def test_full_runs_decide_among_the_nearest_and_every_part_is_there() -> None:
    found = sbfl()
    found += votes(found)
    points = finalists(FULL, Records(found))
    assert points[0] == TRUE
    assert {point.devices for point in candidates(FULL, Records(found))} > {30, 50}
    assert all(point.devices <= 30 for point in points)  # more would take days
    before = [Point(20, 1e6, tie) for tie in ("plus", "random", "zero")]
    assert points[sum(region.points for region in regions(FULL)) :] == before
    assert settle(FULL, Records(found)) == FULL  # nothing is decided by proxies
    other = next(point for point in points[1:] if point.tie == "plus")
    found += full_runs(found, other)
    records = Records(found)
    assert decide(FULL, records) == other  # not the nearest of the proxies
    distance = decision_distance(FULL, records, other, SEEDS)
    assert distance == pytest.approx(((0.09**2 + 0.20**2) / 6) ** 0.5)  # Full is the run of DC
    there = elsewhere(FULL, records)
    assert there is not None
    assert here(there) == other
    assert settle(FULL, records) == FULL  # the pages stay until all cells are there
    grid = [want.settings for want in grid_wants(there, records)]
    assert {run_name(run) for run in grid} == names("table-nearest", records)
    for run in (one for one in grid if records.find(one) is None and one.seed < FULL.seeds):
        assert settle(FULL, records) == FULL
        records.add(record(run))
    assert (elsewhere(FULL, records), settle(FULL, records)) == (None, there)
    for name in ("table-accuracy", "fig-accuracy", "fig-quantisation", "fig-snr"):
        runs = [want.settings for want in PARTS[name].needs(FULL, records)]
        images = [run for run in runs if run.data.name == "mnist"]
        assert {run.data.devices for run in images} == {other.devices}
    assert at(FULL, other) == there == settle(there, records)


def test_a_vote_is_one_run_full_or_compressed_unless_ties_are_zeros() -> None:
    columns = [find_column("vote", quantity) for quantity in ("Full", "DC")]
    for tie, same in (("plus", True), ("random", True), ("zero", False)):
        full, compressed = (column.run(replace(FULL, tie=tie), (1e-3, 0.0), 0) for column in columns)
        assert (full == compressed) == same
        assert compressed.server.downlink == "sign"
        assert compressed.method.tie == ("random" if tie == "random" else "plus")  # a zero is sent as +1


def test_a_decision_waits_for_all_of_its_runs() -> None:
    found = sbfl()
    assert finalists(FULL, Records(found)) == []
    found += votes(found)
    full = full_runs(found, TRUE)
    some = Records(found + [one for one in full if one.name != full[0].name])
    assert decide(FULL, some) is None
    assert nearest_so_far(FULL, some) == at(FULL, TRUE)  # what is known is shown meanwhile, and nothing moves
    assert at_nearest(Results(FULL, some)).scale == at(FULL, TRUE)
    assert (settle(FULL, some), PARTS["table-nearest"].needs(FULL, some)) == (FULL, [])
    assert decide(FULL, Records(found + full)) == TRUE
    assert nearest_so_far(FULL, Records(found)) == FULL


def test_the_page_stays_where_it_is_if_seeds_cannot_tell_that_from_the_nearest() -> None:
    found = sbfl()
    found += votes(found)
    found += full_runs(found, TRUE)

    def decided(off: float) -> Point | None:
        ours = [
            record(run, printed_of(column, pair) + off, 100)
            for column, pair in decision_cells()
            for run in decision_runs(FULL, column, pair, HERE, SEEDS)
        ]
        records = Records(found + ours)
        assert nearest(FULL, records) == TRUE
        point, there = decide(FULL, records), elsewhere(FULL, records)
        assert (None if there is None else here(there)) == (None if point == HERE else point)
        assert settle(settle(FULL, records), records) == settle(FULL, records)
        return point

    assert decided(-0.02) == HERE
    assert decided(-0.2) == TRUE


def wobbly(known: Records, off: dict[Place, float], seeds: Sequence[int], wobble: float) -> list[Record]:
    """Full runs of SBFL that end `off` too high at a place, 0.4 elsewhere; seeds 2 and 3 by more or less.

    With 30 devices by more where it is less with others. All votes end at 0.7.
    """
    found = []
    for point, (column, pair), seed in product(finalists(FULL, known), decision_cells(), seeds):
        (run,) = decision_runs(FULL, column, pair, point, [seed])
        way = {2: 1, 3: -1}.get(seed, 0) * (1 if point.devices == 30 else -1)
        more = off.get(point.place, 0.4) + wobble * way
        end = 0.7 if column.method == "vote" else printed_of(column, pair) + more
        found.append(finished(run, end, known))
    return found


NEAR, NEXT = Place(30, 1e6), Place(20, 1e6)


def test_more_seeds_decide_between_points_that_two_put_close_together() -> None:
    found = sbfl()
    found += votes(found)
    known = Records(found)
    first = Records(found + wobbly(known, {NEAR: 0.1, NEXT: 0.11}, range(2), 0.0))
    close = shortlist(FULL, first)
    assert {point.place for point in close} == {NEAR, NEXT}
    assert decide(FULL, first) is None
    runs = [want.settings for want in PARTS["decide"].needs(FULL, first)]
    missing = [run for run in runs if first.find(run) is None]
    assert {run.seed for run in missing} == {2, 3, 4}
    assert {(run.data.devices, run.cell.bandwidth_hz) for run in missing} == {NEAR[:2], NEXT[:2]}
    more = wobbly(known, {NEAR: 0.3, NEXT: 0.05}, (2, 3, 4), 0.0)
    records = Records([*first, *more])
    best = nearest(FULL, records)
    assert best is not None
    assert best.place == NEXT
    assert shortlist(FULL, records) == close  # by the first two, still
    assert len(seed_distances(FULL, records, best)) == 5
    far = next(point for point in finalists(FULL, records) if point not in close)
    assert len(seed_distances(FULL, records, far)) == 2


@pytest.mark.parametrize(("wobble", "told_apart"), [(0.004, True), (0.05, False)])
def test_points_that_seeds_cannot_tell_from_the_nearest_are_named(wobble: float, told_apart: bool) -> None:
    found = sbfl()
    found += votes(found)
    records = Records(found + wobbly(Records(found), {NEAR: 0.1, NEXT: 0.13}, SEEDS, wobble))
    best = nearest(FULL, records)
    assert best is not None
    assert best.place == NEAR
    assert best not in alike(FULL, records)
    assert (NEXT in {point.place for point in alike(FULL, records)}) != told_apart


def test_a_quick_study_decides_nothing_and_is_small() -> None:
    assert settle(QUICK, Records(sbfl())) == QUICK
    assert len(places(QUICK)) == 4


def test_the_surface_and_the_decision_are_drawn_from_the_records() -> None:
    assert PARTS["calibrate"].render(Results(FULL, Records())) == []
    assert PARTS["decide"].render(Results(FULL, Records())) == []
    found = sbfl()
    found += votes(found)
    results = Results(FULL, Records(found + full_runs(found, TRUE)))
    blocks = PARTS["calibrate"].render(results)
    (picture,) = (block for block in blocks if isinstance(block, Picture))
    panels = [ax for ax in picture.figure.axes if ax.get_title("left")]
    fields = [20, 7, 7, 7, 12, 6, 6, 6, 30, 6, 6, 6, 12, 6, 6, 6]  # full runs are proxies, too
    assert [len(ax.texts) for ax in panels] == fields
    assert [label.get_text() for label in panels[0].get_yticklabels()][::4] == ["10 devices", "100 devices"]
    assert [label.get_text() for label in panels[8].get_yticklabels()][:2] == ["he", "glorot"]
    marked = [ax.get_title("left") for ax in panels if ax.get_legend_handles_labels()[0]]
    assert marked == ["pixels in [0, 1]: SBFL", "and vote, tie random"]
    (table,) = (block for block in PARTS["decide"].render(results) if isinstance(block, Table))
    assert [row[0] for row in table.rows[:2]] == ["the paper", TRUE.text]
    distances = [float(row[-1].split()[0]) for row in table.rows[1:]]
    assert distances == sorted(distances)
    assert distances[0] == pytest.approx(decision_distance(FULL, results.records, TRUE, SEEDS), abs=1e-3)
