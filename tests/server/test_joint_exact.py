"""Enumeration of orthants: against brute-force integration, closed forms, marginals, and Gibbs sampling."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from signfade.server.independent import sbfl
from signfade.server.joint import bfl, device_bfl, exact_means, gibbs_means
from signfade.server.joint.exact import _sampled, orthant_tables, sign_moment

sys.path.insert(0, str(Path(__file__).parent))
from joint_scenes import SCALE, equal, gaussian_integral, random_correlation, receive

CASES = {
    2: [[[1.0, 0.6], [0.6, 1.0]], [[1.0, -0.85], [-0.85, 4.0]]],
    3: [
        [[1.0, 0.5, 0.3], [0.5, 1.0, -0.2], [0.3, -0.2, 1.0]],
        [[2.0, -0.6, -0.4], [-0.6, 0.5, 0.1], [-0.4, 0.1, 1.0]],
    ],
}


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("case", [0, 1])
def test_exact_is_the_integral(d: int, case: int) -> None:
    covariance = np.array(CASES[d][case])
    std = np.sqrt(np.diag(covariance))
    for llr in (np.linspace(-0.8, 1.3, d), np.linspace(3.0, -2.0, d), np.full(d, 1e-3)):
        brute = gaussian_integral(covariance, llr)
        found = exact_means(
            torch.from_numpy(llr)[:, None],
            torch.from_numpy(covariance / np.outer(std, std)),
            torch.diag(torch.from_numpy(std)),
        )
        np.testing.assert_allclose(found[:, 0].numpy(), brute, rtol=0, atol=1e-8)


def test_two_certain_signs_in_closed_form() -> None:
    """`E[g_1 | g_1 > 0, g_2 > 0] = (1 + r)/(2 sqrt(2 pi)) / (1/4 + arcsin(r)/(2 pi))`."""
    for r in (-0.99, -0.3, 0.0, 0.7, 0.999):
        found = exact_means(torch.full((2, 1), 400.0), equal(2, r), torch.eye(2))
        expected = (1 + r) / (2 * math.sqrt(2 * math.pi)) / (0.25 + math.asin(r) / (2 * math.pi))
        assert float(found[0, 0]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("d", [2, 3, 4, 5, 6, 7, 8, 9, 11])
def test_all_positive_at_one_half_is_one_in_d_plus_one(d: int) -> None:
    probability, mean = orthant_tables(equal(d, 0.5).numpy(), points=1024)
    accuracy = 1e-10 if d <= 10 else 2e-2
    assert probability[0] == pytest.approx(1 / (d + 1), rel=accuracy)
    assert probability.sum() == pytest.approx(1, rel=1e-9)
    assert (probability > 0).all()
    # E|g_i| over all patterns with that sign: half of sqrt(2/pi).
    leading_positive = np.arange(2**d) < 2 ** (d - 1)
    assert mean[0, leading_positive].sum() == pytest.approx(SCALE / 2, rel=1e-9 if d <= 10 else 1e-2)


@pytest.mark.parametrize("d", [4, 5, 6, 7, 8])
def test_tables_marginalise_to_smaller_ones(d: int) -> None:
    r = random_correlation(d, d, 0.3, seed=d).numpy()
    probability, mean = orthant_tables(r)
    for dropped in (0, d - 1):
        kept = [k for k in range(d) if k != dropped]
        small_probability, small_mean = orthant_tables(np.ascontiguousarray(r[np.ix_(kept, kept)]))
        shape = (2,) * d
        np.testing.assert_allclose(
            probability.reshape(shape).sum(axis=dropped).ravel(), small_probability, rtol=0, atol=1e-9
        )
        np.testing.assert_allclose(
            mean[kept].reshape(d - 1, *shape).sum(axis=dropped + 1).reshape(d - 1, -1), small_mean, atol=1e-9
        )


def test_more_nodes_change_nothing() -> None:
    matrices = np.stack([random_correlation(6, 6, 0.3, seed).numpy() for seed in range(4)])
    np.testing.assert_allclose(sign_moment(matrices, 32), sign_moment(matrices, 64), rtol=0, atol=1e-10)


def test_sampled_paths_agree_with_the_integrals() -> None:
    r = random_correlation(8, 8, 1.0, seed=3).numpy()
    probability, mean = orthant_tables(r)
    paths, paths_mean = _sampled(r, 4096)
    np.testing.assert_allclose(paths, probability, rtol=5e-2, atol=1e-6)
    assert np.abs(paths_mean - mean).max() < 2e-2 * probability.max()


@pytest.mark.parametrize("seed", [1, 2])
def test_exact_is_within_four_standard_errors_of_gibbs_at_eight(seed: int) -> None:
    r = random_correlation(8, 4 * seed, 0.5, seed)
    assert float(r.min()) < -0.2
    h, sigma2 = torch.linspace(0.5, 1.5, 8), torch.ones(8)
    _, y = receive(r, h, sigma2, 24, seed)
    llr = h.double()[:, None] * y
    combine = torch.ones(1, 8)
    found, error = gibbs_means(llr, r, combine, sweeps=20_000, seed=seed)
    exact = exact_means(llr, r, combine)
    assert float(error.max()) < 0.03 * float(r.sum().sqrt())  # a test of something
    assert float(((found - exact) / error).abs().max()) < 4


def test_diagonal_covariance_is_sbfl() -> None:
    generator = torch.Generator().manual_seed(4)
    y = torch.randn(20, 50, generator=generator)
    h, sigma2 = torch.randn(20, generator=generator), torch.rand(20, generator=generator)
    std = torch.rand(20, generator=generator)
    std[3] = 0.0  # a silent device
    mean = torch.randn(20, generator=generator)
    weights = torch.rand(20, generator=generator)
    expected = sbfl(y, h, sigma2, mean, SCALE * std, weights)
    for method in ("exact", "ep"):
        found = bfl(y, h, sigma2, mean, torch.diag(std**2), weights, method=method)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_independent_groups_are_enumerated_apart() -> None:
    blocks = [random_correlation(5, 3, 0.5, seed) for seed in range(4)]
    whole = torch.block_diag(*blocks)
    h, sigma2 = torch.ones(20), torch.ones(20)
    _, y = receive(whole, h, sigma2, 30, 1)
    parts = [
        bfl(y[5 * i : 5 * i + 5], h[:5], sigma2[:5], torch.zeros(5), block) for i, block in enumerate(blocks)
    ]
    torch.testing.assert_close(bfl(y, h, sigma2, torch.zeros(20), whole), sum(parts))


def test_order_signs_and_scales_of_devices_do_not_matter() -> None:
    covariance = 3.0 * random_correlation(5, 3, 0.5, 7)
    h, sigma2 = torch.tensor([1.0, -0.5, 2.0, 0.3, 1.0]), torch.tensor([1.0, 0.5, 3.0, 0.1, 0.0])
    _, y = receive(covariance, h, sigma2, 20, 2)
    zero = torch.zeros(5)
    expected = bfl(y, h, sigma2, zero, covariance)
    order = torch.tensor([4, 1, 0, 3, 2])
    permuted = bfl(y[order], h[order], sigma2[order], zero, covariance[order][:, order])
    torch.testing.assert_close(permuted, expected)
    flip = torch.tensor([1.0, -1.0, -1.0, 1.0, 1.0]).double()
    torch.testing.assert_close(bfl(y * flip[:, None], h * flip, sigma2, zero, covariance), expected)
    torch.testing.assert_close(bfl(y, h, sigma2, zero, 4.0 * covariance), 2 * expected)
    # A device whose gradient has the opposite sign, subtracted, is the same device.
    mirrored = covariance * flip[:, None] * flip[None, :]
    torch.testing.assert_close(bfl(y * flip[:, None], h, sigma2, zero, mirrored, weights=flip), expected)


def test_bits_that_the_prior_excludes_do_not_break_it() -> None:
    """Two devices with the same gradient, received without noise, with opposite signs."""
    y = torch.tensor([[1.0, 1.0], [-1.0, 1.0]])
    for method in ("exact", "ep", "gibbs"):
        found = bfl(y, torch.ones(2), torch.zeros(2), torch.zeros(2), torch.ones(2, 2), method=method)
        assert bool(found.isfinite().all())
        assert abs(float(found[0])) < 0.5
        assert float(found[1]) == pytest.approx(2 * SCALE, rel=1e-6)  # E|g_1 + g_2|


def test_means_are_added() -> None:
    _, y = receive(equal(3, 0.5), torch.ones(3), torch.ones(3), 10, 5)
    one, mean = torch.ones(3), torch.tensor([1.0, 2.0, -0.5])
    weights = torch.tensor([1.0, 0.5, 2.0])
    centred = bfl(y, one, one, 0 * mean, equal(3, 0.5), weights)
    torch.testing.assert_close(bfl(y, one, one, mean, equal(3, 0.5), weights), centred + 1.0)
    full = mean[:, None].expand(3, 10)
    torch.testing.assert_close(bfl(y, one, one, full, equal(3, 0.5), weights), centred + 1.0)


def test_covariance_inside_a_device() -> None:
    """The coordinates of one device take the place of the devices of one coordinate."""
    covariance = 2.0 * random_correlation(6, 3, 0.5, 9)
    y = torch.tensor([0.5, -1.0, 0.3, 2.0, -0.2, 0.9]).double()
    mean = torch.linspace(-1, 1, 6).double()
    found = device_bfl(y, 0.8, 0.7, mean, covariance)
    gains, noises = torch.full((6,), 0.8), torch.full((6,), 0.7)
    for k in range(6):
        pick = torch.zeros(6)
        pick[k] = 1.0
        one = bfl(y[:, None], gains, noises, mean, covariance, weights=pick)
        assert float(found[k]) == pytest.approx(float(one[0]), rel=1e-6)
    close = device_bfl(y, 0.8, 0.7, mean, covariance, method="ep")
    torch.testing.assert_close(close, found, rtol=0, atol=0.06)
    sampled = device_bfl(y, 0.8, 0.7, mean, covariance, method="gibbs")
    torch.testing.assert_close(sampled, found, rtol=0, atol=0.15)


def test_bad_input_is_named() -> None:
    y, one = torch.ones(2, 3), torch.ones(2)
    with pytest.raises(ValueError, match="covariance must be symmetric"):
        bfl(y, one, one, one, torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="covariance must be positive semidefinite"):
        bfl(torch.ones(3, 2), *(torch.ones(3),) * 3, equal(3, -0.9))
    with pytest.raises(ValueError, match="a variance is zero, its covariances are not"):
        bfl(y, one, one, one, torch.tensor([[0.0, 0.5], [0.5, 1.0]]))
    with pytest.raises(ValueError, match="non-negative diagonal"):
        bfl(y, one, one, one, -torch.eye(2))
    with pytest.raises(ValueError, match=r"13 dependent variables; method 'exact' can do 12: use 'gibbs'"):
        bfl(torch.ones(13, 1), *(torch.ones(13),) * 3, equal(13, 0.1))
    with pytest.raises(ValueError, match=r"1001 variables; method 'ep' can do 1000: use joint_blmmse"):
        bfl(torch.ones(1001, 1), *(torch.ones(1001),) * 3, torch.eye(1001), method="ep")
    with pytest.raises(ValueError, match=r"1001 variables; method 'gibbs' can do 1000: use joint_blmmse"):
        bfl(torch.ones(1001, 1), *(torch.ones(1001),) * 3, torch.eye(1001), method="gibbs")
    with pytest.raises(ValueError, match="method must be one of 'exact', 'gibbs', 'ep'"):
        bfl(y, one, one, one, torch.eye(2), method="magic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"y must have shape \[M\]"):
        device_bfl(y, 1.0, 1.0, torch.zeros(()), torch.eye(3))
    with pytest.raises(ValueError, match="covariance must have shape"):
        device_bfl(y[0], 1.0, 1.0, torch.zeros(()), torch.eye(2))
    with pytest.raises(ValueError, match="sigma2 must be non-negative"):
        device_bfl(y[0], 1.0, -1.0, torch.zeros(()), torch.eye(3))
