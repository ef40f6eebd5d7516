"""Many runs on one machine: J processes of one thread each, and one copy of the data between them.

A worker process plays whole runs and is used again. Each run has its own folder and its own keyed streams, so
the results are those of playing them one after another. One that dies is replaced, and its run goes on from
its checkpoint.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from pathlib import Path

from signfade.experiments.train import PlannedRun
from signfade.experiments.workers.child import Child, Inbox
from signfade.experiments.workers.events import OnEvent, Outcome
from signfade.experiments.workers.job_queue import Ledger, hearing
from signfade.experiments.workers.run_worker import Answer, Job
from signfade.experiments.workers.scratch import scratch_folder
from signfade.experiments.workers.shared_data import data_key, share_all

__all__ = ["play"]

_SERVE = "signfade.experiments.workers.run_worker:serve"


def play(runs: Sequence[PlannedRun], jobs: int, *, on_event: OnEvent | None = None) -> Outcome:
    """Play runs, each in its folder, on `jobs` worker processes.

    Finished runs are skipped and unfinished ones continued, as `train` with `resume` does. A run that fails
    does not keep the others from being played. A worker that dies is replaced and its run tried once more.

    Args:
        runs: settings and folder of each; folders differ.
        jobs: number of processes, each with one thread.
        on_event: told, in the caller's thread, whatever happens.

    Returns:
        Which runs are finished, and why the others are not.

    Raises:
        ValueError: `jobs` is not positive, or a folder holds another run; nothing has been played then.
        Interrupted: SIGINT or SIGTERM; each run is saved and no process is left.

    Example:
        >>> import tempfile
        >>> from signfade.experiments.config import load
        >>> tiny = load(None, ["rounds=2", "data.name=gaussian", "data.size=100"])
        >>> home = Path(tempfile.mkdtemp())
        >>> outcome = play([PlannedRun(tiny, home / "a"), PlannedRun(tiny, home / "b")], jobs=1)
        >>> [folder.name for folder in outcome.finished], outcome.failed
        (['a', 'b'], {})
    """
    if jobs < 1:
        raise ValueError(f"jobs must be 1 or more; got {jobs}")
    ledger = Ledger(runs, on_event)
    if ledger.waiting:
        with scratch_folder() as scratch:
            pool = _Pool(ledger, min(jobs, len(ledger.waiting)), scratch)
            with hearing(pool.ask):
                pool.run()
    return ledger.outcome()


class _Pool:
    """Who plays what; `run` is one loop over what the workers say."""

    def __init__(self, ledger: Ledger, jobs: int, scratch: Path) -> None:
        self._ledger, self._jobs, self._scratch = ledger, jobs, scratch
        self._inbox: Inbox[Answer] = queue.SimpleQueue()
        self._busy: dict[Child[Answer], int] = {}
        self._idle: list[Child[Answer]] = []
        self._gone: list[Child[Answer]] = []

    def ask(self) -> None:
        """Ask for an end, at any moment: it is heard in the loop and not in the midst of something."""
        self._inbox.put((None, None))

    def run(self) -> None:
        """Play all that is waiting."""
        ledger = self._ledger
        try:
            shared = share_all((ledger.runs[index].settings for index in ledger.waiting), self._scratch)
            while self._busy or (ledger.waiting and not ledger.asked):
                while ledger.waiting and len(self._busy) < self._jobs and not ledger.asked:
                    worker = self._idle.pop() if self._idle else Child(_SERVE, self._inbox, self._scratch)
                    index = self._busy[worker] = ledger.next()
                    run = ledger.runs[index]
                    key = data_key(run.settings)
                    worker.send(Job(index, run, None if key is None else shared.get(key)))
                self._take(*self._inbox.get())
        finally:
            workers = [*self._busy, *self._idle, *self._gone]
            for worker in workers:
                worker.close()
            for worker in workers:
                worker.leave()

    def _take(self, worker: Child[Answer] | None, answer: Answer | None) -> None:
        """Deal with one thing that was said."""
        if worker is None:
            self._stop()
        elif answer is None:
            self._bury(worker)
        elif answer.record is not None:
            self._ledger.round(answer.index, answer.record)
        elif answer.kind == "noted":
            self._ledger.note(answer.index, answer.text)
        else:
            del self._busy[worker]
            self._idle.append(worker)
            self._ledger.settle(answer.index, answer.kind, answer.text)

    def _stop(self) -> None:
        """Somebody asked: the rounds in hand are finished and saved. Asked again: not even that."""
        self._ledger.asked += 1
        for worker in self._busy:
            worker.close() if self._ledger.asked == 1 else worker.kill()

    def _bury(self, worker: Child[Answer]) -> None:
        self._gone.append(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        if (index := self._busy.pop(worker, None)) is not None:
            self._ledger.died(index, worker.epitaph())
