"""One protocol for all methods: what it tries, what it chooses, and what `compare` reads of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from signfade.cli.entry import run as signfade
from signfade.experiments.comparisons import plan, run_in_turn
from signfade.experiments.config import ConfigError, load, resolve
from signfade.experiments.folder import FolderError, RunFolder
from signfade.experiments.methods import method_settings
from signfade.experiments.training import PlannedRun, RunFailed
from signfade.experiments.tuning import MOMENTA, RATES, Protocol, Score, Trial, score, tune, write_tuned
from signfade.experiments.workers.job_queue import Outcome
from signfade.settings import RunSettings

REGRESSION = {
    "name": "tiny",
    "rounds": 6,
    "data": {"name": "regression", "devices": 4, "size": 10, "samples": 20, "batch": "none"},
    "cell": {"snr_db": 10.0},
    "eval": {"every": 1},
}
DIGITS = REGRESSION | {"data": {"name": "digits", "devices": 4}, "model": {"name": "mlp"}, "rounds": 3}
GRID = Protocol(rates=(0.1, 0.3, 1.0), momenta=(0.0, 0.5), seeds=2, finalists=2)
METHODS = ["signsgd", "best", "ideal"]


class Doer:
    """Does runs in this process and remembers which it was given."""

    def __init__(self) -> None:
        self.stages: list[list[PlannedRun]] = []

    def __call__(self, runs: Sequence[PlannedRun]) -> Outcome:
        self.stages.append(list(runs))
        return run_in_turn(runs)


def losses(settings: RunSettings, name: str, point: dict[str, float], home: Path) -> list[float]:
    """Scores of a method at a point by both seeds, from `compare`'s own runs of a variant."""
    layer = {"method.preset" if name == "best" else "method.aggregator": name} | point
    shared = settings.model_copy(update={"variants": {name: layer}, "seed": 100})
    runs = plan(shared, [name], home, seeds=2)
    run_in_turn(runs)
    found = []
    for run in runs:
        metrics = RunFolder(run.folder).read_metrics()
        found.append(fmean(record["test_loss"] for record in metrics[-6:]))
    return found


def test_the_choice_is_the_best_of_all_runs(tmp_path: Path) -> None:
    """Of every point run with every seed: the finalists lead on the first seed, the choice on both."""
    settings = resolve(REGRESSION)
    trials = tune(settings, METHODS, GRID, tmp_path / "tune", Doer())
    for name in METHODS:
        brute = [losses(settings, name, point, tmp_path / f"{name}-{i}") for i, point in enumerate(GRID.grid)]
        finalists = sorted(range(6), key=lambda i: brute[i][0])[:2]
        best = min(finalists, key=lambda i: fmean(brute[i]))
        chosen = trials[name][0]
        assert chosen.point == GRID.grid[best]
        assert [one.value for one in chosen.scores] == brute[best]
        assert [len(trial.scores) for trial in trials[name]] == [2, 2, 1, 1, 1, 1]
        firsts = [trial.scores[0].value for trial in trials[name][2:]]
        assert firsts == sorted(firsts)


def test_all_methods_get_the_same_runs(tmp_path: Path) -> None:
    do = Doer()
    tune(resolve(REGRESSION), METHODS, GRID, tmp_path, do)
    first, second = do.stages
    tried: dict[str, list[Any]] = {name: [] for name in METHODS}
    for run in first:
        server = run.settings.server
        tried[run.settings.method_label].append((server.learning_rate, server.momentum, run.settings.seed))
    assert list(tried.values()) == [[(r, m, 100) for r in (0.1, 0.3, 1.0) for m in (0.0, 0.5)]] * 3
    assert [run.settings.method_label for run in second] == ["signsgd"] * 2 + ["best"] * 2 + ["ideal"] * 2
    assert {run.settings.seed for run in second} == {101}


