"""The joint linear rule: normal equations, limits, invariances, and the error it promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from signfade.server import blmmse
from signfade.server.joint import LowRank, fit_joint_blmmse, joint_blmmse

K = 6


def scene(seed: int = 1, devices: int = K, size: int = 400) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    factors = torch.randn(devices, 3, generator=generator, dtype=torch.float64)
    covariance = factors @ factors.T + torch.eye(devices, dtype=torch.float64)
    std = covariance.diagonal().sqrt()
    h = torch.randn(devices, generator=generator, dtype=torch.float64)
    sigma2 = torch.rand(devices, generator=generator, dtype=torch.float64) + 0.1
    correlation = covariance / std[:, None] / std[None, :]
    correlation.fill_diagonal_(1.0)  # s / sqrt(s) / sqrt(s) may round to either side of one
    root = torch.linalg.cholesky(covariance)
    g = root @ torch.randn(devices, size, generator=generator, dtype=torch.float64)
    noise = torch.randn(devices, size, generator=generator, dtype=torch.float64)
    y = h[:, None] * torch.where(g >= 0, 1.0, -1.0).double() + sigma2.sqrt()[:, None] * noise
    return {
        "g": g,
        "y": y,
        "h": h,
        "sigma2": sigma2,
        "std": std,
        "scale": math.sqrt(2 / math.pi) * std,
        "correlation": correlation,
        "weights": torch.rand(devices, generator=generator, dtype=torch.float64) + 0.5,
    }


def test_weights_solve_the_normal_equations_written_out() -> None:
    s = scene()
    h, r = s["h"].numpy(), s["correlation"].numpy()
    received = np.outer(h, h) * (2 / np.pi) * np.arcsin(r)
    received[np.diag_indices(K)] = h**2 + s["sigma2"].numpy()
    cross = np.array(
        [sum(s["weights"][k] * s["scale"][k] * r[k, j] * h[j] for k in range(K)) for j in range(K)],
        dtype=float,
    )
    found = fit_joint_blmmse(s["h"], s["sigma2"], s["scale"], s["correlation"], s["weights"]).combine
    np.testing.assert_allclose(received @ found.numpy(), cross, rtol=1e-7, atol=1e-8)


def test_error_and_gain_are_as_promised_by_monte_carlo() -> None:
    s = scene(seed=2, size=200_000)
    arguments = s["h"], s["sigma2"], s["scale"], s["correlation"], s["weights"]
    estimate = joint_blmmse(s["y"], *arguments[:2], torch.zeros(K), *arguments[2:])
    truth = s["weights"] @ s["g"]
    eta = fit_joint_blmmse(*arguments).gain
    variance = float(truth.square().mean())
    products = truth * estimate / variance
    se = float(products.std()) / math.sqrt(len(truth))
    assert abs(float(products.mean()) - eta) < 4 * se
    squares = (truth - estimate).square() / variance
    assert abs(float(squares.mean()) - (1 - eta)) < 4 * float(squares.std()) / math.sqrt(len(truth))


def test_no_other_linear_rule_is_better() -> None:
    s = scene(seed=3, size=100_000)
    truth = s["g"].sum(dim=0)
    best = fit_joint_blmmse(s["h"], s["sigma2"], s["scale"], s["correlation"]).combine
    fitted = torch.linalg.lstsq(s["y"].T, truth[:, None]).solution[:, 0]
    error = [float((truth - w @ s["y"]).square().mean()) for w in (best, fitted)]
    # The fit has K free numbers: it wins by about K/M of the error, and no more.
    assert error[0] < error[1] * (1 + 10 * K / len(truth))


def test_identity_is_the_scalar_rule() -> None:
    s = scene()
    mean = torch.linspace(-1, 1, K, dtype=torch.float64)
    common = s["y"], s["h"], s["sigma2"], mean, s["scale"]
    torch.testing.assert_close(
        joint_blmmse(*common, torch.eye(K), s["weights"]), blmmse(*common, s["weights"]), rtol=1e-7, atol=1e-7
    )
    full = mean[:, None].expand(K, s["y"].shape[1])
    torch.testing.assert_close(
        joint_blmmse(s["y"], s["h"], s["sigma2"], full, s["scale"], s["correlation"]),
        joint_blmmse(*common, s["correlation"]),
    )


def test_permutation_sign_and_scale_change_nothing() -> None:
    s = scene()
    arguments = [s[name] for name in ("y", "h", "sigma2")]
    zero = torch.zeros(K)
    reference = joint_blmmse(*arguments, zero, s["scale"], s["correlation"])
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    permuted = joint_blmmse(
        *(value[order] for value in arguments), zero, s["scale"][order], s["correlation"][order][:, order]
    )
    torch.testing.assert_close(permuted, reference)
    flip = torch.tensor([1.0, -1, 1, 1, -1, 1], dtype=torch.float64)
    torch.testing.assert_close(
        joint_blmmse(s["y"] * flip[:, None], s["h"] * flip, s["sigma2"], zero, s["scale"], s["correlation"]),
        reference,
    )
    loud = torch.logspace(-12, 12, K, dtype=torch.float64)
    torch.testing.assert_close(
        joint_blmmse(
            s["y"] * loud[:, None], s["h"] * loud, s["sigma2"] * loud**2, zero, s["scale"], s["correlation"]
        ),
        reference,
    )


def test_a_dead_device_is_read_off_the_others_and_adds_no_noise() -> None:
    s = scene()
    h = s["h"].clone()
    h[2] = 0
    silent = fit_joint_blmmse(h, s["sigma2"], s["scale"], s["correlation"]).combine
    assert float(silent[2]) == 0
    others = [k for k in range(K) if k != 2]
    assert not torch.allclose(
        silent[others],
        fit_joint_blmmse(
            h[others], s["sigma2"][others], s["scale"][others], s["correlation"][others][:, others]
        ).combine,
    )
    noiseless = torch.zeros(K, dtype=torch.float64)
    assert bool(fit_joint_blmmse(h, noiseless, s["scale"], s["correlation"]).combine.isfinite().all())


@pytest.mark.parametrize("decibel", [-100.0, -60.0, 0.0, 60.0, 150.0])
@pytest.mark.parametrize("correlation", [-0.19, 0.0, 0.999, 1.0])
def test_extremes_stay_finite_in_float32(decibel: float, correlation: float) -> None:
    r = torch.full((K, K), correlation) + (1 - correlation) * torch.eye(K)
    h = torch.ones(K)
    sigma2 = torch.full((K,), 10 ** (-decibel / 10))
    signs = torch.where(torch.arange(K * 8).reshape(K, 8) % 3 == 0, 1.0, -1.0)
    y = signs + sigma2.sqrt()[:, None] * torch.linspace(-2, 2, 8)
    estimate = joint_blmmse(y, h, sigma2, torch.zeros(K), torch.ones(K), r)
    assert estimate.dtype == torch.float32
    assert bool(estimate.isfinite().all())
    assert 0 <= fit_joint_blmmse(h, sigma2, torch.ones(K), r).gain <= 1


def test_equal_noiseless_devices_are_averaged() -> None:
    """Correlation one and no noise: all send the same bit, each weighs the same, and nothing blows up."""
    ones = torch.ones(K)
    found = fit_joint_blmmse(ones, 0 * ones, ones, torch.ones(K, K)).combine
    torch.testing.assert_close(found, torch.ones(K, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_low_rank_agrees_with_dense() -> None:
    s = scene(seed=5, devices=40)
    generator = torch.Generator().manual_seed(7)
    low = LowRank(
        torch.rand(40, 2, generator=generator, dtype=torch.float64) - 0.4, torch.tensor([0.9, 0.3]).double()
    )
    arguments = s["h"], s["sigma2"], s["scale"]
    dense = fit_joint_blmmse(*arguments, low.dense()).combine
    thin = fit_joint_blmmse(*arguments, low).combine
    assert float((thin - dense).norm() / dense.norm()) < 1e-2  # the arcsine's higher orders are dropped
    assert abs(fit_joint_blmmse(*arguments, low).gain - fit_joint_blmmse(*arguments, low.dense()).gain) < 1e-3
    torch.testing.assert_close(low.times(s["h"]), low.dense() @ s["h"])
    nothing = LowRank(torch.zeros(40, 0), torch.zeros(0))
    torch.testing.assert_close(
        fit_joint_blmmse(*arguments, nothing).combine, fit_joint_blmmse(*arguments, torch.eye(40)).combine
    )


def test_bad_input_is_named() -> None:
    one, y = torch.ones(2), torch.ones(2, 3)
    good = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
    cases = [
        ("correlation must be symmetric", torch.tensor([[1.0, 0.5], [0.1, 1.0]])),
        ("correlation must have ones on its diagonal", 2 * good),
        ("correlation must be positive semidefinite", torch.tensor([[1.0, 1.4], [1.4, 1.0]]) * 1.0),
        ("correlation must have shape", torch.eye(3)),
        ("correlation must be finite", good * float("nan")),
    ]
    bad = torch.full((3, 3), -0.9) + 1.9 * torch.eye(3)
    with pytest.raises(ValueError, match=r"positive semidefinite; .* least eigenvalue is -0\.8"):
        fit_joint_blmmse(torch.ones(3), torch.ones(3), torch.ones(3), bad)
    for message, correlation in cases[:2] + cases[3:]:
        with pytest.raises(ValueError, match=message):
            joint_blmmse(y, one, one, one, one, correlation)
    with pytest.raises(ValueError, match="y must have shape"):
        joint_blmmse(y[0], one, one, one, one, good)
    with pytest.raises(ValueError, match="y must be finite"):
        joint_blmmse(y * float("nan"), one, one, one, one, good)
    with pytest.raises(ValueError, match="sigma2 must be non-negative"):
        joint_blmmse(y, one, -one, one, one, good)
    with pytest.raises(ValueError, match="scale must have shape"):
        joint_blmmse(y, one, one, one, torch.ones(2, 3), good)
    with pytest.raises(ValueError, match="weights must have shape"):
        joint_blmmse(y, one, one, one, one, good, torch.ones(3))
