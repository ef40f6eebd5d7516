"""The commands. Each is a few lines: read the input, call the library, print."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from signfade.cli.data import data_app
from signfade.cli.deploy import deploy
from signfade.cli.options import (
    ConfigFile,
    Jobs,
    Out,
    Overrides,
    fetch_data,
    prepare_training,
    read_settings,
    stdout_console,
)
from signfade.cli.reproduce import reproduce
from signfade.cli.sweep_command import sweep

if TYPE_CHECKING:
    from signfade.settings import RunSettings

__all__ = ["app"]

# Help is plain text here; with rich installed Typer writes "\[default: 1]" even so.
typer.core.HAS_RICH = False

app = typer.Typer(
    name="signfade",
    help="Train one model over many wireless devices at one bit per weight.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        from signfade import __version__

        typer.echo(f"signfade {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    config: ConfigFile = None,
    overrides: Overrides = None,
    out: Out = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue this run if it was stopped; start it if it is not there."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")
    ] = False,
    shards: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Compute the devices on N worker processes; never changes a result."
        ),
    ] = None,
) -> None:
    """Train one model over one cell.

    Everything about the run is kept in the folder OUT/NAME.
    """
    settings = read_settings(config, overrides, out)
    from signfade.cli.progress import Progress
    from signfade.experiments.planned_runs import run_folder
    from signfade.experiments.training import train
    from signfade.experiments.workers.shards import sharded

    folder = run_folder(settings)
    prepare_training(settings)
    workers = nullcontext() if shards is None else sharded(shards)
    with workers as make_task, Progress([settings.method_label], [settings.rounds]) as progress:
        summary = train(
            settings,
            folder,
            resume=resume,
            on_round=progress.round,
            on_note=progress.note,
            make_task=make_task,
        )
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
        return
    from signfade.cli.show import summary_text
    from signfade.experiments.summary import fall_text

    typer.echo(f"{summary_text(summary)}\n{folder}")
    if (fall := fall_text(summary)) is not None:
        typer.echo(f"{fall}; try a smaller server.learning_rate")


@app.command()
def compare(
    config: ConfigFile = None,
    methods: Annotated[
        str,
        typer.Option(
            metavar="A,B,C",
            help="Variants of the file, presets, aggregators, compressors, or your own (file.py:function).",
        ),
    ] = "signsgd,sbfl,best,ideal",
    seeds: Annotated[int, typer.Option(metavar="N", help="Repeat everything with N seeds.")] = 1,
    jobs: Jobs = 1,
    overrides: Overrides = None,
    out: Out = None,
) -> None:
    """Train by several methods and compare them.

    All get the same data, cell, noise and initial weights. The runs are kept in OUT/NAME-compare, with one
    table, one figure and one report. The same command again continues what was stopped.
    """
    settings = read_settings(config, overrides, out)
    _compare(settings, methods.split(","), seeds, f"{settings.name}-compare", jobs)


@app.command()
def demo(overrides: Overrides = None, out: Out = None) -> None:
    """Compare four methods on digits, in under two minutes.

    The vote (signsgd), the paper's rule (sbfl), the recommended preset (best) and full precision without a
    radio (ideal), over one cell, each with the learning rate and momentum that suit it best. Nothing is
    downloaded.
    """
    from importlib.resources import as_file, files

    with as_file(files("signfade.experiments") / "demo.toml") as config:
        settings = read_settings(config, overrides, out)
    _compare(settings, ["signsgd", "sbfl", "best", "ideal"], 1, settings.name)


def _compare(settings: RunSettings, methods: list[str], seeds: int, name: str, jobs: int = 1) -> None:
    from signfade.cli.progress import Progress
    from signfade.experiments.comparisons import compare, plan, write_comparison
    from signfade.experiments.planned_runs import folder_name
    from signfade.experiments.table import comparison_table

    folder = Path(settings.out) / folder_name(name)
    (prepare_training if jobs == 1 else fetch_data)(settings)
    runs = plan(settings, [method.strip() for method in methods if method.strip()], folder, seeds)
    titles = [
        run.settings.method_label + (f", seed {run.settings.seed}" if seeds > 1 else "") for run in runs
    ]
    with Progress(titles, [run.settings.rounds for run in runs]) as progress:
        result = compare(runs, jobs, on_event=progress.event)
    files = write_comparison(result, folder, settings.name)
    console = stdout_console()
    console.print(comparison_table(result.groups, settings.name, console.width))
    for file in files:
        typer.echo(str(file))
    if result.failed:
        raise typer.Exit(1)


@app.command()
def link(config: ConfigFile = None, overrides: Overrides = None, out: Out = None) -> None:
    """Study the cell of a run, without training.

    The SNRs of the devices, and the error predicted for every rule. Pictures go to OUT/NAME-link.
    """
    settings = read_settings(config, overrides, out)
    from signfade.experiments.link_study import link_text, plot_link, study_link
    from signfade.experiments.planned_runs import folder_name

    study = study_link(settings)
    files = plot_link(study, Path(settings.out) / folder_name(f"{settings.name}-link"))
    console = stdout_console()
    for part in link_text(study):
        console.print(part)
    for file in files:
        typer.echo(str(file))


@app.command()
def theory(
    snr_db: Annotated[
        str, typer.Option(metavar="A,B,C", help="SNRs in dB, or FIRST:LAST:STEP.")
    ] = "-10,-5,0,5,10,15,20",
    family: Annotated[str, typer.Option(help="Prior of a coordinate: gaussian or laplacian.")] = "gaussian",
    fading: Annotated[
        str, typer.Option(help="Average over fading: gaussian, rayleigh, rician or none.")
    ] = "none",
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the curves, as PNG, SVG or PDF.")
    ] = None,
) -> None:
    """Predict the error of each rule at given SNRs.

    It is the squared error of a coordinate, in units of its variance.
    """
    from signfade.cli.show import error_tables, read_snrs

    snrs = read_snrs(snr_db)
    kind = "png" if plot is None or not plot.suffix else plot.suffix.removeprefix(".").lower()
    if kind not in ("png", "svg", "pdf"):
        raise ValueError(f"--plot must end in .png, .svg or .pdf; got {str(plot)!r}")
    import numpy as np

    from signfade.experiments.link_study import ERRORS_ARE, plot_errors, theory_errors
    from signfade.experiments.style import save_figure

    options: dict[str, Any] = {"family": family, "fading": fading}
    errors = theory_errors(snrs, **options)
    files = []
    if plot is not None:
        grid = np.linspace(snrs.min(), max(snrs.max(), snrs.min() + 1), 121)
        files = save_figure(plot_errors(grid, **options), plot.with_suffix(""), [kind])
    console = stdout_console()
    console.print(f"{ERRORS_ARE}{'' if fading == 'none' else f', averaged over {fading} fading'}")
    for table in error_tables(snrs, errors, console.width):
        console.print(table)
    for file in files:
        typer.echo(str(file))


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Run folders, or folders of them.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The page; by default report.html, in DIR if there is one, here if there are several.",
        ),
    ] = None,
) -> None:
    """Write one HTML page about runs.

    The runs may be unfinished. The page needs no network and no other file.
    """
    from signfade.experiments.html_report import write_report

    place = folders[0] if len(folders) == 1 else Path()
    typer.echo(str(write_report(folders, output or place / "report.html")))


@app.command()
def config(
    file: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="A TOML file to complete with the defaults.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Print all settings and what they mean, as TOML."""
    from signfade.experiments.config import load, to_toml

    typer.echo(to_toml(load(file, overrides or []), comments=True), nl=False)


# In the order of `signfade --help`, after those above.
app.command()(sweep)
app.command()(reproduce)
app.command()(deploy)
app.add_typer(data_app, name="data")
