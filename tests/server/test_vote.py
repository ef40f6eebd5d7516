"""Majority votes: what becomes of ties, and of rounds without a signal."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from signfade import server
from signfade.kernels import fused_sum, received
from signfade.server import break_ties, majority_vote
from signfade.settings import Tie
from signfade.theory import tie_probability

TIES: tuple[Tie, ...] = ("zero", "plus", "random")
SIZE, KEY = 100_000, 11


def signals(devices: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(devices)
    h = torch.randn(devices, generator=rng)
    return torch.randn(devices, SIZE, generator=rng), h


def test_a_tie_is_zero_or_plus_or_a_coin() -> None:
    y, h = signals(4)
    tally = server.detect(y, h).sum(dim=0)
    tied = tally == 0
    chance = tie_probability(4)
    assert abs(float(tied.double().mean()) - chance) < 4.5 * math.sqrt(chance * (1 - chance) / SIZE)
    for tie in TIES:
        vote = majority_vote(y, h, tie, KEY)
        assert torch.equal(vote[~tied], tally[~tied].sign())
        expected = {"zero": {0.0}, "plus": {1.0}, "random": {-1.0, 1.0}}[tie]
        assert set(vote[tied].tolist()) == expected


def test_coins_are_fair_and_those_of_their_key_and_coordinate() -> None:
    tied = torch.zeros(SIZE)
    coins = break_ties(tied, "random", KEY)
    assert abs(float(coins.mean())) < 4.5 / math.sqrt(SIZE)
    assert torch.equal(coins, break_ties(tied, "random", KEY))
    assert torch.equal(coins[:700], break_ties(tied[:700], "random", KEY))  # of the coordinate, not the size
    other = break_ties(tied, "random", KEY + 1)
    assert abs(float((coins * other).mean())) < 4.5 / math.sqrt(SIZE)


@pytest.mark.parametrize("devices", [1, 2, 5, 20])
def test_negated_signals_have_negated_votes(devices: int) -> None:
    y, h = signals(devices)
    tied = server.detect(y, h).sum(dim=0) == 0
    votes = {tie: (majority_vote(y, h, tie, KEY), majority_vote(-y, h, tie, KEY)) for tie in TIES}
    for vote, negated in votes.values():
        assert torch.equal(vote[~tied], -negated[~tied])
    assert torch.equal(votes["zero"][0], -votes["zero"][1])  # exactly
    for vote in votes["random"]:  # in distribution: there are as many of either sign
        assert abs(float(vote[tied].sum())) <= 4.5 * math.sqrt(float(tied.sum()))
    biased = float((votes["plus"][0] + votes["plus"][1]).mean())  # what "plus" adds to all weights alike
    assert biased == pytest.approx(2 * float(tied.double().mean()), rel=1e-6)


@pytest.mark.parametrize("tie", TIES)
def test_no_signal_no_vote(tie: Tie) -> None:
    y = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(majority_vote(y, torch.zeros(3), tie, KEY), torch.zeros(50))
    single = majority_vote(y, torch.tensor([0.0, -2.0, 0.0]), tie, KEY)  # one vote, no ties
    assert torch.equal(single, -y[1].sign())


@pytest.mark.parametrize("tie", TIES)
def test_the_fused_sum_of_signs_has_the_same_ties(tie: Tie) -> None:
    devices, size = 6, 1000
    rng = np.random.default_rng(0)
    packed = torch.from_numpy(np.packbits(rng.integers(0, 2, (devices, size), dtype=np.uint8), axis=1))
    h = torch.from_numpy(rng.normal(size=devices))
    sigma2, keys = torch.full((devices,), 0.5), np.arange(devices, dtype=np.uint64)
    total = fused_sum("vote", packed, size, h, sigma2, None, None, None, keys)
    y = received(packed, size, h, sigma2, keys)
    assert torch.equal(break_ties(total, tie, KEY), majority_vote(y, h, tie, KEY))


def test_bad_input_is_named() -> None:
    y, h = signals(2)
    with pytest.raises(ValueError, match="key must be given with tie"):
        majority_vote(y, h, "random")
    with pytest.raises(ValueError, match="tie must be one of"):
        majority_vote(y, h, "minus")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tie must be one of"):
        majority_vote(y, torch.zeros(2), "minus")  # type: ignore[arg-type]
