"""Rotation and the joint posterior in training: predictions that hold on real gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from signfade.device import rotated_size
from signfade.simulation import Experiment

from ..runs import settings


def run(rounds: int = 12, **options: Any) -> tuple[Experiment, list[dict[str, Any]]]:
    """Digits by a small network; rotated, its 9,610 coordinates are Gaussian enough for theory."""
    experiment = Experiment(
        settings(
            rounds=rounds,
            model__name="mlp",
            method__rotation="shared",
            server__learning_rate=1e-3,
            **options,
        )
    )
    return experiment, [experiment.advance() for _ in range(rounds)]


@pytest.mark.parametrize(
    "method",
    [
        {"method__aggregator": "sbfl"},
        {"method__aggregator": "sbfl", "method__form": "published"},
        {"method__aggregator": "blmmse", "method__weights": "share"},
        {"method__aggregator": "high_snr"},
        {"method__aggregator": "signsgd"},
        {"method__aggregator": "bfl"},
        {"method__aggregator": "bfl", "method__debias": True},
        {"method__aggregator": "bfl", "method__joint": "soft", "method__debias": True},
        {"method__aggregator": "bfl", "method__joint": "ep"},
        {"method__aggregator": "bfl", "method__joint": "factor"},
        {"method__aggregator": "bfl", "method__correlation": "genie"},
        {"method__aggregator": "bfl", "method__joint": "soft", "method__flip": 0.1},
        {"method__aggregator": "bfl", "method__joint": "soft", "method__sign_noise": 0.7},
        {"method__aggregator": "bfl", "method__joint": "linear", "method__sign_noise": 0.7},
    ],
)
def test_the_predicted_error_holds_on_real_gradients(method: dict[str, Any]) -> None:
    """Rotated, every rule's error is predicted within five percent, averaged over a dozen rounds."""
    _, records = run(**method)
    ratio = np.array([record["nmse"] / record["nmse_theory"] for record in records])
    assert ratio.mean() == pytest.approx(1, abs=0.05)


def test_without_rotation_the_prediction_fails() -> None:
    """The very point of rotating: plain coordinates are nothing like the prior."""
    experiment = Experiment(settings(rounds=5, model__name="mlp", server__learning_rate=1e-3))
    ratio = [record["nmse"] / record["nmse_theory"] for record in (experiment.advance() for _ in range(5))]
    assert np.mean(ratio) > 1.2


def test_each_rung_is_at_or_below_the_one_before() -> None:
    """Same bits, same noise: independent, jointly linear, nonlinear; a genie is no worse than learning."""
    errors = {
        name: np.mean([record["nmse"] for record in run(rounds=6, **method)[1]])
        for name, method in {
            "vote": {"method__aggregator": "signsgd", "method__tie": "plus"},
            "sbfl": {"method__aggregator": "sbfl"},
            "linear": {"method__aggregator": "bfl"},
            "genie": {"method__aggregator": "bfl", "method__correlation": "genie"},
            "soft": {"method__aggregator": "bfl", "method__joint": "soft"},
            "ep": {"method__aggregator": "bfl", "method__joint": "ep"},
        }.items()
    }
    assert errors["ep"] < errors["soft"] < errors["linear"] < errors["vote"]
    assert errors["soft"] < errors["sbfl"] < errors["vote"]
    assert errors["genie"] < 1.02 * errors["linear"]


def test_what_was_learned_survives_a_stop() -> None:
    through, records = run(rounds=6, method__aggregator="bfl")
    first, _ = run(rounds=3, method__aggregator="bfl")
    second = Experiment(through.settings)
    second.restore({name: value.clone() for name, value in first.state().items()}, round=3)
    for expected in records[3:]:
        got = second.advance()
        assert {**got, "seconds": 0} == {**expected, "seconds": 0}
    assert torch.equal(second.weights, through.weights)


def test_the_padding_of_a_rotation_is_counted() -> None:
    experiment, records = run(rounds=1, method__aggregator="sbfl")
    assert experiment.parameters == 9610
    assert records[0]["payload_bits"] == 6 * (rotated_size(9610) + 64)
    assert 9610 <= rotated_size(9610) <= 1.1 * 9610


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method__scales": "layer", "method__rotation": "none"}, 'scales must be "device" with bfl'),
        ({"method__prior": "laplacian"}, 'prior must be "gaussian" with bfl'),
    ],
)
def test_combinations_without_meaning_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(method__aggregator="bfl", **options)


@pytest.mark.parametrize("joint", ["soft", "ep"])
def test_few_devices_of_a_large_cell_are_read_jointly(joint: str) -> None:
    """Too many to remember, few enough a round to learn all pairs afresh."""
    experiment = Experiment(
        settings(
            rounds=1,
            data__name="gaussian",
            data__size=2000,
            data__devices=1500,
            data__participation=0.01,
            method__aggregator="bfl",
            method__joint=joint,
        )
    )
    record = experiment.advance()
    assert record["devices"] == 15
    assert record["nmse"] < 1
