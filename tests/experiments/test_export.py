"""The metrics of runs as one table."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path

import pytest

from signfade.cli.entry import run as signfade
from signfade.experiments.export import export_metrics
from signfade.experiments.folder import RunFolder


def test_every_number_of_every_round_is_there(runs: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "new" / "all.csv"
    assert signfade(["export", str(tmp_path / "runs"), "--csv", str(target)]) == 0
    with open(target, newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:5] == ["run", "method", "seed", "round", "train_loss"]
    assert {row["run"] for row in rows} == {run.as_posix() for run in runs}
    for run in runs:
        records = RunFolder(run).read_metrics()
        own = [row for row in rows if row["run"] == run.as_posix()]
        assert [int(row["round"]) for row in own] == [record["round"] for record in records]
        for row, record in zip(own, records, strict=True):
            assert float(row["train_loss"]) == record["train_loss"]  # to the last digit
            assert [float(row[f"snr_db.{place}"]) for place in range(3)] == record["snr_db"]
            assert row["test_accuracy"] == (str(record["test_accuracy"] or ""))


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is optional")
def test_parquet_holds_what_csv_holds(runs: list[Path], tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    export_metrics(runs[:2], csv=tmp_path / "a.csv", parquet=tmp_path / "a.parquet")
    table = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    with open(tmp_path / "a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [{k: "" if v is None else str(v) for k, v in row.items()} for row in table] == rows


def test_what_is_missing_is_one_sentence(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for words, sentence in (
        ([], "--csv, --parquet or both"),
        (
            ["--parquet", str(tmp_path / "x")],
            "needs pyarrow, which is not here; in the checkout: pip install -e '.[notebook]'; use --csv",
        ),
        (["--csv", str(tmp_path / "y"), "--parquet", str(tmp_path / "x")], "/y is written"),
    ):
        assert signfade(["export", str(runs[0]), *words]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert sentence in line
    assert not (tmp_path / "x").exists()
    assert (tmp_path / "y").read_text().startswith("run,method,seed,round")
