"""Runs read back from their folders, and the results of a sweep in one file: one row per run."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from signfade.experiments.config import flatten
from signfade.experiments.files import FolderError, why, write_atomically
from signfade.experiments.folder import RunFolder
from signfade.experiments.group import Run
from signfade.experiments.metrics import SUMMARY_KEYS
from signfade.experiments.toml import toml_value

if TYPE_CHECKING:
    from signfade.experiments.sweeps import Sweep

__all__ = ["columns", "find_runs", "gather", "load_run", "to_csv", "to_parquet", "write_results"]

_ASIDE = ("name", "seed", "method", "smoothing")  # of summary.json: elsewhere in a row, or the same in all


def load_run(path: str | os.PathLike[str]) -> Run:
    """Read a run folder, finished or not; `FolderError` if there is no run, or a damaged one."""
    folder = RunFolder(path)
    summary = folder.read_summary()
    failure = None if summary is not None else folder.failure()
    return Run(folder.path, folder.config_text(), folder.config(), folder.read_metrics(), summary, failure)


def find_runs(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return the run folders among `paths` and inside them, in order, each once.

    Raises `FolderError` if a path does not exist or holds no run.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise FolderError(f"{path} does not exist")
        own = (path / "config.toml").exists()
        inside = [path] if own else sorted(config.parent for config in path.rglob("config.toml"))
        if not inside:
            raise FolderError(f"{path} holds no run: there is no config.toml in it")
        for run in inside:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[Any]]:
    """Return rows as columns; a missing number is NaN.

    Example:
        >>> found = columns([{"round": 1, "method": "best"}, {"round": 2, "test_accuracy": 0.9}])
        >>> {key: column.tolist() for key, column in found.items()}
        {'round': [1, 2], 'method': ['best', None], 'test_accuracy': [nan, 0.9]}
    """
    found = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        values = [row.get(key) for row in rows]
        if all(value is None or isinstance(value, int | float) for value in values):
            whole = all(isinstance(value, int) for value in values)
            found[key] = np.array(values) if whole else np.array(values, dtype=np.float64)
        else:
            found[key] = np.empty(len(values), dtype=object)
            found[key][:] = values
    return found


def gather(sweep: Sweep, failed: Mapping[Path, str] | None = None) -> list[dict[str, Any]]:
    """Return one row per run of a sweep, whether or not it is finished; all have the same keys in one order.

    These are the settings that were tried in any run, `method`, `seed`, `state` (finished, failed,
    unfinished, absent), `failure`, the numbers of summary.json, and `folder`. What is not known is None.
    `failed` says why runs failed, by folder, where their folders do not say it.
    """
    rows = []
    for run in sweep.runs:
        folder = RunFolder(run.planned.folder)
        summary, failure = None, (failed or {}).get(folder.path)
        state = "absent"
        if folder.config_path.exists():
            summary = folder.read_summary()
            failure = failure or (None if summary else folder.failure())
            state = "finished" if summary else "unfinished"
        settings = run.planned.settings
        flat = flatten(settings.model_dump(exclude={"variants"}))
        row: dict[str, Any] = {key: flat[key] for key in sweep.keys}
        row |= {"method": settings.method_label, "seed": settings.seed}
        row |= {"state": "failed" if failure else state, "failure": failure}
        row |= {key: (summary or {}).get(key) for key in SUMMARY_KEYS if key not in _ASIDE}
        rows.append(row | {"folder": folder.path.as_posix()})
    return rows


def write_results(rows: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write the rows of `gather` to `results.csv` and, where pyarrow is installed, `results.parquet`."""
    files = {folder / "results.csv": to_csv(rows)}
    if importlib.util.find_spec("pyarrow") is not None:
        files[folder / "results.parquet"] = to_parquet(rows)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, data in files.items():
            write_atomically(path, data)
    except OSError as error:
        raise FolderError(f"cannot write the results to {folder}: {why(error)}") from error
    return list(files)


def to_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows with the same keys as CSV; lists are written as in TOML, None is empty."""
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return table.getvalue().encode()


def _cell(value: Any) -> Any:
    """A list as TOML writes it, a truth value in lower case; None is empty."""
    return toml_value(value) if isinstance(value, bool | list) else value


def to_parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows with the same keys as Parquet; needs pyarrow. A column of several types becomes text."""
    arrow, parquet = map(importlib.import_module, ("pyarrow", "pyarrow.parquet"))
    columns: dict[str, list[Any]] = {key: [row[key] for row in rows] for key in rows[0]}
    for key, values in columns.items():
        kinds = {type(value) for value in values if value is not None}
        if len(kinds) > 1 and not kinds <= {int, float}:  # such as a number in one run and "none" in another
            columns[key] = [None if value is None else str(_cell(value)) for value in values]
        elif kinds == {int, float}:
            columns[key] = [None if value is None else float(value) for value in values]
    sink = io.BytesIO()
    parquet.write_table(arrow.table(columns), sink)
    return sink.getvalue()
