"""What the commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from signfade._text import has_controls, printable

if TYPE_CHECKING:
    from rich.console import Console

    from signfade.settings import RunSettings

__all__ = [
    "Address",
    "ConfigFile",
    "EngineName",
    "Jobs",
    "Out",
    "Overrides",
    "fetch_data",
    "prepare_training",
    "read_settings",
    "stdout_console",
]

ConfigFile = Annotated[
    Path | None,
    typer.Argument(metavar="CONFIG", help="TOML file; without one, the defaults: digits."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a setting, such as server.learning_rate=1e-3; repeatable."
    ),
]
Out = Annotated[
    str | None,
    typer.Option("--out", metavar="DIR", help='Folder in which run folders are made; "runs" by default.'),
]
Jobs = Annotated[
    int,
    typer.Option("-j", "--jobs", metavar="J", min=1, help="Runs at a time, each a process of one thread."),
]
EngineName = Annotated[
    str, typer.Option("--engine", metavar="process|ray", help="Processes of this machine, or a Ray cluster.")
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="The Ray cluster; without one, a cluster of this machine's cores."
    ),
]


def read_settings(config: Path | None, overrides: list[str] | None, out: str | None = None) -> RunSettings:
    """Return the settings that a command was given."""
    from signfade.experiments.config import load

    settings = load(config, overrides or [])
    if out == "":
        raise ValueError("--out must name a folder; got ''")
    if out is not None and has_controls(out):
        raise ValueError(f"--out must not hold control characters; got {printable(out)!r}")
    return settings if out is None else settings.model_copy(update={"out": out})


def prepare_training(settings: RunSettings) -> None:
    """Prepare this process for a run: fetch its data, tune the allocator."""
    from signfade.simulation.allocator import tune_allocator

    tune_allocator()
    fetch_data(settings)


def fetch_data(settings: RunSettings) -> None:
    """Fetch the data of a run if it is not on this machine, and show the progress."""
    if settings.data.name == "mnist" and settings.data.folder is None:
        from signfade.cli.progress import Downloads
        from signfade.data import available, fetch

        if next(entry for entry in available() if entry.name == "mnist").where is None:
            with Downloads() as downloads:
                fetch("mnist", progress=downloads.progress, note=downloads.note)


def stdout_console() -> Console:
    """Return where results are printed."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:  # a file or a pipe has no width: do not fold tables for its sake
        console.width = 160
    return console
