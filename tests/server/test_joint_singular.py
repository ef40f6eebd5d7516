"""Singular and nearly singular covariances: copies, devices that cancel, few factors, all pairs at 0.99."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import qmc

from signfade.kernels.gibbs import draw_between, log_mass, sort_edges
from signfade.server.joint import bfl, ep_means, exact_means, factor_bfl, gibbs_bfl, gibbs_means

sys.path.insert(0, str(Path(__file__).parent))
from joint_scenes import SCALE, equal, gaussian_integral, receive

Array = NDArray[np.float64]


def along_lines(root: Array, llr: Array, points: int = 2**12) -> tuple[Array, Array]:
    """`E[g | y]` for `g = root @ z`: exact along the first entry of z, quasi-random over the others.

    The likelihood is constant between the places where a variable changes its sign. The second result is the
    standard error over sixteen independent scramblings.
    """
    means = []
    for seed in range(16):
        draws = qmc.Sobol(root.shape[1] - 1, rng=np.random.default_rng(seed)).random(points)
        rest = ndtri(np.clip(draws, 1e-12, 1 - 1e-12)) @ root[:, 1:].T  # [points, d]
        edges = np.sort(-rest / root[:, 0], axis=1)
        edges = np.pad(edges, ((0, 0), (1, 1)), constant_values=((0, 0), (-60.0, 60.0)))
        middle = (edges[:, 1:] + edges[:, :-1]) / 2
        signs = np.sign(rest[:, None, :] + middle[:, :, None] * root[:, 0])
        weight = np.exp(signs @ llr - np.abs(llr).sum())
        mass = weight * np.diff(ndtr(edges), axis=1)
        first = -weight * np.diff(np.exp(-(edges**2) / 2), axis=1) / math.sqrt(2 * math.pi)
        means.append((mass.sum(axis=1) @ rest + first.sum() * root[:, 0]) / mass.sum())
    return np.mean(means, axis=0), np.std(means, axis=0, ddof=1) / 4


def unit_rows(rows: Array) -> Array:
    return np.asarray(rows / np.linalg.norm(rows, axis=1)[:, None])


@pytest.mark.parametrize("method", ["exact", "gibbs", "ep"])
def test_three_identical_noiseless_devices(method: str) -> None:
    y, one = torch.ones(3, 1).double(), torch.ones(3)
    found = bfl(y, one, 0 * one, 0 * one, torch.ones(3, 3), method=method)  # type: ignore[arg-type]
    assert float(found) == pytest.approx(3 * SCALE, rel=1e-9)  # E|3 g|
    # Opposite copies: weights of opposite sign undo it.
    turn = torch.tensor([1.0, -1.0, 1.0])
    mirrored = turn[:, None] * turn[None, :]
    opposite = bfl(turn[:, None] * y, one, 0 * one, 0 * one, mirrored, turn, method=method)  # type: ignore[arg-type]
    torch.testing.assert_close(opposite, found, rtol=1e-9, atol=0)


def test_two_copies_and_a_third() -> None:
    covariance = torch.tensor([[1.0, 1.0, 0.3], [1.0, 1.0, 0.3], [0.3, 0.3, 1.0]]).double()
    y, one = torch.tensor([[2.0], [2.0], [-1.0]]).double(), torch.ones(3)
    # One variable with the sum of two half-LLRs, counted twice.
    mean = gaussian_integral(np.array([[1.0, 0.3], [0.3, 1.0]]), np.array([4.0, -1.0]))
    truth = float(2 * mean[0] + mean[1])
    assert truth == pytest.approx(1.011, abs=1e-3)
    assert float(bfl(y, one, one, 0 * one, covariance)) == pytest.approx(truth, abs=1e-8)
    found, error = gibbs_bfl(y, one, one, 0 * one, covariance, sweeps=8000)
    assert abs(float(found) - truth) < 4 * float(error)
    assert float(error) < 0.01
    assert float(bfl(y, one, one, 0 * one, covariance, method="ep")) == pytest.approx(truth, abs=0.02)


def test_four_devices_that_cancel() -> None:
    """All pairs at -1/3: the sum is zero whatever is received, and the rank is three."""
    covariance = equal(4, -1 / 3)
    corners = np.array(
        [[1.0, 1.0, 1.0], [1.0, -1.0, -1.0], [-1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]]
    ) / math.sqrt(3)
    np.testing.assert_allclose(corners @ corners.T, covariance.numpy(), atol=1e-15)
    llr = torch.tensor([2.0, 1.0, -0.5, 0.3]).double()
    truth, doubt = along_lines(corners, llr.numpy())
    assert doubt.max() < 1e-3
    exact = exact_means(llr[:, None], covariance, torch.eye(4))[:, 0].numpy()
    assert (np.abs(exact - truth) < 6 * doubt + 1e-6).all()
    assert abs(exact.sum()) < 1e-6
    found, error = gibbs_means(llr[:, None], covariance, torch.eye(4), sweeps=8000)
    assert (np.abs(found[:, 0].numpy() - truth) < 5 * np.hypot(error[:, 0].numpy(), doubt)).all()
    assert float(error.max()) < 0.02
    assert bool(gibbs_means(llr[:, None], covariance, torch.ones(1, 4))[0].abs().max() < 1e-9)


def test_six_devices_at_099() -> None:
    shared, private = torch.full((6,), math.sqrt(0.99)), torch.full((6,), 0.1)
    one, zero = torch.ones(6), torch.zeros(6)
    _, y = receive(equal(6, 0.99), one, one, 100, 1)
    truth = factor_bfl(y, one, one, zero, shared.double(), private.double())
    torch.testing.assert_close(bfl(y, one, one, zero, equal(6, 0.99)), truth, rtol=0, atol=1e-6)
    found, error = gibbs_bfl(y, one, one, zero, equal(6, 0.99))
    scores = (found - truth) / error
    # 100 scores of Student's law with 31 degrees of freedom.
    assert float(scores.abs().max()) < 5
    assert 0.5 < float(scores.square().mean()) < 1.7
    assert float(error.max()) < 0.05 * 6


@pytest.mark.parametrize(("rank", "devices"), [(2, 5), (2, 8), (3, 6), (3, 9)])
def test_fewer_factors_than_devices(rank: int, devices: int) -> None:
    generator = np.random.default_rng(10 * rank + devices)
    root = unit_rows(generator.standard_normal((devices, rank)))
    llr = np.sign(root @ generator.standard_normal((rank, 6))) * np.array([0.1, 0.5, 1.0, 1.0, 2.0, 20.0])
    llr[0, :5] *= -1  # the first device says the opposite
    truth, doubt = np.stack([along_lines(root, column) for column in llr.T], axis=2)
    assert doubt.max() < 3e-3
    found = exact_means(torch.from_numpy(llr), torch.from_numpy(root @ root.T), torch.eye(devices))
    # Where bits are certain, P to 1e-5 is a share of the pattern's own probability, a few hundredths.
    assert (np.abs(found.numpy() - truth) < 6 * doubt + 1e-3).all()
    mean, error = gibbs_means(torch.from_numpy(llr), torch.from_numpy(root @ root.T), torch.eye(devices))
    scores = (mean.numpy() - truth) / np.hypot(error.numpy(), doubt)
    assert np.abs(scores).max() < 5.5


def test_error_bars_are_honest_over_many_hard_problems() -> None:
    """Few factors with a little noise of their own, weak to strong bits: scores are about standard."""
    generator = np.random.default_rng(3)
    scores = []
    for noise in (0.0, 1e-6, 1e-4, 1e-2):
        for strength in (0.3, 1.0, 3.0):
            loadings = generator.standard_normal((6, 2))
            root = unit_rows(np.concatenate((loadings, math.sqrt(noise) * np.eye(6)), axis=1))
            r = torch.from_numpy(root @ root.T)
            signs = np.sign(root @ generator.standard_normal((8, 25)))
            llr = torch.from_numpy(strength * (strength * signs + generator.standard_normal((6, 25))))
            combine = torch.from_numpy(generator.standard_normal((1, 6)))
            found, error = gibbs_means(llr, r, combine, sweeps=1000)
            truth = exact_means(llr, r, combine)
            scores.append(((found - truth) / error)[0])
    score = torch.cat(scores)
    # Student's law with 31 degrees of freedom is beyond 4 once in 2700; chains that mix slowly, more often.
    assert float((score.abs() > 4).double().mean()) < 0.01
    assert 0.6 < float(score.square().mean()) < 1.5


def test_propagation_is_right_for_copies() -> None:
    r = torch.block_diag(torch.ones(3, 3), torch.ones(2, 2)).double()
    r[:3, 3:] = r[3:, :3] = 0.4
    generator = torch.Generator().manual_seed(1)
    llr = torch.randn(5, 40, generator=generator).double()
    merged = torch.stack((llr[:3].sum(dim=0), llr[3:].sum(dim=0)))
    combine = torch.tensor([[3.0, 2.0]]).double()
    snr = torch.linspace(0.5, 2.5, 5).double()
    found = ep_means(llr, r, torch.ones(1, 5), snr)[0]
    alone = ep_means(merged, equal(2, 0.4), combine, torch.stack((snr[:3].sum(), snr[3:].sum())))[0]
    torch.testing.assert_close(found, alone)
    truth = exact_means(merged, equal(2, 0.4), combine)
    assert float((found - truth).abs().max()) < 0.02 * float(r.sum().sqrt())


def test_pieces_of_the_normal_law() -> None:
    for a, b in (
        (-math.inf, math.inf),
        (-1.0, 2.0),
        (3.0, 3.5),
        (-7.0, -6.0),
        (-20.0, math.inf),
        (30.0, 31.0),
    ):
        low, high = (b, a) if a > 0 else (a, b)  # upper tails are subtracted where they are small
        sign = -1.0 if a > 0 else 1.0
        mass = ndtr(sign * high) - ndtr(sign * low)
        assert log_mass(a, b) == pytest.approx(math.log(mass), rel=1e-9, abs=1e-12)
        draws = np.array([draw_between(a, b, u) for u in (np.arange(2000) + 0.5) / 2000])
        assert ((draws >= a) & (draws <= b)).all()
        below = np.sort(np.abs(ndtr(sign * draws) - ndtr(sign * low))) / mass
        np.testing.assert_allclose(below, (np.arange(2000) + 0.5) / 2000, atol=1e-6)
    # Far out: log Q(a) = -a**2/2 - log(a sqrt(2 pi)) - 1/a**2 + ...
    for a in (36.0, 300.0):
        tail = -(a**2) / 2 - math.log(a * math.sqrt(2 * math.pi))
        assert log_mass(a, math.inf) == pytest.approx(tail, abs=2 / a**2)
        assert log_mass(-math.inf, -a) == log_mass(a, math.inf)
        assert a < draw_between(a, math.inf, 0.5) < a + 1 / a
        assert -a - 1 / a < draw_between(-math.inf, -a, 0.5) < -a


def test_edges_are_sorted_with_their_names() -> None:
    for count in (1, 2, 3, 10, 100):
        edge = np.random.default_rng(count).standard_normal(count)
        edge[count // 2] = np.inf
        given, order = edge.copy(), np.arange(count)
        sort_edges(edge, order)
        np.testing.assert_array_equal(edge, np.sort(given))
        np.testing.assert_array_equal(given[order], edge)
