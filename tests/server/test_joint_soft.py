"""Soft bits with joint weights: below the linear rule and sbfl everywhere, sbfl for independent devices."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from signfade import theory
from signfade.server.independent import high_snr, sbfl
from signfade.server.joint import (
    LowRank,
    bfl,
    fit_joint_blmmse,
    fit_joint_sbfl,
    joint_blmmse,
    joint_sbfl,
    weighted,
)
from signfade.server.joint.weighted import _add_soft_bits, _rho

sys.path.insert(0, str(Path(__file__).parent))
from joint_scenes import SCALE, equal, random_correlation, receive


def test_rho_is_that_of_the_theory() -> None:
    snr = torch.logspace(-6, 6, 49, dtype=torch.float64)
    found = _rho(snr.sqrt(), torch.ones_like(snr))
    np.testing.assert_allclose(found.numpy(), theory.rho(snr), rtol=1e-8)
    assert _rho(torch.tensor([0.0, 1.0]), torch.zeros(2)).tolist() == pytest.approx([0.0, 1.0])


def test_identity_is_sbfl() -> None:
    generator = torch.Generator().manual_seed(1)
    y, h = torch.randn(7, 50, generator=generator), torch.randn(7, generator=generator)
    sigma2, scale = torch.rand(7, generator=generator), torch.rand(7, generator=generator)
    mean, weights = torch.randn(7, generator=generator), torch.randn(7, generator=generator)
    h[1], sigma2[2] = 0.0, 0.0
    common = y, h, sigma2, mean, scale
    torch.testing.assert_close(joint_sbfl(*common, torch.eye(7), weights), sbfl(*common, weights))


def test_error_and_gain_are_as_promised_by_monte_carlo() -> None:
    r = random_correlation(8, 3, 0.5, seed=2)
    h, sigma2 = torch.linspace(-1.5, 1.5, 8), torch.full((8,), 0.5)
    std = torch.linspace(0.5, 2.0, 8).double()
    weights = torch.tensor([1.0, 2.0, 1.0, 0.5, 1.0, 1.0, -1.0, 1.0]).double()
    g, y = receive(r * std[:, None] * std[None, :], h, sigma2, 200_000, 3)
    truth = weights @ g
    estimate = joint_sbfl(y, h, sigma2, torch.zeros(8), SCALE * std, r, weights)
    eta = fit_joint_sbfl(h, sigma2, SCALE * std, r, weights).gain
    variance = float(weights * std @ r @ (weights * std))
    for sample, expected in ((truth * estimate, eta), ((truth - estimate).square(), 1 - eta)):
        error = float(sample.std()) / math.sqrt(len(truth))
        assert abs(float(sample.mean()) - expected * variance) < 4 * error


def test_no_other_weights_are_better() -> None:
    r = random_correlation(6, 3, 0.5, seed=4)
    h, sigma2 = torch.ones(6).double(), torch.full((6,), 0.7).double()
    g, y = receive(r, h, sigma2, 100_000, 5)
    truth, soft = g.sum(dim=0), torch.tanh(y / 0.7)
    best = fit_joint_sbfl(h, sigma2, torch.full((6,), SCALE), r).combine
    fitted = torch.linalg.lstsq(soft.T, truth[:, None]).solution[:, 0]
    errors = [float((truth - w @ soft).square().mean()) for w in (best, fitted)]
    assert errors[0] < errors[1] * (1 + 10 * 6 / len(truth))  # the fit has six free numbers


@pytest.mark.parametrize("devices", [5, 20, 100])
def test_below_linear_and_below_sbfl_everywhere(devices: int) -> None:
    generator = torch.Generator().manual_seed(devices)
    scale, one = torch.full((devices,), SCALE), torch.ones(devices)
    for value in (-0.8 / devices, 0.0, 0.03, 0.3, 0.9, 0.999):
        for decibel in (-20.0, -5.0, 0.0, 5.0, 20.0, 60.0):
            h, sigma2 = (
                torch.randn(devices, generator=generator),
                torch.full((devices,), 10 ** (-decibel / 10)),
            )
            r = equal(devices, value)
            error = 1 - fit_joint_sbfl(h, sigma2, scale, r).gain
            assert error <= 1 - fit_joint_blmmse(h, sigma2, scale, r).gain + 1e-6
            alone = theory.joint_moments("sbfl", h.double() ** 2 / sigma2.double(), one, r)
            assert error <= alone.nmse() + 1e-6


def test_within_a_few_percent_of_the_posterior_mean() -> None:
    """What is left to gain over it: a few percent of the error, at many times the price."""
    for seed, decibel in ((1, 0.0), (2, 5.0), (3, 10.0)):
        r = random_correlation(8, 6, 2.0, seed)
        h, sigma2 = torch.ones(8), torch.full((8,), 10 ** (-decibel / 10))
        g, y = receive(r, h, sigma2, 20_000, seed)
        truth, zero, scale = g.sum(dim=0), torch.zeros(8), torch.full((8,), SCALE)
        exact = float((bfl(y, h, sigma2, zero, r) - truth).square().mean())
        soft = float((joint_sbfl(y, h, sigma2, zero, scale, r) - truth).square().mean())
        linear = float((joint_blmmse(y, h, sigma2, zero, scale, r) - truth).square().mean())
        assert exact < soft < linear
        assert soft < 1.05 * exact


def test_extremes_and_low_rank() -> None:
    generator = torch.Generator().manual_seed(6)
    h = torch.randn(30, generator=generator)
    y = torch.randn(30, 20, generator=generator)
    low = LowRank(torch.rand(30, 2, generator=generator).double() - 0.4, torch.tensor([0.9, 0.3]).double())
    scale, zero = torch.ones(30), torch.zeros(30)
    for sigma2 in (1e-15, 1.0, 1e10, 0.0):
        noise = torch.full((30,), sigma2)
        dense = joint_sbfl(y, h, noise, zero, scale, low.dense())
        assert dense.dtype == torch.float32
        assert bool(dense.isfinite().all())
        thin = joint_sbfl(y, h, noise, zero, scale, low)
        assert float((thin - dense).norm()) < 0.02 * float(dense.norm()) + 1e-6
    same = torch.ones(4, 4)
    bits = torch.tensor([[1.0], [1.0], [1.0], [1.0]])
    one = torch.ones(4)
    torch.testing.assert_close(
        joint_sbfl(bits, one, 0 * one, 0 * one, one, same),
        high_snr(bits, one, 0 * one, one),
        rtol=1e-5,
        atol=1e-5,
    )


def test_bad_input_is_named() -> None:
    y, one = torch.ones(2, 3), torch.ones(2)
    with pytest.raises(ValueError, match="correlation must be symmetric"):
        joint_sbfl(y, one, one, one, one, torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="scale must have shape"):
        joint_sbfl(y, one, one, one, torch.ones(3), torch.eye(2))
    with pytest.raises(ValueError, match="y must be finite"):
        joint_sbfl(y * math.nan, one, one, one, one, torch.eye(2))


def test_one_compiled_pass_gives_the_sum_of_soft_bits_on_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(4)
    y = 3 * torch.randn(6, 1700, generator=generator)
    h, sigma2 = torch.randn(6, generator=generator), 0.1 + torch.rand(6, generator=generator)
    combine = torch.randn(6, generator=generator).double()
    monkeypatch.setattr(weighted, "available_threads", lambda: 1)
    whole = _add_soft_bits(y, h, sigma2, combine)
    soft = torch.tanh((h / sigma2).double()[:, None] * y.double())
    # tanh within 1.2e-7, a slope rounded to float32, the result too
    torch.testing.assert_close(whole.double(), combine @ soft, rtol=0, atol=6e-6)
    monkeypatch.setattr(weighted, "available_threads", lambda: 3)
    assert torch.equal(_add_soft_bits(y, h, sigma2, combine), whole)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_signal_that_is_no_number_is_refused(bad: float) -> None:
    y, one = torch.ones(2, 600), torch.ones(2)
    y[1, 555] = bad
    with pytest.raises(ValueError, match="y must be finite"):
        joint_sbfl(y, one, one, 0 * one, one, torch.eye(2))