def test_the_same_call_continues_and_another_grid_keeps_its_runs(tmp_path: Path) -> None:
    settings, do = resolve(REGRESSION), Doer()

    def stop_after_four(runs: Sequence[PlannedRun]) -> Outcome:
        run_in_turn(runs[:4])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(settings, METHODS, GRID, tmp_path / "a", stop_after_four)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("summary.json")}
    assert len(before) == 4
    again = tune(settings, METHODS, GRID, tmp_path / "a", do)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert again == tune(settings, METHODS, GRID, tmp_path / "b", do)
    wider = Protocol(rates=(0.1, 0.3, 1.0, 1.5), momenta=(0.0, 0.5), seeds=2, finalists=2)
    tune(settings, METHODS, wider, tmp_path / "a", do)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    with pytest.raises(FolderError, match="already holds a run with another config"):
        tune(resolve(REGRESSION | {"rounds": 7}), METHODS, GRID, tmp_path / "a", do)


def test_tuned_is_the_config_with_variants_that_compare_reads(tmp_path: Path) -> None:
    """With a preset, an aggregator, a compressor, a variant and a rule of one's own, labels kept."""
    (tmp_path / "mine.py").write_text("def middle(received):\n    return received.y.median(dim=0).values\n")
    own = f"{tmp_path / 'mine.py'}:middle"
    variants = {"slow": {"method.preset": "paper", "server.learning_rate": 1e-4, "label": "as published"}}
    settings = resolve(REGRESSION | {"seed": 5, "variants": variants})
    methods = ["slow", "best", "signsgd", "qsgd", own]
    do, small = Doer(), Protocol(rates=(0.1, 0.3), momenta=(0.5,), seeds=1)
    trials = tune(settings, methods, small, tmp_path, do)
    path, record = write_tuned(trials, settings, small, tmp_path)
    read = load(path)
    assert (read.name, read.seed) == ("tiny-tuned", 5)
    assert read.model_copy(update={"name": "tiny", "variants": settings.variants}) == settings
    for name in methods:
        rate = trials[name][0].point["server.learning_rate"]
        (run,) = [
            run.settings
            for run in do.stages[0]
            if run.settings.method_label == method_settings(settings, name).method_label
            and run.settings.server.learning_rate == rate
        ]
        assert method_settings(read, name) == run.model_copy(update={"seed": 5, "name": "tiny-tuned"})
    labels = [run.settings.method_label for run in plan(read, methods, tmp_path / "compare")]
    assert labels == ["as published", "best", "signsgd", "qsgd", "middle"]
    found = json.loads(record.read_text())["trials"]["best"]
    assert [entry["scores"] for entry in found] == [[{"loss": t.scores[0].value}] for t in trials["best"]]


def write_run(folder: Path, accuracies: Sequence[float | None], **changed: Any) -> PlannedRun:
    """A finished run with these test accuracies, in which all devices send 1000 bits a round in all."""
    settings = resolve({"rounds": len(accuracies)} | changed)
    run = RunFolder(folder).create("name = 'x'\n")
    for t, accuracy in enumerate(accuracies, start=1):
        run.append_metrics({"round": t, "test_accuracy": accuracy, "uplink_bits": 1000 * t, "devices": 7})
    run.write_summary({"rounds": len(accuracies)})
    return PlannedRun(settings, folder)


