"""The server's step against torch's own optimisers, and through a checkpoint."""

from __future__ import annotations

import math

import pytest
import torch

from signfade.device import sign
from signfade.server.optimizer import make_step
from signfade.settings import ServerSettings

RNG = torch.Generator().manual_seed(0)
START = torch.randn(8, generator=RNG)
ESTIMATES = torch.randn(6, 8, generator=RNG)


def make(**options: object):  # type: ignore[no-untyped-def]
    return make_step(ServerSettings.model_validate(options), START)


@pytest.mark.parametrize("name", ["adam", "SGD", "adagrad", "rmsprop", "AdamW"])
def test_an_optimiser_by_name_is_torchs(name: str) -> None:
    step = make(step=0.1, optimizer=name)
    parameter = torch.nn.Parameter(START.clone())
    classes = {"adam": "Adam", "adagrad": "Adagrad", "rmsprop": "RMSprop"}
    optimizer = getattr(torch.optim, classes.get(name, name))([parameter], lr=0.1)
    for t, estimate in enumerate(ESTIMATES):
        assert step.apply(estimate, t) == 8 * 32
        parameter.grad = estimate.clone()
        optimizer.step()
        assert torch.equal(step.weights, parameter.detach())


def test_the_papers_rule_is_sgd_with_momentum() -> None:
    ours, theirs = make(step=0.1, momentum=0.9), make(step=0.1, momentum=0.9, optimizer="sgd")
    for t, estimate in enumerate(ESTIMATES):
        ours.apply(estimate, t)
        theirs.apply(estimate, t)
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
    options = {"step": 0.1, "optimizer": optimizer, "downlink": downlink, "schedule": "sqrt"}
    if optimizer in ("momentum", "sgd", "rmsprop"):
        options["momentum"] = 0.9
    through = make(**options)
    for t, estimate in enumerate(ESTIMATES):
        through.apply(estimate, t)
    first = make(**options)
    for t in range(3):
        first.apply(ESTIMATES[t], t)
    saved = first.state()
    for t in range(3, 6):  # a saved state is a snapshot: neither going on nor starting from it changes it
        first.apply(ESTIMATES[t], t)
    for _ in range(2):
        second = make(**options)
        second.restore(saved)
        for t in range(3, 6):
            second.apply(ESTIMATES[t], t)
        assert torch.equal(second.weights, through.weights)


@pytest.mark.parametrize("optimizer", ["momentum", "sgd"])
def test_schedule_and_sign_downlink(optimizer: str) -> None:
    step = make(step=0.5, optimizer=optimizer, schedule="sqrt", downlink="sign")
    w = START.clone()
    for t, estimate in enumerate(ESTIMATES):
        assert step.apply(estimate, t) == 8
        w = w - 0.5 / math.sqrt(t + 1) * sign(estimate)
    assert torch.allclose(step.weights, w, rtol=1e-5, atol=1e-6)


def test_clip_shortens_and_keeps_the_direction() -> None:
    step = make(step=1.0, clip=0.5)
    long, short = 10 * ESTIMATES[0], 0.01 * ESTIMATES[0]
    assert float(step.clipped(long).norm()) == pytest.approx(0.5)
    assert torch.allclose(step.clipped(long) / 0.5, long / long.norm())
    assert torch.equal(step.clipped(short), short)


def test_clip_shortens_what_float32_cannot_square() -> None:
    huge = 1e30 * ESTIMATES[0]
    assert float(make(step=1.0, clip=0.5).clipped(huge).norm()) == pytest.approx(0.5)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("downlink", ["full", "sign"])
def test_an_estimate_that_is_no_number_is_refused(optimizer: str, downlink: str) -> None:
    step = make(step=0.1, optimizer=optimizer, downlink=downlink)
    with pytest.raises(ValueError, match="estimate must be finite"):
        step.apply(torch.full((8,), torch.nan), 0)
    assert torch.equal(step.weights, START)


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
