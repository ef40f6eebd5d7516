"""What the tests of worker pools share: the processes we have, and what runs leave behind."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from signfade.experiments.config import resolve
from signfade.experiments.training import PlannedRun, train


def children(parent: int | str = "self") -> list[int]:
    """The process numbers of a process's children, from the kernel; helpers of multiprocessing aside."""
    tasks = Path(f"/proc/{parent}/task")
    found = [int(pid) for task in tasks.glob("*/children") for pid in _read(task).split()]
    return [pid for pid in found if "multiprocessing" not in _read(Path(f"/proc/{pid}/cmdline"))]


def _read(file: Path) -> str:
    """What a file of the kernel says of a process or a thread; nothing once that has ended."""
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def left_behind(wanted: list[int], seconds: float = 10.0) -> list[int]:
    """Those of `wanted` that still run after some patience; a zombie does not run."""

    def runs(pid: int) -> bool:
        state = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
        return bool(state) and state[0] != "Z"

    until = time.monotonic() + seconds
    while time.monotonic() < until and any(map(runs, wanted)):
        time.sleep(0.05)
    return [pid for pid in wanted if runs(pid)]


def planned(folder: Path, **keys: Any) -> PlannedRun:
    """A short run of digits; `server__learning_rate` stands for server.learning_rate."""
    base = {"rounds": 6, "data.devices": 4, "data.batch": 8, "model.name": "linear", "checkpoint_every": 3}
    base |= {"eval.every": 3}
    return PlannedRun(resolve(base | {key.replace("__", "."): value for key, value in keys.items()}), folder)


def remains(folder: Path) -> dict[str, Any]:
    """What a finished run leaves: config, metrics, summary, the last checkpoint; seconds aside."""
    last = max((folder / "checkpoints").iterdir())
    files: dict[str, Any] = {
        file.name: file.read_bytes() for file in (*folder.iterdir(), last) if file.is_file()
    }
    del files["log"]
    lines = [json.loads(line) for line in files["metrics.jsonl"].splitlines()]
    summary = json.loads(files["summary.json"])
    for record in (*lines, summary):
        del record["seconds"], record["crc32"]  # the checksum is that of the seconds too
    return files | {"metrics.jsonl": lines, "summary.json": summary}


def inline(run: PlannedRun, folder: Path) -> dict[str, Any]:
    """What the run leaves when it is done in this process."""
    train(run.settings, folder)
    return remains(folder)


@pytest.fixture
def no_process_stays() -> Any:
    """Fail if a process outlives the test."""
    before = set(children())
    yield
    assert left_behind([pid for pid in children() if pid not in before]) == []


@pytest.fixture
def one_at_a_time(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Wait until no other test that asks for this is running, whichever worker of pytest-xdist it is on."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent  # a worker's own folder is in that of all
    with open(place / "alone.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
