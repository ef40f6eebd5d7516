"""A page as Markdown and as HTML."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from signfade.lab.folder import FolderError
from signfade.lab.reproduce.document import Picture, Section, Table, Text, write_html, write_markdown


def page() -> list[Section]:
    figure = Figure((2, 2))
    figure.add_subplot().plot([0, 1], [0, 1])
    return [
        Section("", [Text("First, `code` and **bold**, [a page](other.md).")]),
        Section(
            "A <b> & c", [Table(["x", "|y|"], [["a|b", "1"]], "a note"), Picture(figure, "line", "A line")]
        ),
    ]


def test_markdown_with_its_figures_in_both_formats(tmp_path: Path) -> None:
    files = write_markdown("Title", page(), tmp_path / "docs" / "results.md")
    text = files[0].read_text()
    assert text.startswith("# Title\n\nFirst, `code` and **bold**, [a page](other.md).\n\n## A <b> & c\n")
    assert "| x | \\|y\\| |\n|---|---|\n| a\\|b | 1 |\n\na note\n" in text
    assert "![A line](results/line.png)" in text
    assert [file.name for file in files[1:]] == ["line.png", "line.svg"]
    assert all(file.exists() and file.parent == tmp_path / "docs" / "results" for file in files[1:])


class Balanced(HTMLParser):
    """Fails on tags that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "link", "path", "use"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "use"):
            assert self.open.pop() == tag


def test_html_is_one_file_that_needs_nothing_else(tmp_path: Path) -> None:
    text = write_html("Title & more", "A *lead*", page(), tmp_path / "results.html").read_text()
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert {"svg", "table", "style", "h1", "h2"} <= set(parser.seen)
    assert "$" not in text.split("</style>")[1]
    assert "A &lt;b&gt; &amp; c" in text
    assert "<code>code</code>" in text
    assert "other.md" not in text
    assert "http" not in text.split("</style>")[1].replace("http://www.w3.org", "")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="cannot write"):
        write_html("t", "l", [], tmp_path / "file" / "results.html")
