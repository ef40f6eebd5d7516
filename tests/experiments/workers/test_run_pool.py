"""Runs on worker processes are the runs of this process, whatever happens to the workers."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from signfade.experiments.files import acquire, release
from signfade.experiments.folder import FolderError, RunFolder
from signfade.experiments.training import Interrupted, train
from signfade.experiments.workers import scratch, worker_pool
from signfade.experiments.workers.job_queue import Event
from signfade.experiments.workers.run_pool import _RunWorker, run_all
from signfade.experiments.workers.scratch import remove_dead, scratch_folder

from .pool_helpers import children, inline, left_behind, no_process_stays, planned, remains

__all__ = ["no_process_stays"]
pytestmark = pytest.mark.usefixtures("no_process_stays")


def test_results_are_those_of_one_process(tmp_path: Path) -> None:
    """Good, failing and refused runs, on two workers that hold one copy of the data."""
    kinds = {
        "digits": {"data__name": "digits"},
        "joint": {"method__preset": "best", "server__learning_rate": 1e-3},
        "regression": {"data__name": "regression"},
        "diverges": {
            "data__name": "regression",
            "server__learning_rate": 1e15,
            "method__aggregator": "ideal",
        },
        "refused": {"model__name": "nowhere:model"},
        "finished": {"data__name": "gaussian"},
    }
    runs = [planned(tmp_path / name, **keys) for name, keys in kinds.items()]
    train(runs[-1].settings, runs[-1].folder)
    events: list[Event] = []
    shares: list[float] = []

    def listen(event: Event) -> None:
        events.append(event)
        if event.kind == "round" and len(children()) == 2:
            shares.append(sum(_own_share(pid) for pid in children()) / 2)

    outcome = run_all(runs, 2, on_event=listen)

    assert [folder.name for folder in outcome.finished] == ["digits", "joint", "regression", "finished"]
    assert [folder.name for folder in outcome.failed] == ["diverges", "refused"]
    assert [folder.name for folder in outcome.refused] == ["refused"]
    assert "diverged" in outcome.failed[tmp_path / "diverges"]
    assert "nowhere" in outcome.failed[tmp_path / "refused"]
    assert not (tmp_path / "refused").exists()
    for run in runs[:3]:
        assert remains(run.folder) == inline(run, tmp_path / "inline" / run.folder.name)
    assert 0.45 < min(shares) < 0.6  # of the pages a worker has, the other has the same: half is its share
    for index, run in enumerate(runs):
        kinds_of = [event.kind for event in events if event.index == index and event.kind != "noted"]
        name = run.folder.name
        if name == "finished":
            assert kinds_of == ["skipped"]
        elif name in ("diverges", "refused"):
            assert (kinds_of[0], kinds_of[-1]) == ("started", "failed")
        else:
            assert kinds_of == ["started", *["round"] * 6, "finished"]
    assert [event.round for event in events if event.index == 0] == [0, 1, 2, 3, 4, 5, 6, 6]


def _own_share(pid: int) -> float:
    """Of the data set's pages that a process has mapped, the part that it must answer for; 1 if none."""
    maps = Path(f"/proc/{pid}/smaps").read_text()
    part = re.search(r"/signfade-[^/\n]+/data-\d+/train_x\.npy\n(.*?)VmFlags", maps, re.DOTALL)
    kib = {name: int(size) for name, size in re.findall(r"(\w+): +(\d+) kB", part[1])} if part else {}
    return kib["Pss"] / kib["Rss"] if kib.get("Rss", 0) > 100 else 1.0


def test_a_killed_worker_is_replaced_and_its_run_goes_on(tmp_path: Path) -> None:
    runs = [planned(tmp_path / "once", rounds=9), planned(tmp_path / "next")]
    killed: list[int] = []
    retried: list[Event] = []

    def listen(event: Event) -> None:
        if event.kind == "retried":
            retried.append(event)
        if event.kind == "round" and event.round == 5 and not killed:
            killed.extend(children())
            os.kill(killed[0], signal.SIGKILL)

    outcome = run_all(runs, 1, on_event=listen)
    assert [folder.name for folder in outcome.finished] == ["once", "next"]
    assert outcome.failed == {}
    assert [(event.index, event.text.partition(";")[0]) for event in retried] == [
        (0, "its worker was killed by SIGKILL")
    ]
    assert len(killed) == 1
    again = (tmp_path / "once" / "log").read_text().splitlines()[1]
    assert int(again.split()[3]) in (3, 6)  # from its checkpoint, not from the start
    assert remains(runs[0].folder) == inline(runs[0], tmp_path / "inline")


def test_an_interrupt_saves_every_run_and_the_same_call_goes_on(tmp_path: Path) -> None:
    runs = [planned(tmp_path / name, rounds=200, seed=seed) for seed, name in enumerate("abc")]
    there: set[int] = set()

    def listen(event: Event) -> None:
        if event.kind == "round":
            there.add(event.index)
            if {0, 1} <= there and 3 not in there:  # once: a second interrupt would not wait for them to save
                there.add(3)
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match="stopped with 0 of 3 runs finished"):
        run_all(runs, 2, on_event=listen)
    assert signal.getsignal(signal.SIGINT) is before
    assert children() == []
    for run in runs[:2]:
        folder = RunFolder(run.folder)
        saved = folder.load_checkpoint()
        assert saved is not None
        assert saved.round == len(folder.read_metrics())
        assert 0 < saved.round < 200
    assert not runs[2].folder.exists()
    run_all(runs, 1)
    for index, run in enumerate(runs):
        assert remains(run.folder) == inline(run, tmp_path / "inline" / str(index))


