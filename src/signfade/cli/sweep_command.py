"""`signfade sweep`: many settings and seeds, on this machine or on a cluster, gathered into one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from signfade.cli.options import Out, Overrides, print_paths, stdout_console

if TYPE_CHECKING:
    from signfade.experiments.sweeps import Sweep

__all__ = ["sweep"]


def sweep(
    file: Annotated[Path, Argument(metavar="SWEEP", help="TOML file: a config, [grid], [[runs]], seeds.")],
    show: Annotated[bool, Option("--list", help="List the runs and how far they are; run nothing.")] = False,
    engine: Annotated[str, Option(metavar="process|ray", help="Where to run: here or on Ray.")] = "process",
    jobs: Annotated[
        int | None, Option("-j", "--jobs", metavar="J", min=1, help="Runs at a time; all cores by default.")
    ] = None,
    address: Annotated[
        str | None,
        Option(metavar="HOST:PORT", help="The Ray cluster; without one, a cluster of this machine's cores."),
    ] = None,
    overrides: Overrides = None,
    out: Out = None,
) -> None:
    """Try many settings and seeds.

    The runs are kept in OUT/NAME-sweep, with one table of all results. The same command again skips what is
    finished and continues what was stopped or failed.
    """
    from signfade.api.inputs import spell_out
    from signfade.experiments.config import parse_override
    from signfade.experiments.sweeps import read_sweep

    plan = read_sweep(file, spell_out(dict(map(parse_override, overrides or []))), out)
    if show:
        stdout_console().print(_listing(plan))
        return
    from signfade import api
    from signfade.experiments.table import comparison_table

    result = api.sweep(plan, engine=engine, jobs=jobs, address=address)
    if result.runs:
        console = stdout_console()
        console.print(comparison_table(result.groups, plan.name, console.width))
    print_paths(result.files)
    typer.echo(f"a page about them: signfade report {plan.folder}")
    if result.failed:
        raise typer.Exit(1)


def _listing(plan: Sweep) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from signfade.experiments.results import gather

    table = Table("run", "state", "folder", box=box.SIMPLE)
    rows = gather(plan)
    for run, row in zip(plan.runs, rows):
        state = {"absent": "to do", "unfinished": "begun"}.get(row["state"], row["state"])
        table.add_row(*map(Text, (run.title, state, row["folder"])))
    left = [run.planned.settings.rounds for run, row in zip(plan.runs, rows) if row["state"] != "finished"]
    table.caption = f"{len(rows)} runs, {len(rows) - len(left)} finished; at most {sum(left)} rounds to do"
    table.caption_justify = "left"
    return table
