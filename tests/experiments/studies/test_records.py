"""What is kept of a run is what the run says, and can be read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from signfade.experiments.config import load
from signfade.experiments.folder import FolderError, RunFolder
from signfade.experiments.studies.paper.cells import training
from signfade.experiments.studies.records import CHANCE, FULL, Records, family_of, run_name
from signfade.experiments.studies.runner import read_folder, read_folders
from signfade.experiments.training import RunFailed, train

from .conftest import record

TINY = [
    "rounds=12",
    "eval.every=4",
    "data.devices=4",
    "model.name=linear",
    "server.learning_rate=0.05",
    "data.batch=8",
]


def test_the_record_of_a_run_is_its_summary_and_its_evaluations(tmp_path: Path) -> None:
    settings = load(None, TINY)
    folder = tmp_path / run_name(settings)
    summary = train(settings, folder)
    found = read_folder(folder)
    assert found is not None
    assert (found.seed, found.rounds, found.diverged) == (0, 12, None)
    assert found.accuracy == pytest.approx(summary["last_accuracy"], rel=1e-3)
    metrics = RunFolder(folder).read_metrics()
    assert found.curve["round"] == [4, 8, 12]
    assert found.curve["accuracy"] == pytest.approx(
        [metrics[t - 1]["test_accuracy"] for t in (4, 8, 12)], rel=1e-3
    )
    assert found.curve["train_loss"][0] is None  # a mean over five rounds
    assert found.curve["train_loss"][1] == pytest.approx(
        sum(m["train_loss"] for m in metrics[3:8]) / 5, rel=1e-3
    )
    records = Records(read_folders(tmp_path))
    assert records.find(settings) == found
    assert records.find(settings.model_copy(update={"seed": 1})) is None


def test_cutting_a_long_run_gives_the_short_one(tmp_path: Path) -> None:
    long, short = load(None, TINY), load(None, [*TINY, "rounds=8"])
    for settings in (long, short):
        train(settings, tmp_path / run_name(settings))
    own = read_folder(tmp_path / run_name(short))
    records = Records(read_folders(tmp_path))
    cut = records.find(short)
    assert own is not None
    assert cut is not None
    assert (cut.rounds, cut.curve, cut.accuracy) == (8, own.curve, own.accuracy)
    for key in ("best_accuracy", "rounds_to_loss_1", "rounds_to_accuracy_09"):
        assert cut.summary[key] == own.summary[key]


def test_goals_reached_after_the_cut_were_not_reached() -> None:
    settings = training(FULL, "gaussian", (1e-3, 0.9))
    whole = record(settings, loss_at=100, accuracy_at=400)
    cut = whole.until(300)
    assert (cut.value("rounds_to_loss_1"), cut.value("rounds_to_accuracy_09")) == (100, None)


def test_an_unfinished_run_has_no_record_and_a_diverged_one_is_at_chance(tmp_path: Path) -> None:
    base = ["rounds=6", "data.name=regression", "data.batch=none", "method.aggregator=ideal"]
    unfinished = RunFolder(tmp_path / "unfinished").create("seed = 0\n")
    assert read_folder(unfinished.path) is None
    settings = load(None, [*base, "server.learning_rate=1e30"])
    with pytest.raises(RunFailed, match="diverged"):
        train(settings, tmp_path / "lost")
    found = read_folder(tmp_path / "lost")
    assert found is not None
    assert found.diverged is not None
    assert found.accuracy == CHANCE
    assert Records([found]).find(settings) == found  # it is not run again


def test_a_run_lost_early_answers_for_shorter_ones() -> None:
    """Its curve ends where the model was lost, so the shorter run's last round was never evaluated."""
    long = training(FULL, "gaussian", (1e-2, 0.9))
    short = training(FULL, "gaussian", (1e-2, 0.9), rounds=300)
    whole = record(long)
    curve = {key: values[:2] for key, values in whole.curve.items()}  # up to round 40
    records = Records([replace(whole, curve=curve, diverged=56)])
    found = records.find(short)
    assert found is not None
    assert (found.accuracy, found.rounds, found.diverged) == (0.1, 300, 56)
    assert Records([replace(whole, curve=curve, diverged=756)]).find(short) is None


def test_a_run_is_unsteady_if_its_accuracy_goes_up_and_down_at_the_end() -> None:
    one = record(training(FULL, "gaussian", (1e-2, 0.9)))
    assert not one.unsteady  # a straight line up
    steady = dict(one.curve) | {"accuracy": [0.1, 0.9] * 20 + [0.90, 0.93] * 5}
    assert not replace(one, curve=steady).unsteady  # the start does not count
    shaky = dict(one.curve) | {"accuracy": [0.9] * 40 + [0.89, 0.96] * 5}
    assert replace(one, curve=shaky).unsteady
    assert not replace(one, curve=shaky, diverged=7).unsteady


def test_a_run_that_failed_for_another_reason_is_run_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "full").create("seed = 0\n")
    folder.log_path.write_text("2026-01-01 00:00:00 failed: no space left\n")
    assert read_folder(folder.path) is None


def test_records_are_written_and_read_back_the_same(tmp_path: Path) -> None:
    runs = [
        training(FULL, "gaussian", pair, seed=seed) for pair in ((1e-3, 0.9), (1e-2, 0.0)) for seed in (0, 1)
    ]
    records = Records([record(s, 0.5 + 0.1 * s.seed) for s in runs] + [])
    path = records.write(tmp_path / "deep" / "runs.json")
    again = Records()
    again.add_file(path)
    assert list(again) == list(records)
    assert again.write(tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert len(json.loads(path.read_text())["runs"]) == 4
    assert len(path.read_text().splitlines()) == 4 + 2  # a line a run: changes can be read


def test_a_file_that_is_not_ours_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_text('{"something": 1}')
    with pytest.raises(FolderError, match="does not hold the records of runs"):
        Records().add_file(tmp_path / "runs.json")


def test_of_two_runs_the_longer_is_kept() -> None:
    settings = training(FULL, "gaussian", (1e-3, 0.9))
    long = record(settings)
    short = replace(long, rounds=20)
    for order in ([long, short], [short, long]):
        assert Records(order).whole(settings) == long


def test_the_votes_of_the_first_records_went_to_plus_one_when_tied() -> None:
    """The default for ties has changed since; the names of records and of all other rules have not."""
    vote = training(FULL, "vote", (1e-3, 0.0), downlink="sign")
    assert vote.method.tie == "plus"
    kept = Records()
    kept.add_file(Path(__file__).parents[3] / "docs" / "results" / "runs.json")
    assert kept.find(vote) is not None
    for tie in ("zero", "random"):
        method = vote.method.model_copy(update={"tie": tie})
        assert family_of(vote.model_copy(update={"method": method})) != family_of(vote)
    other = training(FULL, "gaussian", (1e-3, 0.0))
    names = {
        family_of(other.model_copy(update={"method": other.method.model_copy(update={"tie": tie})}))
        for tie in ("zero", "plus", "random")
    }
    assert len(names) == 1
    assert kept.find(other) is not None


def test_settings_of_0_1_keep_the_names_of_their_records() -> None:
    """`server.step` and `presence.dropout` then: version 0.1 gave these settings this family."""
    then = ["cell.path_loss=cost231", "method.weights=sum"]
    settings = load(None, ["server.learning_rate=0.05", "availability.dropout=0.3", *then])
    assert family_of(settings) == "a46d920879"
