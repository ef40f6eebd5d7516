"""Worker processes: started, given jobs, replaced when they die, and stopped.

A worker reads pickled orders on its standard input and writes pickled answers to its standard output. The
order None asks it to leave; an input that ends without one means that its parent was killed.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

from signfade.simulation.allocator import tune_allocator

__all__ = ["Message", "WorkerPool", "worker_pipes"]

_GRACE = 10.0  # seconds for an idle worker to leave
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)
_CODE = (
    "import sys; sys.path[:] = {path!r}; "
    "from {module} import {function} as serve; serve({scratch!r}, {parent})"
)

T = TypeVar("T")


@dataclass(frozen=True)
class Message(Generic[T]):
    """What a worker says about its job: an answer, or None and how the worker died."""

    job: int
    answer: T | None
    death: str = ""


class WorkerPool(Generic[T]):
    """Processes of one thread each; a job is known by its number.

    A worker calls the function `serve`, given as `module:function`, with the parent's folder `scratch` and
    process number. `first_order`, if any, is sent to every new worker before its first job.
    """

    def __init__(self, serve: str, scratch: Path, first_order: object = None) -> None:
        self._serve, self._scratch, self._first_order = serve, scratch, first_order
        self._inbox: queue.SimpleQueue[tuple[_Worker[T] | None, T | None]] = queue.SimpleQueue()
        self._idle: list[_Worker[T]] = []
        self._busy: dict[_Worker[T], int] = {}

    @property
    def busy(self) -> int:
        """Number of workers that have a job."""
        return len(self._busy)

    def start(self, count: int) -> None:
        """Start idle workers ahead of their jobs."""
        self._idle += [self._new() for _ in range(count)]

    def submit(self, job: int, order: object) -> None:
        """Give a job to an idle worker, or to a new one."""
        worker = self._idle.pop() if self._idle else self._new()
        self._busy[worker] = job
        worker.send(order)

    def wait(self) -> Message[T] | None:
        """Return the next message about a job; None after `wake`. A dead worker is replaced when needed."""
        while True:
            worker, answer = self._inbox.get()
            if worker is None:
                return None
            if answer is not None:
                return Message(self._busy[worker], answer)
            death = worker.death()
            worker.leave()
            if worker in self._idle:
                self._idle.remove(worker)
            else:
                return Message(self._busy.pop(worker), None, death)

    def release(self, job: int) -> None:
        """Mark a job as done; its worker is idle again."""
        worker = next(worker for worker, current in self._busy.items() if current == job)
        del self._busy[worker]
        self._idle.append(worker)

    def wake(self) -> None:
        """Make `wait` return None; safe to call from a signal handler."""
        self._inbox.put((None, None))

    def stop(self, *, kill: bool) -> None:
        """Ask the workers that have a job to save it and leave, or kill them."""
        for worker in self._busy:
            worker.kill() if kill else worker.close()

    def close(self, *, kill: bool = False) -> None:
        """Stop all workers and wait until they are gone."""
        workers = [*self._busy, *self._idle]
        for worker in workers:
            worker.kill() if kill else worker.close()
        for worker in workers:
            worker.leave()

    def _new(self) -> _Worker[T]:
        worker = _Worker(self._serve, self._inbox, self._scratch)
        if self._first_order is not None:
            worker.send(self._first_order)
        return worker


class _Worker(Generic[T]):
    """One process, and the thread that reads its answers into the inbox; None says that it has ended."""

    def __init__(
        self, serve: str, inbox: queue.SimpleQueue[tuple[_Worker[T] | None, T | None]], scratch: Path
    ) -> None:
        module, _, function = serve.partition(":")
        code = _CODE.format(
            path=sys.path, module=module, function=function, scratch=str(scratch), parent=os.getpid()
        )
        self._errors = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115
        self._popen = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | _ONE_THREAD,
            start_new_session=True,  # the terminal's Ctrl-C is ours to pass on
        )
        self._inbox = inbox
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                self._inbox.put((self, pickle.load(self._popen.stdout)))
        self._popen.wait()
        self._inbox.put((self, None))

    def send(self, order: object) -> None:
        assert self._popen.stdin is not None
        with suppress(OSError):  # a dead worker is noticed by its thread
            pickle.dump(order, self._popen.stdin)
            self._popen.stdin.flush()

    def close(self) -> None:
        """Ask it to save its job and to leave."""
        assert self._popen.stdin is not None
        if not self._popen.stdin.closed:
            self.send(None)
            with suppress(OSError):
                self._popen.stdin.close()

    def kill(self) -> None:
        self._popen.kill()

    def leave(self) -> None:
        """Wait until it is gone; kill it if that takes too long."""
        self.close()
        try:
            self._popen.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._thread.join()
        if self._popen.stdout is not None:
            self._popen.stdout.close()
        self._errors.close()

    def death(self) -> str:
        """Say how it died."""
        code = self._popen.returncode
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        self._errors.seek(0)
        *_, last = self._errors.read().decode(errors="replace").strip().splitlines() or [""]
        return f"ended with code {code}{': ' if last else ''}{last}"


def worker_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Prepare this process as a worker; return where its orders come from and where its answers go."""
    tune_allocator()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a model or a rule prints must not get between the answers
    return sys.stdin.buffer, answers
