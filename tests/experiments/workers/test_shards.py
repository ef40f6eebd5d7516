"""A run whose devices are computed elsewhere is the same run."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from signfade.cli.entry import run as signfade
from signfade.experiments.training import Interrupted, train
from signfade.experiments.workers.shards import Part, ShardedTask, Share, compute, cut, sharded
from signfade.settings import RunSettings
from signfade.simulation import Experiment, clients
from signfade.simulation.run import make_task

from .pool_helpers import children, inline, no_process_stays, planned, remains

__all__ = ["no_process_stays"]
pytestmark = pytest.mark.usefixtures("no_process_stays")

NORMALISED = """
from torch import nn

def model(shape, classes):
    size = shape[0] * shape[1] * shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 6), nn.BatchNorm1d(6), nn.Linear(6, classes))
"""


class Here:
    """Workers without processes: a task of its own for every worker."""

    def __init__(self, size: int, settings: RunSettings) -> None:
        self.size = size
        self._tasks = [make_task(settings) for _ in range(size)]

    def compute(self, weights: Tensor, shares: Sequence[Share], gradients: Tensor) -> list[Part]:
        parts = [
            compute(task, share, weights.clone(), gradients[share.first : share.first + len(share.devices)])
            for task, share in zip(self._tasks, shares)
        ]
        return parts[::-1]  # whoever is first


def three_rounds(experiment: Experiment) -> str:
    """Three rounds as text, in which what is not a number equals itself."""
    return json.dumps([experiment.advance() | {"seconds": 0} for _ in range(3)])


@given(st.integers(0, 200), st.integers(1, 9), st.integers(1, 20))
def test_shares_cover_all_in_order_and_are_cut_at_the_grain(count: int, parts: int, grain: int) -> None:
    found = cut(count, parts, grain)
    assert [i for piece in found for i in range(piece.start, piece.stop)] == list(range(count))
    assert len(found) <= parts
    assert all(piece.start % grain == 0 for piece in found)
    sizes = [piece.stop - piece.start for piece in found]
    blocks = math.ceil(count / grain)
    assert max(sizes, default=0) <= math.ceil(blocks / parts) * grain


@pytest.mark.parametrize(
    "keys",
    [
        {"model__name": "mlp", "data__devices": 7, "method__preset": "best"},
        {"model__name": "small-cnn", "data__devices": 5, "method__aggregator": "ideal"},
        {"model__name": "normalised.py:model", "data__devices": 5, "data__participation": 0.7},
        {"data__name": "regression", "data__devices": 50, "data__size": 37, "data__samples": 13},
        {"data__name": "regression", "data__devices": 40, "data__size": 333, "data__samples": 3},
        {"data__name": "gaussian", "data__devices": 9, "method__aggregator": "signsgd"},
        {"data__name": "regression", "data__devices": 20, "data__size": 50, "method__side_bits": 4},
        {
            "model__name": "mlp",
            "data__devices": 7,
            "device__local_steps": 3,
            "device__control_variates": True,
        },
        {"data__name": "regression", "data__devices": 40, "data__size": 30, "device__local_steps": 3},
    ],
    ids=["mlp", "cnn", "batch-norm", "regression", "few-samples", "gaussian", "quantised", "local", "steps"],
)
@pytest.mark.parametrize("chunk", [1 << 24, 5000])
def test_sharded_is_unsharded_to_the_last_byte(
    keys: dict[str, Any], chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "normalised.py").write_text(NORMALISED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(clients, "_CHUNK_NUMBERS", chunk)
    settings = planned(tmp_path, rounds=3, **keys).settings
    whole = Experiment(settings)
    records = three_rounds(whole)
    for workers in (2, 3):
        task = ShardedTask(make_task(settings), Here(workers, settings))
        split = Experiment(settings, task)
        assert three_rounds(split) == records
        ours, theirs = split.state(), whole.state()
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert ours[name].numpy().tobytes() == theirs[name].numpy().tobytes(), name


def test_gradients_come_back_in_the_order_of_the_devices() -> None:
    settings = planned(Path(), data__name="gaussian", data__devices=30).settings
    task = make_task(settings)
    devices = np.array([1, 4, 5, 20, 29])
    split = ShardedTask(task, Here(2, settings)).local_updates(task.initial_weights(), devices, 3)
    assert torch.equal(split.gradients, task.local_updates(task.initial_weights(), devices, 3).gradients)


def test_a_killed_worker_is_replaced_and_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes and a model with buffers; one dies between two rounds, and the run is stopped once."""
    (tmp_path / "normalised.py").write_text(NORMALISED)
    monkeypatch.chdir(tmp_path)
    run = planned(tmp_path / "run", model__name="normalised.py:model", checkpoint_every=50)
    workers: list[int] = []

    def listen(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            workers.extend(children())
            os.kill(workers[0], signal.SIGKILL)
        if record["round"] == 4:
            assert len(set(children()) - set(workers)) == 1
            os.kill(os.getpid(), signal.SIGTERM)

    with sharded(2) as make, pytest.raises(Interrupted, match="after round 4 of 6"):
        train(run.settings, run.folder, on_round=listen, make_task=make)
    assert len(workers) == 2
    assert children() == []
    train(run.settings, run.folder, resume=True)  # what shards began, one process may end
    assert remains(run.folder) == inline(run, tmp_path / "inline")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--shards", "0"], "0 is not in the range"),
        (["--shards", "2000"], "shards must be 1 to 1024; got 2000"),
    ],
)
def test_bad_input(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert signfade(["run", "--out", str(tmp_path / "out"), *arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_data_that_cannot_be_used_is_told_before_a_process_starts(tmp_path: Path) -> None:
    run = planned(tmp_path / "run", model__name="nowhere:model")
    with sharded(2) as make, pytest.raises(ValueError, match="nowhere"):
        train(run.settings, run.folder, make_task=make)
    assert not run.folder.exists()
