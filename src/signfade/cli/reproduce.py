"""`signfade reproduce`: the paper's tables and figures, played, resumed, put beside the paper's numbers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from signfade.cli.options import prepare_training, stdout_console

if TYPE_CHECKING:
    from rich.console import Console

    from signfade.lab.reproduce.artefact import Artefact
    from signfade.lab.reproduce.bench import Bench
    from signfade.lab.train import PlannedRun

__all__ = ["reproduce"]

_PAUSE = 30.0  # seconds between two lines in a log


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help='Tables and figures by name, or "all"; see --list.'),
    ] = None,
    show: Annotated[
        bool, typer.Option("--list", help="List the names, their runs and the time they take; play nothing.")
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", help="Seeds of everything; by default 2 a cell, 3 to 5 elsewhere."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(metavar="T", help="Rounds of the tables, and at most of the figures.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="J", help="Runs at a time, one thread each; all cores by default.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small data, few rounds, one seed: all in about ten minutes.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help='Folder for runs and pages; "reproduction" by default.'),
    ] = None,
    docs: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write results.md and results/ there too; their runs count as played."
        ),
    ] = None,
    render: Annotated[
        bool, typer.Option("--render", help="Play nothing; write the pages from what is finished.")
    ] = False,
) -> None:
    """Play the paper's tables and figures, ours beside its own.

    Tables and figures share their runs, and a run that is finished is never played again: stop it whenever
    you like, and give the same command to go on. The pages are OUT/results.md and OUT/results.html.
    """
    from signfade.kernels.threads import available_threads
    from signfade.lab.reproduce import ARTEFACTS, FULL, QUICK, Bench, choose

    if docs is not None and (quick or seeds is not None or rounds is not None):
        raise ValueError(
            "--docs holds the whole reproduction; it does not go with --quick, --seeds or --rounds"
        )
    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs must be 1 or more; got {jobs}")
    scale = (QUICK if quick else FULL).changed(seeds, rounds)
    folder = out or Path("reproduction-quick" if quick else "reproduction")
    chosen = choose(names or ["all"]) if names or show else []
    if not chosen:
        raise ValueError(f'name tables or figures, or "all"; there are {", ".join(ARTEFACTS)}')
    bench = Bench(folder, scale, docs)
    if show:
        stdout_console().print(_listing(bench, chosen, jobs or available_threads()))
        return
    failed: dict[Path, str] = {}
    if not render:
        failed = _play(bench, chosen, jobs or available_threads())
    for path in [*bench.write(chosen), *(bench.write_docs([*ARTEFACTS.values()]) if docs else [])]:
        typer.echo(str(path))
    if failed:
        raise typer.Exit(1)


def _listing(bench: Bench, artefacts: list[Artefact], jobs: int) -> Any:
    from rich import box
    from rich.table import Table

    from signfade.cli.watch import duration
    from signfade.lab.reproduce.plan import estimate_seconds

    table = Table("name", "what", box=box.SIMPLE)
    for head in ("runs", "finished", "time left"):
        table.add_column(head, justify="right")
    for one in artefacts:
        runs, left = bench.needed(one)
        seconds = estimate_seconds(left, bench.records) / jobs
        if one.measure is not None and bench.measurement(one) is None:
            seconds += one.cost
        table.add_row(
            one.name,
            f"{one.title} ({one.place})",
            str(len(runs)),
            str(len(runs) - len(left)),
            duration(seconds) if seconds else "none",
        )
    together = [run.settings for run in bench.to_play(artefacts)]
    left_together = duration(estimate_seconds(together, bench.records) / jobs)
    table.caption = (
        f"Runs are shared: all of the above together need {len(together)} more, about {left_together} on "
        f"{jobs} cores. Once a column is finished its best cell gets more seeds, not counted before."
    )
    return table


def _play(bench: Bench, artefacts: list[Artefact], jobs: int) -> dict[Path, str]:
    """Play what is missing until nothing is; return why runs failed, by folder."""
    from signfade.engines.process import play
    from signfade.lab.reproduce.setups import training

    if any("data" in one.depends for one in artefacts):  # measured here, not in a run
        prepare_training(training(bench.scale, "gaussian", (1e-2, 0.0)))
    failed: dict[Path, str] = {}
    with Progress() as progress:
        for one in artefacts:
            bench.measure(one, progress.note)
        while True:
            runs = [run for run in bench.to_play(artefacts) if run.folder not in failed]
            if not runs:
                return failed
            for name in {run.settings.data.name: run for run in runs}.values():
                prepare_training(name.settings)
            progress.begin(runs, bench, jobs)
            outcome = play(runs, jobs, on_event=progress.event)
            bench.look()
            diverged = {run.folder for run in runs if bench.records.find(run.settings) is not None}
            failed |= {folder: why for folder, why in outcome.failed.items() if folder not in diverged}


class Progress:
    """One bar for all runs together, in seconds of work, and a line a run that ends."""

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
        self._began = self._spoken = 0.0

    def __enter__(self) -> Progress:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def begin(self, runs: list[PlannedRun], bench: Bench, jobs: int) -> None:
        """Say which runs are to be played."""
        from signfade.lab.reproduce.plan import estimate_seconds

        self._work = [max(estimate_seconds([run.settings], bench.records), 1e-3) for run in runs]
        self._left, self._before = list(self._work), {}
        self._done, self._count = 0, len(runs)
        self._began, self._jobs = time.monotonic(), jobs
        self.note(f"{len(runs)} runs to play, {jobs} at a time")
        if self._bars is not None:
            if self._task is not None:
                self._bars.remove_task(self._task)
            self._task = self._bars.add_task("reproduce", total=sum(self._work), state="")

    def event(self, event: Any) -> None:
        """Take in what the player says."""
        if event.kind == "round":
            share = 1 - event.round / event.run.settings.rounds
            self._left[event.index] = self._work[event.index] * share
            there = (event.round - 1) / event.run.settings.rounds
            self._before.setdefault(event.index, self._work[event.index] * there)
        elif event.kind in ("finished", "skipped", "failed"):
            self._left[event.index] = 0.0
            self._done += 1
            told = "" if event.kind != "failed" else f" failed: {event.text}"
            self._say(f"[{self._done}/{self._count}] {event.run.folder.name}{told}{self._time_left()}")
        elif event.kind in ("noted", "retried"):
            self.note(f"{event.run.folder.name}: {event.text}")
        self._show()

    def _show(self) -> None:
        now = time.monotonic()
        if self._bars is not None and self._task is not None:
            completed = sum(self._work) - sum(self._left)
            state = f"run {min(self._done + 1, self._count)} of {self._count}{self._time_left()}"
            self._bars.update(self._task, completed=completed, state=state)
        elif now - self._spoken >= _PAUSE:
            self._spoken = now
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
        """Say something."""
        self._say(f"signfade: note: {text}")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)
