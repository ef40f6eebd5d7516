"""The metrics of runs as one table, for a spreadsheet or a data frame: one row per run and round."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from signfade.experiments.files import FolderError, why, write_atomically
from signfade.experiments.metrics import METRIC_KEYS
from signfade.experiments.results import find_runs, load_run, to_csv, to_parquet

__all__ = ["export_metrics", "metric_rows"]

_OWN = ("run", "method", "seed")


def metric_rows(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Return one row per round of the runs in `folders`: run, method, seed, then what metrics.jsonl holds.

    All rows have the same keys in one order; what a run does not measure is None, and lists, such as the
    quartiles of the SNR, are kept as lists.
    """
    rows: list[dict[str, Any]] = []
    for run in map(load_run, find_runs(folders)):
        own = {"run": run.path.as_posix(), "method": run.label, "seed": run.seed}
        rows += [own | record for record in run.metrics]
    keys = dict.fromkeys((*_OWN, *METRIC_KEYS))
    for row in rows:
        keys |= dict.fromkeys(row)
    return [{key: row.get(key) for key in keys} for row in rows]


def export_metrics(
    folders: Sequence[Path], *, csv: Path | None = None, parquet: Path | None = None
) -> list[Path]:
    """Write the metrics of all runs in `folders` as CSV, as Parquet, or as both; return the files.

    Raises `ValueError` if no format is asked for, if there are no rounds, and for Parquet without pyarrow.
    """
    if csv is None and parquet is None:
        raise ValueError("nothing to write: name a file by --csv, --parquet or both")
    if parquet is not None and importlib.util.find_spec("pyarrow") is None:
        raise ValueError("--parquet needs pyarrow, which is not installed: pip install pyarrow, or use --csv")
    rows = metric_rows(folders)
    if not rows:
        raise ValueError(f"no round is done yet in {', '.join(map(str, folders))}")
    files: Mapping[Path | None, Any] = {csv: to_csv, parquet: to_parquet}
    written = []
    for path, encode in files.items():
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, encode(rows))
        except OSError as error:
            raise FolderError(f"cannot write {path}: {why(error)}") from error
        written.append(path)
    return written
