"""Reported scalars are bounded by the others', and honest ones are left alone."""

from __future__ import annotations

import math

import pytest
import torch

from signfade.server import bound_scalars, initial_scalars


def honest(devices: int, seed: int = 0, spread: float = 0.4) -> torch.Tensor:
    """Log-normal scales, `[K, 2]`, the second layer a hundred times the first."""
    draw = torch.randn(devices, 2, generator=torch.Generator().manual_seed(seed))
    return torch.exp(spread * draw) * torch.tensor([1e-3, 0.1])


def test_a_scale_beyond_belief_counts_as_the_median() -> None:
    scale = honest(2000)
    scale[7] *= 1000
    _, bounded, _ = bound_scalars(initial_scalars(2), torch.zeros_like(scale), scale)
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
    _, bounded, _ = bound_scalars(initial_scalars(2), torch.zeros_like(scale), scale)
    assert (bounded[:liars] < 5 * scale[liars:].median(dim=0).values).all()
    assert torch.equal(bounded[liars:], scale[liars:])


def test_the_bound_follows_the_unit_and_lets_silence_pass() -> None:
    scale = honest(20)
    scale[3] *= 1e3
    scale[4] = 0.0
    scale[5] *= 1e-6
    one = bound_scalars(initial_scalars(2), torch.zeros_like(scale), scale)[1]
    ten = bound_scalars(initial_scalars(2), torch.zeros_like(scale), 1e4 * scale)[1]
    assert torch.allclose(ten, 1e4 * one, rtol=1e-5)
    assert torch.equal(one[4:6], scale[4:6])
    alike = torch.ones(9, 1)
    alike[0] = 1.3  # devices that are all but alike may still differ by a few tenths
    assert torch.equal(bound_scalars(initial_scalars(), torch.zeros(9, 1), alike)[1], alike)


def test_means_are_brought_back_among_the_others() -> None:
    draw = torch.Generator().manual_seed(2)
    mean, scale = 0.2 + 0.01 * torch.randn(1000, 1, generator=draw), torch.full((1000, 1), 0.5)
    mean[0], mean[1] = 100.0, -100.0
    inside, _, _ = bound_scalars(initial_scalars(), mean, scale)
    assert inside[0].item() == pytest.approx(0.2, abs=0.002)
    assert inside[1].item() == pytest.approx(0.2, abs=0.002)
    assert (inside[2:] != mean[2:]).double().mean() < 0.01


def test_a_mean_one_step_of_the_quantiser_away_is_believed() -> None:
    """Most devices send the same code, so that the means have no width."""
    mean, scale = torch.tensor([[0.0], [0.0], [0.0], [0.2], [0.4]]), torch.full((5, 1), 0.1)
    assert torch.equal(bound_scalars(initial_scalars(), mean, scale)[0], torch.zeros(5, 1))
    believed, _, _ = bound_scalars(initial_scalars(), mean, scale, mean_step=2.0)
    assert torch.equal(believed.ravel(), torch.tensor([0.0, 0.0, 0.0, 0.2, 0.0]))
    scale[3:] = torch.tensor([[0.05], [0.2]])  # steps are of the larger scale, own or middle
    believed, _, _ = bound_scalars(initial_scalars(), mean, scale, mean_step=2.0, scale_step=2.0)
    assert torch.equal(believed.ravel(), torch.tensor([0.0, 0.0, 0.0, 0.2, 0.4]))


def test_a_scale_one_level_of_the_quantiser_above_is_believed() -> None:
    scale = torch.tensor([[1.0], [1.0], [1.0], [2.0], [4.0]])
    zero = torch.zeros(5, 1)
    assert torch.equal(bound_scalars(initial_scalars(), zero, scale)[1], torch.ones(5, 1))
    believed = bound_scalars(initial_scalars(), zero, scale, scale_step=2.0)[1]
    assert torch.equal(believed.ravel(), torch.tensor([1.0, 1.0, 1.0, 2.0, 1.0]))


def test_smoothing_remembers_so_that_a_round_of_liars_does_not_decide() -> None:
    rate = 0.2
    state = initial_scalars()
    zero = torch.zeros(3, 1)
    _, _, state = bound_scalars(state, zero, torch.ones(3, 1), rate=rate)
    assert state.limits[0].item() == pytest.approx(0.0)  # the first round is taken as it is
    _, bounded, later = bound_scalars(state, zero, torch.full((3, 1), 100.0), rate=rate)
    middle = rate * math.log(100)
    assert later.limits[0].item() == pytest.approx(middle)
    assert torch.allclose(bounded, torch.full((3, 1), math.exp(middle)))
    assert state.limits[0].item() == pytest.approx(0.0)  # the old state is not touched
    _, silent, same = bound_scalars(later, zero, zero, rate=rate)
    assert torch.equal(silent, zero)
    assert torch.equal(same.limits, later.limits)


@pytest.mark.parametrize(
    ("mean", "scale", "options", "message"),
    [
        ((3, 1), (3, 2), {}, r"scale must have shape \[K, 1\]; got \[3, 2\]"),
        ((2, 1), (3, 1), {}, r"mean must have shape \[3, 1\]"),
        ((3, 1), (3, 1), {"deviations": 0.0}, "deviations must be positive"),
        ((3, 1), (3, 1), {"rate": 0.0}, r"rate in \(0, 1\]"),
    ],
)
def test_mistakes_are_named(
    mean: tuple[int, int], scale: tuple[int, int], options: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        bound_scalars(initial_scalars(), torch.zeros(mean), torch.ones(scale), **options)
