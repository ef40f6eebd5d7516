"""What README and getting started tell their readers to type runs, with few rounds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from signfade.cli.entry import run as signfade

from .test_docs import ROOT, commands, snippets


def test_the_readmes_quick_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    quick = [words for words in commands(ROOT / "README.md") if words[0] in ("config", "link", "theory")]
    quick += [words for words in commands(ROOT / "README.md") if "--list" in words]
    assert len(quick) >= 4
    assert [words for words in quick if signfade(words) != 0] == []


def test_the_five_lines_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, _ = snippets(ROOT / "README.md")
    exec(re.sub(r"rounds=\d+", "rounds=2", first), {})
    assert (tmp_path / "report.html").exists()


def test_getting_started_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its Python, in order, with few rounds; but for MNIST, which it would fetch, and for tuning."""
    monkeypatch.chdir(tmp_path)
    lines = "".join(snippets(ROOT / "docs" / "getting-started.md")).splitlines()
    code = "\n".join(line for line in lines if "mnist" not in line and "sf.tune" not in line)
    code = re.sub(r"rounds=\d+", "rounds=2", re.sub(r"seeds=\d+", "seeds=1, quiet=True", code))
    exec(code.replace("sf.run({", "sf.run({'rounds': 2, "), {})
    assert {path.name for path in tmp_path.iterdir()} == {"curves.png", "report.html", "runs"}
