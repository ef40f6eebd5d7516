"""`compare --jobs` and `sweep`: what a person sees, what is left, how it goes on."""

from __future__ import annotations

import csv
import io
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numba.core.event
import pytest
from rich.console import Console

from signfade.api.progress import Progress
from signfade.cli.entry import run as signfade
from signfade.experiments.sweeps import read_sweep
from signfade.experiments.training import PlannedRun, train
from signfade.experiments.workers import run_pool
from signfade.experiments.workers.job_queue import Event, Kind, OnEvent, Outcome

from .pool_helpers import inline, no_process_stays, planned, remains

__all__ = ["no_process_stays"]
pytestmark = pytest.mark.usefixtures("no_process_stays")

SWEEP = """
name = "tiny"
rounds = {rounds}
checkpoint_every = {rounds}
seeds = {seeds}

[data]
name = "gaussian"
devices = 3
size = {size}

[grid]
"method.aggregator" = ["sbfl", "signsgd"]
"""


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "results.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_an_interrupted_sweep_goes_on_as_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = 400
    (tmp_path / "sweep.toml").write_text(SWEEP.format(rounds=rounds, seeds=1, size=5000))
    command = ["sweep", str(tmp_path / "sweep.toml"), "--out", str(tmp_path), "--jobs", "1"]
    first = tmp_path / "tiny-sweep" / "aggregator-sbfl" / "seed-0"
    running = subprocess.Popen(
        [sys.executable, "-m", "signfade", *command],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 240
    while not (first / "metrics.jsonl").exists() and running.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    printed = running.communicate(timeout=600)[1]
    assert running.returncode == 130, printed
    assert (
        f"signfade: stopped with 0 of 2 runs finished; resume with: signfade {' '.join(command)}" in printed
    )
    states = [row["state"] for row in rows(tmp_path / "tiny-sweep")]
    assert states == ["unfinished", "absent"]
    done = len((first / "metrics.jsonl").read_bytes().splitlines())
    assert 0 < done < rounds

    assert signfade(command) == 0
    captured = capsys.readouterr()
    assert "2 runs: 2 finished in" in captured.err
    assert f"round {done} of {rounds} is done, going on" in (first / "log").read_text()
    found = rows(tmp_path / "tiny-sweep")
    assert [(row["method.aggregator"], row["state"]) for row in found] == [
        ("sbfl", "finished"),
        ("signsgd", "finished"),
    ]
    assert "signsgd" in captured.out
    assert "results.csv" in captured.out
    whole = read_sweep(tmp_path / "sweep.toml", out=str(tmp_path)).runs[0].planned
    assert remains(first) == inline(whole, tmp_path / "inline")


def here(runs: Sequence[PlannedRun], jobs: int, *, on_event: OnEvent) -> Outcome:
    """An engine without processes: what fails, fails by its name."""
    failed = {}
    for index, run in enumerate(runs):
        on_event(Event("started", index, run))
        if run.settings.method_label in ("blmmse", "zero_forcing"):
            failed[run.folder] = f"{run.settings.method_label} is out of luck"
            on_event(Event("failed", index, run, 0, text=failed[run.folder]))
            continue
        train(run.settings, run.folder, resume=True)
        on_event(Event("finished", index, run, run.settings.rounds))
    finished = tuple(run.folder for run in runs if run.folder not in failed)
    refused = frozenset(folder for folder in failed if folder.parent.name == "zero_forcing")
    return Outcome(finished, failed, refused)


def compare(tmp_path: Path, methods: str, jobs: int) -> int:
    sets = ("rounds=2", "data.name=gaussian", "data.size=32", "data.devices=2")
    words = [word for one in sets for word in ("--set", one)]
    return signfade(["compare", "--methods", methods, "--jobs", str(jobs), "--out", str(tmp_path), *words])


def test_compare_with_jobs_leaves_what_it_leaves_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def run_all(runs: Sequence[PlannedRun], jobs: int, *, on_event: OnEvent) -> Outcome:
        asked.append(jobs)
        return here(runs, jobs, on_event=on_event)

    monkeypatch.setattr(run_pool, "run_all", run_all)
    monkeypatch.chdir(tmp_path)
    for jobs in (1, 3):
        (tmp_path / str(jobs)).mkdir()
        monkeypatch.chdir(tmp_path / str(jobs))
        assert compare(Path("runs"), "sbfl,ideal", jobs) == 0
    assert asked == [3]
    one, three = (tmp_path / name / "runs" / "run-compare" for name in ("1", "3"))
    for name in ("table.txt", "report.html", "curves.png"):
        assert (one / name).read_bytes() == (three / name).read_bytes()
    assert "2 runs: 2 finished in" in capsys.readouterr().err


def test_compare_with_jobs_tells_of_failures_as_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_pool, "run_all", here)
    assert compare(tmp_path / "a", "sbfl,blmmse", 2) == 1
    assert "signfade: note: blmmse failed: blmmse is out of luck" in capsys.readouterr().err
    assert compare(tmp_path / "b", "blmmse", 2) == 1
    assert (
        "signfade: every run failed; the first, blmmse, seed 0: blmmse is out of luck"
        in capsys.readouterr().err
    )
    assert compare(tmp_path / "c", "sbfl,zero_forcing", 2) == 2
    assert "signfade: zero_forcing, seed 0: zero_forcing is out of luck" in capsys.readouterr().err


