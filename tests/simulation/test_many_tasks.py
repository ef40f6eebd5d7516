"""Many tasks in a run: groups found from bits, devices that move, personal layers, a convex task."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from signfade.experiments.training import train
from signfade.simulation import Experiment
from signfade.simulation.run import make_task
from signfade.simulation.synthetic import RegressionTask

from ..runs import settings

GROUPS: dict[str, Any] = {
    "data__name": "digits",
    "data__split": "iid",
    "data__devices": 8,
    "data__groups": 2,
    "data__batch": 16,
    "model__name": "linear",
    "cell__snr_db": 10.0,
    "method__preset": "best",
    "device__local_steps": 4,
    "device__learning_rate": 0.5,
    "server__learning_rate": 1.0,
}
TWO_CLASSES = GROUPS | {"data__groups": 1, "data__split": "two-chunks"}


def advance(experiment: Experiment) -> list[dict[str, Any]]:
    records = []
    while not experiment.done:
        records.append(experiment.advance())
    return records


def test_groups_are_found_and_a_device_that_changes_its_data_moves() -> None:
    options = settings(**GROUPS, rounds=45, eval__every=15, server__tasks="clustered", data__regroup_at=30)
    records = advance(Experiment(options))
    assert records[29]["groups_recovered"]
    assert records[29]["model_of"] == [0, 1] * 4
    assert records[44]["model_of"] == [1, 1, 0, 1, 0, 1, 0, 1]
    assert records[44]["models"] == 2
    assert min(records[29]["group_scores"]) > 0.75
    one = advance(Experiment(settings(**GROUPS, rounds=30, eval__every=30)))
    assert records[29]["test_accuracy"] > one[-1]["test_accuracy"] + 0.2
    # Two models on the downlink since the split, one before.
    moved = [after["downlink_bits"] - before["downlink_bits"] for before, after in pairwise(records)]
    assert moved[0] == 32 * 650
    assert moved[28] == 2 * 32 * 650
    # Nothing more on the uplink.
    assert records[29]["uplink_bits"] == one[-1]["uplink_bits"]


@pytest.mark.parametrize("split", ["iid", "two-chunks"])
def test_data_that_one_model_fits_are_not_split(split: str) -> None:
    options = TWO_CLASSES | {"data__split": split}
    for seed in range(2):
        run = settings(**options, seed=seed, rounds=40, eval__every=40, server__tasks="clustered")
        assert advance(Experiment(run))[-1]["models"] == 1


@pytest.mark.parametrize(
    "changes",
    [
        {**GROUPS, "server__tasks": "clustered", "method__rotation": "private"},
        {**TWO_CLASSES, "model__name": "mlp", "model__personal": ["head"]},
        {**GROUPS, "server__tasks": "related", "server__coupling": 0.1},
    ],
    ids=["clustered", "personal", "related"],
)
def test_a_stopped_run_goes_on_to_the_same_bytes(changes: dict[str, Any], tmp_path: Path) -> None:
    options = settings(**changes, rounds=26, eval__every=4)
    whole, first = Experiment(options), Experiment(options)
    records = advance(whole)
    for _ in range(21):
        first.advance()
    again = Experiment(options)
    again.restore({name: value.clone() for name, value in first.state().items()}, 21)
    for record in records[21:]:
        assert again.advance() | {"seconds": 0} == record | {"seconds": 0}
    assert all(torch.equal(value, again.state()[name]) for name, value in whole.state().items())


def test_personal_layers_stay_and_help() -> None:
    options = TWO_CLASSES | {"model__name": "mlp", "rounds": 15, "eval__every": 15}
    own = Experiment(settings(**options, model__personal=["head"]))
    assert own.parameters == 64 * 128 + 128  # 1,290 weights of the head are not sent
    before = own.state()["task.personal"].clone()
    assert bool((before == before[0]).all())
    last = advance(own)[-1]
    heads = own.state()["task.personal"]
    assert len({tuple(head.tolist()) for head in heads}) == 8
    one = advance(Experiment(settings(**options, eval__per_device=True)))[-1]
    assert last["uplink_bits"] < one["uplink_bits"]
    assert last["device_mean"] > one["device_mean"]
    assert last["test_accuracy"] == last["device_mean"]


def test_a_layer_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(
        ValueError, match=r"no parameter's name starts with 'neck'; there are 1.weight, 1.bias, 3"
    ):
        make_task(settings(**TWO_CLASSES | {"model__name": "mlp"}, model__personal=["neck"]))
    with pytest.raises(ValueError, match="must leave some of the model to be shared"):
        make_task(settings(**TWO_CLASSES, model__personal=["head"]))  # a linear model has nothing else


def test_devices_are_tested_on_their_own_classes_and_labels() -> None:
    """For one model: the accuracy of each class, weighted by the device's classes."""
    task = make_task(settings(**TWO_CLASSES))
    weights = task.initial_weights()
    found = task.evaluate_devices(weights[None], np.zeros(8, np.int64), 0)
    data, who = task._dataset, task._split  # type: ignore[attr-defined]
    right = (data.test_x.flatten(1) @ weights[:640].view(10, 64).T + weights[640:]).argmax(1) == data.test_y
    for device in range(8):
        mine, counts = data.train_y[who.of(device)].unique(return_counts=True)
        scores = torch.stack([right[data.test_y == label].double().mean() for label in mine])
        assert found.accuracy[device] == pytest.approx(float(scores @ (counts / counts.sum()).double()))


def test_related_models_reach_the_closed_form_optimum() -> None:
    """Of mean-regularised multi-task learning; alone without a pull, one model with a strong one."""
    base = {"data__name": "regression", "data__devices": 5, "data__size": 8, "data__samples": 40}
    base |= {"data__batch": None, "server__learning_rate": 0.6, "eval__every": 150, "rounds": 150}
    for coupling in (0.0, 300.0, 1e7):
        tied = {"server__tasks": "related", "server__relations": "mean", "server__coupling": coupling}
        experiment = Experiment(settings(**base, **tied, method__aggregator="ideal"))
        assert isinstance(experiment.task, RegressionTask)
        advance(experiment)
        optimum = experiment.task.data.multitask_optimum(coupling)
        assert torch.allclose(experiment.models.double(), optimum, atol=1e-4)
    assert torch.allclose(optimum, experiment.task.data.optimum.expand(5, -1), atol=1e-4)
    bits = settings(**base | {"rounds": 40}, **tied | {"server__coupling": 300.0}, method__preset="best")
    noisy = Experiment(bits)
    data = experiment.task.data
    least = data.multitask_loss(data.multitask_optimum(300.0), 300.0)
    before = data.multitask_loss(noisy.models, 300.0) - least
    advance(noisy)
    assert 0 <= data.multitask_loss(noisy.models, 300.0) - least < 0.02 * before


def test_several_models_over_worker_processes_to_the_byte(tmp_path: Path) -> None:
    from signfade.experiments.workers.shards import sharded

    options = settings(**GROUPS, rounds=4, eval__every=4, server__tasks="genie", threads=1)
    train(options, tmp_path / "one")
    with sharded(2) as make:
        train(options, tmp_path / "two", make_task=make)
        with pytest.raises(ValueError, match=r"model.personal needs a run in one process"):
            make(settings(**TWO_CLASSES | {"model__name": "mlp"}, model__personal=["head"]))
    one, two = ((tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("one", "two"))
    for line, other in zip(one, two, strict=True):
        assert line.partition(', "seconds"')[0] == other.partition(', "seconds"')[0]
