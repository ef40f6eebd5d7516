"""Reported scalars are bounded by the others', and honest ones are left alone."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from signfade.server import accepted_scale, bound_scalars, initial_scalars
from signfade.server.robust import LARGEST_RATIO


def honest(devices: int, seed: int = 0, spread: float = 0.4) -> torch.Tensor:
    """Log-normal scales, `[K, 2]`, the second layer a hundred times the first."""
    draw = torch.randn(devices, 2, generator=torch.Generator().manual_seed(seed))
    return torch.exp(spread * draw) * torch.tensor([1e-3, 0.1])


def test_a_scale_beyond_belief_counts_as_the_median() -> None:
    scale = honest(2000)
    scale[7] *= 1000
    _, bounded, _ = bound_scalars(initial_scalars(len(scale), 2), torch.zeros_like(scale), scale)
    # Medians of 2000 are within a few percent of that of the log-normal law.
    assert bounded[7, 0] == pytest.approx(1e-3, rel=0.1)
    assert bounded[7, 1] == pytest.approx(0.1, rel=0.1)
    cut = bounded < scale
    assert (cut.double().mean(dim=0) < 4 * 1.35e-3).all()  # P(z > 3) of honest devices, and the liar
    believed = bounded[~cut[:, 0], 0].max()
    assert believed == pytest.approx(1e-3 * math.exp(3 * 0.4), rel=0.1)  # three deviations are
    assert (bounded <= scale).all()


@pytest.mark.parametrize("liars", [1, 5, 9])
def test_fewer_than_half_cannot_move_the_bound_far(liars: int) -> None:
    """Nine of twenty: the median is still honest, and the deviation at most that of all honest scales."""
    scale = honest(20)
    scale[:liars] *= 1e6
    _, bounded, _ = bound_scalars(initial_scalars(len(scale), 2), torch.zeros_like(scale), scale)
    assert (bounded[:liars] < 5 * scale[liars:].median(dim=0).values).all()
    assert torch.equal(bounded[liars:], scale[liars:])


def test_the_bound_follows_the_unit_and_lets_silence_pass() -> None:
    scale = honest(20)
    scale[3] *= 1e3
    scale[4] = 0.0
    scale[5] *= 1e-6
    one = bound_scalars(initial_scalars(len(scale), 2), torch.zeros_like(scale), scale)[1]
    ten = bound_scalars(initial_scalars(len(scale), 2), torch.zeros_like(scale), 1e4 * scale)[1]
    assert torch.allclose(ten, 1e4 * one, rtol=1e-5)
    assert torch.equal(one[4:6], scale[4:6])
    alike = torch.ones(9, 1)
    alike[0] = 1.3  # devices that are all but alike may still differ by a few tenths
    assert torch.equal(bound_scalars(initial_scalars(9), torch.zeros(9, 1), alike)[1], alike)


def test_means_are_brought_back_among_the_others() -> None:
    draw = torch.Generator().manual_seed(2)
    mean, scale = 0.2 + 0.01 * torch.randn(1000, 1, generator=draw), torch.full((1000, 1), 0.5)
    mean[0], mean[1] = 100.0, -100.0
    inside, _, _ = bound_scalars(initial_scalars(len(scale)), mean, scale)
    assert inside[0].item() == pytest.approx(0.2, abs=0.002)
    assert inside[1].item() == pytest.approx(0.2, abs=0.002)
    assert (inside[2:] != mean[2:]).double().mean() < 0.01


def test_a_mean_one_step_of_the_quantiser_away_is_believed() -> None:
    """Most devices send the same code, so that the means have no width."""
    mean, scale = torch.tensor([[0.0], [0.0], [0.0], [0.2], [0.4]]), torch.full((5, 1), 0.1)
    assert torch.equal(bound_scalars(initial_scalars(len(scale)), mean, scale)[0], torch.zeros(5, 1))
    believed, _, _ = bound_scalars(initial_scalars(len(scale)), mean, scale, mean_step=2.0)
    assert torch.equal(believed.ravel(), torch.tensor([0.0, 0.0, 0.0, 0.2, 0.0]))
    scale[3:] = torch.tensor([[0.05], [0.2]])  # steps are of the larger scale, own or middle
    believed, _, _ = bound_scalars(initial_scalars(len(scale)), mean, scale, mean_step=2.0, scale_step=2.0)
    assert torch.equal(believed.ravel(), torch.tensor([0.0, 0.0, 0.0, 0.2, 0.4]))


def test_a_scale_one_level_of_the_quantiser_above_is_believed() -> None:
    scale = torch.tensor([[1.0], [1.0], [1.0], [2.0], [4.0]])
    zero = torch.zeros(5, 1)
    assert torch.equal(bound_scalars(initial_scalars(5), zero, scale)[1], torch.ones(5, 1))
    believed = bound_scalars(initial_scalars(5), zero, scale, scale_step=2.0)[1]
    assert torch.equal(believed.ravel(), torch.tensor([1.0, 1.0, 1.0, 2.0, 1.0]))


def test_few_devices_a_round_are_compared_with_the_last_ones_heard() -> None:
    """Two a round of fifty, one of them hostile: its scale is bounded by the reports of others before."""
    state = initial_scalars(50)
    zero = torch.zeros(2, 1)
    for first in range(0, 40, 2):
        _, bounded, state = bound_scalars(state, zero, torch.ones(2, 1), torch.tensor([first, first + 1]))
        assert torch.equal(bounded, torch.ones(2, 1))
    before = state.logs.clone()
    _, bounded, after = bound_scalars(state, zero, torch.tensor([[1e30], [1.2]]), torch.tensor([48, 49]))
    assert torch.equal(bounded, torch.tensor([[1.0], [1.2]]))
    assert torch.equal(state.logs.nan_to_num(7.0), before.nan_to_num(7.0))  # the old state is not touched
    for _ in range(30):  # the same device again and again still counts once
        _, bounded, after = bound_scalars(after, zero, torch.tensor([[1e30], [1.2]]), torch.tensor([48, 49]))
    assert torch.equal(bounded, torch.tensor([[1.0], [1.2]]))
    _, silent, _ = bound_scalars(after, zero, zero, torch.tensor([48, 49]))
    assert torch.equal(silent, zero)


def test_old_reports_are_forgotten() -> None:
    """Gradients shrink: with 25 devices or more a round only the round itself is compared."""
    zero = torch.zeros(25, 1)
    _, _, state = bound_scalars(initial_scalars(50), zero, torch.full((25, 1), 1e3), torch.arange(25))
    late = torch.ones(25, 1)
    late[3] = 1e3
    _, bounded, _ = bound_scalars(state, zero, late, torch.arange(25, 50))
    assert torch.equal(bounded, torch.ones(25, 1))


def test_vanishing_scales_do_not_open_the_bound() -> None:
    """Five of twenty report 1e-38, the sixth a thousandfold: a bound from the lower half let it pass."""
    scale = honest(20)
    scale[:5] = 1e-38
    scale[5] *= 1000
    _, bounded, _ = bound_scalars(initial_scalars(20, 2), torch.zeros_like(scale), scale)
    assert (bounded[5] <= scale[6:].amax(dim=0)).all()


log_scales = st.lists(st.floats(-3, 3), min_size=11, max_size=11)
hostile = st.lists(st.sampled_from([0.0, 1e-38, 1e-3, 3e38]) | st.floats(1e-30, 1e30), min_size=9, max_size=9)


@settings(max_examples=200, deadline=None)
@given(log_scales, hostile, st.lists(st.floats(-1e30, 1e30), min_size=9, max_size=9))
def test_nine_of_twenty_cannot_pass_four_times_the_largest_honest_scale(
    honest_logs: list[float], lies: list[float], means: list[float]
) -> None:
    """The breakdown point: 45 % report whatever they like, and honest devices differ by up to 400 times."""
    good = torch.tensor(honest_logs).exp()
    scale = torch.cat([good, torch.tensor(lies)]).unsqueeze(1)
    truth = torch.tensor(honest_logs) / 10
    mean = torch.cat([truth, torch.tensor(means)]).unsqueeze(1)
    inside, bounded, _ = bound_scalars(initial_scalars(20), mean, scale)
    assert bounded.max() <= LARGEST_RATIO * good.max() * (1 + 1e-5)
    width = float(truth.max() - truth.min())
    assert inside.max() <= truth.max() + 3 * 1.4826 * width * (1 + 1e-5) + 1e-6
    assert inside.min() >= truth.min() - 3 * 1.4826 * width * (1 + 1e-5) - 1e-6


@pytest.mark.parametrize("attackers", [1, 6, 9])
def test_what_knows_the_bound_comes_just_below_it(attackers: int) -> None:
    good = honest(20 - attackers)
    largest = accepted_scale(good, attackers)
    scale = torch.cat([good, largest.float().expand(attackers, 2)])
    _, bounded, _ = bound_scalars(initial_scalars(20, 2), torch.zeros_like(scale), scale)
    assert torch.equal(bounded, scale)
    assert (largest <= LARGEST_RATIO * good.amax(dim=0)).all()
    more = torch.cat([good, 1.05 * largest.float().expand(attackers, 2)])
    _, bounded, _ = bound_scalars(initial_scalars(20, 2), torch.zeros_like(more), more)
    assert (bounded[20 - attackers :] < more[20 - attackers :]).all()


@pytest.mark.parametrize(
    ("mean", "scale", "options", "message"),
    [
        ((3, 1), (3, 2), {}, r"scale must have shape \[K, 1\]; got \[3, 2\]"),
        ((2, 1), (3, 1), {}, r"mean must have shape \[3, 1\]"),
        ((3, 1), (3, 1), {"deviations": 0.0}, "deviations must be positive"),
    ],
)
def test_mistakes_are_named(
    mean: tuple[int, int], scale: tuple[int, int], options: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        bound_scalars(initial_scalars(3), torch.zeros(mean), torch.ones(scale), None, **options)
