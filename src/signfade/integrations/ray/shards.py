"""A crew of Ray actors: the gradients of one large run, computed on the machines of a cluster."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.data import load
from signfade.experiments.train import RunFailed
from signfade.experiments.workers.sharding import Part, ShardedTask, Share, compute
from signfade.experiments.workers.shared_data import data_key
from signfade.integrations.ray.runs import cluster, data_parts, dataset_of
from signfade.kernels.threads import available_threads
from signfade.settings import RunSettings
from signfade.simulation.task import Task
from signfade.simulation.tasks import make_task

__all__ = ["RayCrew", "sharded"]

_RESTARTS = 2
_STORE = 1 << 29  # bytes for gradients on their way


@contextmanager
def sharded(shards: int, address: str | None = None) -> Iterator[Callable[[RunSettings], Task]]:
    """Have Ray actors that compute gradients meanwhile.

    Args:
        shards: number of actors, each on one core.
        address: of the cluster; None starts one on this machine and ends it.

    Yields:
        What makes the task of a run, for `train`: its gradients are computed by the actors.

    Raises:
        ValueError: more shards than the cluster has cores, or no cluster.
    """
    if shards < 1:
        raise ValueError(f"shards must be 1 or more; got {shards}")
    with cluster(address, shards, _STORE) as ray:
        cores = int(ray.cluster_resources().get("CPU", 0))
        if shards > cores:  # some would wait for ever
            raise ValueError(f"shards must be at most the cluster's {cores} cores; got {shards}")
        crews: list[RayCrew] = []

        def make(settings: RunSettings) -> Task:
            key = data_key(settings)
            dataset = None if key is None else load(*key)
            task = make_task(settings, settings.threads or available_threads(), dataset)
            parts = None if dataset is None else ray.put(data_parts(dataset))
            crews.append(RayCrew(ray, shards, settings, parts))
            return ShardedTask(task, crews[-1])

        try:
            yield make
        finally:
            for crew in crews:
                crew.close()


class RayCrew:
    """Actors that hold one task; Ray starts one that dies again, and has its share computed again."""

    def __init__(self, ray: ModuleType, size: int, settings: RunSettings, data: Any) -> None:
        self.size = size
        self._ray = ray
        actor = ray.remote(num_cpus=1, max_restarts=_RESTARTS, max_task_retries=_RESTARTS)(_Hand)
        self._hands = [actor.remote(settings, data) for _ in range(size)]

    def compute(self, weights: Tensor, shares: Sequence[Share], gradients: Tensor) -> list[Part]:
        """Compute all shares and put the gradients in the rows of `gradients`.

        Raises:
            ValueError: what a device's computation raised.
            RunFailed: actors die again and again.
        """
        model = self._ray.put(weights.numpy())
        asked = [hand.compute.remote(share, model) for hand, share in zip(self._hands, shares)]
        parts: list[Part] = []
        for share, reference in zip(shares, asked, strict=True):
            try:
                answer = self._ray.get(reference)
            except self._ray.exceptions.RayTaskError as error:
                raise RunFailed(f"a shard failed: {str(error).strip().splitlines()[-1]}") from error
            except self._ray.exceptions.RayError as error:
                raise RunFailed(f"a shard's actor died ({type(error).__name__})") from error
            if isinstance(answer, str):
                raise ValueError(answer)
            part, rows = answer
            gradients[share.first : share.first + len(share.devices)] = _tensor(rows)
            parts.append(part)
        return parts

    def close(self) -> None:
        """End the actors; they have nothing to save."""
        for hand in self._hands:
            self._ray.kill(hand)


class _Hand:
    """One actor: the task, and what it is asked to compute."""

    def __init__(self, settings: RunSettings, data: dict[str, Any] | None) -> None:
        torch.set_num_threads(1)
        self._task = make_task(settings, 1, dataset_of(data))

    def compute(self, share: Share, weights: NDArray[np.float32]) -> tuple[Part, NDArray[np.float32]] | str:
        gradients = torch.empty(len(share.devices), self._task.size)
        try:
            part = compute(self._task, share, _tensor(weights).clone(), gradients)
        except ValueError as error:
            return str(error)
        return part, gradients.numpy()


def _tensor(array: NDArray[np.float32]) -> Tensor:
    """The object store's memory as a tensor; it is read-only, and only read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's about memory that cannot be written
        return torch.from_numpy(array)
