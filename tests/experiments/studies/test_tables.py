"""The tables: what is there stands beside the paper's, what is not is missing, nothing is made up."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest

from signfade.experiments.studies.catalogue import parts_by_name
from signfade.experiments.studies.paper.cells import BANDWIDTHS, COLUMNS, PAIRS, READINGS
from signfade.experiments.studies.paper.printed import read_paper
from signfade.experiments.studies.paper.tables import CALIBRATION_PAIRS, calibrated, gaps, reading_gaps
from signfade.experiments.studies.records import FULL, QUICK, Record, Records, Results
from signfade.experiments.studies.study import Table, Text

from .conftest import record

PARTS = parts_by_name()

PAPER = read_paper()


def tables(name: str, *records: Record) -> list[Table]:
    blocks = PARTS[name].render(Results(FULL, Records(records)))
    return [block for block in blocks if isinstance(block, Table) and "kind" not in block.headers]


def cells(table: Table, row: str) -> dict[str, str]:
    (found,) = (cells for cells in table.rows if cells[0] == row)
    return dict(zip(table.headers, found))


@pytest.mark.parametrize("name", ["table-accuracy", "table-rounds"])
def test_without_runs_every_cell_of_ours_is_missing(name: str) -> None:
    for table in tables(name):
        for row in table.rows:
            for header, cell in zip(table.headers[1:], row[1:]):
                printed = header.endswith("paper") or header == "paper, Full"
                assert (cell == "missing") != printed


def test_a_cell_is_mean_deviation_and_seeds_beside_the_papers_number() -> None:
    column = COLUMNS[2]
    found = [
        record(column.run(FULL, (1e-2, 0.0), seed), accuracy) for seed, accuracy in ((0, 0.93), (1, 0.95))
    ]
    row = next(r for r in tables("table-accuracy", *found)[0].rows if r[0] == "1e-2 / 0")
    at = list(tables("table-accuracy")[0].headers).index("SBFL, Gaussian, Full: paper")
    assert list(row[at : at + 3]) == ["0.95", "0.940 ± 0.014 (2)", "agrees"]
    assert list(row[1:4]) == ["0.78", "missing", "missing"]


def test_every_cell_of_the_paper_gets_its_own_column_and_pair() -> None:
    """Runs that end where the paper's end agree everywhere; swapped columns would not.

    signSGD's two columns are the same runs, here those of DC: of Full only the one cell agrees that is alike.
    """
    found = [
        record(column.run(FULL, pair, 0), PAPER.accuracy.cells[*pair, column.head, column.quantity])
        for column in COLUMNS[1:]
        if not column.ours
        for pair in PAIRS
    ]
    words = [cell for table in tables("table-accuracy", *found) for row in table.rows for cell in row]
    assert words.count("agrees") == 31
    assert words.count("differs") == 5
    first = PARTS["table-accuracy"].render(Results(FULL, Records(found)))[0]
    assert isinstance(first, Text)
    assert first.words.startswith("Of 36 cells, 31 agree and 5 differ.")


def test_rounds_stand_beside_the_papers_and_contradictions_are_said() -> None:
    found = []
    for column in COLUMNS:
        if column.quantity == "Full" and not column.ours:
            for pair in PAPER.rounds.pairs:
                loss, accuracy = (PAPER.rounds.cells[*pair, column.head, q] for q in ("TL", "TA"))
                at = [None if value is None else int(value) for value in (loss, accuracy)]
                found.append(record(column.run(FULL, pair, 0), 0.5, *at))
    loss, accuracy, _ = tables("table-rounds", *found)
    words = [cell for table in (loss, accuracy) for row in table.rows for cell in row]
    assert words.count("paper contradicts itself") == 3
    assert words.count("agrees") == 30 - 3
    assert cells(accuracy, "1e-3 / 0.9")["SBFL, Gaussian: paper"] == "139"
    assert loss.rows[0][1:4] == ["never", "never (1)", "agrees"]
    first = PARTS["table-rounds"].render(Results(FULL, Records(found)))[0]
    assert first == Text("Of 30 cells, 27 agree, 0 differ and in 3 the paper contradicts itself.")


def test_a_model_that_diverged_is_at_chance_and_says_so() -> None:
    column = COLUMNS[2]
    lost = replace(record(column.run(FULL, (1e-2, 0.9), 0), 0.9), diverged=17)
    text = " ".join(cell for table in tables("table-accuracy", lost) for row in table.rows for cell in row)
    assert "0.100 (1, diverged)" in text


def test_a_quick_reproduction_is_not_judged() -> None:
    column = COLUMNS[2]
    found = [record(column.run(QUICK, pair, 0), 0.95) for pair in PAIRS]
    for name in ("table-accuracy", "table-rounds"):
        blocks = PARTS[name].render(Results(QUICK, Records(found)))
        words = [c for block in blocks if isinstance(block, Table) for row in block.rows for c in row]
        assert not {"agrees", "differs", "paper contradicts itself"} & set(words)
        assert "not compared" in words


def test_the_reading_of_full_is_judged_where_both_have_runs() -> None:
    study = Results(FULL, Records())
    assert reading_gaps(study) == {}
    printed = PAPER.accuracy.column("signsgd", "Full")
    tally, vote = READINGS["sum of signs"], READINGS["vote"]
    found = [record(tally.run(FULL, pair, 0), (printed[pair] or 0) + 0.01) for pair in PAIRS]
    found += [record(vote.run(FULL, pair, 0), (printed[pair] or 0) + 0.2) for pair in PAIRS[:3]]
    gap = reading_gaps(Results(FULL, Records(found)))
    assert gap == pytest.approx({"sum of signs": 0.01, "vote": 0.2})
    words = [
        b.words for b in PARTS["table-accuracy"].render(Results(FULL, Records(found))) if isinstance(b, Text)
    ]
    assert "The nearer is **sum of signs**" in " ".join(words)


def calibration(offsets: dict[float, float], tally: float = 0.0) -> Records:
    """signSGD off the paper's accuracy by so much, by bandwidth; its sum of signs by `tally` more."""
    found = []
    for bandwidth, offset in offsets.items():
        for pair in CALIBRATION_PAIRS:
            for quantity, reading in (("Full", "sum of signs"), ("DC", "vote")):
                settings = READINGS[reading].run(replace(FULL, bandwidth_hz=bandwidth), pair, 0)
                printed = PAPER.accuracy.cells[*pair, "signsgd", quantity] or 0
                found.append(record(settings, printed + offset + (tally if quantity == "Full" else 0)))
    return Records(found)


