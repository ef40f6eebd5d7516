"""What a person sees of a run: a bar on a terminal, a line now and then elsewhere; always on stderr."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from signfade._text import printable

__all__ = ["Downloads", "Watch", "duration"]

_PAUSE = 2.0  # seconds between two lines in a log


def duration(seconds: float) -> str:
    """Return a time in words.

    Example:
        >>> duration(3.21), duration(75), duration(7300)
        ('3.2 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class Watch:
    """Shows the rounds of one run after another.

    Use as a context; call `start` at the beginning of a run, then `round` and `note` as they come.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._bars: Progress | None = None
        if self._console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[state]}"),
                TimeRemainingColumn(compact=True, elapsed_when_finished=True),
                console=self._console,
            )
        self._task: TaskID | None = None
        self._label, self._rounds = "", 0
        self._accuracy: float | None = None
        self._first: tuple[int, float] | None = None
        self._spoken = 0.0

    def __enter__(self) -> Watch:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._settle()
        if self._bars is not None:
            self._bars.stop()

    def _settle(self) -> None:
        """Take away the bar of a run that has no rounds to show: it was finished before, or never began."""
        if self._bars is not None and self._task is not None and self._first is None:
            self._bars.remove_task(self._task)
        self._task = None

    def start(self, label: str, rounds: int) -> None:
        """Say that a run begins; until its first round the bar only shows that something happens."""
        self._settle()
        self._label, self._rounds, self._accuracy, self._first = label, rounds, None, None
        if self._bars is not None:
            self._task = self._bars.add_task(label, total=None, state="preparing")

    def round(self, record: dict[str, Any]) -> None:
        """Show the metrics of a round."""
        now, done = time.monotonic(), record["round"]
        if self._first is None:
            self._first = (done, now)
            if self._bars is not None:  # a new bar: that of a resumed run does not begin at zero
                if self._task is not None:
                    self._bars.remove_task(self._task)
                self._task = self._bars.add_task(
                    self._label, total=self._rounds, completed=done - 1, state=""
                )
        if record.get("test_accuracy") is not None:
            self._accuracy = record["test_accuracy"]
        state = f"round {done} of {self._rounds}{_quality(record)}"
        if self._accuracy is not None:
            state += f", accuracy {self._accuracy:.3f}"
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=done, state=state)
        elif done == self._rounds or now - self._spoken >= _PAUSE:
            self._spoken = now
            self._say(f"{self._label}: {state}{self._time_left(done, now)}")

    def note(self, text: str) -> None:
        """Say something between the rounds."""
        self._say(f"signfade: note: {text}")

    def _say(self, text: str) -> None:
        self._console.print(printable(text), markup=False, soft_wrap=True)

    def _time_left(self, done: int, now: float) -> str:
        first, began = self._first or (done, now)
        if done == first or done >= self._rounds:
            return ""
        return f", {duration((now - began) / (done - first) * (self._rounds - done))} left"


def _quality(record: dict[str, Any]) -> str:
    """The loss or, where there is nothing to lose, the error of the estimate."""
    if (loss := record.get("train_loss")) is not None:
        return f", loss {loss:.4g}"
    error = record.get("nmse")
    return "" if error is None else f", error {error:.3f}"


class Downloads:
    """Shows files as they come in."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), DownloadColumn())
        self._bars = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Downloads:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def progress(self, name: str, done: int, total: int) -> None:
        """Show that `done` of `total` bytes of a file are here; a total of 0 is unknown."""
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name)
        self._bars.update(self._tasks[name], completed=done, total=total or None)

    def note(self, text: str) -> None:
        """Say something about a source."""
        self._console.print(f"signfade: note: {text}", markup=False, soft_wrap=True)
