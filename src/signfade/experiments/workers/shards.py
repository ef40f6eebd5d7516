"""One large run over several worker processes: each computes the gradients of its share of the devices.

Only the gradients are computed elsewhere, in memory that all processes map. Everything after them (sums,
bits, the air, the server) is done here as always, in the same chunks: the split changes no byte of a run.
"""

from __future__ import annotations

import itertools
import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from signfade.data import load
from signfade.experiments.workers.scratch import MEMORY, scratch_folder
from signfade.experiments.workers.shared_data import Shared, data_key, open_shared, share
from signfade.experiments.workers.worker_pool import WorkerPool, worker_pipes
from signfade.kernels.threads import available_threads
from signfade.settings import RunSettings
from signfade.simulation.run import RunFailed, make_task
from signfade.simulation.synthetic import RegressionTask
from signfade.simulation.task import Devices, LocalGradients, Task, merge_buffers

__all__ = ["Part", "ShardPool", "ShardedTask", "Share", "compute", "cut", "serve", "sharded"]

_DEATHS = 2  # of workers in one round, before the run fails
_MOST = 1024  # processes of one machine


@dataclass(frozen=True)
class Share:
    """What a worker has to compute in a round: gradients of these devices, as rows from `first` on."""

    first: int
    devices: Devices
    round: int
    state: dict[str, Tensor]  # the model's buffers; empty where there are none
    control: Tensor | None = None  # SCAFFOLD's corrections of these devices, [k, M]


@dataclass(frozen=True)
class Part:
    """What a worker has computed: losses `[k]`, and of each device the buffers it reports."""

    first: int
    losses: Tensor
    reports: list[list[Tensor]] = field(default_factory=list)


