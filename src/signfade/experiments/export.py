"""The metrics of runs as one table, for a spreadsheet or a data frame: one row per run and round."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from signfade.experiments.files import FolderError, why, write_atomically
from signfade.experiments.metrics import METRIC_KEYS, numbers_of
from signfade.experiments.results import find_runs, load_run, to_csv, to_parquet

__all__ = ["export_metrics", "metric_rows"]


def metric_rows(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Return one row per round of the runs in `folders`: run, method, seed, round, then all its numbers.

    All rows have the same keys in one order; what a run does not measure is None. Lists are spread over
    columns: `snr_db.0`, `.1` and `.2` are the smallest, median and largest SNR of a round.
    """
    rows: list[dict[str, Any]] = []
    for run in map(load_run, find_runs(folders)):
        own = {"run": run.path.as_posix(), "method": run.label, "seed": run.seed}
        rows += [own | {"round": record["round"]} | numbers_of(record) for record in run.metrics]
    found = dict.fromkeys(key for row in rows for key in row)
    known = [key for key in METRIC_KEYS if key in found]
    order = dict.fromkeys(["run", "method", "seed", *known, *found])
    return [{key: row.get(key) for key in order} for row in rows]


def export_metrics(
    folders: Sequence[Path], *, csv: Path | None = None, parquet: Path | None = None
) -> list[Path]:
    """Write the metrics of all runs in `folders` as CSV, as Parquet, or as both; return the files.

    Raises `ValueError` if no format is asked for, if there are no rounds, and, once the CSV is written, for
    Parquet without pyarrow.
    """
    if csv is None and parquet is None:
        raise ValueError("there is nothing to write: name a file by --csv, --parquet or both")
    rows = metric_rows(folders)
    if not rows:
        raise ValueError(f"no round is done yet in {', '.join(map(str, folders))}")
    lacking = parquet is not None and importlib.util.find_spec("pyarrow") is None
    files = [(csv, to_csv), (None if lacking else parquet, to_parquet)]
    written = [(path, encode(rows)) for path, encode in files if path is not None]
    for path, data in written:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
        except OSError as error:
            raise FolderError(f"cannot write {path}: {why(error)}") from error
    if lacking:
        instead = "use --csv" if csv is None else f"{csv} is written"
        raise ValueError(
            "--parquet needs pyarrow, which is not here; in the checkout: pip install -e '.[notebook]'; "
            + instead
        )
    return [path for path, _ in written]
