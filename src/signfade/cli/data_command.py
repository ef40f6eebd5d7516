"""`signfade data`: which data sets there are, where they come from, who gets what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from signfade.cli.options import ConfigFile, Overrides, print_paths, read_settings, stdout_console

__all__ = ["data_app"]

data_app = typer.Typer(help="Data sets on this machine.", no_args_is_help=True)


@data_app.command("list")
def data_list() -> None:
    """List the data sets that a run can name, where they are, their licences and whom to cite."""
    from rich import box
    from rich.table import Table

    from signfade.data import available

    table = Table("name", "what", "where", "licence", "cite", box=box.SIMPLE)
    for entry in available():
        where = entry.where or f"signfade data fetch {entry.name}"
        table.add_row(entry.name, entry.description, where, entry.licence, entry.citation)
    stdout_console().print(table)


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, Argument(help="A name from `signfade data list`.")],
    folder: Annotated[Path | None, Option(metavar="DIR", help="Folder; the cache by default.")] = None,
) -> None:
    """Download a data set once; its files are checked by SHA-256."""
    from signfade.api.progress import Downloads
    from signfade.data import fetch

    with Downloads() as downloads:
        where = fetch(name, folder, progress=downloads.progress, note=downloads.note)
    print_paths([where])


@data_app.command("split")
def data_split(
    config: ConfigFile = None,
    overrides: Overrides = None,
    output: Annotated[Path, Option("-o", "--output", metavar="FILE", help="A PNG.")] = Path("split.png"),
) -> None:
    """Draw which device of a run holds what."""
    settings = read_settings(config, overrides)
    from signfade.data import load, plot_split
    from signfade.experiments.style import save_figure
    from signfade.simulation.run import deal

    data = settings.data
    dataset = load(data.name, data.folder)
    who = deal(dataset, data, settings.seed)
    figure = plot_split(dataset.train_y, who, dataset.classes)
    stem = output.with_suffix("") if output.suffix == ".png" else output
    files = save_figure(figure, stem, ["png"])
    least, most = who.counts.min(), who.counts.max()
    each = f"{least}" if least == most else f"{least} to {most}"
    typer.echo(
        f"{who.devices} devices hold {each} samples each, {who.counts.sum()} of {len(dataset.train_y)} in all"
    )
    print_paths(files)
