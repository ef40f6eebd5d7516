"""The tables: what is there stands beside the paper's, what is not is left out, nothing is made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from signfade.experiments.studies.catalogue import parts_by_name
from signfade.experiments.studies.paper.cells import COLUMNS, PAIRS, find_column, pair_text
from signfade.experiments.studies.paper.printed import read_paper
from signfade.experiments.studies.paper.tables import accuracy_verdicts, agreement, rounds_verdicts
from signfade.experiments.studies.records import FULL, QUICK, Record, Records, Results
from signfade.experiments.studies.study import Block, Table, Text
from signfade.settings import RunSettings

from .conftest import record

PARTS = parts_by_name()
PAPER = read_paper()
COLUMN = find_column("printed-gaussian")
PRINTED = [column for column in COLUMNS if column.group == "printed"]


def blocks(name: str, *records: Record) -> list[Block]:
    return PARTS[name].render(Results(FULL, Records(records)))


def tables(name: str, *records: Record) -> list[Table]:
    found = [block for block in blocks(name, *records) if isinstance(block, Table)]
    return [table for table in found if "kind" not in table.headers]


def words(name: str, *records: Record) -> str:
    return " ".join(block.words for block in blocks(name, *records) if isinstance(block, Text))


def cells(table: Table, row: str) -> dict[str, str]:
    (found,) = (cells for cells in table.rows if cells[0] == row)
    return dict(zip(table.headers, found))


@pytest.mark.parametrize("name", ["table-accuracy", "table-rounds", "table-readings"])
def test_without_runs_there_is_no_table(name: str) -> None:
    assert blocks(name) == []


def test_a_cell_is_mean_deviation_and_seeds_beside_the_papers_number() -> None:
    ends = enumerate((0.93, 0.95))
    found = [record(COLUMN.run(FULL, (1e-2, 0.0), seed), accuracy) for seed, accuracy in ends]
    (table,) = tables("table-accuracy", *found)
    assert list(table.headers) == ["step / momentum", "SBFL, Gaussian, printed: paper", "ours", "verdict"]
    assert table.rows[0] == ["1e-2 / 0", "0.95", "0.940 ± 0.014 (2)", "agrees"]
    assert table.rows[1][1:] == ["0.89", "–", "missing"]


def test_every_cell_of_the_paper_gets_its_own_column_and_pair() -> None:
    """Runs that end where the paper's end agree everywhere; swapped columns would not.

    signSGD's two columns are the same runs, here those of DC: of Full only the one cell agrees that is alike.
    """
    found = [
        record(column.run(FULL, pair, 0), PAPER.accuracy.cells[*pair, column.head, column.quantity])
        for column in PRINTED[1:]
        for pair in PAIRS
    ]
    results = Results(FULL, Records(found))
    text = "Of 36 cells, 31 agree and 5 differ (SBFL 24 of 24, signSGD 7 of 12). Seeds per cell: 1."
    assert agreement(results, accuracy_verdicts, "printed") == text
    assert agreement(results, accuracy_verdicts, "corrected") == ""  # not run; signSGD alone says nothing
    assert len(accuracy_verdicts(results, "printed", held_out=True)) == 36 - 6
    texts = [cell for table in tables("table-accuracy", *found) for row in table.rows for cell in row]
    assert (texts.count("agrees"), texts.count("differs")) == (31, 5)
    assert "As printed: Of 36 cells, 31 agree and 5 differ (SBFL" in words("table-accuracy", *found)


def test_corrected_columns_are_judged_and_counted_on_their_own() -> None:
    found = [record(find_column("gaussian").run(FULL, pair, 0), 0.95) for pair in PAIRS]
    results = Results(FULL, Records(found))
    assert agreement(results, accuracy_verdicts, "printed") == ""
    text = agreement(results, accuracy_verdicts, "corrected")
    count = "Of 36 cells, 3 agree, 3 differ and 30 are missing (SBFL 3 of 24, signSGD 0 of 12)"
    assert text == f"{count}. Seeds per cell: 0 to 1."


def test_rounds_stand_beside_the_papers_and_contradictions_are_said() -> None:
    found = []
    for column in PRINTED:
        if column.quantity == "Full":
            for pair in PAPER.rounds.pairs:
                loss, accuracy = (PAPER.rounds.cells[*pair, column.head, q] for q in ("TL", "TA"))
                at = [None if value is None else int(value) for value in (loss, accuracy)]
                found.append(record(column.run(FULL, pair, 0), 0.5, *at))
    loss, accuracy = tables("table-rounds", *found)
    texts = [cell for table in (loss, accuracy) for row in table.rows for cell in row]
    assert texts.count("paper contradicts itself") == 2
    assert texts.count("agrees") == 30 - 2
    assert cells(accuracy, "1e-3 / 0.9")["SBFL, Gaussian, printed: paper"] == "139"
    assert loss.rows[0][1:4] == ["never", "never (1)", "agrees"]
    count = "Of 30 cells, 28 agree, 0 differ and in 2 the paper contradicts itself"
    share = "(SBFL 18 of 20, signSGD 10 of 10; in 8 of those that agree neither gets there)."
    assert words("table-rounds", *found).startswith(f"- As printed: {count} {share}")


def test_cells_that_chose_the_point_can_be_left_out_of_both_tables() -> None:
    results = Results(FULL, Records())
    # Two that picked the candidates, and when the two runs of Table I that decide reach an accuracy of 0.9.
    assert [len(rounds_verdicts(results, "printed", out)) for out in (False, True)] == [30, 26]
    assert [len(accuracy_verdicts(results, "printed", out)) for out in (False, True)] == [36, 30]


def test_the_loss_of_all_data_has_its_own_table_where_it_was_evaluated() -> None:
    one = record(COLUMN.run(FULL, (1e-3, 0.0), 0), 0.5, 900)
    losses = [2.0] * 12 + [0.9] * (len(one.curve["round"]) - 12)  # 1.0 is passed by round 260
    known = replace(one, curve={**one.curve, "global_train_loss": losses})
    batch, everything, _ = tables("table-rounds", known)
    assert cells(batch, "1e-3 / 0")["ours"] == "900 (1)"
    assert list(cells(everything, "1e-3 / 0").values())[1:] == ["258", "260 (1)", "agrees"]
    assert "With the training loss over all data" in words("table-rounds", known)
    results = Results(FULL, Records([known]))
    assert "differs" in {one.verdict for one in rounds_verdicts(results, "printed")}
    judged = rounds_verdicts(results, "printed", goals=("TG",))
    assert "differs" not in {one.verdict for one in judged}


def test_differences_are_paired_over_shared_seeds_with_their_interval() -> None:
    vote = find_column("vote")
    found = [record(COLUMN.run(FULL, (1e-3, 0.9), seed), 0.9 + 0.01 * seed) for seed in range(4)]
    found += [record(vote.run(FULL, (1e-3, 0.9), seed), 0.8 + 0.01 * (seed % 2)) for seed in range(1, 6)]
    *_, table = (t for t in tables("table-accuracy", *found) if "best cells" in t.headers)
    row = cells(table, "SBFL, Gaussian, printed less signSGD, vote")
    # seeds 1, 2, 3: 10, 12, 12 points, deviation 1.155; Student's 4.303 with two degrees of freedom
    assert row["1e-3 / 0.9"] == "+11.3 ± 2.9 (3)"
    assert row["1e-2 / 0"] == row["best cells"] == "–"


def test_a_model_that_diverged_is_at_chance_and_says_so() -> None:
    lost = replace(record(COLUMN.run(FULL, (1e-2, 0.9), 0), 0.9), diverged=17)
    text = " ".join(cell for table in tables("table-accuracy", lost) for row in table.rows for cell in row)
    assert "0.100 (1, diverged)" in text


def test_a_quick_reproduction_is_not_judged() -> None:
    found = [record(COLUMN.run(QUICK, pair, 0), 0.95) for pair in PAIRS]
    for name in ("table-accuracy", "table-rounds"):
        shown = PARTS[name].render(Results(QUICK, Records(found)))
        texts = [c for block in shown if isinstance(block, Table) for row in block.rows for c in row]
        assert not {"agrees", "differs", "paper contradicts itself"} & set(texts)
        assert "not compared" in texts


def test_the_readings_of_full_are_compared_seed_by_seed_where_both_have_runs() -> None:
    """If the paper had run the sum of signs, both columns of differences would be the same."""
    runs = [want.settings for want in PARTS["table-readings"].wants(FULL, Records())]
    columns = {key: PAPER.accuracy.column("signsgd", name) for key, name in (("sum", "Full"), ("vote", "DC"))}

    def end(run: RunSettings) -> float:
        key = "sum" if "sum" in str(run.label) else "vote"
        return (columns[key][run.server.learning_rate, run.server.momentum] or 0.0) + 0.01

    found = [record(run, end(run)) for run in runs]
    (table,) = tables("table-readings", *found)
    assert [row[0] for row in table.rows] == [pair_text(pair) for pair in PAIRS]
    assert [row[2].replace(".0 (1)", "") for row in table.rows] == [row[1] for row in table.rows]
    assert cells(table, "1e-4 / 0")["paper: Full less DC, points"] == "+20"  # 0.71 and 0.51
    some = (one for one in found if "sum" not in one.name or "0.0001-0-" in one.name)
    (less,) = tables("table-readings", *some)
    assert [row[0] for row in less.rows] == ["1e-4 / 0"]
