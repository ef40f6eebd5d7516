"""Which runs are run: each once, the most informative first, none that is finished."""

from __future__ import annotations

from pathlib import Path

import pytest

from signfade.experiments.config import load
from signfade.experiments.studies.catalogue import PAPER, choose
from signfade.experiments.studies.paper.cells import (
    COLUMNS,
    FULL_READING,
    METHODS,
    PAIRS,
    READINGS,
    best_pair,
    grid_wants,
    training,
)
from signfade.experiments.studies.records import FULL, QUICK, Records, Tier, Want, family_of, run_name
from signfade.experiments.studies.runner import Runner, estimate_seconds, plan, wanted

from .conftest import record

PARTS = {part.name: part for part in PAPER.parts}


def names(artefact: str, records: Records | None = None) -> list[str]:
    wants = PARTS[artefact].wants(FULL, records or Records())
    return [run_name(settings) for settings in wanted(wants)]


def test_artefacts_share_runs() -> None:
    assert set(names("table-rounds")) < set(names("table-accuracy"))
    assert set(names("fig-downlink")) < set(names("table-accuracy"))
    assert len(set(names("calibrate")) & set(names("table-accuracy"))) == 3  # votes at the budget in use
    together = [want for one in PARTS.values() for want in one.wants(FULL, Records())]
    runs = wanted(together)
    assert len({run_name(settings) for settings in runs}) == len(runs)
    assert len(runs) < sum(len(names(name)) for name in PARTS)


def test_the_grid_has_every_cell_with_two_seeds() -> None:
    grid = wanted(grid_wants(FULL, Records()))
    assert len(grid) == (len(COLUMNS) - 1) * len(PAIRS) * 2  # a vote is one column, Full or compressed
    assert {run_name(settings) for settings in grid} < set(names("table-accuracy"))
    assert FULL.rounds == 1000
    assert FULL.every == 20


def test_all_of_a_seed_come_before_the_next_and_the_papers_columns_before_ours() -> None:
    runs = wanted(grid_wants(FULL, Records()))
    ours = {METHODS[column.method].label for column in COLUMNS if column.ours}
    keys = [(settings.seed, settings.label in ours) for settings in runs]
    assert keys == sorted(keys)
    assert list(dict.fromkeys(keys)) == [(0, False), (0, True), (1, False), (1, True)]
    assert (runs[0].server.learning_rate, runs[0].server.momentum) == (1e-3, 0.9)


def test_calibration_comes_first_and_figures_after_the_grid() -> None:
    wants = [want for one in PARTS.values() for want in one.wants(FULL, Records())]
    runs = [run_name(settings) for settings in wanted(wants)]
    position = {name: index for index, name in enumerate(runs)}
    first = max(position[name] for name in names("calibrate"))
    whole = [run_name(settings) for settings in wanted(grid_wants(FULL, Records()))]
    grid = [position[name] for name in whole if name not in names("calibrate")]
    quantised = [
        position[name]
        for name in names("fig-quantisation")
        if name not in names("table-accuracy") and name in position
    ]
    assert first < min(grid)
    assert max(grid) < min(quantised)


def test_all_figures_have_their_seeds_before_the_best_cells_get_more() -> None:
    grid = Records(record(settings) for settings in wanted(grid_wants(FULL, Records())))
    wants = [want for one in PARTS.values() for want in one.wants(FULL, grid)]
    images = [settings for settings in wanted(wants) if settings.data.name == FULL.data]
    left = [settings for settings in images if grid.find(settings) is None]
    figures = [index for index, settings in enumerate(left) if settings.rounds == FULL.figure_rounds]
    more = [index for index, settings in enumerate(left) if settings.seed > 2]
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
    column = COLUMNS[2]
    cells = [column.run(FULL, pair, seed) for pair in PAIRS for seed in range(FULL.seeds)]
    scores = dict(zip(PAIRS, (0.5, 0.6, 0.4, 0.9, 0.8, 0.1)))
    found = [record(s, scores[s.server.learning_rate, s.server.momentum]) for s in cells]
    assert best_pair(FULL, Records(found[:-1]), column) is None
    assert len(wanted(grid_wants(FULL, Records(found[:-1]), [column]))) == len(cells)
    assert best_pair(FULL, Records(found), column) == (1e-2, 0.9)
    more = [s for s in wanted(grid_wants(FULL, Records(found), [column])) if s.seed >= FULL.seeds]
    assert {(s.server.learning_rate, s.server.momentum, s.seed) for s in more} == {
        (1e-2, 0.9, seed) for seed in (2, 3, 4)
    }
    # bad later seeds of the winner do not dethrone it: the others have no such seeds
    later = [record(column.run(FULL, (1e-2, 0.9), seed), 0.1) for seed in (2, 3, 4)]
    assert best_pair(FULL, Records(found + later), column) == (1e-2, 0.9)


def test_a_vote_is_the_same_runs_full_or_compressed() -> None:
    compressed = next(column for column in COLUMNS if column.head == "signsgd" and column.quantity == "DC")
    assert READINGS["vote"].run(FULL, PAIRS[0], 0) == compressed.run(FULL, PAIRS[0], 0)
    assert READINGS["sum of signs"].run(FULL, PAIRS[0], 0) != compressed.run(FULL, PAIRS[0], 0)
    assert COLUMNS[0] is READINGS[FULL_READING]


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
