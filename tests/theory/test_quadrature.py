"""Soft-bit integrals against 30-digit quadrature of their definitions, fading sums against closed forms."""

import mpmath as mp
import numpy as np
import pytest
from scipy import special

from signfade.theory import gain, moments
from signfade.theory.rules import fading_nodes, soft_bit

DECIBELS = np.arange(-60, 61, 10.0)


def definition(snr: float, slope: int) -> tuple[float, float, float, float]:
    """E[tanh(a*l)], E[tanh(a*l)**2] and their complements for l ~ N(gamma, gamma), at 30 digits."""
    with mp.workdps(30):
        gamma = mp.mpf(snr)
        width = mp.sqrt(gamma)
        # mpmath's error goal is absolute: the tilt keeps exponentially small integrals of order one.
        tilt = mp.exp(gamma / 2)
        near = [k * min(mp.mpf(1), width) for k in range(-72, 73, 12)]

        def mean(function, points, factor):
            def integrand(llr):
                return factor * mp.npdf(llr, gamma, width) * function(llr)

            return mp.quad(integrand, points, method="gauss-legendre") / factor

        wide = sorted({*near, *(gamma + k * width for k in (-14, -7, 0, 7, 14))})
        return (
            mean(lambda llr: mp.tanh(slope * llr), wide, 1),
            mean(lambda llr: mp.tanh(slope * llr) ** 2, wide, 1),
            mean(lambda llr: 2 / (1 + mp.exp(2 * slope * llr)), near, tilt),
            mean(lambda llr: mp.sech(slope * llr) ** 2, near, tilt),
        )


@pytest.mark.parametrize("slope", [1, 2])
@pytest.mark.parametrize("decibel", [-60, -20, -10.1, -0.1, 0.1, 10, 25, 30])
def test_soft_bit_is_the_integral_it_is_defined_by(decibel: float, slope: int) -> None:
    snr = 10 ** (decibel / 10)
    found, exact = soft_bit(snr, slope), definition(snr, slope)
    for name, value, truth in zip(found._fields, found, exact):
        # exp(-gamma/2) alone carries gamma/2 roundings
        assert abs(value / truth - 1) < 1e-14 + snr * 2e-16, name


def test_soft_bit_is_seamless_where_its_forms_meet() -> None:
    for slope in (1.0, 2.0):
        for seam in (0.1, 1.0):
            below, above = soft_bit(np.nextafter(seam, 0.0), slope), soft_bit(seam, slope)
            np.testing.assert_allclose(below, above, rtol=1e-14)


def test_soft_bit_at_the_ends() -> None:
    np.testing.assert_array_equal(soft_bit([0.0, np.inf, 1e6]).power, [0.0, 1.0, 1.0])
    np.testing.assert_array_equal(soft_bit([0.0, np.inf, 1e6]).power_lack, [1.0, 0.0, 0.0])


def test_errors_end_where_float64_does() -> None:
    assert soft_bit(1400.0).power_lack > 0
    assert soft_bit(1500.0).power_lack == 0


def test_chunks_do_not_show() -> None:
    snr = np.logspace(-6, 6, 10_001)
    parts = np.concatenate([soft_bit(snr[start : start + 777]).power for start in range(0, 10_001, 777)])
    np.testing.assert_allclose(soft_bit(snr).power, parts, rtol=1e-14)


@pytest.mark.parametrize("slope", [0.5, 2.5, float("nan")])
def test_slope_outside_the_tested_range_is_refused(slope: float) -> None:
    with pytest.raises(ValueError, match="slope"):
        soft_bit(1.0, slope)


def average(rule: str, mean_snr: np.ndarray, fading: str, **kwargs: float) -> np.ndarray:
    power, weight = fading_nodes(fading, **kwargs)
    return gain(rule, mean_snr[:, None] * power) @ weight


def test_gaussian_fading_closed_forms() -> None:
    mean_snr = 10 ** (DECIBELS / 10)
    np.testing.assert_allclose(
        average("high_snr", mean_snr, "gaussian"), 2 / np.pi * np.arctan(np.sqrt(mean_snr)), rtol=1e-12
    )
    root = np.sqrt(1 / (2 * mean_snr))
    lack = np.sqrt(np.pi) * root * special.erfcx(root)  # E[1/(1 + mean_snr*h**2)]
    power, weight = fading_nodes("gaussian")
    np.testing.assert_allclose((1 / (1 + mean_snr[:, None] * power)) @ weight, lack, rtol=1e-12)


