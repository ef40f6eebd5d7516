"""`signfade reproduce`: run, resume and render the studies behind the docs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from signfade.cli.options import print_paths, stdout_console, tune_process

if TYPE_CHECKING:
    from signfade.experiments.studies.runner import Runner
    from signfade.experiments.studies.study import Part

__all__ = ["reproduce"]


def reproduce(
    names: Annotated[
        list[str] | None,
        Argument(metavar="NAME...", help='Studies, tables or figures by name, or "all"; see --list.'),
    ] = None,
    show: Annotated[
        bool,
        Option("--list", help="List names, runs and times; run nothing. With --docs, published runs count."),
    ] = False,
    seeds: Annotated[
        int | None,
        Option(metavar="N", help="Seeds of everything; by default 5 to 10 per cell, 3 to 5 elsewhere."),
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
    command again to continue. Each study writes a page; those of the paper are
    OUT/results.md and OUT/tables.md. OUT is "reproduction" by default.
    """
    from signfade import api
    from signfade.experiments.studies import catalogue, records
    from signfade.experiments.studies.runner import Runner
    from signfade.kernels.threads import available_threads

    if docs is not None and (quick or seeds is not None or rounds is not None):
        raise ValueError("--docs holds the full studies; it does not go with --quick, --seeds or --rounds")
    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs must be 1 or more; got {jobs}")
    if not names and not show:
        known = ", ".join(one.name for one in catalogue.STUDIES)
        raise ValueError(f'name studies ({known}), tables or figures, or "all"; --list shows them')
    if show:
        scale = (records.QUICK if quick else records.FULL).changed(seeds, rounds)
        runner = Runner(out or Path("reproduction-quick" if quick else "reproduction"), scale, docs)
        parts = catalogue.choose(names or ["all"])
        stdout_console().print(_listing(runner, parts, jobs or available_threads()))
        return
    tune_process()
    options: dict[str, Any] = {
        "seeds": seeds,
        "rounds": rounds,
        "jobs": jobs,
        "quick": quick,
        "render": render,
    }
    written, failed = api.reproduce(names or [], out=out, docs=docs, **options)
    print_paths(written)
    if failed:
        raise typer.Exit(1)


def _listing(runner: Runner, parts: list[Part], jobs: int) -> Any:
    from rich import box
    from rich.table import Table

    from signfade.api.progress import duration
    from signfade.experiments.studies.catalogue import STUDIES
    from signfade.experiments.studies.runner import estimate_seconds

    table = Table("study", "name", "what", box=box.SIMPLE)
    for head in ("runs", "finished", "time left"):
        table.add_column(head, justify="right")
    for study in STUDIES:
        for number, part in enumerate(part for part in study.parts if part in parts):
            runs, left = runner.needed(part)
            seconds = estimate_seconds(left, runner.records) / jobs
            seconds += sum(
                one.seconds(runner.scale)
                for one in part.members
                if one.measure is not None and runner.measurement(one) is None
            )
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
