"""Local training against training by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from signfade.data import load, split
from signfade.settings import DeviceSettings
from signfade.simulation import Experiment
from signfade.simulation.classify import ClassificationTask
from signfade.simulation.local_training import batches
from signfade.simulation.models import build_model
from signfade.simulation.run import make_task as make_experiment_task

DEVICES = np.arange(3)


def make_task(local: DeviceSettings, batch: int | None = None) -> ClassificationTask:
    data = load("digits", None)
    who = split(data.train_y, 3, "iid", 0.3, 0)
    model = build_model("mlp", data.input_shape, data.classes, 0)
    return ClassificationTask(data, who, model, batch, 5, local=local)


def by_hand(task: ClassificationTask, device: int, steps: int, rate: float, **options: float) -> torch.Tensor:
    """Full-batch training of one device with torch's own SGD; `(w - w_k)/eta`."""
    model = task._replicas.get()
    try:
        model.load(task.initial_weights(), [], object())
        start = [p.detach().clone() for p in model.parameters]
        optimizer = torch.optim.SGD(model.parameters, lr=rate, momentum=options.get("momentum", 0.0))
        rows = torch.from_numpy(task._split.of(device))
        for _ in range(steps):
            optimizer.zero_grad()
            loss = functional.cross_entropy(
                model.scores(task._dataset.train_x[rows]), task._dataset.train_y[rows]
            )
            pull = sum(((p - s) ** 2).sum() for p, s in zip(model.parameters, start))
            (loss + options.get("proximal", 0.0) / 2 * pull).backward()
            optimizer.step()
        moved = [(s - p.detach()) / rate for s, p in zip(start, model.parameters)]
        model.forget()
        return torch.cat([part.reshape(-1) for part in moved])
    finally:
        task._replicas.put(model)


@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.9}, {"proximal": 0.7}, {"momentum": 0.5, "proximal": 2.0}]
)
def test_the_update_is_what_sgd_by_hand_gives(options: dict[str, float]) -> None:
    task = make_task(DeviceSettings(local_steps=4, learning_rate=0.2, **options))
    found = task.local_updates(task.initial_weights(), DEVICES, 0).gradients
    for device in DEVICES:
        expected = by_hand(task, int(device), 4, 0.2, **options)
        assert (found[device] - expected).norm() < 1e-4 * expected.norm()


def test_one_step_is_a_gradient() -> None:
    one = make_task(DeviceSettings(), 16)
    weights = one.initial_weights()
    gradient = one.local_updates(weights, DEVICES, 2).gradients
    epoch = make_task(DeviceSettings(epochs=1), None).local_updates(weights, DEVICES, 2).gradients
    full = make_task(DeviceSettings(), None).local_updates(weights, DEVICES, 2).gradients
    assert torch.allclose(epoch, full, atol=1e-6)  # one pass over everything in one batch, in another order
    assert not torch.equal(gradient, full)
    assert [one.step_unit, make_task(DeviceSettings(local_steps=2)).step_unit] == [1.0, 0.1]


def test_a_control_variate_is_added_to_every_step() -> None:
    task = make_task(DeviceSettings(local_steps=3, learning_rate=1e-6))
    weights = task.initial_weights()
    plain = task.local_updates(weights, DEVICES, 0).gradients
    control = torch.randn(3, task.size)
    moved = task.local_updates(weights, DEVICES, 0, control).gradients
    assert torch.allclose(moved - plain, 3 * control, rtol=1e-3, atol=1e-3)


def test_epochs_visit_every_sample_and_steps_draw_afresh() -> None:
    held = np.arange(100, 113)
    rows = list(batches(held, 5, DeviceSettings(epochs=2), np.random.default_rng(0)))
    assert [len(part) for part in rows] == [5, 5, 3, 5, 5, 3]
    assert sorted(torch.cat(rows[:3]).tolist()) == held.tolist() == sorted(torch.cat(rows[3:]).tolist())
    assert torch.cat(rows[:3]).tolist() != torch.cat(rows[3:]).tolist()
    drawn = list(batches(held, 5, DeviceSettings(local_steps=4), np.random.default_rng(0)))
    assert [len(set(part.tolist())) for part in drawn] == [5, 5, 5, 5]


def test_fedavg_with_equal_devices_is_training_at_one_place() -> None:
    """Devices with the same data, exact sums, server rate 1: the mean model is each device's own."""
    settings = _settings(
        device__local_steps=5, device__learning_rate=0.1, server__learning_rate=1.0, data__devices=1
    )
    experiment = Experiment(settings)
    before = experiment.weights.clone()
    expected = experiment.task.local_updates(before, np.arange(1), 0).gradients[0]
    experiment.advance()
    assert torch.allclose(experiment.weights, before - 0.1 * expected, atol=1e-6)


