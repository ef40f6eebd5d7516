"""`signfade reproduce`: run, resume and render the studies behind the docs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from signfade.cli.options import prepare_training, print_paths, stdout_console

if TYPE_CHECKING:
    from signfade.experiments.studies.runner import Runner
    from signfade.experiments.studies.study import Part
    from signfade.experiments.training import PlannedRun

__all__ = ["reproduce"]


def reproduce(
    names: Annotated[
        list[str] | None,
        Argument(metavar="NAME...", help='Studies, tables or figures by name, or "all"; see --list.'),
    ] = None,
    show: Annotated[bool, Option("--list", help="List names, runs and times; run nothing.")] = False,
    seeds: Annotated[
        int | None, Option(metavar="N", help="Seeds of everything; by default 2 per cell, 3 to 5 elsewhere.")
    ] = None,
    rounds: Annotated[int | None, Option(metavar="T", help="Rounds; of figures, at most so many.")] = None,
    jobs: Annotated[int | None, Option(metavar="J", help="Runs at a time; all cores by default.")] = None,
    quick: Annotated[bool, Option("--quick", help="Small data, few rounds, one seed: minutes.")] = False,
    out: Annotated[Path | None, Option(metavar="DIR", help="Folder for runs and pages.")] = None,
    docs: Annotated[
        Path | None,
        Option(metavar="DIR", help="Update tables and figures of the docs; their runs count as finished."),
    ] = None,
    render: Annotated[bool, Option("--render", help="Only write pages, from what is finished.")] = False,
) -> None:
    """Run the studies behind the docs: the paper's tables and figures beside ours, and our own.

    Studies share their runs, and a finished run is never repeated: stop whenever you like, and give the same
    command again to continue. Each study writes a page; that of the paper is OUT/results.md. OUT is
    "reproduction" by default.
    """
    from signfade.cli.progress import Progress, print_note
    from signfade.experiments.config import resolve
    from signfade.experiments.studies import catalogue, records
    from signfade.experiments.studies.runner import Runner, estimate_seconds
    from signfade.experiments.workers import run_pool
    from signfade.kernels.threads import available_threads

    if docs is not None and (quick or seeds is not None or rounds is not None):
        raise ValueError("--docs holds the full studies; it does not go with --quick, --seeds or --rounds")
    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs must be 1 or more; got {jobs}")
    scale = (records.QUICK if quick else records.FULL).changed(seeds, rounds)
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

        def execute(runs: list[PlannedRun]) -> dict[Path, str]:
            for run in {run.settings.data.name: run for run in runs}.values():
                prepare_training(run.settings)
            names = [run.folder.name for run in runs]
            rounds = [run.settings.rounds for run in runs]
            seconds = [max(estimate_seconds([run.settings], runner.records), 1e-3) for run in runs]
            with Progress(names, rounds, work=seconds) as progress:
                return run_pool.run_all(runs, workers, on_event=progress.event).failed

        failed = runner.run(parts, execute, print_note)
    written = runner.write(catalogue.STUDIES, parts)
    print_paths([*written, *(runner.write_docs(catalogue.STUDIES) if docs else [])])
    if failed:
        raise typer.Exit(1)


def _listing(runner: Runner, parts: list[Part], jobs: int) -> Any:
    from rich import box
    from rich.table import Table

    from signfade.cli.progress import duration
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
        f"{jobs} {'core' if jobs == 1 else 'cores'}. Runs that depend on the results of others, such as more "
        "seeds of a best cell, are counted once those are finished."
    )
    return table