def test_a_sweep_with_a_failed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_pool, "run_all", here)
    text = SWEEP.format(rounds=2, seeds=2, size=64).replace('"signsgd"', '"blmmse"')
    (tmp_path / "sweep.toml").write_text(text)
    command = ["sweep", str(tmp_path / "sweep.toml"), "--out", str(tmp_path)]
    assert signfade(command) == 1
    assert [(row["state"], row["failure"]) for row in rows(tmp_path / "tiny-sweep")] == [
        ("finished", ""),
        ("finished", ""),
        ("failed", "blmmse is out of luck"),
        ("failed", "blmmse is out of luck"),
    ]
    capsys.readouterr()
    assert signfade([*command, "--list"]) == 0
    listed = capsys.readouterr().out
    assert [word in listed for word in ("finished", "to do", "4 runs, 2 finished; at most 4 rounds to do")]
    assert signfade(["report", str(tmp_path / "tiny-sweep"), "-o", str(tmp_path / "page.html")]) == 0
    assert "sbfl" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["absent.toml"], "no such config file: absent.toml"),
        (["{file}", "--engine", "threads"], "engine must be process or ray; got 'threads'"),
        (["{file}", "--address", "here:1"], "address needs the engine ray"),
        (["{file}", "--jobs", "0"], "0 is not in the range"),
        (["{file}", "--set", "rouns=3"], "unknown key 'rouns'"),
    ],
)
def test_bad_input(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(SWEEP.format(rounds=2, seeds=2, size=64))
    words = [word.format(file=file) for word in arguments]
    assert signfade(["sweep", *words, "--out", str(tmp_path / "out")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def display(terminal: bool = False) -> tuple[Progress, io.StringIO]:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=100, height=9, highlight=False, _environ={})
    return Progress(["a [b]", "c", "d", "e", "f"], [10] * 5, console), text


def send(to: Progress, kind: Kind, index: int, round: int = 0, text: str = "", **record: Any) -> None:
    to.event(Event(kind, index, planned(Path()), round, record, text))


def test_the_board_shows_what_is_going_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    shown, _ = display(terminal=True)
    send(shown, "skipped", 0, 10)
    send(shown, "started", 1)
    send(shown, "round", 1, 7, train_loss=2.5)  # resumed
    clock[0] += 2.0
    send(shown, "round", 1, 8, train_loss=2.25)
    send(shown, "failed", 2, 3, "oh")
    text = io.StringIO()
    Console(file=text, width=100).print(shown.render())
    lines = [" ".join(line.split()) for line in text.getvalue().splitlines()]
    assert lines[2:6] == [
        "a [b] finished 10 of 10 was finished",
        "c running 8 of 10 loss 2.25",
        "d failed 3 of 10",
        "e waiting 0 of 10",
    ]  # four rows fit: f is left out, being the last to begin
    # one round took 2 s; two are left of c, and ten each of e and f
    assert lines[-1].endswith("5 runs: 1 finished, 1 running, 2 waiting, 1 failed, 44 s left")


def test_a_log_gets_lines_and_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    shown, text = display()
    with shown:
        send(shown, "started", 0)
        send(shown, "round", 0, 1, nmse=0.5)
        send(shown, "retried", 0, 1, "its worker died")
        clock[0] += 11.0
        send(shown, "round", 0, 2, test_accuracy=0.25, train_loss=1.0)
        send(shown, "finished", 0, 10)
        send(shown, "failed", 1, 0, "oh")
    assert text.getvalue().splitlines() == [
        "signfade: note: a [b]: its worker died",
        "5 runs: 1 running, 4 waiting, 8 min 48 s left",
        "a [b]: finished (accuracy 0.250)",
        "signfade: note: c failed: oh",
        "5 runs: 1 finished, 3 waiting, 1 failed in 11 s",
    ]


def test_compiling_is_told_once() -> None:
    shown, text = display()
    with shown:
        for _ in range(2):
            with numba.core.event.trigger_event("numba:compile"):
                pass
    assert text.getvalue().count("signfade: note: compiling kernels") == 1
    assert "per machine" not in text.getvalue()  # another environment compiles them again
    with numba.core.event.trigger_event("numba:compile"):
        pass
    assert text.getvalue().count("compiling") == 1


def test_a_file_for_compare_is_named_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "compare.toml"
    file.write_text('[variants.slow]\n"server.learning_rate" = 1e-3\n')
    assert signfade(["sweep", str(file)]) == 2
    assert f"{file} has [variants] and is meant for: signfade compare {file};" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["sweep", "deploy"])
def test_help_is_plain_text(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert signfade([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "[default: " in text
    assert "\\" not in text
