"""A page in pieces: paragraphs, tables and figures, written as Markdown and as one HTML file."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from matplotlib.figure import Figure

from signfade.lab.folder import FolderError, why, write_atomically
from signfade.lab.style import inline_svg, save_figure

__all__ = ["Block", "Picture", "Section", "Table", "Text", "picture", "write_html", "write_markdown"]


@dataclass(frozen=True)
class Text:
    """A paragraph; `code` in backticks, **bold** in stars."""

    words: str


@dataclass(frozen=True)
class Table:
    """Rows under headers; the first column names the row. `note` explains below it.

    With `words` the cells are sentences: they wrap and begin on the left.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    words: bool = False


@dataclass(frozen=True)
class Picture:
    """A figure, saved as `name`.png and .svg; `about` says what it shows to those who cannot see it."""

    figure: Figure
    name: str
    about: str


Block = Text | Table | Picture


def picture(figure: Figure, name: str, about: str) -> Block:
    """Return a figure as a block; one on which nothing is drawn yet as a sentence that says so."""
    drawn = any(ax.get_legend_handles_labels()[0] for ax in figure.axes)
    return Picture(figure, name, about) if drawn else Text(f"{about}: missing.")


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: Sequence[Block]


def write_markdown(
    title: str, sections: Sequence[Section], path: Path, pictures: str = "results"
) -> list[Path]:
    """Write the page to `path` and its figures, PNG and SVG, to the folder `pictures` beside it.

    Returns:
        The files written.

    Raises:
        FolderError: the place cannot be written to.
    """
    lines = [f"# {title}", ""]
    written: list[Path] = []
    for section in sections:
        lines += [f"## {section.title}", ""] if section.title else []
        for block in section.blocks:
            if isinstance(block, Text):
                lines += [block.words, ""]
            elif isinstance(block, Table):
                lines += [*_markdown_table(block), ""]
            else:
                written += save_figure(block.figure, path.parent / pictures / block.name)
                lines += [f"![{block.about}]({pictures}/{block.name}.png)", ""]
    return [_write(path, "\n".join(lines).rstrip() + "\n"), *written]


def _markdown_table(table: Table) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rows = [line(table.headers), "|" + "---|" * len(table.headers), *map(line, table.rows)]
    return [*rows, "", table.note] if table.note else rows


def write_html(title: str, lead: str, sections: Sequence[Section], path: Path) -> Path:
    """Write the page as one self-contained HTML file in the style of `signfade report`.

    Args:
        title: heading.
        lead: the first paragraph.
        sections: the rest.
        path: the file.

    Raises:
        FolderError: the place cannot be written to.
    """
    template = files("signfade.lab").joinpath("report.html").read_text(encoding="utf-8")
    head, _, _ = template.partition("<body>")
    head = head.replace("$title", escape(title)).replace("</style>", f"{_STYLE}</style>")
    parts = [head, "<body>\n<main>\n<header>"]
    parts.append(f'<h1>{escape(title)}</h1>\n<p class="finding">{_inline(lead)}</p>\n</header>')
    for number, section in enumerate(sections):
        name = f' aria-labelledby="s{number}"' if section.title else ""
        heading = f'<h2 id="s{number}">{_inline(section.title)}</h2>' if section.title else ""
        parts.append(f"<section{name}>{heading}")
        parts += [_html(block) for block in section.blocks]
        parts.append("</section>")
    return _write(path, "\n".join([*parts, "</main>\n</body>\n</html>\n"]))


def _html(block: Block) -> str:
    if isinstance(block, Text):
        return f"<p>{_inline(block.words)}</p>"
    if isinstance(block, Picture):
        return f"<figure>{inline_svg(block.figure, block.name, escape(block.about))}</figure>"
    head = "".join(f'<th scope="col">{_inline(header)}</th>' for header in block.headers)
    body = "".join(
        f'<tr><th scope="row">{_inline(row[0])}</th>'
        + "".join(f"<td>{_inline(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in block.rows
    )
    note = f"<p class=note>{_inline(block.note)}</p>" if block.note else ""
    kind = " class=words" if block.words else ""
    table = f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class=wide>{table}</div>{note}"


_STYLE = """section > figure { max-width: 60rem; margin: 1.25rem 0; }
section > .wide { margin-top: 1.25rem; }
section td { white-space: normal; }
section tbody th { white-space: nowrap; }
.note + p { margin-top: 1.25rem; }
.words th, .words td { text-align: left; white-space: normal; }
section .words tbody th { white-space: normal; font-weight: 400; width: 36%; }
.words td:nth-child(2) { width: 14%; }
"""
_MARKS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"`([^`]+)`", r"<code>\1</code>"),
    (r"\*\*([^*]+)\*\*", r"<b>\1</b>"),
    (r"\[([^]]+)\]\([^)]*\)", r"\1"),  # the page stands alone: links to other pages lead nowhere
)


def _inline(words: str) -> str:
    text = escape(words)
    for pattern, replacement in _MARKS:
        text = re.sub(pattern, replacement, text)
    return text


def _write(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    except OSError as error:
        raise FolderError(f"cannot write {path}: {why(error)}") from error
    return path
