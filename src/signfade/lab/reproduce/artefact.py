"""What a table or figure of the reproduction is: the runs it wants, what it measures itself, how it looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from signfade.lab.reproduce.document import Block, Section
from signfade.lab.reproduce.plan import Want
from signfade.lab.reproduce.records import Records
from signfade.lab.reproduce.setups import Scale

__all__ = ["Artefact", "Measure", "Study"]

Measure = Callable[[Scale, Callable[[str], None]], dict[str, Any]]


@dataclass(frozen=True)
class Study:
    """What is known when artefacts are rendered.

    Attributes:
        scale: full or quick.
        records: runs that have come to their end.
        measured: what artefacts measured themselves, by name.
    """

    scale: Scale
    records: Records
    measured: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def verdict(self, word: str) -> str:
        """Return a verdict as it may be said: a quick reproduction is of other data and gets none."""
        return "not compared" if self.scale.name == "quick" and word != "missing" else word


def _no_wants(scale: Scale, records: Records) -> list[Want]:
    return []


@dataclass(frozen=True)
class Artefact:
    """A table or figure.

    Attributes:
        name: on the command line.
        title: on the page.
        place: in the paper; "ours" where the paper has nothing like it.
        render: the blocks of its section, from what is finished; what is missing is shown as missing.
        wants: the runs it needs. May depend on what is finished: the best cell is known only then.
        measure: numbers it works out itself, in a form JSON can hold; told how to say what it does.
        depends: the fields of the scale that decide what is measured.
        cost: seconds that measuring takes on one core at the paper's size.
    """

    name: str
    title: str
    place: str
    render: Callable[[Study], list[Block]]
    wants: Callable[[Scale, Records], list[Want]] = _no_wants
    measure: Measure | None = None
    depends: tuple[str, ...] = ()
    cost: float = 0.0

    def section(self, study: Study) -> Section:
        """Return the section of the page."""
        return Section(f"{self.title} ({self.place})", self.render(study))
