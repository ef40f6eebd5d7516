"""Many runs as a queue of jobs: which are waiting, finished or failed, and the events they raise."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from signfade.experiments.stopping import Interrupted
from signfade.experiments.training import PlannedRun, status_of

__all__ = ["Event", "JobQueue", "Kind", "OnEvent", "Outcome"]

_RETRIES = 1  # a run whose worker dies a second time has failed

Kind = Literal["started", "round", "noted", "retried", "skipped", "finished", "failed"]


@dataclass(frozen=True)
class Event:
    """Something happened to a run.

    `skipped`: it was finished before; `retried`: its worker died and another one continues it.
    """

    kind: Kind
    index: int  # which of the runs
    run: PlannedRun
    round: int = 0  # rounds it has done
    record: dict[str, Any] = field(default_factory=dict)  # the metrics of the round, for `round` only
    text: str = ""  # a sentence, for `noted`, `retried` and `failed`


OnEvent = Callable[[Event], None]


@dataclass(frozen=True)
class Outcome:
    """How the runs ended."""

    finished: tuple[Path, ...]  # folders of the runs that are finished now, in the order of the runs
    failed: dict[Path, str] = field(default_factory=dict)  # why the others are not, by folder
    refused: frozenset[Path] = frozenset()  # those whose settings or folder could not be used


class JobQueue:
    """The runs that are still to be done, known by their place in the sequence `runs`.

    Finished ones are reported as skipped at once; a folder that holds another run is a `FolderError`.
    `waiting` has those to be run, in order; `stops` counts how often the user asked to stop.
    """

    def __init__(self, runs: Sequence[PlannedRun], on_event: OnEvent | None) -> None:
        self.runs = runs
        self.stops = 0
        self._on_event = on_event or (lambda event: None)
        finished = [status_of(run.settings, run.folder) == "finished" for run in runs]
        self.waiting = deque(index for index, done in enumerate(finished) if not done)
        self._rounds = [0] * len(runs)
        self._deaths = [0] * len(runs)
        self._failed: dict[int, str] = {}
        self._refused: set[int] = set()
        for index, run in enumerate(runs):
            if finished[index]:
                self._event("skipped", index, run.settings.rounds)

    def next(self) -> int:
        """Take the next run."""
        index = self.waiting.popleft()
        self._event("started", index)
        return index

    def round(self, index: int, record: dict[str, Any]) -> None:
        """Report a round of a run."""
        self._event("round", index, record["round"], record=record)

    def note(self, index: int, text: str) -> None:
        """Report something that the user should know about a run."""
        self._event("noted", index, text=text)

    def settle(self, index: int, kind: str, text: str) -> None:
        """Take back a run that is `finished`, `failed`, `refused` or `interrupted`."""
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
        """Take back a run whose worker died: it is retried once, then marked as failed."""
        self._deaths[index] += 1
        if self.stops:
            self.waiting.append(index)
        elif self._deaths[index] <= _RETRIES:
            self.waiting.appendleft(index)
            text = f"its worker {how}; another worker continues it from the last checkpoint"
            self._event("retried", index, text=text)
        else:
            self.settle(index, "failed", f"its worker {how}, twice")

    def outcome(self) -> Outcome:
        """Return how the runs ended; `Interrupted` if the user asked to stop before all were done."""
        if self.stops and self.waiting:
            done = len(self.runs) - len(self.waiting) - len(self._failed)
            raise Interrupted(f"stopped with {done} of {len(self.runs)} runs finished")
        folders = [run.folder for run in self.runs]
        return Outcome(
            tuple(folder for index, folder in enumerate(folders) if index not in self._failed),
            {folders[index]: self._failed[index] for index in sorted(self._failed)},
            frozenset(folders[index] for index in self._refused),
        )

    def _event(self, kind: Kind, index: int, round: int | None = None, **more: Any) -> None:
        self._rounds[index] = self._rounds[index] if round is None else round
        self._on_event(Event(kind, index, self.runs[index], self._rounds[index], **more))
