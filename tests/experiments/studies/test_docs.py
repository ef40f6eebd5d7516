"""The pages in the docs are what the command writes from the data beside them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from signfade.experiments.studies import study as framework
from signfade.experiments.studies.catalogue import STUDIES
from signfade.experiments.studies.records import FULL
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


def test_the_data_in_the_docs_is_small() -> None:
    assert sum(file.stat().st_size for file in (DOCS / "results").glob("*.json")) < 2_000_000
