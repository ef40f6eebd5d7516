"""Algorithms 1 and 2 against their listings, written out by hand."""

from __future__ import annotations

import pytest
import torch

from signfade import server
from signfade.device import sign


def test_momentum_follows_algorithm_1() -> None:
    rng = torch.Generator().manual_seed(0)
    start = torch.randn(6, generator=rng)
    estimates = torch.randn(4, 6, generator=rng)
    steps, momentum = [0.1, 0.05, 0.2, 0.1], 0.9
    state = server.initial_state(start)
    w, m = start.clone(), torch.zeros(6)
    for estimate, step in zip(estimates, steps, strict=True):
        state, info = server.momentum_update(state, estimate, step, momentum)
        m = momentum * m + estimate
        moved = step * m
        w = w - moved
        assert torch.equal(state.weights, w)
        assert info.step_norm == pytest.approx(float(moved.norm()))
        assert info.downlink_bits == 6 * 32


def test_sign_downlink_visits_the_weights_of_algorithm_2() -> None:
    """Devices apply the broadcast of round t at the start of round t + 1, with nothing before the first."""
    rng = torch.Generator().manual_seed(1)
    start = torch.randn(5, generator=rng)
    estimates = torch.randn(4, 5, generator=rng)
    step, momentum = 0.01, 0.9
    w, m, broadcast = start.clone(), torch.zeros(5), torch.zeros(5)
    state = server.initial_state(start)
    for estimate in estimates:
        m = momentum * m + broadcast
        w = w - step * m
        assert torch.equal(state.weights, w)  # where the gradients of this round are taken
        broadcast = sign(estimate)
        state, info = server.sign_downlink_update(state, estimate, step, momentum)
        assert info.downlink_bits == 5


def test_updates_leave_their_input_alone() -> None:
    state = server.initial_state(torch.ones(3))
    before = state.weights.clone(), state.momentum.clone()
    estimate = torch.tensor([1.0, -2.0, 0.0])
    server.momentum_update(state, estimate, 0.5, 0.9)
    server.sign_downlink_update(state, estimate, 0.5, 0.9)
    assert torch.equal(state.weights, before[0])
    assert torch.equal(state.momentum, before[1])
    assert torch.equal(estimate, torch.tensor([1.0, -2.0, 0.0]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"estimate": torch.zeros(2)}, "estimate must have shape"),
        ({"estimate": torch.tensor([0.0, torch.nan, 0.0])}, "estimate must be finite"),
        ({"step": 0.0}, "step must be positive"),
        ({"step": float("nan")}, "step must be positive"),
        ({"step": float("inf")}, "step must be positive and finite"),
        ({"momentum": 1.0}, "momentum must be in"),
        ({"momentum": -0.1}, "momentum must be in"),
    ],
)
@pytest.mark.parametrize("update", [server.momentum_update, server.sign_downlink_update])
def test_bad_input_is_named(update: object, change: dict[str, object], message: str) -> None:
    arguments = {
        "state": server.initial_state(torch.zeros(3)),
        "estimate": torch.zeros(3),
        "step": 0.1,
        **change,
    }
    with pytest.raises(ValueError, match=message):
        update(**arguments)  # type: ignore[operator]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_downlink_of_signs_sends_nothing_where_nothing_was_received(momentum: float) -> None:
    state = server.ServerState(torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.5]))
    after, info = server.sign_downlink_update(state, torch.zeros(2), step=0.1, momentum=momentum)
    assert after == state
    assert info == (0.0, 0)
    _, info = server.sign_downlink_update(state, torch.tensor([0.0, -1.0]), step=0.1, momentum=momentum)
    assert info.downlink_bits == 2  # one bit has no zero