def test_the_score_without_a_target_is_the_mean_over_the_last_six_evaluations(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", [0.9, None, 0.1, 0.2, 0.3, None, 0.4, 0.5, 0.6])
    assert score(run).kind == "accuracy"
    assert score(run).value == pytest.approx(0.35)
    assert score(PlannedRun(run.settings, tmp_path / "absent")) == Score("failed")


def test_a_loss_that_is_not_finite_at_the_end_has_failed(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "a").create("name = 'x'\n")
    for t, loss in enumerate([0.1, 0.2, float("inf")], start=1):
        run.append_metrics({"round": t, "test_loss": loss})
    run.write_summary({"rounds": 3})
    assert score(PlannedRun(resolve({}), run.path)) == Score("failed")


@pytest.mark.parametrize(("devices", "participation"), [(20, 1.0), (20, 0.5), (100, 0.1), (5, 0.01)])
def test_bits_to_the_target_are_those_of_the_average_device(
    devices: int, participation: float, tmp_path: Path
) -> None:
    data = {"data.devices": devices, "data.participation": participation}
    run = write_run(tmp_path / "a", [0.1, None, 0.89, 0.9, 0.2], **data)
    found = score(run, 0.9)
    assert (found.kind, found.value) == ("bits", 4000 / devices)
    assert score(run, 0.95).kind == "accuracy"
    assert score(run, 0.95).value == 0.9  # the best, not the last


def test_runs_that_never_reach_the_target_rank_below_all_that_do() -> None:
    def bits(*values: float) -> list[Score]:
        return [Score("bits", value, 0.9) for value in values]

    never, failed = Score("accuracy", 0.89, 0.89), Score("failed")
    order = [
        bits(10, 12, 14),
        [Score("bits", 12, 0.8)] * 3,  # as many bits, and a worse end
        bits(1e9, 1e9, 1e9),
        [*bits(1, 1), never],
        [*bits(1, 1), failed],
        [*bits(1), never, never],
        [never, never, never],
        [Score("accuracy", 0.5, 0.5)] * 3,
        [never, never, failed],
        [failed] * 3,
    ]
    keys = [Trial({}, tuple(scores)).key for scores in order]
    assert keys == sorted(keys, reverse=True)
    assert len(set(keys)) == len(keys)
    assert Trial({}, (*bits(1, 3), never)).mean == 2


def test_a_target_chooses_the_fewest_bits(tmp_path: Path) -> None:
    settings = resolve(DIGITS | {"rounds": 8})
    protocol = Protocol(rates=(1e-4, 0.1, 0.5), momenta=(0.0, 0.9), seeds=1, finalists=1, target=0.3)
    do = Doer()
    (chosen, *others) = tune(settings, ["ideal"], protocol, tmp_path, do)["ideal"]
    reached = {}
    for run in do.stages[0]:
        metrics = RunFolder(run.folder).read_metrics()
        hits = [m["uplink_bits"] / 4 for m in metrics if (m["test_accuracy"] or 0) >= 0.3]
        reached[run.settings.server.learning_rate, run.settings.server.momentum] = min(hits, default=None)
    assert any(bits is None for bits in reached.values())
    fewest = min(bits for bits in reached.values() if bits is not None)
    assert chosen.scores[0].value == fewest
    assert reached[chosen.point["server.learning_rate"], chosen.point["server.momentum"]] == fewest
    kinds = [trial.scores[0].kind for trial in (chosen, *others)]
    assert kinds == sorted(kinds, key=["bits", "accuracy"].index)


def test_points_that_diverge_lose_and_a_method_that_always_does_is_named(tmp_path: Path) -> None:
    settings = resolve(REGRESSION | {"rounds": 40})
    wild = Protocol(rates=(0.3, 1e9), momenta=(0.0,), seeds=1)
    (chosen, worst) = tune(settings, ["ideal"], wild, tmp_path / "a", Doer())["ideal"]
    assert (chosen.point["server.learning_rate"], chosen.scores[0].kind) == (0.3, "loss")
    assert worst.scores == (Score("failed"),)
    assert worst.mean is None
    with pytest.raises(RunFailed, match=r"every run of ideal failed; the first: round .* diverged"):
        tune(settings, ["ideal"], Protocol((1e9,), (0.0,), seeds=1), tmp_path / "b", Doer())


def test_device_rates_are_a_third_axis(tmp_path: Path) -> None:
    settings = resolve(REGRESSION | {"device": {"local_steps": 2}})
    protocol = Protocol((0.5,), (0.0,), (0.05, 0.2), seeds=1)
    trials = tune(settings, ["ideal"], protocol, tmp_path, Doer())
    assert {trial.point["device.learning_rate"] for trial in trials["ideal"]} == {0.05, 0.2}
    path, _ = write_tuned(trials, settings, protocol, tmp_path)
    chosen = trials["ideal"][0].point["device.learning_rate"]
    assert method_settings(load(path), "ideal").device.learning_rate == chosen
    with pytest.raises(ConfigError, match="device rates need local training"):
        tune(resolve(REGRESSION), ["ideal"], protocol, tmp_path, Doer())


@pytest.mark.parametrize(
    ("point", "edges"),
    [
        ((0.3, 0.0, 0.2), []),  # there is no momentum below 0
        ((0.1, 0.5, 0.2), ["server.learning_rate"]),
        ((1.0, 0.9, 0.2), ["server.learning_rate", "server.momentum"]),
        ((0.3, 0.5, 0.2), []),  # of one device rate there is no edge
    ],
)
def test_edges_of_the_grid(point: tuple[float, float, float], edges: list[str]) -> None:
    protocol = Protocol((1.0, 0.1, 0.3, 0.3), (0.9, 0.0, 0.5), (0.2,))
    assert protocol.edges(dict(zip(protocol.axes, point))) == edges


@pytest.mark.parametrize(
    ("protocol", "sentence"),
    [
        ({"rates": (0.1, -1.0)}, "learning rates must be greater than 0 and finite; got -1"),
        ({"device_rates": (float("inf"),)}, "learning rates must be greater than 0 and finite; got inf"),
        ({"rates": (float("nan"),)}, "learning rates must be greater than 0 and finite; got nan"),
        ({"momenta": (1.0,)}, "momenta must be from 0 to below 1; got 1"),
        ({"momenta": ()}, "the grid is empty"),
        ({"seeds": 0}, "seeds must be 1 or more; got 0"),
        ({"finalists": 0}, "finalists must be 1 or more; got 0"),
        ({"target": 90.0}, "target must be a test accuracy above 0 and at most 1; got 90"),
    ],
)
def test_a_protocol_that_is_wrong(protocol: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Protocol(**protocol)


@pytest.mark.parametrize(
    ("changed", "methods", "target", "sentence"),
    [
        ({}, [], None, "there is nothing to tune: name methods"),
        ({}, ["bets"], None, "unknown method 'bets'; the nearest known one is 'best'"),
        ({}, ["best", "best"], None, "two of the methods are called 'best'"),
        ({"seed": 101}, ["best"], None, "seeds 100 to 102, so .* cannot use 101 to 103; set seed to 103"),
        ({"seed": 98}, ["best"], None, "cannot use 98 to 100"),
        ({"data": {"name": "gaussian"}}, ["best"], None, "nothing to tune on data gaussian"),
        ({}, ["best"], 0.9, "target is a test accuracy, and data regression has none"),
    ],
)
def test_what_cannot_be_tuned(
    changed: dict[str, Any], methods: list[str], target: float | None, sentence: str, tmp_path: Path
) -> None:
    do = Doer()
    with pytest.raises(ConfigError, match=sentence) as caught:
        tune(resolve(REGRESSION | changed), methods, Protocol(target=target), tmp_path, do)
    assert "\n" not in str(caught.value)
    assert do.stages == []


# -- the command -------------------------------------------------------------------------------------------


def arguments(home: Path, *more: str) -> list[str]:
    (home / "tiny.toml").write_text(
        "name = 'tiny'\nrounds = 6\n[data]\nname = 'regression'\ndevices = 4\nsize = 10\nsamples = 20\n"
        "[cell]\nsnr_db = 10.0\n[eval]\nevery = 1\n"
    )
    grid = ["--rates", "0.1,0.3,1.9", "--momenta", "0", "--seeds", "2", "--finalists", "2", "-j", "1"]
    return ["tune", str(home / "tiny.toml"), "--methods", "signsgd,ideal", *grid, "--out", str(home), *more]


def test_the_command_and_the_comparison_it_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert signfade(arguments(tmp_path)) == 0
    printed = capsys.readouterr()
    tuned = tmp_path / "tiny-tune" / "tuned.toml"
    *_, path, record, last = printed.out.splitlines()
    assert (path, record) == (str(tuned), str(tuned.with_name("trials.json")))
    command = f"signfade compare {tuned} --methods signsgd,ideal --seeds 2"
    assert last == f"compare them on fresh seeds: {command}"
    rows = {words[0]: words for line in printed.out.splitlines() if (words := line.split())}
    assert " ".join(rows["method"]) == "method rate momentum seed 100 seed 101 mean at the edge"
    edges = []
    for name, found in json.loads(Path(record).read_text())["trials"].items():
        rate, values = found[0]["server.learning_rate"], [one["loss"] for one in found[0]["scores"]]
        texts = [f"{value:.3g}" for value in (*values, fmean(values))]
        edge = rate in (0.1, 1.9)
        edges += [name] if edge else []
        assert rows[name] == [name, f"{rate:g}", "0", *texts, "rate" if edge else "no"]
    (note,) = [line for line in printed.err.splitlines() if "edge" in line]
    assert f"note: the best point of {', '.join(edges)} lies at the edge of the grid" in note
    assert signfade(command.split()[1:]) == 0
    runs = sorted(path.parent.name for path in (tmp_path / "tiny-tuned-compare").rglob("summary.json"))
    assert runs == ["seed-0", "seed-0", "seed-1", "seed-1"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--rates", "a,b"], "--rates must be numbers with commas, such as 0.1,0.3,1; got 'a,b'"),
        (["--momenta", ""], "--momenta must be numbers with commas, such as 0.1,0.3,1; got ''"),
        (["--methods", ","], "there is nothing to tune: name methods"),
        (["--seeds", "0"], "seeds must be 1 or more; got 0"),
        (["--set", "seed=100"], "set seed to 102 or more"),
        (["--device-rates", "0.1"], "device rates need local training"),
        (["--target", "0.9"], "target is a test accuracy, and data regression has none"),
    ],
)
def test_bad_input_gets_one_sentence(
    more: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert signfade(arguments(tmp_path, *more)) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert sentence in printed.err
    assert not (tmp_path / "tiny-tune").exists()


def test_the_help_names_the_default_grid(capsys: pytest.CaptureFixture[str]) -> None:
    assert signfade(["tune", "--help"]) == 0
    words = capsys.readouterr().out.split()
    defaults = [words[i + 1].rstrip("]") for i, word in enumerate(words) if word == "[default:"]
    assert [tuple(map(float, text.split(","))) for text in defaults[1:3]] == [RATES, MOMENTA]


def finished(home: Path) -> int:
    return len(list(home.rglob("summary.json")))


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_command_that_is_stopped_and_killed_continues(tmp_path: Path) -> None:
    words = arguments(tmp_path, "--set", "rounds=60")
    for number in (signal.SIGINT, signal.SIGKILL):
        before = finished(tmp_path)
        command = [sys.executable, "-m", "signfade", *words]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for _ in range(2400):
            if finished(tmp_path) > before:
                break
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        error = process.communicate(timeout=60)[1]
        assert process.returncode == (130 if number == signal.SIGINT else -number)
        if number == signal.SIGINT:
            assert "resume with: signfade tune" in error.splitlines()[-1]
        assert not (tmp_path / "tiny-tune" / "tuned.toml").exists()
    assert signfade(words) == 0
    again = json.loads((tmp_path / "tiny-tune" / "trials.json").read_text())
    settings = load(tmp_path / "tiny.toml", ["rounds=60"])
    protocol = Protocol((0.1, 0.3, 1.9), (0.0,), seeds=2, finalists=2)
    fresh = tune(settings, ["signsgd", "ideal"], protocol, tmp_path / "fresh", Doer())
    _, record = write_tuned(fresh, settings, protocol, tmp_path / "fresh")
    assert again == json.loads(record.read_text())
