"""The progress of runs and downloads: live on a terminal and in a notebook, a line now and then in a log.

Terminals and logs get it on stderr.
"""

from __future__ import annotations

import importlib
import io
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from signfade._text import printable
from signfade.kernels.compiling import tell_compiling

if TYPE_CHECKING:
    from signfade.experiments.workers.job_queue import Event

__all__ = ["Downloads", "Progress", "duration", "print_note"]

_STATES = ("finished", "running", "waiting", "failed")  # in the order in which they are counted


def duration(seconds: float) -> str:
    """Return a time in words.

    Example:
        >>> duration(3.21), duration(75), duration(7300)
        ('3.2 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.{int(seconds < 10)}f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _stderr(quiet: bool = False) -> Console:
    return Console(stderr=True, highlight=False, quiet=quiet, force_jupyter=False)


class _Cell:
    """A text below a notebook's cell that is replaced by the next one."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, what: RenderableType) -> None:
        """Show something in place of what was shown."""
        display = importlib.import_module("IPython.display").display
        with io.StringIO() as text:
            plain = Console(
                file=text, width=100, force_jupyter=False, force_terminal=False, color_system=None
            )
            plain.print(what)
            bundle = {"text/plain": text.getvalue().rstrip()}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def _print(console: Console, text: str) -> None:
    console.print(printable(text), markup=False, soft_wrap=True)


def print_note(text: str, console: Console | None = None) -> None:
    """Print a note to stderr."""
    _print(console or _stderr(), f"signfade: note: {text}")


