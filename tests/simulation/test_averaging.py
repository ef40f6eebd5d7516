"""The running average of the models: what is evaluated and handed out, never what is trained."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import signfade
from signfade.simulation import Experiment

from ..runs import finish, settings


def _trained(rounds: int, **options: Any) -> tuple[list[torch.Tensor], Experiment]:
    """Run all rounds; return the newest model of each, and the run."""
    run, models = Experiment(settings(rounds=rounds, **options)), []
    while not run.done:
        run.advance()
        models.append(run.weights.clone())
    return models, run


@pytest.mark.parametrize("options", [{}, {"server__optimizer": "adam"}, {"server__downlink": "sign"}])
def test_it_is_the_weighted_mean_of_all_models_and_changes_none(options: dict[str, Any]) -> None:
    models, run = _trained(5, server__averaging=0.7, **options)
    weights = 0.7 ** np.arange(4, -1, -1)
    expected = sum(w * model.double() for w, model in zip(weights / weights.sum(), models))
    assert torch.allclose(run.trained_weights.double(), expected, rtol=0, atol=1e-6)
    plain, without = _trained(5, **options)
    assert torch.equal(without.trained_weights, without.weights)
    assert all(torch.equal(one, other) for one, other in zip(models, plain, strict=True))


def test_rounds_without_a_device_count_the_model_that_stays() -> None:
    models, run = _trained(12, server__averaging=0.8, availability__dropout=0.9, data__devices=2)
    silent = [torch.equal(one, other) for one, other in pairwise([run.task.initial_weights(), *models])]
    assert 3 < sum(silent) < 12  # most rounds, not all
    weights = 0.8 ** np.arange(11, -1, -1)
    expected = sum(w * model.double() for w, model in zip(weights / weights.sum(), models))
    assert torch.allclose(run.trained_weights.double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("per_device", [False, True])
def test_it_is_what_is_evaluated(per_device: bool) -> None:
    options: dict[str, Any] = {"eval__every": 4, "eval__training": True, "eval__per_device": per_device}
    run = Experiment(settings(rounds=4, server__averaging=0.9, **options))
    record = finish(run)[-1]
    assert record["test_loss"] == run.task.evaluate(run.trained_weights).loss
    assert record["test_loss"] != run.task.evaluate(run.weights).loss
    assert record["global_train_loss"] == run.task.training_loss(run.trained_weights)
    if per_device:
        everyone = np.zeros(6, np.int64)
        scores = run.task.evaluate_devices(run.trained_weights[None], everyone, 3).accuracy
        assert record["device_mean"] == pytest.approx(float(np.mean(scores)))


def test_it_averages_out_the_noise_around_the_optimum() -> None:
    """Around a minimum, models scatter with the noise of the estimates; their average does so less."""
    changes: dict[str, Any] = {"data__name": "regression", "data__size": 30, "server__learning_rate": 1.0}
    changes |= {
        "data__batch": None,
        "cell__snr_db": 0.0,
        "method__rotation": "shared",
        "rounds": 200,
        "eval__every": 1,
    }
    newest, averaged = (
        np.mean([r["test_loss"] for r in finish(Experiment(settings(server__averaging=a, **changes)))[-100:]])
        for a in (0.0, 0.9)
    )
    assert averaged < 0.7 * newest


def test_the_python_interface_hands_it_out(tmp_path: Any) -> None:
    options = {"rounds": 4, "out": str(tmp_path), "model.name": "linear"}
    run = signfade.run(options | {"server.averaging": 0.8})
    plain = signfade.run(options | {"name": "plain"})
    assert not torch.equal(run.weights, plain.weights)
    assert torch.equal(torch.nn.utils.parameters_to_vector(run.model.parameters()).detach(), run.weights)


def test_several_models_have_no_average() -> None:
    with pytest.raises(ValueError, match=r"server\.averaging must be 0 unless server\.tasks is"):
        settings(server__averaging=0.5, server__tasks="clustered", method__rotation="private")
