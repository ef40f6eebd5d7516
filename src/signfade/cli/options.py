"""What the commands have in common."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from signfade._text import has_controls, printable

if TYPE_CHECKING:
    from rich.console import Console

    from signfade.api import RunResult
    from signfade.experiments.data_table import TableSet
    from signfade.settings import RunSettings

__all__ = [
    "AsJson",
    "ConfigFile",
    "CsvFolder",
    "Force",
    "Name",
    "Out",
    "Overrides",
    "Resume",
    "export",
    "print_paths",
    "print_summary",
    "read_settings",
    "stdout_console",
    "tune_process",
]

ConfigFile = Annotated[Path | None, Argument(metavar="CONFIG", help="TOML file; by default, digits.")]
Overrides = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting: server.learning_rate=1e-3, method=signsgd; repeatable.",
    ),
]
Out = Annotated[
    str | None,
    Option("--out", metavar="DIR", help='Folder in which run folders are made; "runs" by default.'),
]
Name = Annotated[str | None, Option("--name", metavar="NAME", help="Name of the run; the setting name.")]
Resume = Annotated[
    bool,
    Option(
        "--resume",
        help="Continue this run if it was stopped, or has fewer rounds than now asked for; else start it.",
    ),
]
Force = Annotated[
    bool,
    Option("--force", help="Move the folder of an earlier run aside, to NAME.1, NAME.2, ...; start anew."),
]
AsJson = Annotated[bool, Option("--json", help="Print every number as JSON, and nothing else.")]
CsvFolder = Annotated[
    Path | None, Option("--csv", metavar="DIR", help="Write every table to a CSV file in this folder.")
]


def read_settings(
    config: Path | None, overrides: list[str] | None, out: str | None = None, name: str | None = None
) -> RunSettings:
    """Return the settings that a command was given; names of data and methods are read as in Python."""
    from signfade.api.inputs import read_inputs
    from signfade.experiments.config import parse_override

    named = {} if name is None else {"name": name}
    settings = read_inputs(config, dict(map(parse_override, overrides or [])) | named).settings
    if out == "":
        raise ValueError("--out must name a folder; got ''")
    if out is not None and has_controls(out):
        raise ValueError(f"--out must not hold control characters; got {printable(out)!r}")
    return settings if out is None else settings.model_copy(update={"out": out})


def tune_process() -> None:
    """Prepare this process for runs: a command may tune its allocator, a library may not."""
    from signfade.simulation.allocator import tune_allocator

    tune_allocator()


def print_summary(run: RunResult, as_json: bool) -> None:
    """Print the summary of a run: as JSON alone, or as lines for people."""
    from signfade.api.results import summary_text
    from signfade.experiments.metrics import fall_text

    summary = run.summary
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
        return
    typer.echo(f"{summary_text(summary)}\n{run.path}")
    if (fall := fall_text(summary)) is not None:
        typer.echo(f"{fall}; try a smaller server.learning_rate")


def export(tables: TableSet, as_json: bool, csv_folder: Path | None) -> list[Path] | None:
    """Print tables as JSON and write them as CSV, as far as asked for; return the paths, None for JSON."""
    files = [] if csv_folder is None else tables.save_csv(csv_folder)
    if as_json:
        typer.echo(tables.to_json())
        return None
    return files


def print_paths(paths: Iterable[Path]) -> None:
    """Print where results were written, one path per line."""
    for path in paths:
        typer.echo(str(path))


def stdout_console() -> Console:
    """Return where results are printed."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:  # a file or a pipe has no width: do not fold tables for its sake
        console.width = 160
    return console
