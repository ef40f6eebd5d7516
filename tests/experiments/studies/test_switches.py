"""Studies of switches: every variant is valid, and the tables say what the records hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from signfade.experiments.studies import radio
from signfade.experiments.studies.attacks import ATTACKS
from signfade.experiments.studies.catalogue import parts_by_name
from signfade.experiments.studies.devices import DEVICES
from signfade.experiments.studies.records import FULL, QUICK, Record, Records, Results
from signfade.experiments.studies.runner import wanted
from signfade.experiments.studies.study import Picture, Study, Table
from signfade.settings import RunSettings

from .conftest import SMALL, record

PARTS = parts_by_name()


def runs(name: str) -> dict[str, list[RunSettings]]:
    """The runs of a part by label."""
    found: dict[str, list[RunSettings]] = {}
    for want in PARTS[name].wants(FULL, Records()):
        found.setdefault(want.settings.label or "", []).append(want.settings)
    return found


def rows(name: str, *records: Record) -> dict[str, list[str]]:
    blocks = PARTS[name].render(Results(FULL, Records(records)))
    (table,) = (block for block in blocks if isinstance(block, Table))
    return {row[0]: list(row[1:]) for row in table.rows}


@pytest.mark.parametrize("study", [radio.RADIO, DEVICES, ATTACKS], ids=lambda study: study.name)
def test_every_variant_is_valid_and_shared_ones_are_run_once(study: Study) -> None:
    for scale in (FULL, QUICK):
        wants = [want for part in study.parts for want in part.wants(scale, Records())]
        unique = wanted(wants)
        assert len(unique) < len(wants)
        assert {run.seed for run in unique} <= set(range(2 * scale.figure_seeds))
        assert max(run.rounds for run in unique) <= scale.regression_rounds


def test_radio_rows_are_accuracy_rounds_uses_and_error() -> None:
    found = runs("radio-modulation")
    assert list(found) == ["assumed", "qpsk", "qpsk, coded, 4 pilots"]
    summary = {"uplink_bits": 14.8e6, "median_nmse": 0.5, "rounds_to_accuracy_09": 80}
    one, two = (record(run, accuracy) for run, accuracy in zip(found["assumed"], (0.8, 0.9)))
    one, two = replace(one, summary=summary), replace(two, summary=summary | {"rounds_to_accuracy_09": None})
    other = replace(record(found["qpsk"][0], 0.9), summary=summary | {"channel_uses": 7.4e6})
    shown = rows("radio-modulation", one, two, other)
    # the last four of evaluations in a straight line: (9 + 10 + 11 + 12)/4/12 of the end
    assert shown["assumed"] == [f"{0.85 * 42 / 48:.3f} ± {0.05 * 42 / 48:.3f}", "80, never", "14.8", "0.500"]
    assert shown["qpsk"][2] == "7.4"


def test_devices_are_compared_over_the_seeds_that_both_have() -> None:
    found = runs("devices-inflation")
    assert {len(seeds) for seeds in found.values()} == {6}
    assumed = [record(run, 0.9 + 0.01 * run.seed) for run in found["as assumed"]]
    bounded = [record(run, 0.92) for run in found["honest, bounded"][:2]]
    lost = [replace(record(run), diverged=5 + run.seed % 2) for run in found["1 of 20 inflates"]]
    shown = rows("devices-inflation", *assumed, *bounded, *lost)
    assert shown["honest, bounded"][:2] == ["92.0 ± 0.0 %", "+1.5"]
    assert list(shown)[-1] == "1 of 20 inflates"
    assert shown["1 of 20 inflates"] == ["diverges in round 5 or 6", "", "never", "6"]


def test_feedback_is_the_ratio_of_late_losses() -> None:
    wants = [want.settings for want in PARTS["devices-feedback-regression"].wants(FULL, Records())]
    first = [run for run in wants if run.server.learning_rate == 0.1 and not run.data.heterogeneous]
    found = [record(run, floor=0.1 if run.method.error_feedback else 0.4) for run in first]
    (row,) = rows("devices-feedback-regression", *found).values()
    assert row == ["alike", "0.1/L", "0.4", "0.1", "0.25", "0.25"]


def test_attacks_show_mean_and_least_accuracy_and_what_a_defence_costs() -> None:
    found = runs("attacks-30")
    plain = [record(run, 0.8 + 0.1 * run.seed) for run in found["sbfl, ones, none"]]
    bound = [record(run, 0.8) for run in found["sbfl, ones, bound"]]
    late = 100 * 8.5 / 10  # ten evaluations in a straight line
    shown = rows("attacks-30", *plain, *bound)["ones"]
    assert shown[:3] == [f"{0.9 * late:.1f} [{0.8 * late:.0f}]", f"{0.8 * late:.1f} [{0.8 * late:.0f}]", ""]
    assert rows("attacks-costs", *plain, *bound) == {"sbfl": ["ones", "30 %", "bound", f"{0.1 * late:.1f}"]}


@pytest.mark.parametrize("name", ["radio-csi", "radio-access"])
def test_links_are_measured_and_drawn(name: str) -> None:
    part = PARTS[name]
    assert part.measure is not None
    data = part.measure(SMALL, lambda words: None)
    blocks = part.render(Results(SMALL, Records(), {name: data}))
    assert isinstance(blocks[1], Picture)  # after a line that says what was run
    assert isinstance(blocks[2], Table)


def test_pilot_errors_are_the_predicted_ones() -> None:
    """The standard error of 4000 links is about a hundredth."""
    from signfade import theory

    for use in ("naive", "aware", "refined"):
        expected = theory.pilot_mse("sbfl", 1.0, 4, use=use)  # type: ignore[arg-type]
        assert radio._pilot_error(use, 1.0, 4, 4000) == pytest.approx(expected, abs=0.04)
