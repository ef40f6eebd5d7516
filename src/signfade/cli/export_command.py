"""`signfade export`: the metrics of runs as one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from signfade.cli.options import print_paths

__all__ = ["export"]


def export(
    folders: Annotated[list[Path], Argument(metavar="DIR", help="Run folders, or folders of them.")],
    csv: Annotated[Path | None, Option(metavar="FILE", help="Write CSV.")] = None,
    parquet: Annotated[Path | None, Option(metavar="FILE", help="Write Parquet; needs pyarrow.")] = None,
) -> None:
    """Write the metrics of runs as one table.

    One row per run and round, with the run's folder, method and seed in the first columns. The runs may be
    unfinished.
    """
    from signfade import api

    print_paths(api.export(folders, csv=csv, parquet=parquet))
