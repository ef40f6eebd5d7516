"""An engine by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from signfade.experiments.train import PlannedRun
from signfade.experiments.workers.events import OnEvent, Outcome
from signfade.kernels.threads import available_threads
from signfade.settings import RunSettings
from signfade.simulation.task import Task

__all__ = ["Play", "choose_crew", "choose_engine"]


class Play(Protocol):
    """Plays runs, each in its folder, `jobs` at a time (None: as many as there are cores)."""

    def __call__(
        self, runs: Sequence[PlannedRun], jobs: int | None, *, on_event: OnEvent | None = None
    ) -> Outcome:
        """Return which runs are finished, and why the others are not."""


def choose_engine(name: str, address: str | None = None) -> Play:
    """Return what plays many runs.

    Args:
        name: `process`, worker processes of this machine, or `ray`, a Ray cluster.
        address: of the cluster; None starts one on this machine.

    Raises:
        ValueError: no such engine, an address for processes, or Ray is not installed.

    Example:
        >>> choose_engine("threads")
        Traceback (most recent call last):
        ValueError: engine must be process or ray; got 'threads'
    """
    _check(name, address)
    if name == "process":
        from signfade.experiments.workers import run_pool

        return lambda runs, jobs, *, on_event=None: run_pool.play(
            runs, jobs or available_threads(), on_event=on_event
        )

    from signfade.integrations.ray import runs as ray_runs  # late: Ray is optional

    return lambda runs, jobs, *, on_event=None: ray_runs.play(runs, jobs, on_event=on_event, address=address)


def choose_crew(
    name: str, shards: int, address: str | None = None
) -> AbstractContextManager[Callable[[RunSettings], Task]]:
    """Return workers for one large run, as a context; see `signfade.experiments.workers.sharding`.

    Args:
        name: `process` or `ray`.
        shards: number of workers.
        address: of the cluster; None starts one on this machine.

    Raises:
        ValueError: no such engine, or an address for processes.
    """
    _check(name, address)
    if name == "process":
        from signfade.experiments.workers import shard_pool

        return shard_pool.sharded(shards)

    from signfade.integrations.ray import shards as ray_shards  # late: Ray is optional

    return ray_shards.sharded(shards, address)


def _check(name: str, address: str | None) -> None:
    if name not in ("process", "ray"):
        raise ValueError(f"engine must be process or ray; got {name!r}")
    if name == "process" and address is not None:
        raise ValueError(f"address needs the engine ray; got {address!r} with process")