class Progress:
    """Shows how far one run or each of many runs is.

    Use as a context. For many runs pass `event` to `run_all` or `compare`; for one run pass `round` and
    `note` to `train`. The time left is that of the work to do at the pace since the first round seen; `work`
    says how long each run takes, in any unit, by default its number of rounds. A `quiet` one shows nothing.
    """

    def __init__(
        self,
        titles: Sequence[str],
        rounds: Sequence[int],
        console: Console | None = None,
        work: Sequence[float] | None = None,
        quiet: bool = False,
    ) -> None:
        self._console = console or _stderr(quiet)
        self._cell = _Cell() if console is None and not quiet and Console().is_jupyter else None
        self._titles, self._rounds = list(titles), list(rounds)
        self._work = [total / count for total, count in zip(work or rounds, rounds)]  # of one round
        self._single = len(self._titles) == 1
        self._pause = 0.25 if self._cell else 2.0 if self._single else 10.0  # seconds between two lines
        runs = len(self._titles)
        self._states, self._done = ["waiting"] * runs, [0] * runs
        self._texts = [""] * runs  # the latest metrics of each
        self._accuracy = ""
        self._touched: dict[int, None] = {}  # runs that something happened to, the latest last
        self._worked = 0.0  # since the first round seen; until then workers get ready
        self._first: float | None = None
        self._seen: set[int] = set()  # runs with a round since then
        self._began = time.monotonic()
        self._printed = 0.0 if self._single else self._began
        live = Live(get_renderable=self.render, console=self._console, refresh_per_second=4, transient=True)
        # A notebook sets FORCE_COLOR, so that its stderr looks like a terminal.
        shows = self._console.is_terminal and self._cell is None and not quiet
        self._live = live if shows else None
        self._compiling = tell_compiling(self.note)

    def __enter__(self) -> Progress:
        self._began = time.monotonic()
        self._compiling.__enter__()
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, error: object, *more: object) -> None:
        self._compiling.__exit__(None, None, None)
        if self._live is not None:
            self._live.stop()
        if self._cell is not None:
            self._cell.show(self.render())
        elif not self._single and error is None:
            _print(self._console, f"{self._counts()} in {duration(time.monotonic() - self._began)}")

    def round(self, record: dict[str, Any]) -> None:
        """Show a round of the only run."""
        self._update("round", 0, record["round"], record)

    def note(self, text: str) -> None:
        """Print a note."""
        print_note(text, self._console)

    def event(self, event: Event) -> None:
        """Show an event of a job queue."""
        title = self._titles[event.index]
        if event.kind in ("noted", "retried"):
            print_note(f"{title}: {event.text}", self._console)
        if event.kind == "failed":
            print_note(f"{title} failed: {event.text}", self._console)
        self._update(event.kind, event.index, event.round, event.record)

    def _update(self, kind: str, index: int, round: int, record: dict[str, Any]) -> None:
        self._touched.pop(index, None)
        self._touched[index] = None
        if kind == "round":
            rounds = round - self._done[index] if index in self._seen else int(self._first is not None)
            self._worked += rounds * self._work[index]
            self._first = self._first or time.monotonic()
            self._seen.add(index)
            self._texts[index] = self._metrics(record) or self._texts[index]
        self._done[index] = round
        if kind in ("started", "round", "retried"):
            self._states[index] = "running"
        elif kind in ("skipped", "finished", "failed"):
            self._states[index] = "failed" if kind == "failed" else "finished"
            self._end(index, kind)
        now = time.monotonic()
        last = self._single and round == self._rounds[0]
        if self._live is None and (last or now - self._printed >= self._pause):
            self._printed = now
            if self._cell is None:
                _print(self._console, self._line())
            else:
                self._cell.show(self.render())

    def _metrics(self, record: dict[str, Any]) -> str:
        """The most telling metric of a round; for a single run the loss or error, and the last accuracy."""
        keys = {"test_accuracy": "accuracy {:.3f}", "train_loss": "loss {:.4g}", "nmse": "error {:.3f}"}
        found = {key: text.format(record[key]) for key, text in keys.items() if record.get(key) is not None}
        if not self._single:
            return next(iter(found.values()), "")
        self._accuracy = found.pop("test_accuracy", self._accuracy)
        return ", ".join(text for text in (next(iter(found.values()), ""), self._accuracy) if text)

    def _end(self, index: int, kind: str) -> None:
        if kind == "failed":
            self._texts[index] = ""  # the note above the table says why
        elif kind == "skipped":
            self._texts[index] = "was finished"
        elif self._live is None and self._cell is None and not self._single:
            metrics = f" ({self._texts[index]})" if self._texts[index] else ""
            _print(self._console, f"{self._titles[index]}: finished{metrics}")

    def _line(self) -> str:
        """Where things are, in one line."""
        if not self._single:
            return self._counts() + self._time_left()
        if not self._seen:
            return f"{self._titles[0]}: preparing"
        metrics = f", {self._texts[0]}" if self._texts[0] else ""
        return f"{self._titles[0]}: round {self._done[0]} of {self._rounds[0]}{metrics}{self._time_left()}"

    def _counts(self) -> str:
        """How many runs are in which state, in words."""
        found = Counter(self._states)
        parts = [f"{found[state]} {state}" for state in _STATES if found[state]]
        return f"{len(self._titles)} runs: {', '.join(parts)}"

    def _time_left(self) -> str:
        left = sum(
            (rounds - done) * work
            for rounds, done, work, state in zip(self._rounds, self._done, self._work, self._states)
            if state in ("running", "waiting")
        )
        if not self._worked or not left or self._first is None:
            return ""
        return f", {duration((time.monotonic() - self._first) / self._worked * left)} left"

    def render(self) -> RenderableType:
        """Return a table of the runs that fit the window, and one bar for all."""
        done = sum(count * work for count, work in zip(self._done, self._work))
        total = sum(count * work for count, work in zip(self._rounds, self._work))
        bar = Table.grid(padding=(0, 1, 0, 0))
        bar.add_row(ProgressBar(total=max(total, 1e-9), completed=done, width=24), Text(self._line()))
        if self._single:
            return bar
        room = max(3, self._console.height - 5)
        latest = [*reversed(self._touched)]
        running = [index for index in latest if self._states[index] == "running"]
        others = [index for index in latest if self._states[index] != "running"]
        waiting = [index for index, state in enumerate(self._states) if state == "waiting"]
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        table.add_column("run", no_wrap=True, overflow="ellipsis")
        table.add_column("state", min_width=8)
        width = 2 * len(str(max(self._rounds))) + 4
        table.add_column("rounds", no_wrap=True, justify="right", min_width=width)
        table.add_column("", no_wrap=True, min_width=15)
        for index in sorted([*running, *others, *waiting][:room]):
            at = f"{self._done[index]} of {self._rounds[index]}"
            cells = (self._titles[index], self._states[index], at, self._texts[index])
            table.add_row(*map(Text, cells))  # Text: no name is markup
        return Group(table, bar)


class Downloads(Bars):
    """Shows downloads; use as a context."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), DownloadColumn())
        console = _stderr()
        super().__init__(*columns, console=console, disable=not console.is_terminal)
        self._files: dict[str, TaskID] = {}

    def progress(self, name: str, done: int, total: int) -> None:
        """Show that `done` of `total` bytes of a file are here; a total of 0 is unknown."""
        if name not in self._files:
            self._files[name] = self.add_task(name)
        self.update(self._files[name], completed=done, total=total or None)

    def note(self, text: str) -> None:
        """Print a note about a source."""
        print_note(text, self.console)