def test_scaffold_repairs_client_drift() -> None:
    """Few classes per device, exact sums, long local training: control variates end with a lower loss."""
    accuracy = {}
    for control in (False, True):
        settings = _settings(
            data__devices=5,
            data__split="two-chunks",
            device__local_steps=30,
            device__learning_rate=0.2,
            device__control_variates=control,
            server__learning_rate=1.0,
            rounds=8,
        )
        experiment = Experiment(settings)
        while not experiment.done:
            record = experiment.advance()
        accuracy[control] = record["test_loss"]
    assert accuracy[True] < accuracy[False]


def test_scaffold_keeps_the_server_variate_at_the_mean_of_the_devices() -> None:
    settings = _settings(device__local_steps=3, device__control_variates=True, rounds=4)
    experiment = Experiment(settings)
    for _ in range(3):
        experiment.advance()
    state = experiment._state
    assert torch.allclose(state.server.control, state.clients.control.mean(dim=0), atol=1e-5)
    assert float(state.server.control.norm()) > 0


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_control_variate_is_a_mean_gradient(momentum: float) -> None:
    """Steps so small that all are alike: d_k is their number times the gradient, more with momentum."""
    local = {"device__learning_rate": 1e-6, "device__momentum": momentum, "device__control_variates": True}
    experiment = Experiment(_settings(device__local_steps=20, data__batch="none", **local))
    weights = experiment.weights.clone()
    plain = make_experiment_task(_settings(data__batch="none"))
    gradients = plain.local_updates(weights, np.arange(experiment.devices), 0).gradients
    experiment.advance()
    control = experiment._state.clients.control
    assert float((control - gradients).norm() / gradients.norm()) < 1e-3


def _settings(**changes: object):
    from signfade.experiments.config import resolve

    base = {
        "data.name": "digits",
        "data.devices": 4,
        "model.name": "mlp",
        "method.aggregator": "ideal",
        "server.learning_rate": 0.5,
        "rounds": 3,
    }
    return resolve(base | {key.replace("__", "."): value for key, value in changes.items()})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"device__local_steps": 0}, "device.local_steps"),
        ({"device__momentum": 0.5}, "needs local training"),
        ({"device__local_steps": 3, "device__epochs": 2}, "local_steps must be 1"),
        (
            {
                "device__local_steps": 3,
                "device__control_variates": True,
                "data__participation": 0.5,
                "rounds": 3,
            },
            "takes part 1.5 times",
        ),
        ({"device__epochs": 2, "device__control_variates": True}, "local_steps in place of"),
    ],
)
def test_refuses(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        _settings(**changes)


def test_regression_trains_locally_as_by_hand() -> None:
    settings = _settings(
        data__name="regression",
        data__devices=3,
        data__size=20,
        data__batch=None,
        device__local_steps=4,
        device__learning_rate=0.5,
        device__proximal=0.1,
    )
    task = make_experiment_task(settings)
    weights = task.initial_weights()
    rate = 0.5 * 3 / task.data.smoothness
    assert task.step_unit == pytest.approx(rate)
    found = task.local_updates(weights, DEVICES, 0).gradients
    for device in DEVICES:
        x, z = (part[0] for part in task.data.chunk(DEVICES[device : device + 1], threads=1))
        own = weights.clone()
        for _ in range(4):
            own = own - rate * (2 * x.T @ (x @ own - z) + 0.1 * (own - weights))
        expected = (weights - own) / rate
        assert (found[device] - expected).norm() < 1e-4 * expected.norm()


def test_a_mean_does_not_depend_on_the_number_of_devices_and_a_sum_does() -> None:
    """Every device with the same gradient: twice as many devices move the model as far, or twice as far."""
    moved = {}
    for weights in ("mean", "sum"):
        for devices in (4, 8):
            experiment = Experiment(
                _settings(method__weights=weights, data__devices=devices, data__batch=None, rounds=1)
            )
            before = experiment.weights.clone()
            experiment.advance()
            moved[weights, devices] = float((experiment.weights - before).norm())
    assert moved["mean", 8] == pytest.approx(moved["mean", 4], rel=0.2)
    assert moved["sum", 4] == pytest.approx(4 * moved["mean", 4], rel=1e-5)
    assert moved["sum", 8] == pytest.approx(8 * moved["mean", 8], rel=1e-5)
