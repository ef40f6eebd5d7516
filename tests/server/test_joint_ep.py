"""Expectation propagation: a twin from the formulas, exact answers, limits, and never worse than linear."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm

from signfade.server.joint import approximate, bfl, ep_means, exact_means, fit_joint_blmmse, joint_blmmse

sys.path.insert(0, str(Path(__file__).parent))
from joint_scenes import SCALE, equal, random_correlation, receive


def twin(llr: np.ndarray, prior: np.ndarray, snr: np.ndarray, sweeps: int) -> np.ndarray:
    """EP for one coordinate as the formulas say it: invert the matrix anew after every site."""
    share = 2 / math.pi
    xi = share / (1 - share + 1 / snr)
    nu = SCALE * (1 + xi) * np.tanh(llr)
    for _ in range(sweeps):
        for k in range(len(llr)):
            sigma = np.linalg.inv(np.linalg.inv(prior) + np.diag(xi))
            mu = sigma @ nu
            v = 1 / (1 / sigma[k, k] - xi[k])
            m = v * (mu[k] / sigma[k, k] - nu[k])
            z = m / math.sqrt(v)
            p = 1 / (1 + math.exp(-2 * llr[k]))
            pull = norm.pdf(z) * (2 * p - 1) / (p * norm.cdf(z) + (1 - p) * norm.cdf(-z))
            variance = v * (1 - z * pull - pull**2)
            mean = m + math.sqrt(v) * pull
            xi[k], nu[k] = 1 / variance - 1 / v, mean / variance - m / v
    return np.linalg.inv(np.linalg.inv(prior) + np.diag(xi)) @ nu


def test_the_twin_settles_at_the_same_point() -> None:
    prior = random_correlation(5, 3, 0.4, seed=1)
    snr = torch.tensor([0.3, 1.0, 2.0, 5.0, 0.7]).double()
    llr = 2 * torch.randn(5, 11, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found, info = ep_means(llr, prior, torch.eye(5), snr, sweeps=100, tolerance=1e-9)
    assert info.unsettled == 0
    for m in range(11):
        expected = twin(llr[:, m].numpy(), prior.numpy(), snr.numpy(), sweeps=40)
        np.testing.assert_allclose(found[:, m].numpy(), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("d", "factors", "noise"),
    [(6, 2, 0.5), (6, 10, 0.5), (7, 3, 0.2), (8, 2, 0.5), (8, 10, 0.5), (9, 3, 1.0), (10, 4, 0.5)],
)
def test_within_two_percent_of_exact(d: int, factors: int, noise: float) -> None:
    r = random_correlation(d, factors, noise, seed=d + factors)
    assert float(r.min()) < -0.2
    generator = torch.Generator().manual_seed(d)
    llrs, snrs = [], []
    for decibel in (-10.0, 0.0, 10.0, 30.0):
        h = torch.randn(d, generator=generator, dtype=torch.float64)
        sigma2 = torch.full((d,), 10 ** (-decibel / 10), dtype=torch.float64)
        _, y = receive(r, h, sigma2, 500, d)
        llrs.append((h / sigma2)[:, None] * y)
        snrs.append(h**2 / sigma2)
    exact = exact_means(torch.cat(llrs, dim=1), r, torch.ones(1, d))[0].reshape(4, 500)
    rms = float(r.sum().sqrt())
    for llr, snr, truth in zip(llrs, snrs, exact):
        found, info = ep_means(llr, r, torch.ones(1, d), snr)
        assert float((found[0] - truth).square().mean().sqrt()) < 0.02 * rms
        assert info.unsettled < 0.02
        assert 1 <= info.sweeps < 6


def test_one_device_is_exact() -> None:
    llr = torch.linspace(-8, 8, 33).double()[None]
    found, _ = ep_means(llr, torch.ones(1, 1), torch.ones(1, 1), torch.ones(1))
    torch.testing.assert_close(found, SCALE * torch.tanh(llr), rtol=1e-8, atol=1e-9)


def test_low_snr_limit_is_linear() -> None:
    """To first order in l, `E[g_i | y] = sqrt(2/pi) * sum_j r_ij * l_j`, whatever the correlation."""
    r = random_correlation(7, 3, 0.2, seed=5)
    llr = 1e-4 * torch.randn(7, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found, _ = ep_means(llr, r, torch.eye(7), torch.full((7,), 1e-8), tolerance=1e-6)
    torch.testing.assert_close(found, SCALE * r @ llr, rtol=0, atol=1e-6)


@pytest.mark.parametrize("devices", [5, 20])
@pytest.mark.parametrize("value", [-0.04, 0.0, 0.3, 0.9, 0.99, 0.999])
def test_never_above_the_linear_rule(devices: int, value: float) -> None:
    """On the same data, so that the difference has little noise: at most its standard error above."""
    r = equal(devices, value)
    h = torch.ones(devices)
    for decibel in (-10.0, 0.0, 10.0, 20.0):
        sigma2 = torch.full((devices,), 10 ** (-decibel / 10))
        g, y = receive(r, h, sigma2, 3000, 7)
        truth = g.sum(dim=0)
        zero, scale = torch.zeros(devices), torch.full((devices,), SCALE)
        linear = (joint_blmmse(y, h, sigma2, zero, scale, r) - truth).square()
        found = (bfl(y, h, sigma2, zero, r, method="ep") - truth).square()
        excess = found - linear
        assert float(excess.mean()) < 2 * float(excess.std()) / len(truth) ** 0.5 + 1e-4 * float(r.sum())


@pytest.mark.parametrize("value", [0.99, 0.999, 1.0])
def test_never_above_the_linear_rule_in_clusters(value: float) -> None:
    """Two groups of almost copies and devices of their own: each group has one strong factor, all do not."""
    r = torch.block_diag(equal(8, value), equal(6, value), equal(4, 0.3))
    h, sigma2 = torch.ones(18), torch.full((18,), 1e-3)
    g, y = receive(r, h, sigma2, 3000, 7)
    truth, zero = g.sum(dim=0), torch.zeros(18)
    linear = (joint_blmmse(y, h, sigma2, zero, torch.full((18,), SCALE), r) - truth).square()
    excess = (bfl(y, h, sigma2, zero, r, method="ep") - truth).square() - linear
    assert float(excess.mean()) < 2 * float(excess.std()) / len(truth) ** 0.5
    parts = [slice(0, 8), slice(8, 14), slice(14, 18)]
    apart = sum(bfl(y[p], h[p], sigma2[p], zero[p], r[p, p], method="ep") for p in parts)
    torch.testing.assert_close(bfl(y, h, sigma2, zero, r, method="ep"), apart, rtol=0, atol=2e-3)


def test_labelled_devices_gain_over_linear() -> None:
    r = random_correlation(20, 6, 1.0, seed=8)
    h, sigma2 = torch.ones(20), torch.full((20,), 0.2)
    g, y = receive(r, h, sigma2, 20_000, 3)
    truth = g.sum(dim=0)
    weights = fit_joint_blmmse(h, sigma2, torch.full((20,), SCALE), r).combine
    linear = float((weights @ y - truth).square().mean())
    found = float((bfl(y, h, sigma2, torch.zeros(20), r, method="ep") - truth).square().mean())
    assert found < 0.97 * linear


@pytest.mark.parametrize("correlation", [-0.06, 0.0, 0.9, 0.999, 1.0])
def test_extremes_stay_finite_and_inside_the_prior(correlation: float) -> None:
    devices = 16
    r = equal(devices, correlation)
    for decibel in (-60.0, -20.0, 0.0, 20.0, 60.0):
        sigma2 = torch.full((devices,), 10 ** (-decibel / 10))
        _, y = receive(r, torch.ones(devices), sigma2, 203, 2)
        y[:, :100] = torch.where(torch.arange(devices * 100).reshape(devices, 100) % 5 < 2, 1.0, -1.0)
        zero = torch.zeros(devices)
        found = bfl(y.float(), torch.ones(devices), sigma2, zero, r, method="ep")
        assert found.dtype == torch.float32
        assert bool(found.isfinite().all())
        assert float(found.abs().max()) < 8 * float(r.sum().clamp_min(1).sqrt())
    dead = torch.ones(devices)
    dead[3] = 0.0
    found = bfl(y.float(), dead, 0 * dead, zero, r, method="ep")  # noiseless but for one dead device
    assert bool(found.isfinite().all())


def test_threads_and_company_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    r = random_correlation(9, 3, 0.5, seed=3)
    llr = torch.randn(9, 103, generator=torch.Generator().manual_seed(4))
    combine = torch.ones(1, 9)
    monkeypatch.setattr(approximate, "available_threads", lambda: 1)
    one, _ = ep_means(llr, r, combine, sweeps=3, tolerance=0.0)
    monkeypatch.setattr(approximate, "available_threads", lambda: 3)
    assert torch.equal(ep_means(llr, r, combine, sweeps=3, tolerance=0.0)[0], one)
    for first, last in ((8, 21), (3, 16)):  # beside the same coordinates, and beside others
        some, _ = ep_means(llr[:, first:last], r, combine, sweeps=3, tolerance=0.0)
        assert torch.equal(some, one[:, first:last])
    assert ep_means(llr[:, :0], r, combine)[0].shape == (1, 0)


def test_bad_sweeps() -> None:
    with pytest.raises(ValueError, match="sweeps must be at least 1; got 0"):
        ep_means(torch.ones(2, 1), torch.eye(2), torch.ones(1, 2), sweeps=0)
