"""Checkpoints: every state of a run survives as named tensors, and others are refused in one sentence."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from signfade.simulation import Experiment
from signfade.state import from_tensors, to_tensors

from .runs import finish, settings

# All stages that can be on together, and those that others exclude.
EVERYTHING = {
    "method__preset": "best",
    "method__side_bits": 4,
    "method__error_feedback": 0.5,
    "method__flip": 0.05,
    "method__sign_noise": 0.2,
    "cell__csi": "pilot",
    "cell__side_info": "coded",
    "cell__snr_db": 3.0,
    "availability__dropout": 0.2,
    "availability__late": 0.4,
    "availability__staleness": 2,
    "attack__kind": "mixed",
    "attack__fraction": 0.34,
    "attack__strength": 3.0,
    "defence__bound_scales": True,
    "defence__reliability": True,
    "server__optimizer": "adam",
}
RUNS: dict[str, dict[str, Any]] = {
    "everything": EVERYTHING,
    "layers": {"method__scales": "layer", "method__side_bits": 2, "server__momentum": 0.9},
    "over the air": {"cell__access": "over_the_air", "server__downlink": "sign"},
    "vote": {"method__aggregator": "signsgd", "method__tie": "random", "data__participation": 0.5},
}


@dataclass(frozen=True)
class Leaves:
    """One of everything that a state may be made of."""

    tensor: Tensor = field(default_factory=lambda: torch.arange(6).reshape(2, 3))
    array: Any = field(default_factory=lambda: np.array([1, -1]))
    number: float = 0.1
    count: int = 2**60
    flag: bool = True
    word: str = "adam"
    nothing: None = None
    pair: tuple[int, int] = (1, 2)
    losses: list[float] = field(default_factory=list)
    slots: dict[str, Tensor] = field(default_factory=dict)


def test_every_kind_of_leaf_survives() -> None:
    full = Leaves(number=1 / 3, word="sgd", losses=[0.5, 0.25], slots={"a": torch.ones(2)})
    again = from_tensors(Leaves(), to_tensors(full))
    assert to_tensors(again).keys() == to_tensors(full).keys()
    assert all(torch.equal(value, to_tensors(full)[name]) for name, value in to_tensors(again).items())
    assert (again.number, again.count, again.flag, again.word) == (1 / 3, 2**60, True, "sgd")
    assert (again.pair, again.losses, again.nothing) == ((1, 2), [0.5, 0.25], None)
    assert again.array.tolist() == [1, -1]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tensor": None}, "tensor is missing from the checkpoint"),
        ({"pair.length": None}, "pair is missing from the checkpoint"),
        ({"pair.1": None}, "pair.1 is missing from the checkpoint"),
        ({"more": torch.ones(1)}, "more is in the checkpoint but not in this run"),
        ({"tensor": torch.zeros(3, 2, dtype=torch.int64)}, r"tensor must be torch.int64 of shape \[2, 3\]"),
        ({"tensor": torch.zeros(2, 3)}, "the checkpoint has torch.float32"),
        ({"array": torch.zeros(3, dtype=torch.int64)}, r"array must be torch.int64 of shape \[2\]"),
        ({"number": torch.zeros(2)}, "number must be one number; the checkpoint has"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Tensor | None], sentence: str) -> None:
    tensors = {**to_tensors(Leaves()), **change}
    with pytest.raises(ValueError, match=sentence) as caught:
        from_tensors(Leaves(), {name: value for name, value in tensors.items() if value is not None})
    assert "\n" not in str(caught.value)


def test_a_state_of_other_things_cannot_be_saved() -> None:
    with pytest.raises(ValueError, match="stream must be made of tensors, numbers and text; got Generator"):
        to_tensors({"stream": np.random.default_rng(0)})
    with pytest.raises(ValueError, match="keys of a state must not contain a dot"):
        to_tensors({"a.b": 1})


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("stop", [1, 5])
def test_stopped_and_resumed_equals_never_stopped(name: str, stop: int) -> None:
    """Also into a run that has gone elsewhere in between."""
    chosen = settings(rounds=8, **RUNS[name])
    whole, first, second = (Experiment(chosen) for _ in range(3))
    records = finish(whole)
    for _ in range(stop):
        first.advance()
    for _ in range(3):
        second.advance()
    second.restore({key: value.clone() for key, value in first.state().items()}, round=stop)
    assert finish(second) == records[stop:]
    expected, found = whole.state(), second.state()
    assert found.keys() == expected.keys()
    assert all(found[key].numpy().tobytes() == expected[key].numpy().tobytes() for key in expected)


def test_a_models_buffers_are_saved(tmp_path: Path) -> None:
    file = tmp_path / "normed.py"
    file.write_text(
        "from torch import nn\n"
        "def normed(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))\n"
    )
    chosen = settings(rounds=4, model__name=f"{file}:normed")
    whole, first, second = (Experiment(chosen) for _ in range(3))
    records = finish(whole)
    first.advance()
    second.restore({key: value.clone() for key, value in first.state().items()}, round=1)
    assert finish(second) == records[1:]
    assert second.task.evaluate(second.weights) == whole.task.evaluate(whole.weights)


def test_a_checkpoint_of_another_run_or_round_is_refused() -> None:
    run = Experiment(settings())
    with pytest.raises(ValueError, match="the checkpoint is of round 0, not 2"):
        run.restore(run.state(), round=2)
    other = Experiment(settings(defence__reliability=True))
    with pytest.raises(ValueError, match=r"server.stages.reliability.* is missing from the checkpoint"):
        other.restore(run.state(), round=0)
    with pytest.raises(ValueError, match=r"server.stages.reliability.* is in the checkpoint but not in this"):
        run.restore(other.state(), round=0)
    with pytest.raises(ValueError, match=r"server.model.weights must be torch.float32 of shape \[650\]"):
        run.restore(Experiment(settings(model__name="mlp")).state(), round=0)


def test_a_checkpoint_of_0_1_is_refused_in_one_sentence() -> None:
    old = {
        "step.weights": torch.zeros(650),
        "step.momentum": torch.zeros(650),
        "uplink_bits": torch.tensor(1),
    }
    sentence = "the checkpoint is of signfade 0.1, whose runs this version cannot resume"
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        Experiment(settings()).restore(old, round=1)
