"""Many runs on a Ray cluster: one task per run, one thread each, one copy of the data per machine.

All machines must see the folder of the runs, under the same path: there a run keeps its metrics and its
checkpoints, and there its progress is read. So a run whose worker dies continues wherever there is room.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from signfade import __version__
from signfade.data import Dataset, load
from signfade.experiments.metrics import parse_json
from signfade.experiments.stopping import on_stop_signal
from signfade.experiments.training import PlannedRun, train
from signfade.experiments.workers.job_queue import JobQueue, OnEvent, Outcome
from signfade.experiments.workers.run_pool import ending
from signfade.experiments.workers.shared_data import DataKey, data_key
from signfade.simulation.allocator import tune_allocator
from signfade.simulation.run import RunFailed, make_task

__all__ = ["cluster", "run_all"]

_POLL = 0.5  # seconds between two checks of the runs' progress
_STORE = 1 << 28  # bytes of a local cluster's object store, besides the data sets
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


def run_all(
    runs: Sequence[PlannedRun],
    jobs: int | None = None,
    *,
    on_event: OnEvent | None = None,
    address: str | None = None,
) -> Outcome:
    """Do runs, each in its folder, on a Ray cluster; otherwise as `run_pool.run_all` does.

    Args:
        runs: Settings and folder of each; folders differ, and all machines see them.
        jobs: Runs at a time; None takes as many as the cluster has cores.
        on_event: Called in the caller's thread with every event, but not with every round.
        address: Of the cluster, as `ray.init` takes it; None starts one on this machine and ends it.

    Raises:
        ValueError: Ray is not installed or not there, or a folder holds another run.
        Interrupted: SIGINT or SIGTERM; each run is saved.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs must be 1 or more; got {jobs}")
    queue = JobQueue(runs, on_event)
    if queue.waiting:
        data = _load_all(queue)
        size = sum(array.nbytes for parts in data.values() for array in parts["arrays"].values())
        with cluster(address, jobs, _STORE + 2 * size) as ray:
            most = int(ray.cluster_resources().get("CPU", 1))
            _Tasks(ray, queue, jobs or most, data).run()
    return queue.outcome()


