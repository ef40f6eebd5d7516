"""Many runs on one machine: J worker processes of one thread each, and one copy of the data between them.

A worker does whole runs, one after another. Each run has its own folder and its own keyed streams, so the
results are those of doing them in this process. A worker that dies is replaced, and its run continues from
its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from signfade.experiments.stopping import on_stop_signal
from signfade.experiments.training import PlannedRun
from signfade.experiments.workers.job_queue import JobQueue, OnEvent, Outcome
from signfade.experiments.workers.run_worker import Answer, Job
from signfade.experiments.workers.scratch import scratch_folder
from signfade.experiments.workers.shared_data import data_key, share_all
from signfade.experiments.workers.worker_pool import WorkerPool
from signfade.kernels.threads import available_threads

__all__ = ["RunAll", "choose_engine", "run_all"]

_SERVE = "signfade.experiments.workers.run_worker:serve"


class RunAll(Protocol):
    """Does runs, each in its folder, `jobs` at a time (None: as many as there are cores)."""

    def __call__(
        self, runs: Sequence[PlannedRun], jobs: int | None, *, on_event: OnEvent | None = None
    ) -> Outcome:
        """Return which runs are finished, and why the others are not."""


def choose_engine(name: str, address: str | None = None) -> RunAll:
    """Return the function that does many runs.

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
    if name not in ("process", "ray"):
        raise ValueError(f"engine must be process or ray; got {name!r}")
    if name == "process" and address is not None:
        raise ValueError(f"address needs the engine ray; got {address!r} with process")
    if name == "process":
        return lambda runs, jobs, *, on_event=None: run_all(
            runs, jobs or available_threads(), on_event=on_event
        )
    from signfade.integrations.ray import runs as ray_runs  # late: Ray is optional

    return lambda runs, jobs, *, on_event=None: ray_runs.run_all(
        runs, jobs, on_event=on_event, address=address
    )


def run_all(runs: Sequence[PlannedRun], jobs: int, *, on_event: OnEvent | None = None) -> Outcome:
    """Do runs, each in its folder, on `jobs` worker processes.

    Finished runs are skipped and unfinished ones continued, as `train` with `resume` does. A run that fails
    does not stop the others. A run whose worker dies is retried once, then marked as failed.

    Args:
        runs: settings and folder of each; folders differ.
        jobs: number of processes, each with one thread.
        on_event: called in the caller's thread with every event.

    Returns:
        Which runs are finished, and why the others are not.

    Raises:
        ValueError: `jobs` is not positive, or a folder holds another run; nothing has been computed then.
        Interrupted: SIGINT or SIGTERM; each run is saved and no process is left.

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
    queue = JobQueue(runs, on_event)
    if queue.waiting:
        with scratch_folder() as scratch:
            pool: WorkerPool[Answer] = WorkerPool(_SERVE, scratch)
            with on_stop_signal(pool.wake):
                try:
                    _work_off(queue, pool, min(jobs, len(queue.waiting)), scratch)
                finally:
                    pool.close()
    return queue.outcome()


def _work_off(queue: JobQueue, pool: WorkerPool[Answer], jobs: int, scratch: Path) -> None:
    """Keep `jobs` workers busy until the queue is empty or the user asks to stop."""
    shared = share_all((queue.runs[index].settings for index in queue.waiting), scratch)
    while pool.busy or (queue.waiting and not queue.stops):
        while queue.waiting and pool.busy < jobs and not queue.stops:
            index = queue.next()
            run = queue.runs[index]
            key = data_key(run.settings)
            pool.submit(index, Job(run, None if key is None else shared.get(key)))
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
