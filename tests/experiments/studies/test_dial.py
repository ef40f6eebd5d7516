"""The study of bits against accuracy: settings that resolve, and numbers taken from records by hand."""

from __future__ import annotations

import pytest

from signfade.experiments.studies import dial
from signfade.experiments.studies.records import FULL, QUICK, Record, Records, Results, family_of


def test_every_run_of_every_cell_resolves_and_has_a_name_of_its_own() -> None:
    for scale in (FULL, QUICK):
        runs = [
            run
            for part in dial.DIAL.parts
            for run in (want.settings for want in part.wants(scale, Records()))
        ]
        names = {(family_of(run), run.seed) for run in runs}
        assert len(names) == len(runs) > 20
    full = [want.settings for want in dial.DIAL.parts[0].wants(FULL, Records())]
    assert {run.device.local_steps for run in full if run.method.preset == "low-rate"} == {30}


def test_kbit_to_a_target_are_those_of_the_average_device() -> None:
    method, cell = "low-rate", dial._CELLS[0]
    records = Records()
    for run, late in zip(dial._runs(FULL, cell, method), (0.91, 0.97, 0.8)):
        curve = {"round": [1, 2, 3], "accuracy": [0.5, 0.7, late]}
        summary = {"uplink_bits": 20 * 720 * run.rounds, "last_accuracy": late}
        records.add(Record(run.name, family_of(run), run.seed, run.rounds, summary, curve))
    row = dial._row(Results(FULL, records, {}), cell, method)
    assert row[:2] == [method, "3"]
    assert row[2:4] == ["2.2 (2 of 3 seeds)", "3 (2 of 3 seeds)"]
    assert row[4:6] == ["2.2 (1 of 3 seeds)", "3 (1 of 3 seeds)"]
    assert float(row[6]) == pytest.approx(100 * (3 * 1.2 + 0.91 + 0.97 + 0.8) / 9, abs=0.1)
