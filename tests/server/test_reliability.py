"""Reliability: liars are found, honest devices are left alone, and what says nothing changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from signfade.server import ReliabilityState, gather_evidence, initial_reliability, update_trust

DEVICES = torch.arange(20)
ONE = torch.ones(20, dtype=torch.float64)


def play(
    agreement: torch.Tensor, rounds: int, m: float = 1.0, own: torch.Tensor | None = None, seed: int = 0
) -> ReliabilityState:
    """Evidence `agreement*m*own` in unit noise; `own` is what each honest device shows of the common mean."""
    draw = torch.Generator().manual_seed(seed)
    state = initial_reliability(20)
    shown = agreement * m * (ONE if own is None else own)
    for _ in range(rounds):
        z = shown + torch.randn(20, generator=draw, dtype=torch.float64)
        state = update_trust(gather_evidence(state, z, ONE, DEVICES))
    return state


@pytest.mark.parametrize("seed", range(5))
def test_flippers_are_turned_round_and_noise_is_ignored(seed: int) -> None:
    truth = ONE.clone()
    truth[:6] = -1  # thirty percent lie
    truth[6:8] = 0
    trust = play(truth, rounds=60, seed=seed).trust
    assert (trust[:6] <= 0).all()
    assert trust[:6].median() < -0.5  # turned round, not only left out
    assert (trust[6:8] < 0.95).all()
    assert (trust[6:8] > -0.05).all()
    assert (trust[8:] > 0.9).all()


@pytest.mark.parametrize("seed", range(5))
def test_honest_devices_that_differ_are_all_believed(seed: int) -> None:
    own = 0.3 + 1.4 * torch.rand(20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert (play(ONE, rounds=60, own=own, seed=seed).trust > 0.5).all()


@pytest.mark.parametrize("seed", range(5))
def test_noise_condemns_few(seed: int) -> None:
    """Evidence without any common mean: four in five keep their good name."""
    trust = play(ONE, rounds=100, m=0.0, seed=seed).trust
    assert (trust > 0).sum() >= 16
    assert trust.mean() > 0.5


def test_earlier_verdicts_do_not_count() -> None:
    """The evidence alone decides, so a wrong start cannot confirm itself."""
    truth = ONE.clone()
    truth[:6] = -1
    state = play(truth, rounds=60)
    assert torch.equal(update_trust(replace(state, trust=-state.trust)).trust, state.trust)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(0.6, 1.2), min_size=11, max_size=11),
    st.lists(st.floats(-1e6, 1e6), min_size=9, max_size=9),
)
def test_nine_of_twenty_cannot_cost_honest_devices_their_weight(
    shown: list[float], lies: list[float]
) -> None:
    """The breakdown point: honest evidence within a factor of two counts fully, whatever 45 % show."""
    z = torch.tensor([*shown, *lies], dtype=torch.float64)
    state = initial_reliability(20)
    for _ in range(10):
        state = update_trust(gather_evidence(state, z, 0.01 * ONE, DEVICES))
        assert (state.trust[:11] == 1).all()


@pytest.mark.parametrize("seed", range(5))
def test_wild_evidence_without_a_mean_is_no_weapon(seed: int) -> None:
    """Bits of one sign show five deviations, up or down at random: a mean over devices follows them."""
    draw = torch.Generator().manual_seed(seed)
    state = initial_reliability(20)
    for _ in range(60):
        z = 0.3 + torch.randn(20, generator=draw, dtype=torch.float64)
        z[:6] = 5.0 * torch.sign(torch.randn(1, generator=draw, dtype=torch.float64))
        state = update_trust(gather_evidence(state, z, ONE, DEVICES))
    assert (state.trust[6:] > 0.5).sum() >= 12
    assert state.trust[6:].mean() > 0.8


def test_without_a_common_mean_nothing_is_learned() -> None:
    z = torch.cat([-ONE[:11], ONE[11:]])
    state = initial_reliability(20)
    assert gather_evidence(state, z, ONE, DEVICES).total.abs().sum() == 0  # the mean is below zero
    informed = play(ONE, rounds=10)
    after = gather_evidence(informed, z, ONE, DEVICES)
    assert torch.equal(after.weight, informed.weight)  # nothing fades either


def test_who_is_not_heard_is_not_judged_and_names_do_not_matter() -> None:
    some = torch.tensor([17, 3, 8, 5, 11])
    z = torch.tensor([1.0, 2.0, 1.5, -2.0, 1.0], dtype=torch.float64)
    few = gather_evidence(initial_reliability(20), z, ONE[:5], some)
    trust = update_trust(few).trust
    assert torch.equal(trust[[0, 1, 2]], ONE[:3])
    assert trust[5] == 0  # one round leaves a device out, it does not turn it round
    order = torch.tensor([4, 0, 3, 1, 2])
    again = update_trust(gather_evidence(initial_reliability(20), z[order], ONE[:5], some[order])).trust
    assert torch.allclose(again, trust)


def test_a_device_that_changes_sides_is_found_out() -> None:
    state = play(ONE, rounds=40)
    truth = ONE.clone()
    truth[4] = -1
    draw = torch.Generator().manual_seed(9)
    trust = []
    for _ in range(60):
        z = truth + torch.randn(20, generator=draw, dtype=torch.float64)
        state = update_trust(gather_evidence(state, z, ONE, DEVICES))
        trust.append(float(state.trust[4]))
    assert trust[0] > 0.9
    assert trust[-1] < -0.9


def test_one_round_does_not_decide_alone() -> None:
    """A statistic of a thousand deviations counts as five."""
    state = play(ONE, rounds=40)
    z = ONE.clone()
    z[2], z[3] = -1000.0, -5.0
    after = update_trust(gather_evidence(state, z, ONE, DEVICES))
    without = gather_evidence(state, ONE, ONE, DEVICES)
    wild, bounded = (float(after.total[k] - without.total[k]) for k in (2, 3))
    assert wild == pytest.approx(bounded, rel=0.2)
    assert after.trust[2] > 0


def test_noisy_statistics_weigh_less() -> None:
    z = 3 * ONE
    z[0] = z[1] = -3.0
    variance = ONE.clone()
    variance[1] = 100.0
    trust = update_trust(gather_evidence(initial_reliability(20), z, variance, DEVICES)).trust
    assert trust[0] < 0 < trust[1]


@pytest.mark.parametrize(
    ("z", "variance", "message"),
    [
        (torch.ones(2), torch.ones(3), r"z must have shape \[3\]"),
        (torch.ones(3), torch.zeros(3), "variance must be positive"),
        (torch.full((3,), torch.nan), torch.ones(3), "z must be finite"),
    ],
)
def test_mistakes_are_named(z: torch.Tensor, variance: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gather_evidence(initial_reliability(5), z, variance, torch.arange(3))
    with pytest.raises(ValueError, match="population"):
        initial_reliability(0)