def test_gaussian_fading_of_rho() -> None:
    # With the weights of h and of the noise both Gaussian, the product h*z has the density K0(|p|)/pi:
    # E[1 - rho] = (1+G)**-1/2 * int sech(c*p)*K0(|p|)/pi dp, c**2 = G/(1+G).
    log_p = np.arange(-45, 4, 0.02)
    p = np.exp(log_p)
    density = 0.02 * p * 2 * special.k0(p) / np.pi
    assert density.sum() == pytest.approx(1, rel=1e-13)
    power, weight = fading_nodes("gaussian")
    for mean_snr in (1e-6, 1e-2, 1.0, 1e3, 1e6):
        root, angle = np.sqrt(1 + mean_snr), np.sqrt(mean_snr / (1 + mean_snr)) * p
        found = soft_bit(mean_snr * power)
        assert found.power_lack @ weight == pytest.approx(density @ (1 / np.cosh(angle)) / root, rel=1e-12)
        lost = 2 * np.sinh(angle / 2) ** 2 / np.cosh(angle)  # 1 - sech, without cancellation
        exact = (mean_snr / (root + 1) + density @ lost) / root
        assert found.power @ weight == pytest.approx(exact, rel=1e-12)


def test_rayleigh_fading_closed_forms() -> None:
    mean_snr = 10 ** (DECIBELS / 10)
    power, weight = fading_nodes("rayleigh")
    np.testing.assert_allclose(
        average("high_snr", mean_snr, "rayleigh"), np.sqrt(mean_snr / (2 + mean_snr)), rtol=1e-12
    )
    exact = [float(mp.exp(1 / mp.mpf(g)) * mp.e1(1 / mp.mpf(g)) / g) for g in mean_snr]
    np.testing.assert_allclose((1 / (1 + mean_snr[:, None] * power)) @ weight, exact, rtol=1e-12)
    # E[1 - rho] = (1+G/2)**-1 * E[sech(c*p)] with p Laplacian, c**2 = G/(1+G/2): a difference of digammas.
    with mp.workdps(40):
        for snr in map(mp.mpf, mean_snr):
            slope = mp.sqrt(2) / mp.sqrt(snr / (1 + snr / 2))
            truth = slope * (mp.digamma((slope + 3) / 4) - mp.digamma((slope + 1) / 4)) / 2 / (1 + snr / 2)
            found = soft_bit(float(snr) * power)
            assert abs(float(found.power_lack @ weight) / truth - 1) < 1e-12
            assert abs(float(found.power @ weight) / (1 - truth) - 1) < 1e-12


@pytest.mark.parametrize("factor", [0.0, 0.5, 4.0, 41.0, 43.0, 1e3, 1e6])
def test_rician_fading_has_its_moment_generating_function(factor: float) -> None:
    power, weight = fading_nodes("rician", factor)
    assert weight.sum() == pytest.approx(1, rel=1e-13)
    assert weight @ power == pytest.approx(1, rel=1e-13)
    s = np.logspace(-6, 3, 10)
    exact = (1 + factor) / (1 + factor + s) * np.exp(-factor * s / (1 + factor + s))
    np.testing.assert_allclose(np.exp(-s[:, None] * power) @ weight, exact, rtol=1e-12, atol=1e-14)


def test_rician_without_line_of_sight_is_rayleigh_and_with_nothing_else_is_no_fading() -> None:
    snr = np.array([1e-3, 1.0, 1e3])
    np.testing.assert_allclose(
        average("sbfl", snr, "rician", rician_k=0.0), average("sbfl", snr, "rayleigh"), rtol=1e-12
    )
    np.testing.assert_allclose(average("sbfl", snr, "rician", rician_k=1e9), gain("sbfl", snr), rtol=1e-8)
    np.testing.assert_array_equal(average("sbfl", snr, "none"), gain("sbfl", snr))


def test_second_moments_of_the_fading_power() -> None:
    for fading, exact in (("gaussian", 3.0), ("rayleigh", 2.0), ("none", 1.0)):
        power, weight = fading_nodes(fading)
        assert weight.sum() == pytest.approx(1, rel=1e-14)
        assert weight @ power == pytest.approx(1, rel=1e-14)
        assert weight @ power**2 == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("rician_k", [0.0, 1e-300, 0.5, 42.2, 42.3, 1e4, 1e8, 1e12, 2e12, 1e100, 1e300])
def test_any_line_of_sight_has_unit_probability_and_power(rician_k: float) -> None:
    power, weight = fading_nodes("rician", rician_k)
    assert weight.sum() == pytest.approx(1, abs=1e-15 * (1e3 + np.sqrt(min(rician_k, 1e12))))
    assert weight @ power == pytest.approx(1, abs=1e-15 * (1e3 + np.sqrt(min(rician_k, 1e12))))


def test_bad_fading_is_refused() -> None:
    with pytest.raises(ValueError, match="fading must be one of 'gaussian', 'rayleigh', 'rician', 'none'"):
        fading_nodes("nakagami")
    with pytest.raises(ValueError, match="rician_k"):
        fading_nodes("rician", -1.0)
    with pytest.raises(ValueError, match="snr"):
        moments("sbfl", [-1.0])
