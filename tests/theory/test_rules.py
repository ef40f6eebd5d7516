"""Every rule, written out, against the theory: integrated over the noise, and by Monte Carlo; laws of rho."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import special

from signfade.theory import bit_error, gain, kappa_of, moments, mse, rho
from signfade.theory.rules import soft_bit

DECIBELS = np.array([-20, -10, 0, 10, 20, 40.0])
C = 2 / np.pi

# Each rule's f(y) as the paper or docs/errata.md write it.
RULES: dict[tuple[str, str], Callable[[np.ndarray, float, float], np.ndarray]] = {
    ("sbfl", "corrected"): lambda y, h, s2: np.tanh(h * y / s2),
    ("sbfl", "published"): lambda y, h, s2: np.tanh(2 * h * y / s2),
    ("blmmse", "corrected"): lambda y, h, s2: h * y / (h**2 + s2),
    ("blmmse", "published"): lambda y, h, s2: h * y / (C * h**2 + s2),
    ("high_snr", "corrected"): lambda y, h, s2: np.where(y / h >= 0, 1.0, -1.0),
    ("hard", "corrected"): lambda y, h, s2: (
        np.where(y / h >= 0, 1.0, -1.0) * (1 - special.erfc(abs(h) / np.sqrt(2 * s2)))
    ),
    ("zero_forcing", "corrected"): lambda y, h, s2: y / h,
}


def over_noise(function: Callable[[np.ndarray], np.ndarray], middle: float) -> float:
    """E[function(z)], z ~ N(0, 1), by Gauss-Legendre pieces that meet where the sign of y changes."""
    node, weight = np.polynomial.legendre.leggauss(60)
    edges = np.unique(
        np.clip(np.r_[np.linspace(-12, 12, 13), middle, middle + np.logspace(-3, 0, 7)], -12, 12)
    )
    edges = np.unique(np.r_[edges, np.clip(middle - np.logspace(-3, 0, 7), -12, 12)])
    low, high = edges[:-1, None], edges[1:, None]
    z = (low + high) / 2 + (high - low) / 2 * node
    return float((function(z) * np.exp(-(z**2) / 2) * weight * (high - low) / 2).sum() / np.sqrt(2 * np.pi))


@pytest.mark.parametrize(("rule", "form"), RULES)
@pytest.mark.parametrize("decibel", DECIBELS)
@pytest.mark.parametrize("h", [0.7, -2.0])
def test_moments_are_the_integrals_over_the_noise(rule: str, form: str, decibel: float, h: float) -> None:
    snr = 10 ** (decibel / 10)
    sigma = abs(h) / np.sqrt(snr)
    signal = power = 0.0
    for sign in (1.0, -1.0):
        middle = -sign * h / sigma  # the noise at which y = 0

        def f(z: np.ndarray, sign: float = sign) -> np.ndarray:
            return RULES[rule, form](h * sign + sigma * z, h, sigma**2)

        signal += over_noise(lambda z, f=f, sign=sign: sign * f(z), middle) / 2
        power += over_noise(lambda z, f=f: f(z) ** 2, middle) / 2
    # Only products of order sqrt(gamma) cancel in this brute-force mean, down to gamma.
    np.testing.assert_allclose(moments(rule, snr, form), (signal, power), rtol=1e-11)


@pytest.mark.parametrize(("rule", "form"), RULES)
@pytest.mark.parametrize("family", ["gaussian", "laplacian"])
def test_monte_carlo(rule: str, form: str, family: str) -> None:
    rng = np.random.default_rng(2021)
    size, std, h = 200_000, 0.8, -1.3
    draw = rng.normal(0, std, size) if family == "gaussian" else rng.laplace(0, std / np.sqrt(2), size)
    for snr in 10 ** (DECIBELS / 10):
        sigma2 = h**2 / snr
        y = h * np.where(draw >= 0, 1, -1) + np.sqrt(sigma2) * rng.normal(size=size)
        for stretch in (1.0, 0.6, 1.5):  # the server may use a scale that is not the true one
            scale = stretch * kappa_of(std, family)
            squares = (draw - scale * RULES[rule, form](y, h, sigma2)) ** 2
            predicted = mse(rule, snr, std, family=family, form=form, scale=scale)
            assert abs(squares.mean() - predicted) < 4.5 * squares.std() / np.sqrt(size)


def test_rho_at_low_snr_follows_its_series() -> None:
    snr = np.array([1e-6, 1e-5, 1e-4])
    np.testing.assert_allclose(rho(snr), snr - snr**2 + 5 / 3 * snr**3, rtol=1e-10)
    assert rho(1e-6) == pytest.approx(1e-6 - 1e-12 + 5 / 3 * 1e-18, rel=1e-14)


def test_rho_complement_at_high_snr_follows_its_asymptote() -> None:
    snr = np.array([30.0, 300.0, 1000.0])
    # int sech = pi, and the Gaussian factor turns down the wings by pi**2/(8*gamma).
    leading = np.exp(-snr / 2) * np.sqrt(np.pi / (2 * snr))
    np.testing.assert_allclose(
        soft_bit(snr).power_lack / leading, 1 - np.pi**2 / (8 * snr), atol=5 / snr.min() ** 2
    )


def test_rho_and_its_complement_add_to_one() -> None:
    snr = np.logspace(-6, 6, 200)
    np.testing.assert_allclose(rho(snr) + soft_bit(snr).power_lack, 1, rtol=1e-15)


def test_information_identity() -> None:
    # The derivative of the mutual information by the SNR is half the minimum MSE of the bit, 1 - rho; from no
    # SNR to all of it the receiver learns one bit, ln 2 nats.
    log_snr = np.arange(-45, 7.5, 0.05)
    snr = np.exp(log_snr)
    assert 0.05 * (snr * soft_bit(snr).power_lack).sum() == pytest.approx(2 * np.log(2), rel=1e-12)


def test_rho_lies_between_the_linear_and_the_printed_linear_reading() -> None:
    snr = np.logspace(-4, 5, 400)
    assert (rho(snr) > snr / (1 + snr)).all()
    assert (rho(snr) < snr / (1 + C * snr)).all()
    assert (np.diff(rho(np.logspace(-6, 1.5, 400))) > 0).all()


def test_hard_decisions_know_less_than_soft_ones() -> None:
    snr = np.logspace(-6, 1.5, 100)
    assert (moments("hard", snr)[0] < rho(snr)).all()
    # At low SNR the loss is the familiar 2/pi, 1.96 dB.
    assert moments("hard", 1e-6)[0] / rho(1e-6) == pytest.approx(2 / np.pi, rel=1e-5)


def test_zero_and_infinite_snr() -> None:
    for rule in ("sbfl", "blmmse", "hard"):
        assert moments(rule, 0.0) == (0.0, 0.0)
        assert moments(rule, np.inf) == (1.0, 1.0)
    assert moments("high_snr", 0.0) == (0.0, 1.0)
    assert moments("zero_forcing", 0.0) == (1.0, np.inf)
    assert moments("zero_forcing", np.inf) == (1.0, 1.0)
    np.testing.assert_allclose(moments("blmmse", np.inf, "published"), (1 / C, 1 / C**2), rtol=1e-15)
    assert bit_error(0.0) == 0.5
    assert bit_error(np.inf) == 0.0


def test_tiny_snr_does_not_warn() -> None:
    assert moments("zero_forcing", 1e-320)[1] == np.inf


def test_gain_is_the_first_moment() -> None:
    snr = np.array([0.1, 1.0, 10.0])
    for rule, form in RULES:
        np.testing.assert_array_equal(gain(rule, snr, form), moments(rule, snr, form)[0])
    np.testing.assert_array_equal(gain("sbfl", snr), rho(snr))


def test_what_goes_in_and_what_comes_out() -> None:
    values = [[0.1, 1.0, 10.0], [2.0, 3.0, 4.0]]
    expected = rho(np.array(values))
    assert isinstance(rho(1.0), float)
    assert isinstance(rho(torch.tensor(1.0)), float)
    assert expected.dtype == np.float64
    assert expected.shape == (2, 3)
    np.testing.assert_array_equal(rho(values), expected)
    np.testing.assert_array_equal(
        rho(torch.tensor(values, dtype=torch.float64, requires_grad=True)), expected
    )
    np.testing.assert_allclose(rho(torch.tensor(values, dtype=torch.bfloat16)), expected, rtol=0.01)
    assert rho([]).shape == (0,)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rho(-1.0), "snr must be non-negative; its smallest entry is -1"),
        (lambda: rho([1.0, float("nan")]), "snr"),
        (lambda: rho("loud"), "snr must be real numbers"),
        (lambda: rho(1j), "snr must be real numbers"),
        (lambda: moments("vote", 1.0), "rule must be one of 'sbfl', .*; got 'vote'"),
        (lambda: moments("ideal", 1.0), "rule must be one of"),
        (
            lambda: moments("sbfl", 1.0, "printed"),
            "form must be one of 'corrected', 'published'; got 'printed'",
        ),
    ],
)
def test_bad_input_is_named(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
