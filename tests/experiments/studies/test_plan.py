"""Which runs are run: each once, the most informative first, none that is finished."""

from __future__ import annotations

from pathlib import Path

import pytest

from signfade.experiments.config import load
from signfade.experiments.studies.catalogue import PAPER, TABLES, choose
from signfade.experiments.studies.paper.cells import (
    COLUMNS,
    METHODS,
    PAIRS,
    best_pair,
    find_column,
    grid_wants,
    training,
)
from signfade.experiments.studies.records import FULL, QUICK, Records, Tier, Want, family_of, run_name
from signfade.experiments.studies.runner import Runner, estimate_seconds, plan, wanted
from signfade.experiments.training import PlannedRun

from .conftest import record

PARTS = {part.name: part for part in PAPER.parts + TABLES.parts}


def names(artefact: str, records: Records | None = None) -> list[str]:
    wants = PARTS[artefact].needs(FULL, records or Records())
    return [run_name(settings) for settings in wanted(wants)]


def test_artefacts_share_runs() -> None:
    assert set(names("table-rounds")) < set(names("table-accuracy"))
    assert set(names("fig-downlink")) < set(names("table-accuracy"))
    assert set(names("table-accuracy")) < set(names("claims"))  # which shows what others run
    together = [want for one in PARTS.values() for want in one.wants(FULL, Records())]
    runs = wanted(together)
    assert len({run_name(settings) for settings in runs}) == len(runs)
    assert len(runs) < sum(len(names(name)) for name in PARTS)


def test_the_grid_has_every_cell_with_five_seeds_and_ten_where_a_claim_names_it() -> None:
    grid = wanted(grid_wants(FULL, Records()))
    assert len(grid) == (len(COLUMNS) - 1) * len(PAIRS) * 5 + 3 * 5  # a vote is one column, Full or DC
    more = {(s.label, s.server.learning_rate, s.server.momentum) for s in grid if s.seed >= 5}
    labels = ("signSGD, vote", "SBFL, Gaussian, printed", "SBFL, Laplacian, printed")
    assert more >= {(label, 1e-3, 0.9) for label in labels}
    assert {run_name(settings) for settings in grid} == set(names("table-accuracy"))
    assert FULL.rounds == 1000
    assert FULL.every == 20


def test_all_of_a_seed_come_before_the_next_and_the_printed_columns_before_others() -> None:
    runs = [s for s in wanted(grid_wants(FULL, Records())) if s.seed < FULL.seeds]
    others = {method.label for method in METHODS.values() if method.group != "printed"}
    keys = [(settings.seed, settings.label in others) for settings in runs]
    assert keys == sorted(keys)
    assert list(dict.fromkeys(keys)) == [(seed, other) for seed in range(5) for other in (False, True)]
    assert (runs[0].server.learning_rate, runs[0].server.momentum) == (1e-3, 0.9)


def test_after_any_interruption_the_seeds_of_all_cells_are_even() -> None:
    runs = wanted(grid_wants(FULL, Records()))
    for done in (40, 200, 333):
        count: dict[str, int] = {}
        for settings in runs[:done]:
            count[family_of(settings)] = count.get(family_of(settings), 0) + 1
        assert max(count.values()) - min(count.get(family_of(s), 0) for s in runs) <= 1


def test_only_seed_0_of_table_one_evaluates_the_loss_of_all_data() -> None:
    every = wanted(grid_wants(FULL, Records()))
    assert not any(s.eval.training for s in every if s.seed)
    runs = [s for s in every if s.seed == 0]
    votes = {s for s in map(run_name, runs) if "vote" in s}
    whole = {run_name(s) for s in runs if s.eval.training}
    assert whole == votes | {run_name(s) for s in runs if s.server.downlink == "full"}


def test_a_measurement_of_fewer_coordinates_is_listed_as_shorter() -> None:
    ladder, setup = choose(["joint-ladder", "fig-setup"])[::-1]
    assert ladder.seconds(FULL) == ladder.cost
    assert ladder.seconds(QUICK) == pytest.approx(ladder.cost * QUICK.draws / FULL.draws)
    assert setup.seconds(QUICK) == setup.cost  # draws nothing


