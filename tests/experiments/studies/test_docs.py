"""The pages in the docs are what the command writes from the data beside them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from signfade.experiments.studies import study as framework
from signfade.experiments.studies.catalogue import STUDIES
from signfade.experiments.studies.records import FULL, Record, Records
from signfade.experiments.studies.runner import Runner

DOCS = Path(__file__).parents[3] / "docs"


def test_pages_are_drawn_from_the_records_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def save(figure: object, stem: Path, formats: object = None) -> list[Path]:
        asked.append(stem)
        return []

    monkeypatch.setattr(framework, "save_figure", save)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "results").symlink_to(DOCS / "results")
    for page in {study.host for study in STUDIES if (DOCS / study.host).is_file()}:
        shutil.copy(DOCS / page, tmp_path / "docs")
    runner = Runner(tmp_path / "none", FULL, tmp_path / "docs")
    monkeypatch.setattr(runner, "_write_measurement", lambda *args: tmp_path)
    monkeypatch.setattr(runner.records, "write", lambda *args: tmp_path)
    runner.write_docs(STUDIES)
    for page in (tmp_path / "docs").glob("*.md"):
        assert page.read_text() == (DOCS / page.name).read_text()
    for stem in asked:
        suffixes = ("png", "svg") if stem.parent.name == "results" else ("png",)
        assert all((DOCS / stem.parent.name / f"{stem.name}.{suffix}").is_file() for suffix in suffixes)


def test_a_published_record_stays_when_no_part_wants_it_any_more(tmp_path: Path) -> None:
    file = tmp_path / "docs" / "results" / "runs.json"
    Records([Record("once wanted", "family", 0, 3, {}, {"round": [3]})]).write(file)
    Runner(tmp_path / "out", FULL, tmp_path / "docs").write_docs([])
    assert [record["name"] for record in json.loads(file.read_text())["runs"]] == ["once wanted"]


def test_the_data_in_the_docs_is_small() -> None:
    assert sum(file.stat().st_size for file in (DOCS / "results").glob("*.json")) < 2_000_000