@contextmanager
def cluster(address: str | None, cores: int | None, store: int) -> Iterator[ModuleType]:
    """Connect to a Ray cluster: the caller's own if there is one, the one at `address`, or a new one.

    A new cluster has so many `cores`, by default those of the machine, and `store` bytes of object store.

    Raises:
        ValueError: Ray is not installed, or there is no cluster at the address, or another one in use.
        RunFailed: A new one does not come up.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray 2.5x warns at every start
    try:
        import ray
    except ImportError as error:
        raise ValueError("the engine ray needs Ray; in the checkout: pip install -e '.[ray]'") from error
    if ray.is_initialized():
        if address is not None:
            raise ValueError(f"this process has a Ray cluster already; leave out the address {address!r}")
        yield ray
        return
    with on_stop_signal(lambda: None):  # Ray takes SIGTERM for itself and does not give it back
        if address is None:
            _start(ray, cores, store)
        else:
            _connect(ray, address)
        try:
            yield ray
        finally:
            ray.shutdown()


def _connect(ray: ModuleType, address: str) -> None:
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    try:
        if colon and port.isdecimal():  # Ray itself would try for five minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address, **_QUIET)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise ValueError(f"no Ray cluster at {address}: {str(error).splitlines()[0]}") from error


def _start(ray: ModuleType, cores: int | None, store: int) -> None:
    new: dict[str, Any] = {"num_cpus": cores, "object_store_memory": store, "include_dashboard": False}
    new["_system_config"] = {"worker_niceness": 0}  # as nice as we are, not 15 more
    for attempt in (1, 2):  # it has 30 seconds to come up, which a busy machine may need twice
        try:
            ray.init("local", **new, **_QUIET)
            return
        except Exception as error:  # Ray raises just that
            ray.shutdown()
            if attempt == 2:
                raise RunFailed(f"no Ray cluster can be started here: {error}") from error


def _load_all(queue: JobQueue) -> dict[DataKey, dict[str, Any]]:
    """Load every data set that the runs name as arrays, which Ray keeps once per machine.

    A data set that cannot be loaded is reported by its runs.
    """
    found: dict[DataKey, dict[str, Any]] = {}
    for key in {data_key(queue.runs[index].settings) for index in queue.waiting}:
        if key is not None:
            with suppress(ValueError):
                dataset = load(*key)
                found[key] = {
                    "arrays": dataset.arrays(),
                    "classes": dataset.classes,
                    "name": dataset.name,
                }
    return found


class _Tasks:
    """Which task does which run."""

    def __init__(
        self, ray: ModuleType, queue: JobQueue, jobs: int, data: dict[DataKey, dict[str, Any]]
    ) -> None:
        self._ray, self._queue, self._jobs = ray, queue, jobs
        self._data = {key: ray.put(parts) for key, parts in data.items()}
        self._task = ray.remote(num_cpus=1, max_retries=0, max_calls=0)(_run)
        self._running: dict[Any, int] = {}
        self._done: dict[int, int] = {}  # rounds, as last seen
        self._stops = 0

    def _ask(self) -> None:
        self._stops += 1

    def run(self) -> None:
        """Work off the queue."""
        queue = self._queue
        home = Path(os.path.commonpath([run.folder.absolute().parent for run in queue.runs]))
        with on_stop_signal(self._ask), _marker(home) as marker:
            while self._running or (queue.waiting and not queue.stops):
                while queue.waiting and len(self._running) < self._jobs and not queue.stops:
                    self._submit(queue.next(), marker)
                ready, _ = self._ray.wait(list(self._running), timeout=_POLL)
                for reference in ready:
                    self._take(reference)
                self._report_rounds()
                if (
                    self._stops > queue.stops
                ):  # asked once, tasks save their round; asked again, they are killed
                    queue.stops = self._stops
                    for reference in self._running:
                        self._ray.cancel(reference, force=self._stops > 1)

    def _submit(self, index: int, marker: Path) -> None:
        run = self._queue.runs[index]
        key = data_key(run.settings)
        data = None if key is None else self._data.get(key)
        planned = PlannedRun(run.settings, run.folder.absolute())
        self._running[self._task.remote(planned, data, marker, os.getcwd(), __version__)] = index

    def _take(self, reference: Any) -> None:
        """Deal with a task that has ended."""
        errors = self._ray.exceptions
        index = self._running.pop(reference)
        try:
            kind, text, notes = self._ray.get(reference)
        except (errors.TaskCancelledError, errors.RayTaskError) as error:
            stopped = isinstance(error, errors.TaskCancelledError) or self._queue.stops
            *_, reason = str(error).strip().splitlines() or [type(error).__name__]
            self._queue.settle(index, "interrupted" if stopped else "failed", reason)
        except errors.RayError as error:  # its process, its machine or its memory is gone
            self._queue.died(index, f"died ({type(error).__name__})")
        else:
            for note in notes:
                self._queue.note(index, note)
            self._queue.settle(index, kind, text)

    def _report_rounds(self) -> None:
        """Report new rounds, as far as they are written."""
        for index in self._running.values():
            record = _last_record(self._queue.runs[index].folder)
            if record is not None and record["round"] != self._done.get(index):
                self._done[index] = record["round"]
                self._queue.round(index, record)


@contextmanager
def _marker(folder: Path) -> Iterator[Path]:
    """Write a file by which other machines can tell that they see this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    marker = folder / f".signfade-{uuid.uuid4().hex}"
    marker.touch()
    try:
        yield marker
    finally:
        marker.unlink(missing_ok=True)


def _last_record(folder: Path) -> dict[str, Any] | None:
    """Return the last whole line of metrics.jsonl; None where there is none to be read."""
    with suppress(OSError, ValueError), open(folder / "metrics.jsonl", "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        lines = file.read().split(b"\n")
        if len(lines) > 1:
            record: dict[str, Any] = parse_json(lines[-2])
            record.pop("crc32", None)
            return record
    return None


def _run(
    run: PlannedRun, data: dict[str, Any] | None, marker: Path, home: str, version: str
) -> tuple[str, str, list[str]]:
    """Do one run in a worker of the cluster; return how it ended, why, and its notes."""
    here = socket.gethostname()
    if version != __version__:
        return "refused", f"{here} has signfade {__version__}, not {version}", []
    if not marker.exists():
        return "refused", f"{here} does not see {marker.parent}; --out must be where all machines see it", []
    notes: list[str] = []
    torch.set_num_threads(1)
    tune_allocator()

    def do() -> None:
        with chdir(home if os.path.isdir(home) else "."):  # a file.py:function is relative to it
            train(
                run.settings,
                run.folder,
                resume=True,
                on_note=notes.append,
                make_task=lambda settings: make_task(settings, 1, _dataset(data)),
            )

    answer = ending(do)
    return answer.kind, answer.text, notes


def _dataset(data: dict[str, Any] | None) -> Dataset | None:
    """Return the data set over the object store's memory, which is read-only and only read."""
    if data is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's about memory that cannot be written
        return Dataset.from_arrays(**data)
