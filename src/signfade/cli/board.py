"""Many runs at a glance: a live table of their states and one bar for all; lines now and then in a log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from signfade._text import printable
from signfade.cli.watch import duration

if TYPE_CHECKING:
    from signfade.experiments.workers.events import Event

__all__ = ["Board"]

_PAUSE = 10.0  # seconds between two lines in a log
_STATES = ("finished", "running", "waiting", "failed")  # in the order in which they are counted
_ENDS = ("skipped", "finished", "failed")


class Board:
    """Shows how far each of many runs is; always on stderr.

    Use as a context, and hand `event` to an engine. Runs count by their rounds: the time left is that of the
    rounds to come at the pace of those played since the first.

    Args:
        titles: what the runs are called, in the order of the engine.
        rounds: how many rounds each has.
        console: where to write.
    """

    def __init__(self, titles: Sequence[str], rounds: Sequence[int], console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._titles, self._rounds = list(titles), list(rounds)
        self._states = ["waiting"] * len(self._titles)
        self._done = [0] * len(self._titles)
        self._told = [""] * len(self._titles)  # the last word about each
        self._touched: dict[int, None] = {}  # runs that something happened to, the latest last
        self._played = 0  # rounds since the first one seen; until then workers get ready
        self._first: float | None = None
        self._seen: set[int] = set()  # runs with a round since then
        self._began = self._spoken = time.monotonic()
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self.render, console=self._console, refresh_per_second=4, transient=True
            )

    def __enter__(self) -> Board:
        self._began = time.monotonic()
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()
        self._say(f"{self.counts()} in {duration(time.monotonic() - self._began)}")

    def event(self, event: Event) -> None:
        """Take in what an engine says."""
        index, title = event.index, self._titles[event.index]
        self._touched.pop(index, None)
        self._touched[index] = None
        if event.kind == "round":
            self._played += (
                event.round - self._done[index] if index in self._seen else self._first is not None
            )
            self._first = self._first or time.monotonic()
            self._seen.add(index)
            self._told[index] = _quality(event.record) or self._told[index]
        elif event.kind in ("noted", "retried"):
            self._say(f"signfade: note: {title}: {event.text}")
        self._done[index] = event.round
        if event.kind in ("started", "round", "retried"):
            self._states[index] = "running"
        elif event.kind in _ENDS:
            self._states[index] = "failed" if event.kind == "failed" else "finished"
            self._end(event)
        if self._live is None and time.monotonic() - self._spoken >= _PAUSE:
            self._spoken = time.monotonic()
            self._say(self.counts() + self._time_left())

    def _end(self, event: Event) -> None:
        index = event.index
        if event.kind == "failed":
            self._told[index] = ""  # said once, in full, above the table
            self._say(f"signfade: note: {self._titles[index]} failed: {event.text}")
        elif event.kind == "skipped":
            self._told[index] = "was finished"
        elif self._live is None:
            said = f" ({self._told[index]})" if self._told[index] else ""
            self._say(f"{self._titles[index]}: finished{said}")

    def counts(self) -> str:
        """Return how many runs are in which state, in words."""
        found = Counter(self._states)
        parts = [f"{found[state]} {state}" for state in _STATES if found[state]]
        return f"{len(self._titles)} runs: {', '.join(parts)}"

    def _time_left(self) -> str:
        left = sum(
            rounds - done
            for rounds, done, state in zip(self._rounds, self._done, self._states)
            if state in ("running", "waiting")
        )
        if not self._played or not left or self._first is None:
            return ""
        return f", {duration((time.monotonic() - self._first) / self._played * left)} left"

    def render(self) -> Group:
        """Return the table of the runs that fit the window, and the bar of all."""
        room = max(3, self._console.height - 5)
        latest = [*reversed(self._touched)]
        running = [index for index in latest if self._states[index] == "running"]
        others = [index for index in latest if self._states[index] != "running"]
        waiting = [index for index, state in enumerate(self._states) if state == "waiting"]
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        table.add_column("run", no_wrap=True, overflow="ellipsis")
        table.add_column("state", min_width=8)
        table.add_column(
            "rounds", no_wrap=True, justify="right", min_width=2 * len(str(max(self._rounds))) + 4
        )
        table.add_column("", no_wrap=True, min_width=15)
        for index in sorted([*running, *others, *waiting][:room]):
            at = f"{self._done[index]} of {self._rounds[index]}"
            cells = (self._titles[index], self._states[index], at, self._told[index])
            table.add_row(*map(Text, cells))  # Text: no name is markup
        done, total = sum(self._done), max(1, sum(self._rounds))
        bar = Table.grid(padding=(0, 1, 0, 0))
        bar.add_row(
            ProgressBar(total=total, completed=done, width=24), Text(self.counts() + self._time_left())
        )
        return Group(table, bar)

    def _say(self, text: str) -> None:
        self._console.print(printable(text), markup=False, soft_wrap=True)


def _quality(record: dict[str, Any]) -> str:
    """What is best known about how good a run is now."""
    for key, words in (
        ("test_accuracy", "accuracy {:.3f}"),
        ("train_loss", "loss {:.4g}"),
        ("nmse", "error {:.3f}"),
    ):
        if record.get(key) is not None:
            return words.format(record[key])
    return ""
