"""Steps of the joint study are tuned as its text says, and its tables show what the records hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from signfade.experiments.studies import joint_errors as ladder
from signfade.experiments.studies.catalogue import parts_by_name
from signfade.experiments.studies.joint_training import _run, tune
from signfade.experiments.studies.records import FULL, Record, Records, Results, Tier
from signfade.experiments.studies.study import Table

from .conftest import record


def trial(step: float, seed: int, accuracy: float, method: str = "best") -> Record:
    """A run of the tuning that has this accuracy at all rounds that count."""
    settings = _run(FULL, method, "1MHz", "two-chunks", 20, step, seed, 120)
    curve: dict[str, list[float | None]] = {"round": [80, 100, 120], "accuracy": [accuracy] * 3}
    return replace(record(settings), curve=curve)


def test_the_first_seed_goes_on_until_the_best_step_is_inside() -> None:
    assert tune(FULL, Records(), "best", "1MHz")[0] is None
    rising = [trial(step, 100, step) for step in (1e-3, 3e-3, 1e-2, 3e-2)]
    step, trials = tune(FULL, Records(rising), "best", "1MHz")
    assert step is None
    assert [one.server.learning_rate for one in trials] == [1e-3, 3e-3, 1e-2, 3e-2, 1e-1]
    falling = [trial(step, 100, 1 - step) for step in (1e-3, 3e-3, 1e-2, 3e-2)]
    _, trials = tune(FULL, Records(falling), "best", "1MHz")
    assert trials[0].server.learning_rate == 3e-4


def test_the_second_seed_decides_between_the_two_best() -> None:
    first = [trial(step, 100, a) for step, a in ((1e-3, 0.5), (3e-3, 0.8), (1e-2, 0.9), (3e-2, 0.1))]
    step, trials = tune(FULL, Records(first), "best", "1MHz")
    assert step is None
    assert [(one.server.learning_rate, one.seed) for one in trials[4:]] == [(1e-2, 101), (3e-3, 101)]
    second = [trial(3e-3, 101, 0.9), trial(1e-2, 101, 0.7)]
    assert tune(FULL, Records(first + second), "best", "1MHz")[0] == 3e-3
    lost = [second[0], replace(second[1], diverged=7)]
    assert tune(FULL, Records(first + lost), "best", "1MHz")[0] == 3e-3


def test_ep_takes_the_step_of_linear_and_the_ideal_one_for_all_bandwidths() -> None:
    assert tune(FULL, Records(), "ep", "1MHz") == tune(FULL, Records(), "linear", "1MHz")
    assert tune(FULL, Records(), "ideal", "10MHz") == tune(FULL, Records(), "ideal", "180kHz")


def test_runs_follow_their_tuning_and_fill_the_table() -> None:
    part = parts_by_name()["joint-training"]
    assert {want.tier for want in part.wants(FULL, Records())} == {Tier.CALIBRATION}
    tuned = [trial(s, 100, a) for s, a in ((1e-3, 0.5), (3e-3, 0.8), (1e-2, 0.9), (3e-2, 0.1))]
    tuned += [trial(3e-3, 101, 0.7), trial(1e-2, 101, 0.9)]
    wants = [want.settings for want in part.wants(FULL, Records(tuned)) if want.tier != Tier.CALIBRATION]
    assert {(run.data.devices, run.server.learning_rate) for run in wants} == {(20, 1e-2), (100, 2e-3)}
    runs = [run for run in wants if run.data.split == "iid" and run.data.devices == 20]
    assert [run.seed for run in runs] == [0, 1, 2]
    found = [record(run, 0.9, accuracy_at=40 + 10 * run.seed) for run in runs[:2]]
    found.append(replace(record(runs[2]), diverged=3))  # one seed less
    tables = [b for b in part.render(Results(FULL, Records(tuned + found))) if isinstance(b, Table)]
    (table,) = tables
    assert table.name == "iid 1MHz K20"
    assert table.rows[0][:4] == ["best (rotated bfl, soft, debiased)", "0.01", "2", "40, 50"]


def test_at_correlation_zero_the_joint_rules_are_those_of_single_devices() -> None:
    errors = ladder.measure_errors(5, 0.0, 0.0, 2000, 2, 500)
    assert errors["joint sbfl"] == pytest.approx(errors["sbfl"], rel=1e-5)
    assert errors["factor"] == pytest.approx(errors["sbfl"], rel=1e-4)
    assert errors["sbfl, theory"] == pytest.approx(errors["sbfl"], rel=0.1)


def test_a_round_has_the_correlation_it_says() -> None:
    for correlation in (0.3, None):
        g, h, sigma2, y, r = ladder.draw_round(6, correlation, 10.0, 40_000, 0)
        assert torch.corrcoef(g).double() == pytest.approx(r, abs=4 / 200)  # four standard errors
        assert (y.shape, h.shape) == (g.shape, sigma2.shape)
