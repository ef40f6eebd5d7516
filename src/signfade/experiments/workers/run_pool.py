"""Many runs on one machine: J worker processes of one thread each, and one copy of the data between them.

A worker does whole runs, one after another. Each run has its own folder and its own keyed streams, so the
results are those of doing them in this process. A worker that dies is replaced, and its run continues from
its last checkpoint.
"""

from __future__ import annotations

import os
import pickle
import queue
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Protocol

from signfade.data import Dataset
from signfade.experiments.stopping import Interrupted, on_stop_signal
from signfade.experiments.training import PlannedRun, train
from signfade.experiments.workers.job_queue import JobQueue, OnEvent, Outcome
from signfade.experiments.workers.scratch import scratch_folder
from signfade.experiments.workers.shared_data import Shared, data_key, open_shared, share_all
from signfade.experiments.workers.worker_pool import WorkerPool, worker_pipes
from signfade.kernels.compiling import tell_compiling
from signfade.kernels.threads import available_threads
from signfade.simulation.run import RunFailed, make_task

__all__ = ["Answer", "RunAll", "choose_engine", "ending", "run_all", "serve"]


class RunAll(Protocol):
    """Does runs, each in its folder, `jobs` at a time (None: as many as there are cores)."""

    def __call__(
        self, runs: Sequence[PlannedRun], jobs: int | None, *, on_event: OnEvent | None = None
    ) -> Outcome:
        """Return which runs are finished, and why the others are not."""


@dataclass(frozen=True)
class _Job:
    """A run, and where its data is already."""

    run: PlannedRun
    data: Shared | None


@dataclass(frozen=True)
class Answer:
    """What became of a run, or a round of it; `kind` is an event's, or `refused` or `interrupted`."""

    kind: str
    text: str = ""
    record: dict[str, Any] | None = None


def choose_engine(name: str, address: str | None = None) -> RunAll:
    """Return the function that does many runs: on processes of this machine, or on a Ray cluster.

    Without an `address`, Ray starts a cluster on this machine.

    Example:
        >>> choose_engine("threads")
        Traceback (most recent call last):
        ValueError: engine must be process or ray; got 'threads'
    """
    if name not in ("process", "ray"):
        raise ValueError(f"engine must be process or ray; got {name!r}")
    if name == "process":
        if address is not None:
            raise ValueError(f"address needs the engine ray; got {address!r} with process")
        return lambda runs, jobs, *, on_event=None: run_all(
            runs, jobs or available_threads(), on_event=on_event
        )
    from signfade.integrations.ray import runs as ray_runs  # late: Ray is optional

    return lambda runs, jobs, *, on_event=None: ray_runs.run_all(
        runs, jobs, on_event=on_event, address=address
    )


def run_all(runs: Sequence[PlannedRun], jobs: int, *, on_event: OnEvent | None = None) -> Outcome:
    """Do runs, each in its own folder, on `jobs` worker processes of one thread each.

    Finished runs are skipped and unfinished ones continued, as `train` with `resume` does. A run that fails
    does not stop the others. A run whose worker dies is retried once, then marked as failed. `on_event` is
    called in the caller's thread. A ValueError means that nothing has been computed; after SIGINT or SIGTERM,
    `Interrupted` says that each run is saved and no process is left.

    Example:
        >>> import tempfile
        >>> from signfade.experiments.config import load
        >>> tiny = load(None, ["rounds=2", "data.name=gaussian", "data.size=100"])
        >>> home = Path(tempfile.mkdtemp())
        >>> outcome = run_all([PlannedRun(tiny, home / "a"), PlannedRun(tiny, home / "b")], jobs=1)
        >>> [folder.name for folder in outcome.finished], outcome.failed
        (['a', 'b'], {})
    """
    if jobs < 1:
        raise ValueError(f"jobs must be 1 or more; got {jobs}")
    waiting = JobQueue(runs, on_event)
    if waiting.waiting:
        with scratch_folder() as scratch:
            pool: WorkerPool[Answer] = WorkerPool(f"{__name__}:serve", scratch)
            with on_stop_signal(pool.wake):
                try:
                    _work_off(waiting, pool, min(jobs, len(waiting.waiting)), scratch)
                finally:
                    pool.close()
    return waiting.outcome()


