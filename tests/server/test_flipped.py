"""Flipped bits: the posterior by brute force, the moments by their definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from signfade.server import bfl, factor_bfl, fit_joint_blmmse, flipped_link, flipped_llr, sbfl
from signfade.uplink import half_llr

H = torch.tensor([0.9, -1.3], dtype=torch.float64)
SIGMA2 = torch.tensor([0.8, 0.5], dtype=torch.float64)


@pytest.mark.parametrize("c", [-1.0, -0.4, 0.0, 0.3, 0.999, 1.0])
def test_the_half_llr_is_bayes(c: float) -> None:
    y = torch.linspace(-4, 4, 17, dtype=torch.float64).repeat(2, 1)
    found = flipped_llr(y, H, SIGMA2, torch.full((2,), c, dtype=torch.float64))
    right = (1 + c) / 2
    for k in range(2):
        plus, minus = (stats.norm.pdf(y[k], bit * float(H[k]), float(SIGMA2[k]) ** 0.5) for bit in (1, -1))
        odds = (right * plus + (1 - right) * minus) / (right * minus + (1 - right) * plus)
        np.testing.assert_allclose(found[k].numpy(), np.log(odds) / 2, rtol=1e-9, atol=1e-12)
    assert torch.allclose(torch.tanh(found), c * torch.tanh(half_llr(y, H, SIGMA2)), atol=1e-12)


def test_certain_links_stay_certain_only_of_the_bit() -> None:
    y, one = torch.tensor([[2.0, -0.1]]), torch.ones(1)
    found = flipped_llr(y, one, 0 * one, 0.5 * one)
    assert torch.allclose(found, math.atanh(0.5) * torch.tensor([[1.0, -1.0]]))
    sure = flipped_llr(y, one, 0 * one, -one)
    assert torch.equal(torch.tanh(sure), torch.tensor([[-1.0, 1.0]]))


def test_one_device_at_a_time_it_is_the_scale_that_shrinks() -> None:
    y = torch.linspace(-3, 3, 7, dtype=torch.float64).repeat(2, 1)
    c, scale = torch.tensor([0.6, -0.2], dtype=torch.float64), torch.tensor([1.5, 0.7]).double()
    zero, one = torch.zeros(2).double(), torch.ones(2).double()
    through = sbfl(flipped_llr(y, H, SIGMA2, c), one, one, zero, scale)
    assert torch.allclose(through, sbfl(y, H, SIGMA2, zero, scale, weights=c), atol=1e-12)


def posterior_sum(y: np.ndarray, covariance: np.ndarray, right: np.ndarray) -> float:
    """E[g_1 + g_2 | y] for two correlated devices whose bits are right with a probability, on a grid."""
    axis = np.linspace(-8, 8, 1601)
    axis = axis + (axis[1] - axis[0]) / 2  # no point on the edge between signs
    a, b = np.meshgrid(axis, axis, indexing="ij")
    density = stats.multivariate_normal(cov=covariance).pdf(np.stack([a, b], axis=-1))
    for k, g in enumerate((a, b)):
        plus, minus = (stats.norm.pdf(y[k], bit * float(H[k]), float(SIGMA2[k]) ** 0.5) for bit in (1, -1))
        up, down = right[k] * plus + (1 - right[k]) * minus, right[k] * minus + (1 - right[k]) * plus
        density = density * np.where(g > 0, up, down)
    return float(((a + b) * density).sum() / density.sum())


@pytest.mark.parametrize("method", ["exact", "ep", "factor"])
def test_joint_posteriors_take_it_as_a_signal(method: str) -> None:
    covariance = np.array([[1.0, 0.7], [0.7, 1.4]])
    right = np.array([0.8, 0.1])  # the second device mostly lies
    y = torch.tensor([[0.5, -1.2, 0.1], [1.0, -0.7, 2.0]], dtype=torch.float64)
    llr = flipped_llr(y, H, SIGMA2, torch.from_numpy(2 * right - 1))
    one, zero = torch.ones(2).double(), torch.zeros(2).double()
    if method == "factor":
        shared = torch.tensor([math.sqrt(0.7), math.sqrt(0.7)]).double()
        private = (torch.tensor([1.0, 1.4]).double() - shared.square()).sqrt()
        found = factor_bfl(llr, one, one, zero, shared, private)
    else:
        found = bfl(llr, one, one, zero, torch.from_numpy(covariance), method=method)
    expected = [posterior_sum(y[:, m].numpy(), covariance, right) for m in range(3)]
    # The grid's step is 0.01; expectation propagation is not exact for soft signs.
    np.testing.assert_allclose(found.numpy(), expected, atol=0.02 if method == "ep" else 1e-3)


def test_linear_rules_need_only_the_moments_of_the_effective_link() -> None:
    """`w = Cov(y)^-1 Cov(y, sum g)` with bits that agree by c, from the definition."""
    r, scale = 0.6, torch.tensor([1.0, 2.0]).double()
    c = torch.tensor([0.7, -0.3]).double()
    bits = float((2 / math.pi) * math.asin(r) * c[0] * c[1])
    cov_y = torch.tensor(
        [
            [H[0] ** 2 + SIGMA2[0], H[0] * H[1] * bits],
            [H[0] * H[1] * bits, H[1] ** 2 + SIGMA2[1]],
        ]
    )
    cov_gy = torch.stack([c[j] * H[j] * (scale[j] + r * scale[1 - j]) for j in range(2)])
    correlation = torch.tensor([[1.0, r], [r, 1.0]]).double()
    found = fit_joint_blmmse(*flipped_link(H, SIGMA2, c), scale, correlation).combine
    assert torch.allclose(found, torch.linalg.solve(cov_y, cov_gy), rtol=1e-7)


@pytest.mark.parametrize("c", [1.1, math.nan])
def test_mistakes_are_named(c: float) -> None:
    with pytest.raises(ValueError, match="agreement must be from -1 to 1"):
        flipped_link(H, SIGMA2, torch.tensor([c, 0.0]))