def test_the_budget_is_the_one_nearest_to_the_papers_signsgd() -> None:
    offsets = dict(zip(BANDWIDTHS, (0.09, 0.05, -0.02, -0.3)))
    records = calibration(offsets)
    found = gaps(FULL, records)
    for bandwidth, offset in offsets.items():
        assert found["sum of signs", bandwidth] == pytest.approx(abs(offset))
    assert calibrated(FULL, records) == ("sum of signs", 3e6)


def test_full_is_read_as_what_fits() -> None:
    offsets = dict(zip(BANDWIDTHS, (0.4, 0.0, -0.2, -0.3)))
    table = PAPER.accuracy.cells
    apart = mean((table[*p, "signsgd", "Full"] - table[*p, "signsgd", "DC"]) ** 2 for p in CALIBRATION_PAIRS)  # type: ignore[operator]
    found = gaps(FULL, calibration(offsets, tally=-0.4))
    assert found["vote", 1e6] == pytest.approx((apart / 2) ** 0.5)  # the vote stands for both columns
    assert calibrated(FULL, calibration(offsets, tally=-0.4)) == ("vote", 1e6)


def test_no_budget_is_chosen_before_signsgd_moves_away() -> None:
    nearer = dict(zip(BANDWIDTHS, (-0.3, -0.2, -0.1)))
    assert calibrated(FULL, calibration(nearer)) is None
    assert len(PARTS["calibrate"].wants(FULL, Records())) == 18
    assert len(PARTS["calibrate"].wants(FULL, calibration(nearer))) == 24  # 10 MHz may be nearer still
    turned = dict(zip(BANDWIDTHS, (-0.3, -0.1, -0.2)))
    assert calibrated(FULL, calibration(turned)) == ("sum of signs", 1e6)
    assert len(PARTS["calibrate"].wants(FULL, calibration(turned))) == 18  # 10 MHz need not be tried


def test_calibration_never_looks_at_sbfl() -> None:
    labels = {want.settings.label for want in PARTS["calibrate"].wants(FULL, Records())}
    assert labels == {"signSGD, vote", "signSGD, sum of signs"}


def test_the_number_of_devices_stands_beside_the_papers_rounds() -> None:
    runs = [want.settings for want in PARTS["table-devices"].wants(FULL, Records())]
    votes = [run for run in runs if run.label == "signSGD, vote"]
    assert [(run.data.devices, run.rounds) for run in votes] == [(20, 1000), (60, 500)]
    assert votes[0] == READINGS["vote"].run(FULL, (1e-3, 0.0), 0)  # of the grid, not run again
    (table,) = tables("table-devices", record(votes[0], loss_at=95), record(votes[1], loss_at=None))
    assert list(cells(table, "signSGD, vote").values())[1:] == ["210", "95", "not in 500"]
    assert list(cells(table, "SBFL, Laplacian").values())[1:] == ["470", "missing", "missing"]
