"""The paper's numbers fit together as far as the paper's do, and where not, the file says so."""

from __future__ import annotations

import pytest

from signfade.experiments.studies.paper.cells import COLUMNS, PAIRS
from signfade.experiments.studies.paper.printed import read_paper

PAPER = read_paper()


def test_the_tables_are_whole() -> None:
    assert len(PAPER.rounds.cells) == 5 * 6
    assert len(PAPER.accuracy.cells) == 6 * 6
    assert set(PAPER.rounds.pairs) == set(PAIRS) - {(1e-4, 0.0)}
    assert PAPER.accuracy.pairs == PAIRS
    assert all(value is not None and 0.1 <= value <= 1 for value in PAPER.accuracy.cells.values())
    assert all(value is None or 1 <= value <= 1000 for value in PAPER.rounds.cells.values())
    assert sum(value is None for value in PAPER.rounds.cells.values()) == 10


def test_the_bold_numbers_of_the_paper_are_the_best_of_their_columns() -> None:
    """Typed in a second time, from the bold face alone."""
    bold_rounds = {"signsgd": (210, 683), "gaussian": (42, 139), "laplacian": (89, 400)}
    for column, best in bold_rounds.items():
        for quantity, value in zip(("TL", "TA"), best):
            reached = [v for v in PAPER.rounds.column(column, quantity).values() if v is not None]
            assert min(reached) == value
    bold_accuracy = {"signsgd": (0.90, 0.90), "gaussian": (0.95, 0.94), "laplacian": (0.94, 0.94)}
    for column, best in bold_accuracy.items():
        for quantity, value in zip(("Full", "DC"), best):
            assert max(v or 0 for v in PAPER.accuracy.column(column, quantity).values()) == value


def test_sums_of_rows_typed_in_from_the_paper() -> None:
    """A slip in any number shows in the sum of its row or its column."""
    rows = [
        sum(PAPER.accuracy.cells[*pair, c, q] or 0 for c in PAPER.accuracy.columns for q in ("Full", "DC"))
        for pair in PAIRS
    ]
    assert rows == pytest.approx([4.84, 5.21, 3.58, 2.31, 5.53, 5.21])
    columns = [
        sum(value or 0 for value in PAPER.accuracy.column(c, q).values())
        for c in PAPER.accuracy.columns
        for q in ("Full", "DC")
    ]
    assert columns == pytest.approx([4.20, 4.15, 5.16, 4.56, 4.58, 4.03])


def test_numbers_that_the_text_repeats() -> None:
    claims, cells = PAPER.claims, PAPER.accuracy
    signsgd = max(v or 0 for v in cells.column("signsgd", "Full").values())
    for name in ("gaussian", "laplacian"):
        best = max(v or 0 for v in cells.column(name, "Full").values())
        assert best - signsgd == pytest.approx(claims[name].number)
    assert claims["rounds"].number == pytest.approx(638 / 139, rel=0.1)


def test_every_contradiction_between_the_tables_is_listed_and_no_other() -> None:
    """Never at 0.9 within 1000 rounds, yet above it after 1000 rounds."""
    found = {
        ("rounds", key)
        for key, value in PAPER.rounds.cells.items()
        if key[3] == "TA" and value is None and (PAPER.accuracy.cells[*key[:3], "Full"] or 0) > 0.9
    }
    assert set(PAPER.contradictions) == found


def test_the_gain_does_not_grow_with_downlink_compression_in_the_papers_own_table() -> None:
    def gain(name: str, quantity: str) -> float:
        best = [max(v or 0 for v in PAPER.accuracy.column(c, quantity).values()) for c in (name, "signsgd")]
        return best[0] - best[1]

    assert gain("gaussian", "DC") < gain("gaussian", "Full")
    assert gain("laplacian", "DC") == pytest.approx(gain("laplacian", "Full"))
    assert PAPER.claims["downlink"].contradiction is not None


def test_every_column_of_the_paper_is_a_column_of_ours() -> None:
    papers = {(c, q) for c in PAPER.accuracy.columns for q in PAPER.accuracy.quantities}
    for group in ("printed", "corrected"):
        ours = {(c.head, c.quantity) for c in COLUMNS if c.group == group or c.method == "vote"}
        assert ours == papers
