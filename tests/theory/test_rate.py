"""The rate dial's theory against brute force and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from signfade.device.constellation import clip_level, clipped_power, levels
from signfade.theory.rate import Rotated, explained, harmonics, soft_amplitude


def equal(devices: int, r: float) -> np.ndarray:
    return np.full((devices, devices), r) + (1 - r) * np.eye(devices)


@pytest.mark.parametrize(("bits", "error"), [(1, 0.3634), (2, 0.1175), (3, 0.03454), (4, 0.009497)])
def test_noiseless_errors_are_those_of_lloyd_and_max(bits: int, error: float) -> None:
    assert 1 - explained([1e12], bits)[0] == pytest.approx(error, rel=1e-3)


@pytest.mark.parametrize("gamma", [0.05, 0.7, 4.0, 30.0])
def test_two_bits_against_quadrature(gamma: float) -> None:
    """`E[z**2]` for the four labels by nested quadrature over the two symbols' noise."""
    cells = levels(2)

    def soft_magnitude(noise: float, label: float) -> float:
        llr = gamma * label + math.sqrt(gamma) * noise
        odds = cells.masses * np.exp(cells.labels[:, 0] * llr - abs(llr))
        return float(cells.values @ odds / odds.sum())

    def over_noise(function) -> float:
        return integrate.quad(lambda n: stats.norm.pdf(n) * function(n), -9, 9, limit=300)[0]

    sign = over_noise(lambda n: math.tanh(gamma + math.sqrt(gamma) * n) ** 2)
    magnitude = sum(
        mass * over_noise(lambda n, label=label: soft_magnitude(n, label) ** 2)
        for mass, label in zip(cells.masses, cells.labels[:, 0])
    )
    assert explained([gamma], 2)[0] == pytest.approx(sign * magnitude, rel=2e-4)


@pytest.mark.parametrize("papr_db", [1.0, 3.0, 8.0])
@pytest.mark.parametrize("gamma", [0.1, 1.0, 20.0])
def test_amplitudes_against_quadrature(papr_db: float, gamma: float) -> None:
    """The posterior mean, and its power, by integrating over the coordinate."""
    level = clip_level(papr_db)
    x = np.linspace(-12, 12, 200_001)
    prior = stats.norm.pdf(x)
    sent = np.clip(x, -level, level) / math.sqrt(clipped_power(level))
    assert np.trapezoid(prior * sent**2, x) == pytest.approx(1, rel=1e-6)
    assert np.abs(sent).max() ** 2 == pytest.approx(10 ** (papr_db / 10), rel=1e-9)
    for y in (-3.0, 0.4, 2.5, 40.0):
        exponent = -((y - math.sqrt(gamma) * sent) ** 2) / 2
        odds = prior * np.exp(exponent - exponent.max())
        assert soft_amplitude(y, gamma, papr_db) == pytest.approx((odds @ x) / odds.sum(), rel=1e-5)
    y = np.linspace(-9, 9, 1201) + math.sqrt(gamma) * np.linspace(-1, 1, 1201) * np.abs(sent).max()
    density = [np.trapezoid(prior * stats.norm.pdf(one - math.sqrt(gamma) * sent), x) for one in y[::10]]
    power = np.trapezoid(soft_amplitude(y[::10], gamma, papr_db) ** 2 * density, y[::10])
    assert explained([gamma], None, papr_db)[0] == pytest.approx(power, rel=2e-3)


@pytest.mark.parametrize(("bits", "papr_db"), [(1, None), (2, None), (4, None), (None, None), (None, 8.0)])
def test_an_infinite_snr_is_the_limit_of_large_ones(bits: int | None, papr_db: float | None) -> None:
    assert harmonics([np.inf], bits, papr_db) == pytest.approx(harmonics([1e12], bits, papr_db), abs=1e-6)


def test_amplitudes_in_their_limits() -> None:
    gamma = np.geomspace(0.01, 100, 9)
    assert explained(gamma, None) == pytest.approx(gamma / (1 + gamma), rel=1e-12)
    assert explained(gamma, None, 30.0) == pytest.approx(gamma / (1 + gamma), rel=1e-4)
    assert explained(gamma, None, 0.1) == pytest.approx(explained(gamma, 1), rel=4e-2)  # a sign
    assert 1 - explained(gamma, None, 8.0) == pytest.approx(1 / (1 + gamma), rel=0.3)
    assert 1 - explained([1.0], None, 8.0)[0] == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(("bits", "papr_db"), [(1, None), (2, None), (3, None), (4, None), (None, 3.0)])
