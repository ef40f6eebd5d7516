"""The results of a sweep in one file: one row per run."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from signfade.experiments.folder import FolderError, RunFolder, why, write_atomically
from signfade.experiments.summary import summarise
from signfade.experiments.sweeps import Sweep
from signfade.experiments.toml import flatten, toml_value

__all__ = ["gather", "write_results"]

_ASIDE = ("name", "seed", "method", "smoothing")  # of summary.json: elsewhere in a row, or the same in all
NUMBERS = tuple(
    key for key in summarise([], name="", seed=0, method="", parameters=0, devices=0) if key not in _ASIDE
)


def gather(sweep: Sweep, failed: Mapping[Path, str] | None = None) -> list[dict[str, Any]]:
    """Return one row per run of a sweep, whether or not it is finished.

    Args:
        sweep: its runs.
        failed: why runs failed, by folder, where their folders do not say it.

    Returns:
        Rows with the same keys in the same order: the settings that were tried in any run, `method`, `seed`,
        `state` (finished, failed, unfinished, absent), `failure`, the numbers of summary.json, `folder`. What
        is not known is None.

    Raises:
        FolderError: a damaged folder.
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
        row |= {key: (summary or {}).get(key) for key in NUMBERS}
        rows.append(row | {"folder": folder.path.as_posix()})
    return rows


def write_results(rows: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write `results.csv` and, where pyarrow is installed, `results.parquet`.

    Args:
        rows: from `gather`, at least one.
        folder: where to.

    Returns:
        The files written.

    Raises:
        FolderError: the folder cannot be written to.
    """
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    files = {folder / "results.csv": table.getvalue().encode()}
    if importlib.util.find_spec("pyarrow") is not None:
        files[folder / "results.parquet"] = _parquet(rows)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, data in files.items():
            write_atomically(path, data)
    except OSError as error:
        raise FolderError(f"cannot write the results to {folder}: {why(error)}") from error
    return list(files)


def _cell(value: Any) -> Any:
    """A list as TOML writes it, a truth value in lower case; None is empty."""
    return toml_value(value) if isinstance(value, bool | list) else value


def _parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
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
