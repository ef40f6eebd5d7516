"""A page as Markdown, and tables put into a page written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from signfade.experiments.folder import FolderError
from signfade.experiments.studies.study import Block, Picture, Table, Text, update_page, write_markdown


def page() -> dict[str, list[Block]]:
    figure = Figure((2, 2))
    figure.add_subplot().plot([0, 1], [0, 1])
    return {"A <b> & c": [Table(["x", "|y|"], [["a|b", "1"]], "a note"), Picture(figure, "line", "A line")]}


def test_markdown_with_its_figures_in_both_formats(tmp_path: Path) -> None:
    opening = ["First, `code` and **bold**, [a page](other.md)."]
    text = write_markdown("Title", opening, page(), tmp_path / "docs" / "results.md").read_text()
    assert text.startswith("# Title\n\nFirst, `code` and **bold**, [a page](other.md).\n\n## A <b> & c\n")
    assert "| x | \\|y\\| |\n|---|---|\n| a\\|b | 1 |\n\na note\n" in text
    assert "![A line](results/line.png)" in text
    figures = sorted(file.name for file in (tmp_path / "docs" / "results").iterdir())
    assert figures == ["line.png", "line.svg"]


def test_only_named_tables_and_figures_of_a_page_by_hand_are_replaced(tmp_path: Path) -> None:
    text = "Words.\n\n<!-- mine -->\n| old |\n<!-- end -->\n\n<!-- other -->\n| stays |\n<!-- end -->\n"
    text += "![x](figures/line.png)\n"
    (tmp_path / "page.md").write_text(text)
    blocks = [
        Text("not there"),
        Table(["x"], [["1"]], "a note", name="mine"),
        Table(["y"], [["2"]], name="none"),
    ]
    figure = next(block for block in page()["A <b> & c"] if isinstance(block, Picture))
    files = update_page(tmp_path / "page.md", [*blocks, figure])
    assert (tmp_path / "page.md").read_text() == text.replace("| old |", "| x |\n|---|\n| 1 |")
    assert files == [tmp_path / "page.md", tmp_path / "figures" / "line.png"]
    assert update_page(tmp_path / "page.md", blocks) == []  # nothing new
    with pytest.raises(FolderError, match="cannot read"):
        update_page(tmp_path / "none.md", blocks)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="cannot write"):
        write_markdown("t", [], {}, tmp_path / "file" / "results.md")
