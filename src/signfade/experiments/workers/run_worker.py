"""A worker process that does one run after another; see `worker_pool` for how it gets its orders.

When its parent is killed, it leaves at once and writes nothing more, so that no two processes write to a run
that somebody resumes.
"""

from __future__ import annotations

import os
import pickle
import queue
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from signfade.data import Dataset
from signfade.experiments.planned_runs import PlannedRun
from signfade.experiments.stopping import Interrupted
from signfade.experiments.training import train
from signfade.experiments.workers.shared_data import Shared, open_shared
from signfade.experiments.workers.worker_pool import worker_pipes
from signfade.simulation.run import RunFailed, make_task

__all__ = ["Answer", "Job", "ending", "serve"]


@dataclass(frozen=True)
class Job:
    """A run, and where its data is already."""

    run: PlannedRun
    data: Shared | None


@dataclass(frozen=True)
class Answer:
    """What became of a run, or a round of it; `kind` is an event's, or `refused` or `interrupted`."""

    kind: str
    text: str = ""
    record: dict[str, Any] | None = None


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


class _Worker:
    def __init__(self, orders: BinaryIO, answers: BinaryIO, scratch: Path, parent: int) -> None:
        self._orders, self._answers, self._scratch, self._parent = orders, answers, scratch, parent
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
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

    def _do(self, job: Job) -> None:
        def run() -> None:
            train(
                job.run.settings,
                job.run.folder,
                resume=True,
                on_round=lambda record: self._send(Answer("round", record=record)),
                on_note=lambda text: self._send(Answer("noted", text)),
                make_task=lambda settings: make_task(settings, 1, self._dataset(job.data)),
                on_write=self._check_parent,
            )

        self._send(ending(run))

    def _dataset(self, shared: Shared | None) -> Dataset | None:
        if shared is None:
            return None
        if shared.folder not in self._data:
            self._data[shared.folder] = open_shared(shared)
        return self._data[shared.folder]

    def _send(self, answer: Answer) -> None:
        try:
            pickle.dump(answer, self._answers)
            self._answers.flush()
        except BrokenPipeError:
            self._abandon()


def serve(scratch: str, parent: int) -> None:
    """Be a worker.

    Args:
        scratch: folder of the parent's shared files, to be removed should the parent be killed.
        parent: its process number.
    """
    _Worker(*worker_pipes(), Path(scratch), parent).serve()
