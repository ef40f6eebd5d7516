"""A page made of paragraphs, tables and figures, written as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from signfade.experiments.folder import FolderError, why, write_atomically
from signfade.experiments.style import save_figure

__all__ = [
    "Block",
    "Picture",
    "Table",
    "Text",
    "picture_or_missing",
    "update_page",
    "write_markdown",
    "write_text",
]


@dataclass(frozen=True)
class Text:
    """A paragraph of Markdown."""

    words: str


@dataclass(frozen=True)
class Table:
    """Rows under headers; the first column names the row, `note` explains below it.

    A table with a `name` replaces that between `<!-- name -->` and `<!-- end -->` in a page of the docs.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    name: str = ""

    @property
    def lines(self) -> list[str]:
        """The table in Markdown, without the note."""

        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

        return [line(self.headers), "|" + "---|" * len(self.headers), *map(line, self.rows)]


@dataclass(frozen=True)
class Picture:
    """A figure, saved as `name`.png and .svg; `about` says what it shows to those who cannot see it."""

    figure: Figure
    name: str
    about: str


Block = Text | Table | Picture


def picture_or_missing(figure: Figure, name: str, about: str) -> Block:
    """Return a figure as a block, or a sentence that says it is missing if nothing is drawn on it yet."""
    drawn = any(ax.get_legend_handles_labels()[0] for ax in figure.axes)
    return Picture(figure, name, about) if drawn else Text(f"{about}: missing.")


def write_markdown(title: str, opening: Iterable[str], sections: dict[str, list[Block]], path: Path) -> Path:
    """Write a page to `path` and its figures, PNG and SVG, to the folder `results` beside it.

    Raises:
        FolderError: the place cannot be written to.
    """
    lines = [f"# {title}", ""]
    for words in opening:
        lines += [words, ""]
    for heading, blocks in sections.items():
        lines += [f"## {heading}", ""]
        for block in blocks:
            if isinstance(block, Text):
                lines += [block.words, ""]
            elif isinstance(block, Table):
                lines += [*block.lines, ""] + ([block.note, ""] if block.note else [])
            else:
                save_figure(block.figure, path.parent / "results" / block.name)
                lines += [f"![{block.about}](results/{block.name}.png)", ""]
    return write_text(path, "\n".join(lines).rstrip() + "\n")


def update_page(path: Path, blocks: Iterable[Block]) -> list[Path]:
    """Replace the named tables of a page written by hand and its figures (PNG); return the files written.

    Raises:
        FolderError: the page cannot be read or written.
    """
    try:
        before = text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FolderError(f"cannot read {path}: {why(error)}") from error
    written = []
    for block in blocks:
        if isinstance(block, Picture) and f"figures/{block.name}.png" in text:
            written += save_figure(block.figure, path.parent / "figures" / block.name, ["png"])
        elif isinstance(block, Table) and block.name:
            start, found, rest = text.partition(f"<!-- {block.name} -->\n")
            if found:
                lines = "\n".join([*block.lines, "<!-- end -->"])
                text = start + found + lines + rest.partition("<!-- end -->")[2]
    return ([] if text == before else [write_text(path, text)]) + written


def write_text(path: Path, text: str) -> Path:
    """Write a file, and its folder if needed.

    Raises:
        FolderError: the place cannot be written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    except OSError as error:
        raise FolderError(f"cannot write {path}: {why(error)}") from error
    return path
