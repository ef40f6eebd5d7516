"""The sampler: closed forms, honest error bars, and hundreds of variables against the factor rule."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import ndtr, ndtri

from signfade.kernels.gibbs import normal_quantile
from signfade.server.joint import approximate, factor_bfl, gibbs_bfl, gibbs_means

sys.path.insert(0, str(Path(__file__).parent))
from joint_scenes import SCALE, equal, receive


def test_the_quantile_function() -> None:
    for p in np.concatenate((np.geomspace(1e-285, 0.5, 60), 1 - np.geomspace(1e-14, 0.5, 30))):
        assert normal_quantile(p) == pytest.approx(float(ndtri(p)), rel=1e-12, abs=1e-13)
        if p > 1e-200:
            assert ndtr(normal_quantile(p)) == pytest.approx(p, rel=1e-10)


def test_one_variable_is_kappa_tanh() -> None:
    llr = torch.linspace(-3, 3, 13).double()[None]
    found, error = gibbs_means(llr, torch.ones(1, 1), torch.ones(1, 1), sweeps=4000)
    torch.testing.assert_close(found, SCALE * torch.tanh(llr), rtol=0, atol=1e-6)
    # One variable's full conditional is its posterior: averaging its mean is exact, so there is no error.
    assert float(error.max()) < 1e-6


def test_error_bars_are_honest_and_shrink() -> None:
    """(estimate - truth)/error is about standard over many coordinates; 4 times the sweeps halve it."""
    devices, size = 6, 200
    shared, private = torch.full((devices,), 0.6), torch.full((devices,), 0.8)
    covariance = shared[:, None] * shared[None, :] + torch.diag(private**2)
    h, sigma2 = torch.ones(devices), torch.full((devices,), 0.7)
    _, y = receive(covariance, h, sigma2, size, 3)
    zero = torch.zeros(devices)
    truth = factor_bfl(y, h, sigma2, zero, shared, private)
    errors = []
    for sweeps in (1000, 4000):
        found, error = gibbs_bfl(y, h, sigma2, zero, covariance, sweeps=sweeps, seed=5)
        score = (found - truth) / error
        # Student with 31 degrees of freedom: variance 31/29, known from 200 to about 11 %.
        assert float(score.square().mean()) == pytest.approx(31 / 29, rel=0.45)
        assert abs(float(score.mean())) < 5 / size**0.5
        errors.append(float(error.square().mean().sqrt()))
    assert errors[1] == pytest.approx(errors[0] / 2, rel=0.15)


def test_two_hundred_devices_against_the_factor_rule() -> None:
    devices = 200
    shared, private = torch.linspace(-0.3, 0.6, devices), torch.full((devices,), 0.8)
    covariance = shared[:, None] * shared[None, :] + torch.diag(private**2)
    h, sigma2 = torch.ones(devices), torch.ones(devices)
    _, y = receive(covariance, h, sigma2, 8, 1)
    zero = torch.zeros(devices)
    found, error = gibbs_bfl(y, h, sigma2, zero, covariance, sweeps=4000)
    truth = factor_bfl(y, h, sigma2, zero, shared, private)
    assert float(((found - truth) / error).abs().max()) < 4
    assert float(error.max()) < 0.03 * float(covariance.sum().sqrt())


def test_chains_depend_on_seed_and_place_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    llr = torch.randn(4, 30, generator=torch.Generator().manual_seed(1)).double()
    combine = torch.ones(1, 4)
    monkeypatch.setattr(approximate, "available_threads", lambda: 1)
    one = gibbs_means(llr, equal(4, 0.3), combine, sweeps=100)[0]
    monkeypatch.setattr(approximate, "available_threads", lambda: 3)
    assert torch.equal(gibbs_means(llr, equal(4, 0.3), combine, sweeps=100)[0], one)
    assert torch.equal(gibbs_means(llr[:, :7], equal(4, 0.3), combine, sweeps=100)[0], one[:, :7])
    assert not torch.equal(gibbs_means(llr, equal(4, 0.3), combine, sweeps=100, seed=1)[0], one)


@pytest.mark.parametrize("correlation", [-0.24, 0.0, 0.999])
def test_extremes_stay_finite(correlation: float) -> None:
    for decibel in (-60.0, 60.0):
        snr = 10 ** (decibel / 10)
        signs = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [-1.0, 1.0]]).double()
        found, error = gibbs_means(snr * signs, equal(5, correlation), torch.ones(1, 5), sweeps=200)
        assert bool(found.isfinite().all())
        assert bool(error.isfinite().all())


def test_too_few_sweeps() -> None:
    with pytest.raises(ValueError, match="sweeps must be at least 40; got 10"):
        gibbs_means(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 1), sweeps=10)
