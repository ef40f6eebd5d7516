"""A process that plays one run after another.

It is told runs on its standard input and answers on its standard output, pickled; both belong to the process
that started it. The order None lets it save the run in hand and leave. Where its input ends without one, its
parent was killed: it leaves at once and writes nothing more, so that whoever resumes the run has it alone.
"""

from __future__ import annotations

import os
import pickle
import queue
import shutil
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from signfade.data import Dataset
from signfade.experiments.train import Interrupted, PlannedRun, RunFailed, train
from signfade.experiments.workers.shared_data import Shared, open_shared
from signfade.simulation.allocator import tune_allocator
from signfade.simulation.tasks import make_task

__all__ = ["Answer", "Job", "serve"]


@dataclass(frozen=True)
class Job:
    """A run to play, and where its data is already."""

    index: int
    run: PlannedRun
    data: Shared | None


@dataclass(frozen=True)
class Answer:
    """What became of a run, or a round of it; `kind` is an event's, or `refused` or `interrupted`."""

    kind: str
    index: int
    text: str = ""
    record: dict[str, Any] | None = None


class _Worker:
    def __init__(self, orders: BinaryIO, answers: BinaryIO, scratch: Path, parent: int) -> None:
        self._orders, self._answers, self._scratch, self._parent = orders, answers, scratch, parent
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._busy = self._closed = False
        self._data: dict[Path, Dataset] = {}

    def serve(self) -> None:
        """Play until there are no more orders."""
        threading.Thread(target=self._listen, daemon=True).start()
        while (job := self._jobs.get()) is not None:
            with self._lock:
                if self._closed:
                    break
                self._busy = True
            self._play(job)
            with self._lock:
                self._busy = False

    def _listen(self) -> None:
        """Take orders; at the last have the run in hand stopped as a person would."""
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
        """Go before something is written for nobody."""
        if os.getppid() != self._parent:
            self._abandon()

    def _abandon(self) -> NoReturn:
        """Leave at once, as if killed: whoever started us is gone. Tidy up in its place."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        os._exit(1)

    def _play(self, job: Job) -> None:
        try:
            train(
                job.run.settings,
                job.run.folder,
                resume=True,
                on_round=lambda record: self._tell(Answer("round", job.index, record=record)),
                on_note=lambda text: self._tell(Answer("noted", job.index, text)),
                make_task=lambda settings: make_task(settings, 1, self._dataset(job.data)),
                on_write=self._check_parent,
            )
        except Interrupted as error:
            answer = Answer("interrupted", job.index, str(error))
        except RunFailed as error:
            answer = Answer("failed", job.index, str(error))
        except ValueError as error:
            answer = Answer("refused", job.index, str(error))
        except Exception as error:  # the other runs have nothing to do with it
            answer = Answer("failed", job.index, f"{type(error).__name__}: {error}")
        else:
            answer = Answer("finished", job.index)
        self._tell(answer)

    def _dataset(self, shared: Shared | None) -> Dataset | None:
        if shared is None:
            return None
        if shared.folder not in self._data:
            self._data[shared.folder] = open_shared(shared)
        return self._data[shared.folder]

    def _tell(self, answer: Answer) -> None:
        try:
            pickle.dump(answer, self._answers)
            self._answers.flush()
        except BrokenPipeError:
            self._abandon()


def serve(scratch: str, parent: int) -> None:
    """Be a worker: play what standard input says, and answer on standard output.

    Args:
        scratch: folder of the parent's shared files, to be removed should the parent be killed.
        parent: its process number.
    """
    tune_allocator()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a model or a rule prints must not get between the answers
    _Worker(sys.stdin.buffer, answers, Path(scratch), parent).serve()
