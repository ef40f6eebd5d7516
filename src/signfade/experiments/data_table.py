"""Rows of numbers for people and for programs: a table in the terminal, JSON, CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from signfade.experiments.files import FolderError, why, write_atomically

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["Column", "DataTable", "TableSet", "percent"]

_DASH = "–"
_LEAST = 1e-9  # percent: what is rarer is not told apart


def percent(share: float) -> str:
    """Return a share, from 0 to 1, in percent: two significant digits, and tenths from 1 % on.

    Example:
        >>> [percent(share) for share in (0.302, 0.00013, 1.3e-8, 1e-40, 0.0)]
        ['30.2', '0.013', '1.3e-6', '<1e-9', '0']
    """
    value = 100 * float(share)
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if value < _LEAST:
        return f"<{_LEAST:.0e}".replace("e-0", "e-")
    if value < 1e-3:
        return f"{value:.1e}".replace("e-0", "e-")
    return f"{value:.{max(1, 1 - math.floor(math.log10(value)))}f}"


@dataclass(frozen=True)
class Column:
    """How people see a column: its header, and how its numbers are written, after a multiplication.

    The style "%" is that of shares, from 0 to 1, which `percent` writes.
    """

    header: str
    style: str = ".1f"
    times: float = 1.0

    def write(self, value: Any) -> str:
        """Return a value as text; what is missing is a dash."""
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return _DASH
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, str):
            return value
        if self.style == "%":
            return percent(value).replace("-", "−")
        return f"{self.times * value:{self.style}}".replace("-", "−")


@dataclass(frozen=True)
class DataTable:
    """Rows with the same keys. A key ends in its unit: `distance_m`, `snr_db`, `energy_j`; shares have none.

    `columns` are those that people see, in their order; programs get every key of the rows. With `across`
    people see the rows side by side, each under its first column.

    Example:
        >>> table = DataTable("Users", {"snr_db": Column("SNR (dB)")}, [{"user": 0, "snr_db": 3.14}])
        >>> table.to_csv()
        'user,snr_db\\n0,3.14\\n'
    """

    title: str
    columns: Mapping[str, Column]
    rows: Sequence[Mapping[str, Any]]
    across: bool = False

    def to_text(self, rows: Sequence[Mapping[str, Any]] | None = None) -> Group:
        """Return title and table for a terminal, of some rows if they are given."""
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        shown = self.rows if rows is None else rows
        cells = [[column.write(row.get(key)) for row in shown] for key, column in self.columns.items()]
        lines = [[column.header, *row] for column, row in zip(self.columns.values(), cells)]
        if not self.across:
            lines = [list(line) for line in zip(*lines)]
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.pad_edge = table.show_edge = False
        for place, header in enumerate(lines[0]):
            table.add_column(header, justify="right" if place else "left", no_wrap=True)
        for line in lines[1:]:
            table.add_row(*map(Text, line))
        return Group(Text(self.title, style="bold"), table)

    def to_csv(self) -> str:
        """Return every key of the rows as CSV, numbers in full, with a header."""
        text = io.StringIO()
        keys = list(self.rows[0]) if self.rows else list(self.columns)
        writer = csv.DictWriter(text, keys, lineterminator="\n")
        writer.writeheader()
        writer.writerows([_plain(row) for row in self.rows])
        return text.getvalue()


@dataclass(frozen=True)
class TableSet:
    """Tables by name and single facts, as one JSON document or one CSV file per table.

    `schema` names the meaning of the keys and its version, such as "signfade.link/1".
    """

    schema: str
    tables: Mapping[str, DataTable]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return `{"schema", facts, table: [row, ...]}`; what is infinite or missing is null.

        Example:
            >>> TableSet("demo/1", {"rows": DataTable("", {}, [{"error": math.inf}])}).to_json()
            '{\\n  "schema": "demo/1",\\n  "rows": [\\n    {\\n      "error": null\\n    }\\n  ]\\n}'
        """
        rows = {name: table.rows for name, table in self.tables.items()}
        document = _plain({"schema": self.schema, **self.facts, **rows})
        return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)

    def save_json(self, path: str | Path) -> Path:
        """Write the document and return its path."""
        return _write(Path(path), self.to_json() + "\n")

    def save_csv(self, folder: str | Path) -> list[Path]:
        """Write `folder/NAME.csv` for every table and return the paths."""
        return [_write(Path(folder) / f"{name}.csv", table.to_csv()) for name, table in self.tables.items()]


def _write(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    except OSError as error:
        raise FolderError(f"cannot write {path}: {why(error)}") from error
    return path


def _plain(value: Any) -> Any:
    """Turn numbers of NumPy into Python's, and those that are not finite into None, all the way down."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
