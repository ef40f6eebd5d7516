"""Runs with code of the user's: an edited file is another run, and a mistake in it is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from signfade.cli.entry import run as signfade
from signfade.experiments.comparisons import compare, plan
from signfade.experiments.config import load, parse_toml
from signfade.experiments.folder import FolderError, RunFolder
from signfade.experiments.group import group_runs
from signfade.experiments.results import load_run
from signfade.experiments.sweeps import plan_sweep
from signfade.experiments.toml import user_files
from signfade.experiments.training import RunFailed, train
from signfade.settings import RunSettings

GOOD = "def rule(received):\n    return received.y.mean(dim=0)\n"
OTHER = GOOD.replace("mean", "sum")
BROKEN = "def rule(received):\n    table = {}\n    return table['estimate']\n"
TINY = ["rounds=2", "data.name=gaussian", "data.size=50", "data.devices=3"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    return path


def settings(file: Path, *more: str) -> RunSettings:
    return load(None, [*TINY, f"method.aggregator={file}:rule", *more])


def test_a_run_records_the_files_it_was_made_with(file: Path, tmp_path: Path) -> None:
    train(settings(file), tmp_path / "run")
    recorded = parse_toml(RunFolder(tmp_path / "run").config_text())["files"]
    assert recorded == user_files(settings(file)) == {str(file): recorded[str(file)]}
    assert load(tmp_path / "run" / "config.toml") == settings(file)  # the record is no setting


@pytest.mark.parametrize(
    "key", ["method.aggregator", "method.compressor", "model.name", "data.name", "attack.kind"]
)
def test_all_kinds_of_own_code_count(key: str, file: Path) -> None:
    ideal = ["method.aggregator=ideal"] if key == "method.compressor" else []
    own = load(None, [f"{key}={file}:rule", *ideal])
    assert list(user_files(own)) == [str(file)]
    assert user_files(load(None, [])) == {}


@pytest.mark.parametrize("resume", [True, False])
def test_an_edited_file_is_refused_in_the_same_folder(file: Path, tmp_path: Path, resume: bool) -> None:
    train(settings(file), tmp_path / "run")
    file.write_text(OTHER)
    with pytest.raises(FolderError, match=r"mine\.py has changed since; choose another name or folder"):
        train(settings(file), tmp_path / "run", resume=resume)
    file.write_text(GOOD)
    assert train(settings(file), tmp_path / "run", resume=resume)["rounds"] == 2


def test_a_comparison_runs_an_edited_file_again(file: Path, tmp_path: Path) -> None:
    shared = load(None, TINY)
    errors = []
    for content in (GOOD, OTHER, GOOD):
        file.write_text(content)
        runs = plan(shared, [f"{file}:rule"], tmp_path / "compare")
        result = compare(runs)
        errors.append(result.groups[0].values("nmse"))
    assert errors[0] == errors[2] != errors[1]
    assert len(list((tmp_path / "compare" / "rule").iterdir())) == 2  # the old run is kept, and taken again


def test_a_sweep_runs_an_edited_file_again(file: Path, tmp_path: Path) -> None:
    tree = {
        "method": {"aggregator": f"{file}:rule"},
        "grid": {"server.momentum": [0.1]},
        "out": str(tmp_path),
    }
    tree |= {"rounds": 2, "data": {"name": "gaussian", "size": 50, "devices": 3}}
    before = plan_sweep(tree).runs[0].planned
    train(before.settings, before.folder)
    file.write_text(OTHER)
    after = plan_sweep(tree).runs[0].planned
    assert after.folder != before.folder
    assert after.folder.parent == before.folder.parent


def test_runs_of_two_versions_of_a_file_are_two_methods(file: Path, tmp_path: Path) -> None:
    train(settings(file), tmp_path / "a")
    file.write_text(OTHER)
    train(settings(file, "seed=1"), tmp_path / "b")
    groups = group_runs([load_run(tmp_path / name) for name in "ab"])
    assert len(groups) == 2
    assert all("mine.py " in group.label for group in groups)


def test_a_mistake_in_a_rule_is_found_by_file_and_line(file: Path, tmp_path: Path) -> None:
    file.write_text(BROKEN)
    with pytest.raises(RunFailed, match=rf"round 1: .* failed with KeyError: 'estimate' \({file}:3\)"):
        train(settings(file), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    log = folder.log_path.read_text()
    assert "Traceback (most recent call last)" in log
    assert f'File "{file}", line 3, in rule' in log
    assert (folder.failure() or "").startswith("round 1: ")


def test_a_run_that_failed_in_its_first_round_starts_again(file: Path, tmp_path: Path) -> None:
    file.write_text(BROKEN)
    command = ["run", "--out", str(tmp_path), "--set", f"method.aggregator={file}:rule"]
    command += [word for one in TINY for word in ("--set", one)]
    assert signfade(command) == 1
    assert signfade(command) == 1  # as it is, without --resume
    file.write_text(GOOD)
    assert signfade(command) == 0
    recorded = parse_toml(RunFolder(tmp_path / "run").config_text())["files"]
    assert recorded == user_files(settings(file))