def cut(count: int, parts: int, grain: int = 1) -> list[slice]:
    """Cut a sequence into at most `parts` pieces of about the same length, at multiples of `grain`.

    Example:
        >>> cut(10, 3)
        [slice(0, 3, None), slice(3, 7, None), slice(7, 10, None)]
        >>> cut(20, 2, grain=16)
        [slice(0, 16, None), slice(16, 20, None)]
    """
    blocks = -(-count // grain)
    ends = [min(count, grain * round(blocks * i / parts)) for i in range(parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(ends) if a < b]


def compute(task: Task, share: Share, weights: Tensor, gradients: Tensor) -> Part:
    """Compute a worker's share at common `weights [M]` and put the gradients in `gradients [k, M]`.

    A device's buffers are those that a round of this device alone would leave.
    """
    if not share.state:
        local = task.local_updates(weights, share.devices, share.round, share.control)
        gradients.copy_(local.gradients)
        return Part(share.first, local.losses)
    losses, reports = torch.empty(len(share.devices)), []
    for row in range(len(share.devices)):
        task.restore(share.state)
        one = slice(row, row + 1)
        own = None if share.control is None else share.control[one]
        local = task.local_updates(weights, share.devices[one], share.round, own)
        task.end_round()
        gradients[row], losses[row] = local.gradients[0], local.losses[0]
        reports.append(list(task.state().values()))
    return Part(share.first, losses, reports)


class ShardedTask:
    """A task whose gradients `workers` compute, which hold the same task; all numbers are the task's."""

    def __init__(self, task: Task, workers: ShardPool) -> None:
        self._task, self._workers = task, workers
        self._grain = task.grain if isinstance(task, RegressionTask) else 1
        self._reported: list[list[Tensor]] = []
        self.devices, self.size, self.segments = task.devices, task.size, task.segments
        self.shares, self.extra_bits = task.shares, task.extra_bits
        self.initial_weights, self.evaluate = task.initial_weights, task.evaluate
        self.training_loss = task.training_loss
        self.evaluate_devices, self.groups_of = task.evaluate_devices, task.groups_of
        self.state, self.restore = task.state, task.restore

    @property
    def step_unit(self) -> float:
        """What the step is measured in."""
        return self._task.step_unit

    def local_updates(
        self, weights: Tensor, devices: Devices, round: int, control: Tensor | None = None
    ) -> LocalGradients:
        """Have the workers compute, and put the rows together in the order of the devices."""
        state = self.state() if self.extra_bits else {}
        pieces = cut(len(devices), self._workers.size, self._grain)
        rows = [None if control is None else control[piece].clone() for piece in pieces]
        shares = [Share(p.start, devices[p], round, state, own) for p, own in zip(pieces, rows)]
        gradients = torch.empty(len(devices), self.size)
        parts = sorted(self._workers.compute(weights, shares, gradients), key=lambda part: part.first)
        self._reported += [report for part in parts for report in part.reports]
        return LocalGradients(gradients, torch.cat([part.losses for part in parts]))

    def end_round(self) -> None:
        """Merge the buffers that the devices reported, in their order."""
        if self._reported:
            self.restore(dict(zip(self.state(), merge_buffers(self._reported), strict=True)))
            self._reported.clear()


@dataclass(frozen=True)
class _Work:
    """An order: a share, and the files of the weights `[M]` and of all gradients `[rows, M]`."""

    share: Share
    weights: Path
    gradients: Path
    rows: int
    size: int


@contextmanager
def sharded(shards: int) -> Iterator[Callable[[RunSettings], Task]]:
    """Start processes of one thread each that compute gradients; stop them at the end of the context.

    Yields what makes the task of a run, for `train`.

    Example:
        >>> from signfade.experiments.config import resolve
        >>> settings = resolve({"data.name": "gaussian", "data.devices": 3, "data.size": 5})
        >>> with sharded(2) as make:
        ...     local = make(settings).local_updates(torch.zeros(5), torch.arange(3).numpy(), round=0)
        >>> tuple(local.gradients.shape)
        (3, 5)
    """
    if not 1 <= shards <= _MOST:
        raise ValueError(f"shards must be 1 to {_MOST}; got {shards}")
    memory = MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 1 << 31 else None
    with scratch_folder(memory) as scratch:
        pools: list[ShardPool] = []

        def make(settings: RunSettings) -> Task:
            if settings.model.personal:
                raise ValueError(
                    "model.personal needs a run in one process: devices keep layers; leave out shards"
                )
            key = data_key(settings)
            data = None if key is None else share(load(*key), scratch / f"data-{len(pools)}")
            threads = settings.threads or available_threads()  # for the evaluation, which stays here
            task = make_task(settings, threads, None if data is None else open_shared(data))
            size = min(shards, settings.data.devices)  # a worker without a device has nothing to do
            pools.append(ShardPool(size, settings, data, scratch / f"shards-{len(pools)}"))
            return ShardedTask(task, pools[-1])

        try:
            yield make
        finally:
            for pool in pools:
                pool.close()


class ShardPool:
    """Processes that hold one task; when one dies, another computes its share.

    `data` is the labelled set of the run, if it has one; the new `folder` is for shared files.
    """

    def __init__(self, size: int, settings: RunSettings, data: Shared | None, folder: Path) -> None:
        self.size = size
        self._folder = folder
        folder.mkdir()
        self._pool: WorkerPool[Part | str] = WorkerPool(f"{__name__}:serve", folder.parent, (settings, data))
        self._pool.start(size)
        self._weights: Tensor | None = None
        self._area: Tensor | None = None

    def compute(self, weights: Tensor, shares: Sequence[Share], gradients: Tensor) -> list[Part]:
        """Compute all shares, one per worker, and put the gradients in the rows of `gradients [k, M]`."""
        rows, size = gradients.shape
        if self._weights is None or self._area is None or len(self._area) < rows:
            self._weights = _map(self._folder / "weights", size)
            self._area = _map(self._folder / f"gradients-{rows}", rows * size).view(rows, size)
        self._weights.copy_(weights)
        area = self._folder / f"gradients-{len(self._area)}"
        work = [_Work(one, self._folder / "weights", area, len(self._area), size) for one in shares]
        for job, order in enumerate(work):
            self._pool.submit(job, order)
        parts: list[Part] = []
        deaths = 0
        while self._pool.busy:
            message = self._pool.wait()
            assert message is not None
            if message.answer is None:
                deaths += 1
                if deaths > _DEATHS:
                    raise RunFailed(f"the worker of a shard {message.death}, {deaths} times in one round")
                self._pool.submit(message.job, work[message.job])
                continue
            self._pool.release(message.job)
            if isinstance(message.answer, str):
                raise ValueError(message.answer)
            parts.append(message.answer)
        gradients.copy_(self._area[:rows])
        return parts

    def close(self) -> None:
        """Stop the processes; they have nothing to save."""
        self._pool.close(kill=True)


def _map(path: Path, size: int) -> Tensor:
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.float32)


def serve(scratch: str, parent: int) -> None:
    """Be a worker of a `ShardPool`, whose shared files are in `scratch`."""
    orders, answers = worker_pipes()
    try:
        settings, data = pickle.load(orders)
        task = make_task(settings, 1, None if data is None else open_shared(data))
        while (work := pickle.load(orders)) is not None:
            pickle.dump(_answer(task, work), answers)
            answers.flush()
    except (EOFError, BrokenPipeError):  # the parent kills its workers in the end, so it was killed itself
        shutil.rmtree(scratch, ignore_errors=True)


def _answer(task: Task, work: _Work) -> Part | str:
    rows = slice(work.share.first, work.share.first + len(work.share.devices))
    area = _map(work.gradients, work.rows * work.size).view(work.rows, work.size)
    try:
        return compute(task, work.share, _map(work.weights, work.size), area[rows])
    except ValueError as error:
        return str(error)
