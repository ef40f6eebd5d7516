"""Runs on a Ray cluster of this machine are the runs of this process.

Ray is started once for all of it: a cluster is half a dozen processes, and a worker loads torch.
"""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from signfade.cli.entry import run as signfade
from signfade.experiments.comparisons import compare
from signfade.experiments.training import Interrupted, PlannedRun
from signfade.experiments.workers.job_queue import Event
from signfade.experiments.workers.run_pool import choose_engine

from ..experiments.workers.pool_helpers import (  # noqa: F401 - fixtures
    children,
    inline,
    left_behind,
    one_at_a_time,
    planned,
    remains,
)

pytestmark = [
    pytest.mark.usefixtures("one_at_a_time"),  # not beside a deployment
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray's own open files
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def descendants(parent: int | str = "self") -> list[int]:
    found = children(parent)
    return found + [below for child in found for below in descendants(child)]


def workers(name: str) -> list[int]:
    """Ray's processes that are just now at a task of ours."""

    def title(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return ""

    return [pid for pid in descendants() if title(pid).startswith(name)]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999", "nonsense"])
def test_no_cluster_at_the_address(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sweep.toml").write_text("rounds = 1")
    command = ["sweep", str(tmp_path / "sweep.toml"), "--engine", "ray", "--address", address]
    command += ["--out", str(tmp_path / "out")]
    assert signfade(command) == 2
    assert f"signfade: no Ray cluster at {address}: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def cluster() -> Iterator[ModuleType]:
    from signfade.integrations.ray.runs import cluster

    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with cluster(None, 2, 1 << 28) as ray:
        yield ray
        processes = descendants()
    assert len(processes) > 3
    assert left_behind(processes) == []
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_a_sweep_of_eight_runs_one_worker_killed(
    cluster: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command, and the same runs one after another in this process."""
    from signfade.integrations.ray import runs as ray_runs

    text = """
    name = "tiny"
    rounds = 150
    seeds = 2
    checkpoint_every = 10
    data = {devices = 4, batch = 8}
    model = {name = "linear"}
    grid = {"server.learning_rate" = [1e-3, 1e-2], "method.aggregator" = ["sbfl", "signsgd"]}
    """
    (tmp_path / "sweep.toml").write_text(text)
    run_all, events, killed = ray_runs.run_all, [], []

    def watched(runs: list[PlannedRun], jobs: int | None, **options: Any) -> Any:
        on_event = options.pop("on_event")

        def heard(event: Event) -> None:
            events.append(event)
            on_event(event)
            if event.kind == "round" and event.round >= 10 and not killed:
                # Between two runs a worker has another name; then a later event finds one.
                killed.extend(workers("ray::_run")[:1])
                for worker in killed:
                    os.kill(worker, signal.SIGKILL)

        return run_all(runs, jobs, on_event=heard, **options)

    monkeypatch.setattr(ray_runs, "run_all", watched)
    monkeypatch.setattr(ray_runs, "_POLL", 0.05)
    monkeypatch.chdir(tmp_path)
    assert signfade(["sweep", "sweep.toml", "--engine", "ray", "--jobs", "2"]) == 0
    assert "8 runs: 8 finished" in capsys.readouterr().err
    assert len(killed) == 1
    assert [event.text.partition(";")[0] for event in events if event.kind == "retried"] == [
        "its worker died (WorkerCrashedError)"
    ]
    runs = {event.index: event.run for event in events}
    assert len(runs) == 8
    others = [PlannedRun(run.settings, tmp_path / "here" / str(index)) for index, run in runs.items()]
    compare(others)
    for run, other in zip(runs.values(), others):
        assert remains(run.folder) == remains(other.folder)
    assert list((tmp_path / "runs" / "tiny-sweep").glob(".signfade-*")) == []


def test_failures_are_told_and_an_interrupt_saves(
    cluster: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from signfade.integrations.ray import runs as ray_runs

    monkeypatch.setattr(ray_runs, "_POLL", 0.05)
    runs = [
        planned(
            tmp_path / "diverges",
            data__name="regression",
            server__learning_rate=1e15,
            method__aggregator="ideal",
        ),
        planned(tmp_path / "refused", model__name="nowhere:model"),
        planned(tmp_path / "good"),
    ]
    outcome = ray_runs.run_all(runs, 2)
    assert outcome.finished == (tmp_path / "good",)
    assert "diverged" in outcome.failed[tmp_path / "diverges"]
    assert outcome.refused == {tmp_path / "refused"}

    long = planned(tmp_path / "long", rounds=100_000, checkpoint_every=100_000)

    asked: list[int] = []

    def stop_once(event: Event) -> None:  # a second interrupt would not wait for it to save
        if event.kind == "round" and not asked:
            asked.append(event.round)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="0 of 1 runs finished"):
        ray_runs.run_all([long], on_event=stop_once)
    assert "interrupted after round" in (tmp_path / "long" / "log").read_text().splitlines()[-1]


def test_a_worker_that_is_not_like_us_is_refused(
    cluster: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from signfade.integrations.ray import runs as ray_runs

    run = planned(tmp_path / "run")
    assert "signfade" in ray_runs._run(run, None, tmp_path, ".", "0.0.0")[1]
    kind, text, _ = ray_runs._run(run, None, tmp_path / "absent" / "marker", ".", ray_runs.__version__)
    assert kind == "refused"
    assert f"does not see {tmp_path / 'absent'}; --out must be where all machines see it" in text


def test_without_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ValueError, match=r"the engine ray needs Ray; in the .* -e '\.\[ray\]'$"):
        choose_engine("ray")([planned(tmp_path / "run")], 1)
