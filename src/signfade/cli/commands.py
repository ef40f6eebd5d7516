"""The commands about runs. Each is a few lines: read the input, call the library, print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from signfade.cli.options import (
    AsJson,
    ConfigFile,
    CsvFolder,
    Force,
    Name,
    Out,
    Overrides,
    Resume,
    export,
    print_paths,
    print_summary,
    read_settings,
    stdout_console,
    tune_process,
)

if TYPE_CHECKING:
    from signfade.api import RunsResult

# In the order of `signfade --help`.
__all__ = ["run", "compare", "demo", "link", "theory", "report", "config"]  # noqa: RUF022


def run(
    config: ConfigFile = None,
    overrides: Overrides = None,
    name: Name = None,
    out: Out = None,
    resume: Resume = False,
    force: Force = False,
    as_json: AsJson = False,
    shards: Annotated[
        int | None,
        Option(metavar="N", min=1, help="Compute the devices on N worker processes; never changes a result."),
    ] = None,
) -> None:
    """Train one model over one cell.

    Everything about the run is kept in the folder OUT/NAME.
    """
    settings = read_settings(config, overrides, out, name)
    from signfade import api

    tune_process()
    options: dict[str, Any] = {"resume": resume, "force": force, "shards": shards}
    print_summary(api.run(settings, out=settings.out, **options), as_json)


def compare(
    config: ConfigFile = None,
    methods: Annotated[
        str,
        Option(
            metavar="A,B,C",
            help="Variants of the file, presets, aggregators, compressors, or your own (file.py:function).",
        ),
    ] = "signsgd,sbfl,best,ideal",
    seeds: Annotated[int, Option(metavar="N", help="Repeat everything with N seeds.")] = 1,
    jobs: Annotated[
        int, Option("-j", "--jobs", metavar="J", min=1, help="Runs at a time, each a process of one thread.")
    ] = 1,
    overrides: Overrides = None,
    name: Name = None,
    out: Out = None,
    as_json: AsJson = False,
    csv_folder: CsvFolder = None,
    force: Force = False,
) -> None:
    """Train by several methods and compare them.

    All get the same data, cell, noise and initial weights. The runs are kept in OUT/NAME-compare, with one
    table, one figure and one report. The same command again continues what was stopped.
    """
    settings = read_settings(config, overrides, out, name)
    from signfade import api

    names = [method.strip() for method in methods.split(",") if method.strip()]
    if jobs == 1:
        tune_process()
    options: dict[str, Any] = {"seeds": seeds, "jobs": jobs, "force": force}
    _show(api.compare(names, settings, out=settings.out, **options), as_json, csv_folder)


def demo(overrides: Overrides = None, out: Out = None) -> None:
    """Compare four methods on digits, in under two minutes.

    The vote (signsgd), the paper's rule (sbfl), the recommended preset (best) and full precision without a
    radio (ideal), over one cell, each with the learning rate and momentum that suit it best. Nothing is
    downloaded.
    """
    from signfade import api
    from signfade.api.calls import demo_file
    from signfade.experiments.files import folder_name

    with demo_file() as config:
        settings = read_settings(config, overrides, out)
    tune_process()
    _show(api.compare(config=settings, folder=Path(settings.out) / folder_name(settings.name)))


def _show(result: RunsResult, as_json: bool = False, csv_folder: Path | None = None) -> None:
    """Print the table of a comparison, and exit with 1 if a run failed."""
    from signfade.experiments.table import comparison_table, comparison_tables

    written = export(comparison_tables(result.groups), as_json, csv_folder)
    if written is not None:
        console = stdout_console()
        console.print(comparison_table(result.groups, result.name, console.width))
        print_paths([*result.files, *written])
    if result.failed:
        raise typer.Exit(1)


def link(
    config: ConfigFile = None,
    overrides: Overrides = None,
    name: Name = None,
    out: Out = None,
    correlation: Annotated[
        float, Option(metavar="R", help="Between any two devices' gradients, for the limit.")
    ] = 0.0,
    weights: Annotated[
        int | None, Option(metavar="M", min=1, help="Weights of the model, where only the data would tell.")
    ] = None,
    target_error: Annotated[
        float, Option(metavar="P", help="Wrong bits, or lost codewords, that a link may have.")
    ] = 0.1,
    as_json: AsJson = False,
    csv_folder: CsvFolder = None,
) -> None:
    """Study the cell of a run, without training and without data.

    The link budget, SNRs, coverage, every device, error curves, time and energy of a round, the error
    predicted for every rule, and how far the run's method is above the limit. The figure goes to
    OUT/NAME-link.
    """
    settings = read_settings(config, overrides, out, name)
    from signfade import api
    from signfade.experiments.files import folder_name
    from signfade.experiments.style import save_figure

    study = api.link(settings, weights=weights, correlation=correlation, target_error=target_error)
    written = export(study.tables, as_json, csv_folder)
    stem, figure = Path(settings.out) / folder_name(f"{settings.name}-link") / "link", study.plot()
    files = [] if figure is None else save_figure(figure, stem, ["png"])
    if written is None:
        return
    console = stdout_console()
    for part in study.text():
        console.print(part)
    print_paths([*files, *written])


def theory(
    snr_db: Annotated[
        str, Option(metavar="A,B,C", help="In dB, or FIRST:LAST:STEP.")
    ] = "-10,-5,0,5,10,15,20",
    family: Annotated[str, Option(metavar="gaussian|laplacian", help="Prior of a coordinate.")] = "gaussian",
    fading: Annotated[
        str, Option(metavar="gaussian|rayleigh|rician|none", help="Average over fading.")
    ] = "none",
    plot: Annotated[Path | None, Option(metavar="FILE", help="Draw the curves, as PNG, SVG or PDF.")] = None,
    rates: Annotated[
        str | None,
        Option(
            "--bits-per-weight",
            metavar="A,B,C",
            help="The rate dial: 0.001 to 1, 2, 3, 4, analog; by default 1,2,4,analog.",
        ),
    ] = None,
    correlation: Annotated[
        float | None, Option(metavar="R", help="Between any two devices' gradients; 0 by default.")
    ] = None,
    devices: Annotated[
        int | None, Option(metavar="K", min=1, max=500, help="Devices in the sum; 20 by default.")
    ] = None,
    private: Annotated[
        bool | None, Option("--private/--shared", help="Rotations; by default both.", show_default=False)
    ] = None,
    papr_db: Annotated[
        str | None, Option(metavar="DB", help="Peak over mean power of analog, or none; 8 by default.")
    ] = None,
    as_json: AsJson = False,
    csv_folder: CsvFolder = None,
) -> None:
    """Predict the error of an estimate at given SNRs, and how far it is above the limit.

    It is the squared error of a coordinate at one bit per weight, in units of its variance, under each rule
    that reads every device by itself. A vote and the joint rules combine devices, so their error depends on
    the whole cell: see "signfade link" for the vote, and "nmse_theory" in the metrics of a run. Any of the
    last five options asks for the rate dial instead: the error of the sum of K devices that are all
    correlated alike.
    """
    from signfade.cli.show import distance_tables, error_tables, read_dial, read_snrs

    snrs = read_snrs(snr_db)
    kind = "png" if plot is None or not plot.suffix else plot.suffix.removeprefix(".").lower()
    if kind not in ("png", "svg", "pdf"):
        raise ValueError(f"--plot must end in .png, .svg or .pdf; got {str(plot)!r}")
    dial = read_dial(rates, correlation, devices, private, papr_db, fading, family)
    import numpy as np

    from signfade import api
    from signfade.experiments.link_study import ERRORS_ARE, plot_errors
    from signfade.experiments.style import save_figure
    from signfade.experiments.theory_table import dial_curves

    options: dict[str, Any] = {"family": family, "fading": fading}
    table = api.predict_errors(snrs, dial, **options)
    files = []
    if plot is not None:
        grid = np.linspace(snrs.min(), max(snrs.max(), snrs.min() + 1), 121)
        figure = plot_errors(grid, **options) if dial is None else dial_curves(grid, dial)
        files = save_figure(figure, plot.with_suffix(""), [kind])
    facts = options if dial is None else options | dial._asdict()
    written = export(table.tables(snrs, **facts), as_json, csv_folder)
    if written is None:
        return
    console = stdout_console()
    averaged = "" if fading == "none" else f", averaged over {fading} fading"
    console.print(f"{ERRORS_ARE}{averaged}" if dial is None else dial.title)
    for part in error_tables(snrs, table.rows, console.width):
        console.print(part)
    if table.above:
        console.print("dB above the limit")
        for part in distance_tables(snrs, table.above, console.width):
            console.print(part)
    print_paths([*files, *written])


def report(
    folders: Annotated[list[Path], Argument(metavar="DIR", help="Run folders, or folders of them.")],
    output: Annotated[
        Path | None,
        Option(
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
    from signfade import api

    place = folders[0] if len(folders) == 1 else Path()
    print_paths([api.report(folders, output or place / "report.html")])


def config(
    file: Annotated[Path | None, Argument(metavar="CONFIG", help="TOML file, to be completed.")] = None,
    overrides: Overrides = None,
) -> None:
    """Print all settings and what they mean, as TOML."""
    settings = read_settings(file, overrides)
    from signfade import api

    typer.echo(api.config(settings), nl=False)
