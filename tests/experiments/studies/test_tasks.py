"""The study of today's tasks: its runs are valid settings, and a row says what its records say."""

from __future__ import annotations

import math

from signfade.experiments.studies import tasks
from signfade.experiments.studies.records import FULL, QUICK, Record, Records, Results, family_of, run_name
from signfade.experiments.studies.study import Table


def test_every_run_is_another_one_and_a_quick_study_needs_no_fetching() -> None:
    for part in tasks.TASKS.parts:
        runs = [want.settings for want in part.wants(FULL, Records())]
        assert len({(family_of(run), run.seed) for run in runs}) == len(runs) > 0
        assert not any("/" in run_name(run) for run in runs)  # it is the name of a folder
        assert {want.settings.data.name for want in part.wants(QUICK, Records())} == {"digits"}


def test_a_row_has_accuracy_perplexity_and_bits_relative_to_fedavg() -> None:
    records, task = Records(), "Shakespeare"
    for name, band in [("FedAvg", "any"), ("EDEN at 0.1 bit", "any"), ("low-rate at 0.1 bit", "1 MHz")]:
        for run in tasks._runs(FULL, task, name, band):
            bits = {"FedAvg": 4e9}.get(name, 1e7)
            late = {54: 0.4, 57: 0.5, 60: 0.6 + 0.03 * run.seed}
            accuracy = {34: 0.2, 37: 0.2, 40: 0.2 + 0.06 * run.seed} | late
            curve = {"round": [*accuracy], "accuracy": [*accuracy.values()]}
            summary = {"uplink_bits": bits, "last_test_loss": math.log(6.0 + run.seed)}
            records.add(Record("r", family_of(run), run.seed, run.rounds, summary, curve))
    [table] = [block for block in tasks._table(Results(FULL, records, {}), task) if isinstance(block, Table)]
    assert table.rows[0] == ["FedAvg", "any", "3", "51.0 ± 1.0", "7.00 ± 1.00", "4,000", "1/1"]
    assert table.rows[1] == ["FedAvg, 40 rounds", "any", "3", "22.0 ± 2.0", "–", "2,667", "1/1.5"]
    assert table.rows[2][-2:] == ["10", "1/400"]
    [aims] = [block for block in tasks._aims(Results(FULL, records, {})) if isinstance(block, Table)]
    assert aims.rows == [[task, "1 MHz", "+29.0 ± 2.5 (3)", "+0.0 ± 0.0 (3)", "–", "–"]]


def test_averaged_rows_differ_from_the_others_in_the_average_alone() -> None:
    for task in tasks._TASKS:
        rows = list(tasks._rows(task))
        averaged = [(name, band) for name, band in rows if name.endswith(", averaged")]
        assert len(averaged) == 4
        for name, band in averaged:
            plain = tasks._runs(FULL, task, name.removesuffix(", averaged"), band)
            for one, other in zip(tasks._runs(FULL, task, name, band), plain, strict=True):
                assert one.server.averaging == 0.8
                assert one.model_copy(update={"server": other.server}) == other
                assert dict(one.server) | {"averaging": 0.0} == dict(other.server)
