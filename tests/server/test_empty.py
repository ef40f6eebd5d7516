"""No device is an error in one sentence, no coordinate an empty result: the same for every rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from signfade import server
from signfade.server.joint import LowRank

Rule = Callable[[Tensor, Tensor], object]


def over_the_air(y: Tensor, one: Tensor) -> Tensor:
    return server.over_the_air(torch.zeros(y.shape[1]), one, 1.0, one, one)


def evidence(y: Tensor, one: Tensor) -> Tensor:
    return torch.eye(len(one))


RULES: dict[str, Rule] = {
    "detect": lambda y, one: server.detect(y, one).sum(dim=0),
    "majority_vote": server.majority_vote,
    "sbfl": lambda y, one: server.sbfl(y, one, one, one, one),
    "sbfl, weighted": lambda y, one: server.sbfl(y, one, one, one, one, one),
    "blmmse": lambda y, one: server.blmmse(y, one, one, one, one),
    "high_snr": lambda y, one: server.high_snr(y, one, one, one),
    "zero_forcing": lambda y, one: server.zero_forcing(y, one, one, one),
    "ideal": lambda y, one: server.ideal(y),
    "blmmse_covariance": lambda y, one: server.blmmse_covariance(
        y, one, one, one, torch.eye(y.shape[1]).expand(len(y), -1, -1)
    ),
    "bfl, exact": lambda y, one: server.bfl(y, one, one, one, evidence(y, one), method="exact"),
    "bfl, gibbs": lambda y, one: server.bfl(y, one, one, one, evidence(y, one), method="gibbs"),
    "bfl, ep": lambda y, one: server.bfl(y, one, one, one, evidence(y, one), method="ep"),
    "bfl, copies": lambda y, one: server.bfl(y, one, one, one, torch.ones(len(one), len(one)), method="ep"),
    "gibbs_bfl": lambda y, one: server.gibbs_bfl(y, one, one, one, evidence(y, one))[1],
    "factor_bfl": lambda y, one: server.factor_bfl(y, one, one, one, one, one),
    "joint_blmmse": lambda y, one: server.joint_blmmse(y, one, one, one, one, evidence(y, one)),
    "joint_sbfl": lambda y, one: server.joint_sbfl(y, one, one, one, one, evidence(y, one)),
    "over_the_air": over_the_air,
}

LEARNERS: dict[str, Rule] = {
    "learn_correlation": lambda y, one: server.learn_correlation(y, one, one),
    "smooth_correlation": lambda y, one: server.smooth_correlation(
        server.initial_correlation(4), y, one, one, torch.arange(len(y))
    )[0],
    "learn_low_rank": lambda y, one: server.learn_low_rank(y, one, one),
}

WEIGHTS: dict[str, Rule] = {
    "fit_joint_blmmse": lambda y, one: server.fit_joint_blmmse(one, one, one, evidence(y, one)).combine,
    "fit_joint_sbfl": lambda y, one: server.fit_joint_sbfl(one, one, one, evidence(y, one)).combine,
    "SBFLNetwork": lambda y, one: server.SBFLNetwork(one, one, one, one),
}


@pytest.mark.parametrize("size", [0, 5])
@pytest.mark.parametrize("rule", [*RULES, *LEARNERS, *WEIGHTS])
def test_no_device_is_an_error(rule: str, size: int) -> None:
    function = (RULES | LEARNERS | WEIGHTS)[rule]
    with pytest.raises(ValueError, match=r"must have shape \[K(, M)?\] with K at least 1; got \[0(, \d)?\]"):
        function(torch.zeros(0, size), torch.zeros(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RULES)
def test_no_coordinate_is_an_empty_estimate(rule: str, dtype: torch.dtype) -> None:
    found = RULES[rule](torch.zeros(3, 0, dtype=dtype), torch.ones(3))
    assert isinstance(found, Tensor)
    assert found.shape == (0,)


def test_no_coordinate_inside_a_device() -> None:
    found = server.device_bfl(torch.zeros(0), 1.0, 1.0, torch.zeros(()), torch.zeros(0, 0))
    assert found.shape == (0,)


@pytest.mark.parametrize("devices", [1, 2, 3, 30])
@pytest.mark.parametrize("rule", LEARNERS)
def test_nothing_is_learned_from_no_coordinate(rule: str, devices: int) -> None:
    if rule == "smooth_correlation" and devices > 4:
        devices = 4
    found = LEARNERS[rule](torch.zeros(devices, 0), torch.ones(devices))
    dense = found.dense() if isinstance(found, LowRank) else found
    assert isinstance(dense, Tensor)
    torch.testing.assert_close(dense, torch.eye(devices).double(), rtol=0, atol=0)


def test_a_round_without_coordinates_leaves_the_memory() -> None:
    y, one = torch.ones(2, 5000), torch.ones(2)
    _, state = server.smooth_correlation(server.initial_correlation(2), y, one, one)
    again, later = server.smooth_correlation(state, y[:, :0], one, one, drift=0.0)
    assert float(again[0, 1]) > 0.9
    torch.testing.assert_close(later.bits, state.bits, rtol=1e-9, atol=0)
    torch.testing.assert_close(later.evidence, state.evidence, rtol=1e-9, atol=0)
