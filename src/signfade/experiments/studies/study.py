"""What a study is: parts with runs, measurements, tables, figures and text, and its page in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from signfade.experiments.folder import FolderError, why
from signfade.experiments.studies.records import (
    FULL,
    Missing,
    Records,
    Results,
    Scale,
    Want,
    run_name,
    write_text,
)
from signfade.experiments.style import MUTED, save_figure

__all__ = ["MISSING", "Block", "Measure", "Part", "Picture", "Study", "Table", "Text", "picture_or_missing"]
__all__ += ["update_page", "write_markdown"]


@dataclass(frozen=True)
class Text:
    """A paragraph of Markdown."""

    words: str


MISSING = Text("Missing.")


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
Measure = Callable[[Scale, Callable[[str], None]], dict[str, Any]]


def picture_or_missing(figure: Figure, name: str, about: str) -> Block:
    """Return a figure as a block, or a sentence that says it is missing if nothing is drawn on it yet."""
    drawn = any(ax.get_legend_handles_labels()[0] for ax in figure.axes)
    return Picture(figure, name, about) if drawn else Text(f"{about}: missing.")


@dataclass(frozen=True)
class Part:
    """A table or figure of a study, with its text."""

    name: str  # on the command line
    title: str
    place: str  # in the paper; "ours" where the paper has nothing like it
    blocks: Callable[[Results], list[Block]]  # of its section; raises Missing without its measurement
    # The runs it needs; may depend on what is finished: the best cell is known only then.
    wants: Callable[[Scale, Records], list[Want]] = lambda scale, records: []
    measure: Measure | None = None  # numbers it works out itself; its second argument reports progress
    depends: tuple[str, ...] = ()  # the fields of the scale that decide what is measured
    cost: float = 0.0  # seconds that measuring takes on one core at full size
    partial: bool = False  # whether a page shows it before all runs are done: its tables say how many are
    early: bool = False  # whether other parts depend on what it finds: its runs come before all of theirs
    settle: Callable[[Scale, Records], Scale] = lambda scale, records: scale  # with what others found
    also: tuple[Part, ...] = ()  # whose runs and measurements it shows, too

    def seconds(self, scale: Scale) -> float:
        """Return about how long measuring takes on one core; with draws, in proportion to them."""
        return self.cost * (scale.draws / FULL.draws if "draws" in self.depends else 1.0)

    @property
    def members(self) -> list[Part]:
        """The part and those it shows, each once."""
        return list(dict.fromkeys([self, *(one for part in self.also for one in part.members)]))

    def needs(self, scale: Scale, records: Records) -> list[Want]:
        """Return the runs it needs, those of the parts that it shows included."""
        return [want for one in self.members for want in one.wants(one.settle(scale, records), records)]

    def render(self, results: Results) -> list[Block]:
        """Return the blocks of its section from what is finished, none if there is nothing to show.

        At quick scale they start with what was really run, which every figure repeats.
        """
        settled = replace(results, scale=self.settle(results.scale, results.records))
        try:
            blocks = self.blocks(settled)
        except Missing:
            return []
        if not results.scale.quick or not blocks:
            return blocks
        words = self.stamp(settled)
        for block in blocks:
            if isinstance(block, Picture):
                note: Any = {"color": MUTED, "fontsize": 8, "fontweight": "normal", "x": 0.01, "ha": "left"}
                block.figure.suptitle(words, **note)
        return [Text(f"**{words}**"), *blocks]

    def stamp(self, results: Results) -> str:
        """Return in words what it shows that is finished, and how large that was."""
        wants = [want.settings for want in self.needs(results.scale, results.records)]
        there = {run_name(run): run for run in wants if results.records.find(run) is not None}
        runs = there.values()
        said = [f"{len(runs)} of {len(set(map(run_name, wants)))} runs"] if wants else []
        if runs:
            said += sorted({run.data.name for run in runs})
            for unit, sizes in (
                ("rounds", {run.rounds for run in runs}),
                ("devices", {run.data.devices for run in runs}),
            ):
                said.append(f"{' to '.join(map(str, dict.fromkeys((min(sizes), max(sizes)))))} {unit}")
            seeds = len({run.seed for run in runs})
            said.append(f"{seeds} seed{'s' * (seeds != 1)}")
        measured = [part for part in self.members if part.measure is not None]
        said += [f"{name} {getattr(results.scale, name)}" for part in measured for name in part.depends]
        return f"quick: {', '.join(said)}; not to be compared with the docs"


@dataclass(frozen=True)
class Study:
    """Parts that belong on one page."""

    name: str  # on the command line
    title: str
    page: str  # name of the page that is written, without suffix
    parts: tuple[Part, ...]
    # Paragraphs at the start of the page.
    opening: Callable[[Results], list[str]] = lambda results: []
    host: str = ""  # a hand-written page of the docs in which finished tables and figures are replaced


def write_markdown(title: str, opening: Iterable[str], sections: dict[str, list[Block]], path: Path) -> Path:
    """Write a page to `path` and its figures, PNG and SVG, to the folder `results` beside it."""
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
    """Replace the named tables of a page written by hand and its figures (PNG); return the files written."""
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
