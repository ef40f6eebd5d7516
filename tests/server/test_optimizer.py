"""The server's step against torch's own optimisers, and through a checkpoint."""

from __future__ import annotations

import math

import pytest
import torch

from signfade.device import sign
from signfade.server.optimizer import ModelState, Optimizer, make_optimizer
from signfade.settings import ServerSettings
from signfade.state import from_tensors, to_tensors

RNG = torch.Generator().manual_seed(0)
START = torch.randn(8, generator=RNG)
ESTIMATES = torch.randn(6, 8, generator=RNG)


def make(**options: object) -> tuple[Optimizer, ModelState]:
    """An optimiser and its state before the first step."""
    optimizer = make_optimizer(ServerSettings.model_validate({"learning_rate": 0.1} | options))
    return optimizer, optimizer.init(START)


def run(optimizer: Optimizer, state: ModelState, first: int = 0, last: int = 6) -> ModelState:
    """The state after some steps."""
    for t in range(first, last):
        state = optimizer.apply(state, ESTIMATES[t], t)
    return state


@pytest.mark.parametrize("name", ["adam", "SGD", "adagrad", "rmsprop", "AdamW"])
def test_an_optimiser_by_name_is_torchs(name: str) -> None:
    ours, state = make(optimizer=name)
    parameter = torch.nn.Parameter(START.clone())
    classes = {"adam": "Adam", "adagrad": "Adagrad", "rmsprop": "RMSprop"}
    optimizer = getattr(torch.optim, classes.get(name, name))([parameter], lr=0.1)
    for t, estimate in enumerate(ESTIMATES):
        state = ours.apply(state, estimate, t)
        parameter.grad = estimate.clone()
        optimizer.step()
        assert torch.equal(state.weights, parameter.detach())
    assert ours.downlink_bits(8) == 8 * 32


def test_the_papers_rule_is_sgd_with_momentum() -> None:
    ours, theirs = (run(*make(momentum=0.9, optimizer=name)) for name in ("momentum", "sgd"))
    assert torch.allclose(ours.weights, theirs.weights, rtol=1e-6)


# All of torch.optim that a gradient alone can drive.
DRIVEN = [
    "momentum",
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "asgd",
    "nadam",
    "radam",
    "rmsprop",
    "rprop",
    "sgd",
]


@pytest.mark.parametrize("optimizer", DRIVEN)
@pytest.mark.parametrize("downlink", ["full", "sign"])
def test_stopping_half_way_changes_nothing(optimizer: str, downlink: str) -> None:
    options: dict[str, object] = {"optimizer": optimizer, "downlink": downlink, "schedule": "sqrt"}
    if optimizer in ("momentum", "sgd", "rmsprop"):
        options["momentum"] = 0.9
    through = run(*make(**options))
    made, start = make(**options)
    half = run(made, start, 0, 3)
    saved = to_tensors(half)
    run(made, half, 3, 6)  # a saved state is a snapshot: neither going on nor starting from it changes it
    for _ in range(2):
        made, start = make(**options)
        assert torch.equal(run(made, from_tensors(start, saved), 3, 6).weights, through.weights)


@pytest.mark.parametrize("optimizer", ["momentum", "sgd"])
def test_schedule_and_sign_downlink(optimizer: str) -> None:
    made, state = make(learning_rate=0.5, optimizer=optimizer, schedule="sqrt", downlink="sign")
    assert made.downlink_bits(8) == 8
    w = START.clone()
    for t, estimate in enumerate(ESTIMATES):
        w = w - 0.5 / math.sqrt(t + 1) * sign(estimate)
    assert torch.allclose(run(made, state).weights, w, rtol=1e-5, atol=1e-6)


def test_clip_shortens_and_keeps_the_direction() -> None:
    made, state = make(learning_rate=1.0, clip=0.5)
    long, short = 10 * ESTIMATES[0], 0.01 * ESTIMATES[0]
    moved = START - made.apply(state, long, 0).weights
    assert float(moved.norm()) == pytest.approx(0.5)
    assert torch.allclose(moved / 0.5, long / long.norm(), atol=1e-6)
    assert torch.equal(made.apply(state, short, 0).weights, START - short)


def test_clip_shortens_what_float32_cannot_square() -> None:
    huge = 1e30 * ESTIMATES[0]
    made, state = make(learning_rate=1.0, clip=0.5)
    assert float((START - made.apply(state, huge, 0).weights).norm()) == pytest.approx(0.5)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("downlink", ["full", "sign"])
def test_an_estimate_that_is_no_number_is_refused(optimizer: str, downlink: str) -> None:
    made, state = make(optimizer=optimizer, downlink=downlink)
    with pytest.raises(ValueError, match="estimate must be finite"):
        made.apply(state, torch.full((8,), torch.nan), 0)
    assert torch.equal(state.weights, START)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adamm"}, "server.optimizer must be one of momentum, .*adam"),
        ({"optimizer": "lbfgs"}, "server.optimizer must be one of"),
        ({"optimizer": "adam", "momentum": 0.9}, "server.momentum must be 0 with server.optimizer 'adam'"),
    ],
)
def test_what_cannot_step_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**options)