def test_calibration_is_run_before_anything_else(tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def execute(runs: list[PlannedRun]) -> dict[Path, str]:
        asked.append([run.folder.name for run in runs])
        return {}

    Runner(tmp_path, FULL).run([PARTS[name] for name in ("table-rounds", "calibrate")], execute, print)
    assert set(asked[0]) == set(names("calibrate"))
    assert set(asked[1]) == set(names("table-rounds")) - set(asked[0])


def test_figures_have_their_seeds_before_the_best_cells_get_more() -> None:
    grid = Records(record(s) for s in wanted(grid_wants(FULL, Records())) if s.seed < FULL.seeds)
    left = [s for s in wanted(PARTS["fig-snr"].needs(FULL, grid)) if grid.find(s) is None]
    figures = [index for index, settings in enumerate(left) if settings.rounds == FULL.figure_rounds]
    more = [index for index, settings in enumerate(left) if settings.seed >= FULL.seeds]
    assert len(figures) > 10
    assert max(figures) < min(more)


def test_a_finished_run_is_never_played_again(tmp_path: Path) -> None:
    wants = grid_wants(FULL, Records())
    runs = plan(wants, Records(), tmp_path)
    there = Records(record(run.settings) for run in runs[:50])
    left = plan(wants, there, tmp_path)
    assert [run.folder.name for run in left] == [run.folder.name for run in runs[50:]]


def test_a_longer_run_answers_for_a_shorter_one(tmp_path: Path) -> None:
    long, short = (training(FULL, "gaussian", (1e-3, 0.9), rounds=rounds) for rounds in (1000, 300))
    assert [s.rounds for s in wanted([Want(short, Tier.FIGURE), Want(long, Tier.GRID)])] == [1000]
    # wanted first as a short one: it moves up, and is long
    other = training(FULL, "vote", (1e-3, 0.9))
    runs = wanted([Want(short, Tier.CALIBRATION), Want(other, Tier.GRID), Want(long, Tier.FIGURE)])
    assert [s.rounds for s in runs] == [1000, 1000]
    assert run_name(runs[0]) == run_name(long)
    assert plan([Want(short)], Records([record(long)]), tmp_path) == []
    assert len(plan([Want(long)], Records([record(short)]), tmp_path)) == 1


def test_a_length_that_was_never_looked_at_is_not_answered_for(tmp_path: Path) -> None:
    long, odd = (training(FULL, "gaussian", (1e-3, 0.9), rounds=rounds) for rounds in (1000, 310))
    assert Records([record(long)]).find(odd) is None


@pytest.mark.parametrize("change", ["threads=3", "out=elsewhere", "checkpoint_every=7"])
def test_a_name_does_not_depend_on_what_cannot_change_a_number(change: str) -> None:
    assert run_name(load(None, [change])) == run_name(load(None))


@pytest.mark.parametrize(
    "change",
    [
        "seed=1",
        "rounds=9",
        "server.learning_rate=1",
        "cell.bandwidth_hz=1e6",
        "method.form=published",
        "eval.every=3",
    ],
)
def test_a_name_depends_on_whatever_changes_a_number(change: str) -> None:
    assert run_name(load(None, [change])) != run_name(load(None))


def test_a_preset_is_what_it_stands_for() -> None:
    spelled = ["method.aggregator=bfl", "method.rotation=shared", "method.joint=soft", "method.debias=true"]
    assert family_of(load(None, ["method.preset=best"])) == family_of(load(None, spelled))


def test_the_best_cell_gets_more_seeds_once_its_column_is_finished() -> None:
    column = find_column("gaussian")
    cells = [column.run(FULL, pair, seed) for pair in PAIRS for seed in range(FULL.seeds)]
    scores = dict(zip(PAIRS, (0.5, 0.6, 0.4, 0.9, 0.8, 0.1)))
    found = [record(s, scores[s.server.learning_rate, s.server.momentum]) for s in cells]
    assert best_pair(FULL, Records(), column) == (None, False)
    assert best_pair(FULL, Records(found[:-1]), column) == ((1e-2, 0.9), False)  # by the first four seeds
    assert len(wanted(grid_wants(FULL, Records(found[:-1]), [column]))) == len(cells)
    assert best_pair(FULL, Records(found), column) == ((1e-2, 0.9), True)
    more = [s for s in wanted(grid_wants(FULL, Records(found), [column])) if s.seed >= FULL.seeds]
    assert {(s.server.learning_rate, s.server.momentum, s.seed) for s in more} == {
        (1e-2, 0.9, seed) for seed in range(5, 10)
    }
    # bad later seeds of the winner do not dethrone it: the others have no such seeds
    later = [record(column.run(FULL, (1e-2, 0.9), seed), 0.1) for seed in range(5, 10)]
    assert best_pair(FULL, Records(found + later), column) == ((1e-2, 0.9), True)


def test_a_vote_is_the_same_runs_full_or_compressed() -> None:
    full, compressed = (find_column("vote", quantity) for quantity in ("Full", "DC"))
    assert full.run(FULL, PAIRS[0], 0) == compressed.run(FULL, PAIRS[0], 0)


def test_the_printed_algorithm_is_to_the_letter() -> None:
    for method in ("printed-gaussian", "printed-laplacian"):
        run = training(FULL, method, PAIRS[0]).method
        assert (run.form, run.center, run.weights, run.rotation) == ("published", False, "sum", "none")


def test_times_are_those_of_finished_runs_of_the_same_kind() -> None:
    runs = [training(FULL, "gaussian", (1e-3, 0.9), seed=seed) for seed in range(3)]
    assert estimate_seconds(runs[1:], Records([record(runs[0])])) == pytest.approx(2 * 500)
    quick = training(QUICK, "gaussian", (1e-3, 0.9))
    assert estimate_seconds([quick], Records([record(runs[0])])) < 100  # digits are not MNIST
    crowd = training(FULL, "gaussian", (1e-3, 0.9), data__devices=60)
    assert estimate_seconds([crowd], Records([record(runs[0])])) == pytest.approx(3 * 500)


def test_a_wrong_name_is_told_its_nearest() -> None:
    with pytest.raises(ValueError, match="the nearest name is 'table-rounds'"):
        choose(["table-round"])


def test_seeds_and_rounds_change_the_scale(tmp_path: Path) -> None:
    runner = Runner(tmp_path, FULL.changed(1, 200))
    runs = runner.missing([PARTS["table-accuracy"]])
    assert {run.settings.rounds for run in runs} == {200}
    assert {run.settings.seed for run in runs} == {0}
    with pytest.raises(ValueError, match="seeds must be 1 or more; got 0"):
        FULL.changed(0, None)
