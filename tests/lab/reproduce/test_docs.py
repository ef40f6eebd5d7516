"""The page in the docs is what the command writes from the data beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from signfade.lab.reproduce import document
from signfade.lab.reproduce.artefacts import ARTEFACTS
from signfade.lab.reproduce.bench import Bench
from signfade.lab.reproduce.calibrate import calibrated
from signfade.lab.reproduce.grid import FULL_READING
from signfade.lab.reproduce.setups import FULL

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_is_drawn_from_the_records_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def save(figure: object, stem: Path) -> list[Path]:
        asked.append(stem.name)
        return []

    monkeypatch.setattr(document, "save_figure", save)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "results").symlink_to(DOCS / "results")
    bench = Bench(tmp_path / "none", FULL, tmp_path / "docs")
    monkeypatch.setattr(bench, "_write_measurement", lambda *told: tmp_path)
    monkeypatch.setattr(bench.records, "write", lambda *told: tmp_path)
    bench.write_docs(list(ARTEFACTS.values()))
    assert (tmp_path / "docs" / "results.md").read_text() == (DOCS / "results.md").read_text()
    for name in asked:
        assert all((DOCS / "results" / f"{name}.{suffix}").is_file() for suffix in ("png", "svg"))


def test_the_budget_in_use_is_the_calibrated_one() -> None:
    bench = Bench(Path("nowhere"), FULL, DOCS)
    assert calibrated(FULL, bench.records) in (None, (FULL_READING, FULL.bandwidth_hz))


def test_the_data_in_the_docs_is_small() -> None:
    assert sum(file.stat().st_size for file in (DOCS / "results").glob("*.json")) < 1_000_000
