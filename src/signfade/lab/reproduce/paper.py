"""The paper's tables and claims, read from `paper.toml`, the one place where they are written down."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["CellKey", "Claim", "Paper", "PaperTable", "read_paper"]

CellKey = tuple[float, float, str, str]  # step, momentum, column, quantity


@dataclass(frozen=True)
class PaperTable:
    """One table: the value of each cell, None where the paper has a dash.

    Attributes:
        place: where it stands in the paper.
        what: what its numbers are.
        pairs: hyper-parameters (step, momentum), in the paper's order.
        columns: methods.
        quantities: what is told of each method.
        cells: value by (step, momentum, column, quantity).
    """

    place: str
    what: str
    pairs: tuple[tuple[float, float], ...]
    columns: tuple[str, ...]
    quantities: tuple[str, ...]
    cells: Mapping[CellKey, float | None]

    def column(self, column: str, quantity: str) -> dict[tuple[float, float], float | None]:
        """Return one column: value by (step, momentum)."""
        return {pair: self.cells[*pair, column, quantity] for pair in self.pairs}


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper's text, with its number if it has one, and what else in the paper denies it."""

    name: str
    place: str
    text: str
    number: float | None
    contradiction: str | None = None


@dataclass(frozen=True)
class Paper:
    """Everything typed in from the paper.

    Attributes:
        rounds: Table I.
        accuracy: Table II.
        claims: by name, in the order of the file.
        contradictions: cell of a table -> why it cannot be true together with another statement.
        oddities: (where, what) that is possible but strange.
    """

    rounds: PaperTable
    accuracy: PaperTable
    claims: Mapping[str, Claim]
    contradictions: Mapping[tuple[str, CellKey], str]
    oddities: tuple[tuple[str, str], ...]


def _cells(table: Mapping[str, Any]) -> Iterator[tuple[CellKey, float | None]]:
    heads = [(column, quantity) for column in table["columns"] for quantity in table["quantities"]]
    for step, momentum, *values in table["rows"]:
        for (column, quantity), value in zip(heads, values, strict=True):
            yield (step, momentum, column, quantity), None if value == "never" else float(value)


def _table(table: Mapping[str, Any]) -> PaperTable:
    return PaperTable(
        table["place"],
        table["what"],
        tuple((row[0], row[1]) for row in table["rows"]),
        tuple(table["columns"]),
        tuple(table["quantities"]),
        dict(_cells(table)),
    )


@cache
def read_paper() -> Paper:
    """Return the paper's numbers.

    Example:
        >>> paper = read_paper()
        >>> paper.rounds.cells[1e-3, 0.9, "gaussian", "TA"], paper.accuracy.cells[1e-2, 0.0, "signsgd", "DC"]
        (139.0, 0.84)
        >>> paper.rounds.cells[1e-2, 0.0, "signsgd", "TL"] is None
        True
    """
    tree = tomllib.loads(files("signfade.lab.reproduce").joinpath("paper.toml").read_text(encoding="utf-8"))
    return Paper(
        _table(tree["rounds"]),
        _table(tree["accuracy"]),
        {
            name: Claim(name, claim["place"], claim["text"], claim.get("number"), claim.get("contradiction"))
            for name, claim in tree["claims"].items()
        },
        {(entry["table"], tuple(entry["cell"])): entry["says"] for entry in tree["contradictions"]},
        tuple((entry["where"], entry["says"]) for entry in tree["oddities"]),
    )
