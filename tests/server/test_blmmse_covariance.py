"""The linear rule with correlated coordinates against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from signfade import server
from signfade.device import sign


def correlated(size: int, devices: int, seed: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((devices, size, size))
    return torch.from_numpy(mixing @ mixing.transpose(0, 2, 1) / size + 0.1 * np.eye(size))


def test_a_diagonal_covariance_is_the_scalar_rule() -> None:
    rng = torch.Generator().manual_seed(0)
    y = torch.randn(3, 5, generator=rng, dtype=torch.float64)
    h, std = (
        torch.randn(3, generator=rng, dtype=torch.float64),
        torch.rand(3, 5, generator=rng, dtype=torch.float64),
    )
    sigma2, mean = (
        torch.tensor([0.3, 1.0, 5.0], dtype=torch.float64),
        torch.randn(3, dtype=torch.float64, generator=rng),
    )
    full = server.blmmse_covariance(y, h, sigma2, mean, torch.diag_embed(std**2))
    scalar = server.blmmse(y, h, sigma2, mean, math.sqrt(2 / math.pi) * std)
    assert torch.allclose(full, scalar, rtol=1e-10, atol=1e-12)


def test_it_is_the_least_squares_fit_of_the_gradient_by_the_signal() -> None:
    """Regress g on y over a large sample: the fitted matrix gives the same estimates."""
    size, samples = 3, 400_000
    covariance = correlated(size, 1, seed=1)
    rng = np.random.default_rng(2)
    g = rng.multivariate_normal(np.zeros(size), covariance[0].numpy(), size=samples)
    h, sigma2 = 0.8, 0.5
    y = h * sign(torch.from_numpy(g)).numpy() + math.sqrt(sigma2) * rng.standard_normal((samples, size))
    fitted, *_ = np.linalg.lstsq(y, g, rcond=None)
    probe = torch.eye(size, dtype=torch.float64)
    rows = [
        server.blmmse_covariance(
            probe[i : i + 1],
            torch.tensor([h], dtype=torch.float64),
            torch.tensor([sigma2], dtype=torch.float64),
            torch.zeros(1, dtype=torch.float64),
            covariance,
        ).numpy()
        for i in range(size)
    ]
    residual = g - y @ fitted
    error = np.sqrt(np.outer(np.diag(np.linalg.inv(y.T @ y)), residual.var(axis=0)))
    assert (np.abs(np.stack(rows) - fitted) < 4.5 * error).all()


@pytest.mark.parametrize("gain", [1.0, -1e-10, 1e-160])
def test_singular_signals_are_read_as_far_as_they_go(gain: float) -> None:
    """Coordinates that always agree, without noise: their common sign is worth `E|g|` in each of them."""
    h, zero = torch.tensor([gain], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    same = torch.ones(1, 3, 3, dtype=torch.float64)
    y = -h[:, None] * torch.ones(1, 3, dtype=torch.float64)
    estimate = server.blmmse_covariance(y, h, zero, zero, same)
    expected = torch.full((3,), -math.sqrt(2 / math.pi), dtype=torch.float64)
    assert torch.allclose(estimate, expected, rtol=1e-3)  # 1e-320 has three digits
    silent = server.blmmse_covariance(0 * y, 0 * h, zero, zero + 0.5, same)
    assert torch.equal(silent, torch.full((3,), 0.5, dtype=torch.float64))


def test_weights_and_means_enter_the_sum() -> None:
    covariance = correlated(4, 2, seed=3)
    y = torch.randn(2, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    h = torch.tensor([1.0, -2.0], dtype=torch.float64)
    sigma2 = torch.tensor([1.0, 0.1], dtype=torch.float64)
    mean = torch.tensor([0.5, -0.25], dtype=torch.float64)
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64)
    each = [
        server.blmmse_covariance(
            y[k : k + 1], h[k : k + 1], sigma2[k : k + 1], mean[k : k + 1], covariance[k : k + 1]
        )
        for k in range(2)
    ]
    together = server.blmmse_covariance(y, h, sigma2, mean, covariance, weights)
    assert torch.allclose(together, 0.3 * each[0] + 0.7 * each[1], rtol=1e-10)


@pytest.mark.parametrize(
    ("covariance", "message"),
    [
        (torch.eye(3).expand(2, 3, 3), "covariance must have shape"),
        (torch.tensor([[[1.0, 0.5], [0.1, 1.0]]]), "covariance must be symmetric"),
        (torch.tensor([[[1.0, 2.0], [2.0, 1.0]]]), "covariance must be positive semidefinite"),
        (torch.tensor([[[0.0, 0.0], [0.0, 1.0]]]), "covariance must have a positive diagonal"),
    ],
)
def test_bad_covariances_are_refused(covariance: torch.Tensor, message: str) -> None:
    one = torch.ones(1)
    with pytest.raises(ValueError, match=message):
        server.blmmse_covariance(torch.zeros(1, 2), one, one, one, covariance)
