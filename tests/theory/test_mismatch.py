"""Moments of a rule on another link than it was made for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from signfade.theory import mismatched_moments, moments

RULES: list[Any] = ["sbfl", "blmmse", "high_snr", "zero_forcing"]
FORMS: list[Any] = ["corrected", "published"]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("form", FORMS)
def test_a_link_known_exactly_is_the_ordinary_case(rule: Any, form: Any) -> None:
    h, sigma2 = np.array([0.1, -0.7, 1.0, 3.0]), np.array([0.5, 1.0, 0.1, 0.2])
    signal, power = mismatched_moments(rule, h, sigma2, h, sigma2, form)
    expected = moments(rule, h**2 / sigma2, form)
    np.testing.assert_allclose(signal, expected[0], rtol=1e-9)
    np.testing.assert_allclose(power, expected[1], rtol=1e-9)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("known_h", "known_sigma2"), [(0.6, 0.9), (-0.3, 0.4), (2.0, 0.05)])
def test_moments_are_the_integrals_over_the_noise(rule: Any, known_h: float, known_sigma2: float) -> None:
    h, sigma2 = 0.8, 0.5

    def f(y: float) -> float:
        if rule == "sbfl":
            return float(np.tanh(known_h * y / known_sigma2))
        if rule == "blmmse":
            return known_h * y / (known_h**2 + known_sigma2)
        return y / known_h if rule == "zero_forcing" else float(np.sign(y * known_h))

    def mean(power: int) -> float:
        def integrand(z: float) -> float:
            return float(stats.norm.pdf(z) * f(h + np.sqrt(sigma2) * z) ** power)

        return float(integrate.quad(integrand, -9, 9, limit=400, points=[-h / np.sqrt(sigma2)])[0])

    signal, power = mismatched_moments(rule, h, sigma2, known_h, known_sigma2)
    assert signal == pytest.approx(mean(1), abs=1e-8)
    assert power == pytest.approx(mean(2), abs=1e-8)
    assert (signal < 0) == (known_h < 0)


def test_a_rule_as_steep_as_can_be_is_a_sign() -> None:
    hard = mismatched_moments("high_snr", 0.5, 1.0, 1.0, 1.0)[0]
    for steep in (1e-3, 1e-6, 1e-30):
        signal, power = mismatched_moments("sbfl", 0.5, 1.0, 1.0, steep)
        assert signal == pytest.approx(hard, abs=1e-4)
        assert power == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("rule", RULES)
def test_a_gain_taken_for_zero_says_nothing(rule: Any) -> None:
    assert mismatched_moments(rule, 1.0, 1.0, 0.0, 1.0) == (0.0, 0.0)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="rule must be one of 'sbfl'"):
        mismatched_moments("ideal", 1.0, 1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="known_sigma2 must be non-negative"):
        mismatched_moments("sbfl", 1.0, 1.0, 1.0, -1.0)
    with pytest.raises(ValueError, match="broadcast"):
        mismatched_moments("sbfl", [1.0, 2.0], 1.0, [1.0, 2.0, 3.0], 1.0)