@pytest.mark.parametrize("gamma", [0.3, 5.0])
@pytest.mark.parametrize("r", [-0.5, 0.3, 0.9])
def test_soft_values_of_two_devices_by_trial(
    bits: int | None, papr_db: float | None, gamma: float, r: float
) -> None:
    """`Cov(z_1, z_2)` and `E[x_1 z_2]` of drawn coordinates, within five standard errors."""
    rng = np.random.default_rng(7)
    count = 200_000
    x = rng.normal(size=(2, count))
    x[1] = r * x[0] + math.sqrt(1 - r * r) * x[1]
    z = np.stack([_soft(row, bits, papr_db, gamma, rng) for row in x])
    both, cross = Rotated(harmonics([gamma] * 2, bits, papr_db), np.ones(2), equal(2, r))._covariances()
    for sample, expected in ((z[0] * z[1], both[0, 1]), (x[0] * z[1], cross[1, 0]), (z[0] ** 2, both[0, 0])):
        assert sample.mean() == pytest.approx(expected, abs=5 * sample.std() / math.sqrt(count))


def _soft(
    x: np.ndarray, bits: int | None, papr_db: float | None, gamma: float, rng: np.random.Generator
) -> np.ndarray:
    if bits is None:
        level = clip_level(papr_db)
        sent = np.clip(x, -level, level) / math.sqrt(clipped_power(level))
        return soft_amplitude(math.sqrt(gamma) * sent + rng.normal(size=x.shape), gamma, papr_db)
    cells = levels(bits)
    magnitude = np.searchsorted(cells.edges[1:], np.abs(x))
    labels = np.vstack([np.sign(x), cells.labels[magnitude].T])
    llr = gamma * labels + math.sqrt(gamma) * rng.normal(size=labels.shape)
    exponent = cells.labels @ llr[1:]
    odds = cells.masses[:, None] * np.exp(exponent - exponent.max(axis=0))
    return np.tanh(llr[0]) * (cells.values @ odds) / odds.sum(axis=0)


def test_the_papers_of_math_16() -> None:
    """Exact posterior with a shared rotation against private rotations, K = 20, no fading (MATH.md 16)."""
    ones = np.ones(20)
    for r, expected in ((0.6, 0.044), (0.9, 0.031)):
        model = Rotated(harmonics(10 * ones), ones, equal(20, r), private=True)
        assert model.moments(ones, model.fit(ones).combine).nmse() == pytest.approx(expected, abs=6e-4)


def test_one_bit_shared_is_the_joint_rule_of_soft_bits() -> None:
    from signfade import theory

    rng = np.random.default_rng(0)
    snr, std = rng.exponential(size=6), rng.uniform(0.5, 2, 6)
    basis = rng.normal(size=(6, 9))
    r = basis @ basis.T
    r /= np.sqrt(np.outer(r.diagonal(), r.diagonal()))
    alpha = rng.uniform(0.5, 1.5, 6)
    model = Rotated(harmonics(snr), std, r)
    fit = model.fit(alpha)
    kappa = math.sqrt(2 / math.pi)
    expected = theory.given_moments(
        *theory.moments("sbfl", snr), std, r, weights=alpha, combine=kappa * fit.combine
    )
    found = model.moments(alpha, fit.combine)
    assert found.nmse() == pytest.approx(expected.nmse(), rel=2e-3)  # the last order stands for all others
    assert fit.gain == pytest.approx(found.product / found.energy, rel=1e-9)


@pytest.mark.parametrize("private", [False, True])
def test_a_subset_scales_what_is_explained(private: bool) -> None:
    """`NMSE = 1 - f*(1 - NMSE_1)` for one device, or independent ones."""
    ones = np.ones(5)
    for part in (0.01, 0.1, 0.5):
        full = Rotated(harmonics(ones), ones, np.eye(5), 1.0, 1.0, private)
        some = full._replace(part=part)
        errors = [model.moments(ones, model.fit(ones).combine).nmse() for model in (full, some)]
        assert errors[1] == pytest.approx(1 - part * (1 - errors[0]), rel=1e-9)


def test_the_fitted_weights_are_the_best() -> None:
    rng = np.random.default_rng(1)
    model = Rotated(harmonics(rng.exponential(size=8)), np.ones(8), equal(8, 0.4), 0.3, 0.95, True)
    alpha = np.ones(8)
    best = model.fit(alpha).combine
    least = model.moments(alpha, best).nmse()
    for _ in range(20):
        assert model.moments(alpha, best * (1 + 0.1 * rng.normal(size=8))).nmse() >= least