SLOW = """
import time
from torch import nn

class Slow(nn.Linear):
    def forward(self, x):
        time.sleep(0.1)
        return super().forward(x)

def model(shape, classes):
    return nn.Sequential(nn.Flatten(), Slow(shape[0] * shape[1] * shape[2], classes))
"""


def test_workers_of_a_killed_parent_write_nothing_more(tmp_path: Path) -> None:
    """A round takes four tenths of a second at least: the kill comes in the midst of one."""
    (tmp_path / "slow.py").write_text(SLOW)
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pool_helpers import planned
from pathlib import Path
from signfade.experiments.workers.run_pool import run_all
home = Path({str(tmp_path)!r})
run = planned(home / "run", rounds=100000, checkpoint_every=2, model__name="slow.py:model")
run_all([run], 1, on_event=lambda event: print(event.kind, event.round, flush=True))
"""
    env = os.environ | {"TMPDIR": str(tmp_path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env, cwd=tmp_path
    )
    assert parent.stdout is not None
    with parent.stdout:
        assert any(line == "round 3\n" for line in parent.stdout)
        workers = children(parent.pid)
        assert len(list(tmp_path.glob("signfade-*/data-0"))) == 1
        written = (tmp_path / "run" / "metrics.jsonl").read_bytes()
        parent.kill()
        parent.wait()
    assert len(workers) == 1
    assert left_behind(workers) == []
    assert written.count(b"\n") == 3
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == written
    saved = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert saved == ["round-00000002.safetensors"]
    assert list(tmp_path.glob("signfade-*")) == []  # nor does its copy of the data stay


def test_a_worker_whose_orders_do_not_end_notices_before_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe may be held open by some other child of the parent: then its number tells."""
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    for parent, expected in ((os.getppid(), []), (os.getppid() + 1, [1])):
        _RunWorker(io.BytesIO(), io.BytesIO(), Path("/nowhere"), parent)._check_parent()
        assert left == expected


def test_what_the_dead_leave_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "MEMORY", tmp_path / "memory")
    (tmp_path / "memory").mkdir()
    code = (
        "import time; from pathlib import Path\n"
        "from signfade.experiments.workers.scratch import scratch_folder\n"
        f"with scratch_folder(Path({str(tmp_path / 'memory')!r})) as folder:\n"
        "    (folder / 'data').write_text('x'); print(folder, flush=True); time.sleep(600)"
    )
    dead, alive = (
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)
    )
    assert dead.stdout is not None
    assert alive.stdout is not None
    with dead.stdout, alive.stdout:
        left, kept = Path(dead.stdout.readline().strip()), Path(alive.stdout.readline().strip())
        dead.kill()
        dead.wait()
        assert (left / "data").exists()
        number, start = alive.pid, kept.name.split("-")[2]
        others = [tmp_path / "signfade-notes", tmp_path / f"signfade-{dead.pid}"]
        gone = tmp_path / f"signfade-{number}-{int(start) + 1}-{'0' * 16}"  # its number is somebody's now
        for folder in (*others, gone):
            folder.mkdir()
        link = tmp_path / f"signfade-{dead.pid}-1-{'1' * 16}"
        link.symlink_to(others[0])
        with scratch_folder() as own:
            assert own.stat().st_mode & 0o777 == 0o700
            assert not left.exists()
            assert not gone.exists()
            assert (kept / "data").exists()
            assert all(folder.exists() for folder in (*others, link, own))
            remove_dead(tmp_path)
            assert own.exists()
        alive.kill()
        alive.wait()
    remove_dead(tmp_path / "memory")
    assert not kept.exists()


def test_a_folder_whose_lock_is_held_is_kept_whatever_its_number_says(tmp_path: Path) -> None:
    """Processes of another container have numbers of their own."""
    folder = tmp_path / f"signfade-{2**22 + 1}-1-{'0' * 16}"
    folder.mkdir()
    lock = acquire(folder / ".lock")
    remove_dead(tmp_path)
    assert folder.exists()
    release(folder / ".lock", lock)
    remove_dead(tmp_path)
    assert not folder.exists()


def test_nothing_to_play_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = planned(tmp_path / "a", data__name="gaussian")
    train(run.settings, run.folder)
    monkeypatch.setattr(worker_pool.subprocess, "Popen", lambda *a, **k: pytest.fail("a process was started"))
    assert run_all([run], 4).finished == (run.folder,)
    other = planned(tmp_path / "a", data__name="gaussian", seed=1)
    with pytest.raises(FolderError, match="another config"):
        run_all([planned(tmp_path / "b"), other], 4)
    with pytest.raises(ValueError, match="jobs must be 1 or more; got 0"):
        run_all([run], 0)


def test_a_worker_that_cannot_start_is_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "_CODE", "raise SystemExit('no {scratch}'[:5] + 'luck')")
    outcome = run_all([planned(tmp_path / "a", data__name="gaussian")], 3)
    assert outcome.failed == {tmp_path / "a": "its worker ended with code 1: no /tluck, twice"}
