"""From a sweep file to runs, and from runs to one table."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from signfade.experiments.config import ConfigError, resolve
from signfade.experiments.folder import FolderError, RunFolder
from signfade.experiments.html_report import write_report
from signfade.experiments.results import gather, write_results
from signfade.experiments.sweeps import Sweep, plan_sweep, read_sweep
from signfade.experiments.training import Interrupted, RunFailed, train
from signfade.simulation.run import Experiment

TINY = {"rounds": 2, "data": {"name": "gaussian", "size": 32, "devices": 2}, "name": "tiny"}


def names(sweep: Sweep) -> list[str]:
    return [run.planned.folder.relative_to(sweep.folder).as_posix() for run in sweep.runs]


def test_every_run_of_the_list_at_every_point_of_the_grid_with_every_seed() -> None:
    listed = [{"method.aggregator": "signsgd"}, {"method": {"aggregator": "sbfl", "side_bits": 4}}]
    grid = {"server": {"learning_rate": [0.1, 0.2]}, "cell.snr_db": [0, 10]}
    sweep = plan_sweep(TINY | {"runs": listed, "grid": grid, "seeds": 2, "seed": 5})
    assert sweep.keys == ("method.aggregator", "server.learning_rate", "cell.snr_db", "method.side_bits")
    assert len(sweep.runs) == 2 * 4 * 2
    found = [
        (s.method.aggregator, s.method.side_bits, s.server.learning_rate, s.cell.snr_db, s.seed)
        for s in (run.planned.settings for run in sweep.runs)
    ]
    assert found == [
        (rule, bits, step, snr, seed)
        for rule, bits in (("signsgd", None), ("sbfl", 4))
        for step in (0.1, 0.2)
        for snr in (0.0, 10.0)
        for seed in (5, 6)
    ]
    assert names(sweep)[3] == "aggregator-signsgd-learning-rate-0.1-snr_db-10/seed-6"
    assert sweep.runs[3].title == "aggregator signsgd, learning rate 0.1, snr_db 10, seed 6"
    assert len(set(names(sweep))) == 16


def test_a_label_stands_for_its_settings() -> None:
    listed = [{"label": "as published", "method.preset": "paper"}]
    sweep = plan_sweep(TINY | {"runs": listed, "grid": {"rounds": [3]}})
    assert names(sweep) == ["as-published-rounds-3/seed-0"]
    assert sweep.runs[0].title == "as published, rounds 3"
    assert sweep.runs[0].planned.settings.method_label == "as published"
    assert sweep.keys == ("method.preset", "rounds")


def test_the_base_lies_under_the_settings_and_those_under_the_overrides(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(
        "rounds = 7\nseed = 3\nname = 'x'\n[variants.a]\n'server.learning_rate' = 1.0\n"
    )
    file = tmp_path / "sweep.toml"
    file.write_text(
        "base = 'base.toml'\nrounds = 8\nseeds = [9, 2]\n[server]\nlearning_rate = 0.5\n[grid]\nseed = 1\n"
    )
    with pytest.raises(ConfigError, match=r"sweep.toml: grid sets seed; set seeds instead"):
        read_sweep(file)
    file.write_text("base = 'base.toml'\nrounds = 8\nseeds = [9, 2]\n[server]\nlearning_rate = 0.5\n")
    sweep = read_sweep(file, ["server.momentum=0.25"], str(tmp_path / "out"))
    first, second = (run.planned.settings for run in sweep.runs)
    assert (first.rounds, first.server.learning_rate, first.server.momentum, first.variants) == (
        8,
        0.5,
        0.25,
        {},
    )
    assert (first.seed, second.seed) == (9, 2)
    assert sweep.folder == tmp_path / "out" / "x-sweep"
    assert names(sweep) == ["as-it-is/seed-9", "as-it-is/seed-2"]


def test_numbers_that_differ_in_their_last_digit_get_folders_of_their_own() -> None:
    steps = [0.1, 0.1 + 1e-16, 0.10000000001]
    assert len(set(names(plan_sweep({"grid": {"server.learning_rate": steps}})))) == 3


def test_a_long_name_ends_in_its_checksum() -> None:
    levels = [[float(k) for k in range(20)], [*map(float, range(19)), 0.5]]
    sweep = plan_sweep({"grid": {"cell.snr_db": levels}})
    folders = [name.split("/")[0] for name in names(sweep)]
    assert all(len(folder) == 80 for folder in folders)
    assert folders[0][:70] == folders[1][:70]
    assert folders[0] != folders[1]


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        (
            {"grid": {"server.learning_rat": [1.0]}},
            "grid: unknown key 'server.learning_rat'; the nearest known one is 'server.learning_rate'",
        ),
        ({"runs": [{"stepp": 1}]}, "runs: unknown key 'stepp'"),
        ({"rouns": 3}, "unknown key 'rouns'; the nearest known one is 'rounds'"),
        (
            {"grid": {"server.learning_rate": 0.1}},
            r"grid: server.learning_rate must be a list of values, such as \[1, 2\]; got 0.1",
        ),
        (
            {"grid": {"server.learning_rate": []}},
            r"grid: server.learning_rate must be a list of values, such as \[1, 2\]; got \[\]",
        ),
        (
            {"grid": {"server.learning_rate": [0.1, -1.0]}},
            "learning rate -1: server.learning_rate must be greater than 0; got -1.0",
        ),
        (
            {"grid": {"method.preset": ["bets"]}},
            "method.preset must be one of paper, corrected, rotated-sbfl, best, low-rate; got 'bets'",
        ),
        ({"grid": {"name": ["a"]}}, "grid sets name, which all runs of a sweep share"),
        ({"runs": [{"out": "a"}]}, "runs sets out, which all runs of a sweep share"),
        ({"grid": {"rounds": [1]}, "runs": [{"rounds": 2}]}, "rounds is both in grid and in runs"),
        ({"grid": {"rounds": [1, 1]}}, "two of the runs are called 'rounds 1'"),
        ({"runs": [{"label": "A", "rounds": 2}, {"label": "a"}]}, "two of the runs are called 'a'"),
        ({"grid": 3}, "grid must be a table of lists"),
        ({"runs": {"rounds": 2}}, r"runs must be tables, each under a line \[\[runs\]\]"),
        ({"runs": []}, "runs must be tables"),
        ({"seeds": 0}, "seeds must be their number, 1 or more, or a list"),
        ({"seeds": True}, "seeds must be their number"),
        ({"seeds": [-1]}, "seeds must be their number"),
        ({"seeds": []}, "seeds must be their number"),
        ({"seeds": [1.5]}, "seeds must be their number"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tree: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        plan_sweep(tree)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("base = 3\n", "base must be the name of a TOML file; got 3"),
        ("base = 'absent.toml'\n", "no such config file"),
        ("rounds = \n", "is not valid TOML"),
    ],
)
def test_a_file_that_is_wrong(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_sweep(file)


def play_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """A finished run, a failed one, a stopped one, one that never began."""
    grid = {"method.aggregator": ["sbfl", "ideal", "signsgd", "blmmse"]}
    sweep = plan_sweep(TINY | {"grid": grid}, out=str(tmp_path))
    advance = Experiment.advance
    for run, error in zip(sweep.runs, (None, RunFailed("round 2: oh"), Interrupted("stop"))):

        def play(self: Experiment, error: Exception | None = error) -> dict[str, Any]:
            if self.round and error:
                raise error
            return advance(self)

        monkeypatch.setattr(Experiment, "advance", play)
        try:
            train(run.planned.settings, run.planned.folder)
        except (RunFailed, Interrupted):
            assert error
    return sweep


def test_results_have_a_row_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = play_some(tmp_path, monkeypatch)
    rows = gather(sweep, {sweep.runs[3].planned.folder: "it has no worker"})
    assert [(row["method.aggregator"], row["state"], row["failure"]) for row in rows] == [
        ("sbfl", "finished", None),
        ("ideal", "failed", "round 2: oh"),
        ("signsgd", "unfinished", None),
        ("blmmse", "failed", "it has no worker"),
    ]
    assert gather(sweep)[3]["state"] == "absent"
    summary = RunFolder(sweep.runs[0].planned.folder).read_summary()
    assert summary is not None
    assert {key: rows[0][key] for key in summary if key in rows[0]}.items() <= summary.items()
    assert rows[0]["median_nmse"] == summary["median_nmse"]
    (path,) = [path for path in write_results(rows, sweep.folder) if path.suffix == ".csv"]
    with open(path, newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["state"] for row in read] == [row["state"] for row in rows]
    assert float(read[0]["median_nmse"]) == summary["median_nmse"]
    assert read[1]["median_nmse"] == ""
    assert read[0]["folder"] == sweep.runs[0].planned.folder.as_posix()


def test_cells_that_are_not_numbers(tmp_path: Path) -> None:
    grid = {"cell.snr_db": [[0.0, 10.5]], "data.heterogeneous": [True], "data.batch": ["none"]}
    rows = gather(plan_sweep(TINY | {"grid": grid}, out=str(tmp_path)))
    with open(write_results(rows, tmp_path)[0], newline="") as file:
        (row,) = csv.DictReader(file)
    found = {key: row[key] for key in ("cell.snr_db", "data.heterogeneous", "data.batch", "seed")}
    assert found == {
        "cell.snr_db": "[0.0, 10.5]",
        "data.heterogeneous": "true",
        "data.batch": "",
        "seed": "0",
    }


def test_parquet_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = gather(play_some(tmp_path, monkeypatch))
    path = next(path for path in write_results(rows, tmp_path) if path.suffix == ".parquet")
    assert parquet.read_table(path).to_pylist() == rows


def test_a_report_tells_the_points_apart(tmp_path: Path) -> None:
    tree = TINY | {"method.aggregator": "sbfl", "grid": {"cell.snr_db": [0, 10]}}
    sweep = plan_sweep(tree, out=str(tmp_path))
    for run in sweep.runs:
        train(run.planned.settings, run.planned.folder)
    write_results(gather(sweep), sweep.folder)
    page = write_report([sweep.folder], tmp_path / "report.html").read_text()
    assert "sbfl (snr_db 0)" in page
    assert "sbfl (snr_db 10)" in page


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    tree = TINY | {"grid": {"server.learning_rate": [0.1]}}
    run = plan_sweep(tree, out=str(tmp_path)).runs[0].planned
    train(run.settings, run.folder)
    plan_sweep(tree, out=str(tmp_path))
    with pytest.raises(FolderError, match="another config"):
        plan_sweep(tree | {"rounds": 3}, out=str(tmp_path))


def test_a_sweep_that_grows_keeps_its_runs() -> None:
    small = plan_sweep({"grid": {"server.learning_rate": [0.1]}})
    large = plan_sweep({"grid": {"server.learning_rate": [0.2, 0.1]}, "seeds": 2})
    assert small.runs[0].planned in [run.planned for run in large.runs]
    assert resolve({"server.learning_rate": 0.1}) == small.runs[0].planned.settings


def test_the_example_is_a_valid_sweep() -> None:
    example = Path(__file__).parents[2] / "examples" / "sweep.toml"
    assert len(read_sweep(example).runs) > 1
