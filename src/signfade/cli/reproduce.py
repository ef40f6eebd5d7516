"""`signfade reproduce`: run, resume and render the studies behind the docs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from signfade.cli.options import prepare_training, stdout_console

if TYPE_CHECKING:
    from rich.console import Console

    from signfade.experiments.studies.runner import Runner
    from signfade.experiments.studies.study import Part
    from signfade.experiments.train import PlannedRun

__all__ = ["reproduce"]

_PAUSE = 30.0  # seconds between two lines in a log


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help='Studies, tables or figures by name, or "all"; see --list.'),
    ] = None,
    show: Annotated[
        bool, typer.Option("--list", help="List the names, their runs and the time they take; run nothing.")
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", help="Seeds of everything; by default 2 per cell, 3 to 5 elsewhere."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(metavar="T", help="Rounds of the tables, and at most of the figures.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="J", help="Runs at a time, one thread each; all cores by default.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small data, few rounds, one seed: minutes instead of days.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help='Folder for runs and pages; "reproduction" by default.'),
    ] = None,
    docs: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Update tables and figures of the docs there; their runs count as finished."
        ),
    ] = None,
    render: Annotated[
        bool, typer.Option("--render", help="Run nothing; write the pages from what is finished.")
    ] = False,
) -> None:
    """Run the studies behind the docs: the paper's tables and figures beside ours, and our own.

    Studies share their runs, and a finished run is never repeated: stop whenever you like, and give the same
    command again to continue. Each study writes a page; that of the paper is OUT/results.md.
    """
    from signfade.experiments.config import resolve
    from signfade.experiments.studies import catalogue, study
    from signfade.experiments.studies.runner import Runner
    from signfade.experiments.workers import run_pool
    from signfade.kernels.threads import available_threads

    if docs is not None and (quick or seeds is not None or rounds is not None):
        raise ValueError("--docs holds the full studies; it does not go with --quick, --seeds or --rounds")
    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs must be 1 or more; got {jobs}")
    scale = (study.QUICK if quick else study.FULL).changed(seeds, rounds)
    folder = out or Path("reproduction-quick" if quick else "reproduction")
    parts = catalogue.choose(names or ["all"]) if names or show else []
    if not parts:
        known = ", ".join(one.name for one in catalogue.STUDIES)
        raise ValueError(f'name studies ({known}), tables or figures, or "all"; --list shows them')
    runner, workers = Runner(folder, scale, docs), jobs or available_threads()
    if show:
        stdout_console().print(_listing(runner, parts, workers))
        return
    failed: dict[Path, str] = {}
    if not render:
        if any("data" in part.depends for part in parts):  # measured here, not in a run
            prepare_training(resolve({"data.name": scale.data}))
        with Progress() as progress:

            def execute(runs: list[PlannedRun]) -> dict[Path, str]:
                for run in {run.settings.data.name: run for run in runs}.values():
                    prepare_training(run.settings)
                progress.begin(runs, runner, workers)
                return run_pool.play(runs, workers, on_event=progress.event).failed

            failed = runner.run(parts, execute, progress.note)
    written = runner.write(catalogue.STUDIES, parts)
    for path in [*written, *(runner.write_docs(catalogue.STUDIES) if docs else [])]:
        typer.echo(str(path))
    if failed:
        raise typer.Exit(1)


def _listing(runner: Runner, parts: list[Part], jobs: int) -> Any:
    from rich import box
    from rich.table import Table

    from signfade.cli.watch import duration
    from signfade.experiments.studies.catalogue import STUDIES
    from signfade.experiments.studies.runner import estimate_seconds

    table = Table("study", "name", "what", box=box.SIMPLE)
    for head in ("runs", "finished", "time left"):
        table.add_column(head, justify="right")
    for study in STUDIES:
        for number, part in enumerate(part for part in study.parts if part in parts):
            runs, left = runner.needed(part)
            seconds = estimate_seconds(left, runner.records) / jobs
            if part.measure is not None and runner.measurement(part) is None:
                seconds += part.cost
            table.add_row(
                "" if number else study.name,
                part.name,
                f"{part.title} ({part.place})",
                str(len(runs)),
                str(len(runs) - len(left)),
                duration(seconds) if seconds else "none",
            )
    together = [run.settings for run in runner.missing(parts)]
    left_together = duration(estimate_seconds(together, runner.records) / jobs)
    table.caption = (
        f"Runs are shared: all of the above together need {len(together)} more, about {left_together} on "
        f"{jobs} cores. Runs that depend on the results of others, such as more seeds of a best cell, are "
        "counted once those are finished."
    )
    return table


class Progress:
    """One bar for all runs together, in seconds of work, and one line per run that ends."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        self._console = console or Console(stderr=True, highlight=False)
        self._bars = None
        if self._console.is_terminal:
            self._bars = Bars(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[state]}"),
                console=self._console,
            )
        self._task: Any = None
        self._work: list[float] = []  # seconds of work of each run, as estimated
        self._left: list[float] = []
        self._before: dict[int, float] = {}  # work that was there when a run was resumed
        self._done = self._count = 0
        self._began = self._printed = 0.0

    def __enter__(self) -> Progress:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def begin(self, runs: list[PlannedRun], runner: Runner, jobs: int) -> None:
        """Start a batch of runs."""
        from signfade.experiments.studies.runner import estimate_seconds

        self._work = [max(estimate_seconds([run.settings], runner.records), 1e-3) for run in runs]
        self._left, self._before = list(self._work), {}
        self._done, self._count = 0, len(runs)
        self._began, self._jobs = time.monotonic(), jobs
        self.note(f"{len(runs)} runs, {jobs} at a time")
        if self._bars is not None:
            if self._task is not None:
                self._bars.remove_task(self._task)
            self._task = self._bars.add_task("reproduce", total=sum(self._work), state="")

    def event(self, event: Any) -> None:
        """Show what the worker pool reports."""
        if event.kind == "round":
            share = 1 - event.round / event.run.settings.rounds
            self._left[event.index] = self._work[event.index] * share
            there = (event.round - 1) / event.run.settings.rounds
            self._before.setdefault(event.index, self._work[event.index] * there)
        elif event.kind in ("finished", "skipped", "failed"):
            self._left[event.index] = 0.0
            self._done += 1
            reason = f" failed: {event.text}" if event.kind == "failed" else ""
            self._say(f"[{self._done}/{self._count}] {event.run.folder.name}{reason}{self._time_left()}")
        elif event.kind in ("noted", "retried"):
            self.note(f"{event.run.folder.name}: {event.text}")
        self._show()

    def _show(self) -> None:
        now = time.monotonic()
        if self._bars is not None and self._task is not None:
            completed = sum(self._work) - sum(self._left)
            state = f"run {min(self._done + 1, self._count)} of {self._count}{self._time_left()}"
            self._bars.update(self._task, completed=completed, state=state)
        elif now - self._printed >= _PAUSE:
            self._printed = now
            share = 1 - sum(self._left) / sum(self._work)
            self._say(
                f"{100 * share:.1f} % of the work, {self._done} of {self._count} runs{self._time_left()}"
            )

    def _time_left(self) -> str:
        """From the pace so far; from the estimate alone at first."""
        from signfade.cli.watch import duration

        total, left = sum(self._work), sum(self._left)
        elapsed = time.monotonic() - self._began
        done = total - left - sum(self._before.values())
        seconds = left / done * elapsed if done > 0.02 * total else left / self._jobs
        return f", {duration(seconds)} left" if left > 0 else ""

    def note(self, text: str) -> None:
        """Print a note."""
        self._say(f"signfade: note: {text}")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)
