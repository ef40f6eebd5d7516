"""Tables for people and programs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from signfade.experiments.data_table import Column, DataTable, TableSet
from signfade.experiments.files import FolderError

ROWS = [
    {"user": "a, b", "snr_db": np.float64(-3.25), "error": float("inf"), "hidden": 1 / 3},
    {"user": 'say "hi"', "snr_db": None, "error": float("nan"), "hidden": np.int64(7)},
]
COLUMNS = {"user": Column("user"), "snr_db": Column("SNR (dB)"), "error": Column("error (%)", ".0f", 100)}
TABLE = DataTable("Users", COLUMNS, ROWS)


def test_text_json_and_csv_hold_the_same_numbers() -> None:
    document = json.loads(TableSet("demo/1", {"users": TABLE}, {"carrier_hz": np.float32(2e9)}).to_json())
    assert (document["schema"], document["carrier_hz"]) == ("demo/1", 2e9)
    told = [{"user": "a, b", "snr_db": -3.25, "error": None, "hidden": 1 / 3}]
    told += [{"user": 'say "hi"', "snr_db": None, "error": None, "hidden": 7}]
    assert document["users"] == told
    read = list(csv.DictReader(io.StringIO(TABLE.to_csv())))
    assert [{key: value or None for key, value in row.items()} for row in read] == [
        {key: None if value is None else str(value) for key, value in row.items()} for row in told
    ]
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(TABLE.to_text())
    lines = [line.split() for line in console.export_text().splitlines()]
    assert ["a,", "b", "−3.2", "inf"] in lines
    assert ["say", '"hi"', "–", "–"] in lines


def test_files_are_written_or_refused_in_one_sentence(tmp_path: Path) -> None:
    tables = TableSet("demo/1", {"users": TABLE, "none": DataTable("", {"x_m": Column("x")}, [])})
    users, none = tables.save_csv(tmp_path / "new" / "folder")
    assert users.read_text() == TABLE.to_csv()
    assert none.read_text() == "x_m\n"
    assert json.loads(tables.save_json(tmp_path / "a.json").read_text())["none"] == []
    with pytest.raises(FolderError, match=r"cannot write .*users.csv: Not a directory"):
        tables.save_csv(users)
