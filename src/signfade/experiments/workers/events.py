"""What an engine tells while it plays many runs, and what is left at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from signfade.experiments.train import PlannedRun

__all__ = ["Event", "Kind", "OnEvent", "Outcome"]

Kind = Literal["started", "round", "noted", "retried", "skipped", "finished", "failed"]


@dataclass(frozen=True)
class Event:
    """Something happened to a run.

    Attributes:
        kind: `skipped`: it was finished before; `retried`: its worker died and it goes on in another.
        index: which of the runs.
        run: that run.
        round: rounds it has done.
        record: the metrics of the round, of `round` only.
        text: a sentence; empty for `started`, `round`, `skipped` and `finished`.
    """

    kind: Kind
    index: int
    run: PlannedRun
    round: int = 0
    record: dict[str, Any] = field(default_factory=dict)
    text: str = ""


OnEvent = Callable[[Event], None]


@dataclass(frozen=True)
class Outcome:
    """How many runs ended.

    Attributes:
        finished: folders of the runs that are finished now, in the order of the runs.
        failed: why the others are not, by folder.
        refused: those of them whose settings or folder could not be used, so that nothing was computed.
    """

    finished: tuple[Path, ...]
    failed: dict[Path, str] = field(default_factory=dict)
    refused: frozenset[Path] = frozenset()