def _work_off(queue: JobQueue, pool: WorkerPool[Answer], jobs: int, scratch: Path) -> None:
    """Keep `jobs` workers busy until the queue is empty or the user asks to stop."""
    shared = share_all((queue.runs[index].settings for index in queue.waiting), scratch)
    while pool.busy or (queue.waiting and not queue.stops):
        while queue.waiting and pool.busy < jobs and not queue.stops:
            index = queue.next()
            run = queue.runs[index]
            pool.submit(index, _Job(run, shared.get(data_key(run.settings))))
        message = pool.wait()
        if message is None:  # asked once, workers finish and save their round; asked again, they are killed
            queue.stops += 1
            pool.stop(kill=queue.stops > 1)
        elif message.answer is None:
            queue.died(message.job, message.death)
        elif message.answer.record is not None:
            queue.round(message.job, message.answer.record)
        elif message.answer.kind == "noted":
            queue.note(message.job, message.answer.text)
        else:
            pool.release(message.job)
            queue.settle(message.job, message.answer.kind, message.answer.text)


def ending(do: Callable[[], object]) -> Answer:
    """Do a run and return how it ended."""
    try:
        do()
    except Interrupted as error:
        return Answer("interrupted", str(error))
    except RunFailed as error:
        return Answer("failed", str(error))
    except ValueError as error:
        return Answer("refused", str(error))
    except Exception as error:  # the other runs have nothing to do with it
        return Answer("failed", f"{type(error).__name__}: {error}")
    return Answer("finished")


def serve(scratch: str, parent: int) -> None:
    """Be a worker of the process number `parent`, whose shared files are in `scratch`."""
    worker = _RunWorker(*worker_pipes(), Path(scratch), parent)
    with tell_compiling(lambda text: worker.send(Answer("noted", text))):
        worker.serve()


class _RunWorker:
    """Does one run after another.

    When its parent is killed, it leaves at once and writes nothing more, so that no two processes write to a
    run that somebody resumes.
    """

    def __init__(self, orders: BinaryIO, answers: BinaryIO, scratch: Path, parent: int) -> None:
        self._orders, self._answers, self._scratch, self._parent = orders, answers, scratch, parent
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._busy = self._closed = False
        self._data: dict[Path, Dataset] = {}

    def serve(self) -> None:
        """Do runs until there are no more orders."""
        threading.Thread(target=self._listen, daemon=True).start()
        while (job := self._jobs.get()) is not None:
            with self._lock:
                if self._closed:
                    break
                self._busy = True
            self._do(job)
            with self._lock:
                self._busy = False

    def _listen(self) -> None:
        """Read orders; at the last one stop the current run as a person would."""
        try:
            while (order := pickle.load(self._orders)) is not None:
                self._jobs.put(order)
        except (EOFError, OSError, pickle.UnpicklingError):
            self._abandon()
        with self._lock:
            self._closed = True
            if self._busy:
                os.kill(os.getpid(), signal.SIGTERM)
        self._jobs.put(None)

    def _check_parent(self) -> None:
        """Leave before something is written after the parent is gone."""
        if os.getppid() != self._parent:
            self._abandon()

    def _abandon(self) -> NoReturn:
        """Leave at once, as if killed, and remove the files of the parent that is gone."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        os._exit(1)

    def _do(self, job: _Job) -> None:
        def run() -> None:
            train(
                job.run.settings,
                job.run.folder,
                resume=True,
                on_round=lambda record: self.send(Answer("round", record=record)),
                on_note=lambda text: self.send(Answer("noted", text)),
                make_task=lambda settings: make_task(settings, 1, self._dataset(job.data)),
                on_write=self._check_parent,
            )

        self.send(ending(run))

    def _dataset(self, shared: Shared | None) -> Dataset | None:
        if shared is None:
            return None
        if shared.folder not in self._data:
            self._data[shared.folder] = open_shared(shared)
        return self._data[shared.folder]

    def send(self, answer: Answer) -> None:
        """Answer about the current run."""
        try:
            pickle.dump(answer, self._answers)
            self._answers.flush()
        except BrokenPipeError:
            self._abandon()
