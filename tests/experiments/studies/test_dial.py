"""The study of bits against accuracy: settings that resolve, and numbers taken from records by hand."""

from __future__ import annotations

import numpy as np
import pytest

from signfade.experiments.studies import dial
from signfade.experiments.studies.records import FULL, QUICK, Record, Records, Results, family_of
from signfade.experiments.studies.study import Picture, Table
from signfade.uplink.radio import make_radio


def test_every_run_of_every_cell_resolves_and_has_a_name_of_its_own() -> None:
    for scale in (FULL, QUICK):
        wants = [want for part in dial.DIAL.parts[1:] for want in part.wants(scale, Records())]
        names = [(family_of(want.settings), want.settings.seed, want.settings.label) for want in wants]
        # Three methods with a perfect channel are the same at all bandwidths; digits stand for Fashion-MNIST.
        shared = 2 * 3 + 3 * scale.quick
        assert len(names) == len(set(names)) + shared * scale.figure_seeds > 20
        assert {(want.settings.seed, family_of(want.settings)) for want in wants} == {
            (want.settings.seed, family_of(want.settings))
            for want in dial.DIAL.parts[0].wants(scale, Records())
        }
    full = [want.settings for want in dial.DIAL.parts[1].wants(FULL, Records())]
    assert {run.device.local_steps for run in full if run.method.preset == "low-rate"} == {30}


def results(
    kbit: dict[str, float], late: tuple[float, ...] = (0.91, 0.97, 0.9), cell: str = dial._FIRST
) -> Results:
    """Records of a cell: so many kbit a round and device, and so accurate in the third round."""
    records = Records()
    for method, each in kbit.items():
        for run, accuracy in zip(dial._runs(FULL, cell, method), late):
            curve = {"round": [1, 2, 3, run.rounds], "accuracy": [0.5, 0.7, accuracy, accuracy]}
            longer = 2 * run.rounds  # a longer run answers for a shorter one
            total = 1e3 * run.data.devices * each * longer
            summary = {"uplink_bits": total, "last_accuracy": accuracy, "parameters": 62_346}
            records.add(Record(run.name, family_of(run), run.seed, longer, summary, curve))
    return Results(FULL, records, {})


def test_kbit_to_a_target_are_those_of_the_average_device() -> None:
    row = dial._row(results({"low-rate": 0.72}, (0.91, 0.97, 0.8)), dial._FIRST, "low-rate")
    assert row[:2] == ["low-rate", "3"]
    assert row[2:4] == ["2.2 ± 0.0 (2 of 3 seeds)", "3.0 ± 0.0 (2 of 3 seeds)"]
    assert row[4:6] == ["2.2 (1 of 3 seeds)", "3.0 (1 of 3 seeds)"]
    assert float(row[6].split()[0]) == pytest.approx(100 * (3 * 0.7 + 2 * (0.91 + 0.97 + 0.8)) / 9, abs=0.1)
    missed = dial._row(results({"FedAvg": 1.0}, (0.8, 0.8, 0.8)), dial._FIRST, "FedAvg")
    assert missed[2:6] == ["not in 12 rounds"] * 4


def test_the_summary_names_the_rival_with_the_fewest_bits_and_the_ratio_to_fedavg() -> None:
    kbit = {"low-rate": 0.72, "FedAvg": 1000.0, "DRIVE": 60.0, "EDEN at 0.01 bit": 0.7, "signSGD": 61.0}
    table, air, *figures = dial._summary(results(kbit))
    assert isinstance(table, Table)
    fewest = "2.1 ± 0.0 (EDEN at 0.01 bit)"
    assert table.rows[0] == [dial._FIRST, "0.9", "3, 3", "2.2 ± 0.0", "3,000 ± 0", "1,389", fewest]
    assert [figure.name for figure in figures if isinstance(figure, Picture)] == ["dial", "dial-front"]
    assert isinstance(air, Table)
    each = float(air.rows[0][1])  # of 720 bits 636 are signs, which need no code
    assert float(air.rows[0][2].split()[0]) == pytest.approx(3 * (0.636 + each * 0.084), rel=0.03)
    assert float(air.rows[0][3].split()[0]) == pytest.approx(3 * each * 0.7, rel=0.03)


def test_signs_of_a_tenth_of_the_devices_are_a_tenth_of_the_average_devices_signs() -> None:
    cell = next(name for name in dial._CELLS if name.startswith("K = 100"))
    (air,) = dial._air(results({"low-rate": 0.072, "EDEN at 0.01 bit": 0.0672}, cell=cell))
    assert isinstance(air, Table)
    each = float(air.rows[0][1])
    assert float(air.rows[0][2].split()[0]) == pytest.approx(3 * (0.0636 + each * 0.0084), abs=0.06)


def test_uses_per_bit_are_those_of_messages_sent_again_until_they_arrive() -> None:
    """By trial: of fades drawn for each device, a message of rate R passes those with capacity R."""
    settings = dial._settings(dial._FIRST, "low-rate")
    snr = 10 ** (np.asarray(make_radio(settings.cell, 20, settings.seed).mean_snr_db) / 10)
    fades = np.sort(np.random.default_rng(0).normal(size=100_000) ** 2)[::-1]  # the best first
    rates = 0.5 * np.log2(1 + snr[:, None] * fades)  # each is passed by the fades up to its own
    passed = np.arange(1, len(fades) + 1) / len(fades)
    assert dial._uses_per_bit(settings) == pytest.approx(np.mean(1 / (rates * passed).max(axis=1)), rel=0.02)
