"""A crew of processes on this machine: weights and gradients lie in memory that all of them map."""

from __future__ import annotations

import os
import pickle
import queue
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from signfade.data import load
from signfade.experiments.train import RunFailed
from signfade.experiments.workers.child import Child, Inbox
from signfade.experiments.workers.scratch import MEMORY, scratch_folder
from signfade.experiments.workers.sharding import Part, ShardedTask, Share, compute
from signfade.experiments.workers.shared_data import Shared, data_key, open_shared, share
from signfade.kernels.threads import available_threads
from signfade.settings import RunSettings
from signfade.simulation.allocator import tune_allocator
from signfade.simulation.task import Task
from signfade.simulation.tasks import make_task

__all__ = ["ProcessCrew", "serve", "sharded"]

_SERVE = "signfade.experiments.workers.shard_pool:serve"
_DEATHS = 2  # of workers in one round, before it is given up
_MOST = 1024  # processes of one machine


@dataclass(frozen=True)
class _Start:
    """The first order: which task."""

    settings: RunSettings
    data: Shared | None


@dataclass(frozen=True)
class _Work:
    """A later one: a share, and the files of the weights `[M]` and of all gradients `[rows, M]`."""

    share: Share
    weights: Path
    gradients: Path
    rows: int
    size: int


@contextmanager
def sharded(shards: int) -> Iterator[Callable[[RunSettings], Task]]:
    """Have processes that compute gradients meanwhile.

    Args:
        shards: number of processes, each with one thread.

    Yields:
        What makes the task of a run, for `train`: its gradients are computed by the processes.

    Example:
        >>> from signfade.experiments.config import resolve
        >>> settings = resolve({"data.name": "gaussian", "data.devices": 3, "data.size": 5})
        >>> with sharded(2) as make:
        ...     local = make(settings).local_gradients(torch.zeros(5), torch.arange(3).numpy(), round=0)
        >>> tuple(local.gradients.shape)
        (3, 5)
    """
    if shards < 1:
        raise ValueError(f"shards must be 1 or more; got {shards}")
    if shards > _MOST:
        raise ValueError(f"shards must be at most {_MOST}; got {shards}")
    memory = MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 1 << 31 else None
    with scratch_folder(memory) as scratch:
        crews: list[ProcessCrew] = []

        def make(settings: RunSettings) -> Task:
            key = data_key(settings)
            data = None if key is None else share(load(*key), scratch / f"data-{len(crews)}")
            threads = settings.threads or available_threads()  # for the evaluation, which stays here
            task = make_task(settings, threads, None if data is None else open_shared(data))
            size = min(shards, settings.data.devices)  # one without a device has nothing to do
            crews.append(ProcessCrew(size, settings, data, scratch / f"crew-{len(crews)}"))
            return ShardedTask(task, crews[-1])

        try:
            yield make
        finally:
            for crew in crews:
                crew.close()


class ProcessCrew:
    """Processes that hold one task; one that dies is replaced, and its share computed again.

    Args:
        size: number of processes.
        settings: of the run.
        data: its labelled set, if it has one.
        folder: for the shared files; made.
    """

    def __init__(self, size: int, settings: RunSettings, data: Shared | None, folder: Path) -> None:
        self.size = size
        self._start = _Start(settings, data)
        self._folder = folder
        folder.mkdir()
        self._inbox: Inbox[Part | str] = queue.SimpleQueue()
        self._idle = [self._hire() for _ in range(size)]
        self._busy: dict[Child[Part | str], _Work] = {}
        self._gone: list[Child[Part | str]] = []
        self._weights: Tensor | None = None
        self._area: Tensor | None = None

    def _hire(self) -> Child[Part | str]:
        child = Child(_SERVE, self._inbox, self._folder.parent)
        child.send(self._start)
        return child

    def compute(self, weights: Tensor, shares: Sequence[Share], gradients: Tensor) -> list[Part]:
        """Compute all shares and put the gradients in the rows of `gradients`.

        Raises:
            ValueError: what a device's computation raised.
            RunFailed: workers die again and again.
        """
        rows, size = gradients.shape
        if self._weights is None or self._area is None or len(self._area) < rows:
            self._weights = _map(self._folder / "weights", size)
            self._area = _map(self._folder / f"gradients-{rows}", rows * size).view(rows, size)
        self._weights.copy_(weights)
        area = self._folder / f"gradients-{len(self._area)}"
        for one in shares:
            self._give(self._idle.pop(), _Work(one, self._folder / "weights", area, len(self._area), size))
        parts: list[Part] = []
        deaths = 0
        while self._busy:
            child, answer = self._inbox.get()
            if child in self._idle:  # it died with nothing to do
                self._idle.remove(child)
                self._gone.append(child)
                self._idle.append(self._hire())
                continue
            assert child is not None
            work = self._busy.pop(child)
            if isinstance(answer, Part):
                parts.append(answer)
                self._idle.append(child)
            elif isinstance(answer, str):
                self._idle.append(child)
                raise ValueError(answer)
            else:
                deaths += 1
                self._gone.append(child)
                if deaths > _DEATHS:
                    raise RunFailed(f"a shard's worker {child.epitaph()}, again and again")
                self._give(self._hire(), work)
        gradients.copy_(self._area[:rows])
        return parts

    def _give(self, child: Child[Part | str], work: _Work) -> None:
        self._busy[child] = work
        child.send(work)

    def close(self) -> None:
        """End the processes; they have nothing to save."""
        children = [*self._busy, *self._idle, *self._gone]
        for child in children:
            child.kill()
        for child in children:
            child.leave()


def _map(path: Path, size: int) -> Tensor:
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.float32)


def serve(scratch: str, parent: int) -> None:
    """Be a worker of a crew: orders on standard input, answers on standard output.

    Args:
        scratch: folder of the parent's shared files, to be removed should the parent be killed.
        parent: its process number; nothing is written here that outlives it.
    """
    tune_allocator()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a model prints must not get between the answers
    try:
        start: _Start = pickle.load(sys.stdin.buffer)
        task = make_task(start.settings, 1, None if start.data is None else open_shared(start.data))
        while True:
            work: _Work | None = pickle.load(sys.stdin.buffer)
            if work is None:
                return
            pickle.dump(_answer(task, work), answers)
            answers.flush()
    except (EOFError, BrokenPipeError):  # who ends us in peace kills us: our parent has been killed
        shutil.rmtree(scratch, ignore_errors=True)


def _answer(task: Task, work: _Work) -> Part | str:
    rows = slice(work.share.first, work.share.first + len(work.share.devices))
    area = _map(work.gradients, work.rows * work.size).view(work.rows, work.size)
    try:
        return compute(task, work.share, _map(work.weights, work.size), area[rows])
    except ValueError as error:
        return str(error)
