"""Which of many runs are waiting, played, finished or failed: what all engines must know alike."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from signfade.experiments.train import Interrupted, PlannedRun, standing
from signfade.experiments.workers.events import Event, Kind, OnEvent, Outcome

__all__ = ["Ledger", "hearing"]

_RETRIES = 1  # a run that costs a second worker is given up


class Ledger:
    """Keeps the books of an engine and tells its caller; runs are known by their place in the sequence.

    Args:
        runs: all of them; those that are finished are told at once and never wait.
        on_event: told whatever happens.

    Attributes:
        runs: all of them.
        waiting: those to be played, in order.
        asked: how often somebody asked to stop.

    Raises:
        FolderError: a folder holds another run.
    """

    def __init__(self, runs: Sequence[PlannedRun], on_event: OnEvent | None) -> None:
        self.runs = runs
        self.asked = 0
        self._tell = on_event or (lambda event: None)
        where = [standing(run.settings, run.folder) for run in runs]
        self.waiting = deque(index for index, word in enumerate(where) if word != "finished")
        self._rounds = [0] * len(runs)
        self._deaths = [0] * len(runs)
        self._failed: dict[int, str] = {}
        self._refused: set[int] = set()
        for index, run in enumerate(runs):
            if where[index] == "finished":
                self._event("skipped", index, run.settings.rounds)

    def next(self) -> int:
        """Take the next run."""
        index = self.waiting.popleft()
        self._event("started", index)
        return index

    def round(self, index: int, record: dict[str, Any]) -> None:
        """A round has been played."""
        self._event("round", index, record["round"], record)

    def note(self, index: int, text: str) -> None:
        """Something should be known about a run."""
        self._event("noted", index, text=text)

    def settle(self, index: int, kind: str, text: str) -> None:
        """A worker is done with a run: it is `finished`, `failed`, `refused` or `interrupted`."""
        if kind == "interrupted":
            self.waiting.append(index)
        elif kind == "finished":
            self._event("finished", index, self.runs[index].settings.rounds)
        else:
            self._failed[index] = text
            if kind == "refused":
                self._refused.add(index)
            self._event("failed", index, text=text)

    def died(self, index: int, how: str) -> None:
        """A worker died with a run in hand, which goes on from its checkpoint; not for ever."""
        self._deaths[index] += 1
        if self.asked:
            self.waiting.append(index)
        elif self._deaths[index] <= _RETRIES:
            self.waiting.appendleft(index)
            text = f"its worker {how}; it goes on from its last checkpoint in another"
            self._event("retried", index, text=text)
        else:
            self.settle(index, "failed", f"its worker {how}, twice")

    def outcome(self) -> Outcome:
        """Close the books.

        Raises:
            Interrupted: somebody asked to stop before all were played.
        """
        if self.asked and self.waiting:
            done = len(self.runs) - len(self.waiting) - len(self._failed)
            raise Interrupted(f"stopped with {done} of {len(self.runs)} runs finished")
        folders = [run.folder for run in self.runs]
        return Outcome(
            tuple(folder for index, folder in enumerate(folders) if index not in self._failed),
            {folders[index]: self._failed[index] for index in sorted(self._failed)},
            frozenset(folders[index] for index in self._refused),
        )

    def _event(
        self,
        kind: Kind,
        index: int,
        round: int | None = None,
        record: dict[str, Any] | None = None,
        text: str = "",
    ) -> None:
        self._rounds[index] = self._rounds[index] if round is None else round
        self._tell(Event(kind, index, self.runs[index], self._rounds[index], record or {}, text))


@contextmanager
def hearing(heard: Callable[[], None]) -> Iterator[None]:
    """Call `heard` at every SIGINT and SIGTERM meanwhile; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: object) -> None:
        heard()

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
