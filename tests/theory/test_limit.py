"""The limit of information theory, in its own limits and against what rules attain."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import optimize

from signfade.theory import limit
from signfade.theory.rate import Rotated, harmonics


@pytest.mark.parametrize("gamma", [0.1, 1.0, 10.0])
def test_between_independent_devices_and_one(gamma: float) -> None:
    assert limit([gamma] * 20) == pytest.approx(1 / (1 + gamma), rel=1e-12)
    assert limit([gamma] * 20, 1e-7) == pytest.approx(1 / (1 + gamma), rel=1e-4)
    assert limit([gamma] * 20, 1.0) == pytest.approx((1 + gamma) ** -20.0, rel=1e-9)
    assert limit([gamma] * 4, 1 - 1e-9) == pytest.approx((1 + gamma) ** -4.0, rel=1e-3)
    assert limit([gamma], 0.4) == limit([gamma])


@pytest.mark.parametrize("r", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("gamma", [0.1, 1.0, 10.0])
def test_equal_devices_solve_the_published_equation(r: float, gamma: float) -> None:
    devices, s = 20, (1 - r) / r

    def spent(q: float) -> float:
        return devices * (q - math.log1p(gamma) / 2) + math.log1p(-devices * math.expm1(-2 * q) / s) / 2

    q = optimize.brentq(spent, 0, math.log1p(gamma) / 2, xtol=1e-15)
    d, d0 = 1 / (1 + devices * (1 - math.exp(-2 * q)) / s), 1 / (1 + devices / s)
    assert limit([gamma] * devices, r) == pytest.approx((d - d0) / (1 - d0), rel=1e-8)


def test_many_devices_need_a_rate_each_of_next_to_nothing() -> None:
    """K to infinity at a fixed sum of rates R: the CEO's `R = ln(1/D)/2 + (s/2)(1/D - 1)`."""
    total, r, devices = 2.0, 0.3, 20_000
    s = (1 - r) / r
    gamma = math.expm1(2 * total / devices)
    d = optimize.brentq(lambda d: -math.log(d) / 2 + s / 2 * (1 / d - 1) - total, 1e-6, 1)
    assert limit([gamma] * devices, r) == pytest.approx(d, rel=1e-3)


def test_falls_with_snr_correlation_and_uses() -> None:
    snr = np.geomspace(0.01, 100, 6)
    found = [limit(snr, r) for r in (0.0, 1e-6, 0.01, 0.1, 0.5, 0.9, 1.0)]
    assert all(b <= a * (1 + 1e-6) for a, b in pairwise(found))
    assert limit(2 * snr, 0.3) < limit(snr, 0.3)
    assert limit(snr, 0.3, uses=0.5) > limit(snr, 0.3)
    assert limit([1.0] * 5, 0.0, uses=0.01) == pytest.approx(2**-0.01)
    assert limit(np.zeros(5), 0.3) == 1.0


@pytest.mark.parametrize("r", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("gamma", [0.3, 1.0, 10.0])
def test_no_rule_is_below_it(r: float, gamma: float) -> None:
    devices = 20
    correlation = np.full((devices, devices), r) + (1 - r) * np.eye(devices)
    snr, ones = np.full(devices, gamma), np.ones(devices)
    for bits, uses in ((1, 1), (2, 2), (4, 4), (None, 1)):
        for private in (False, True):
            model = Rotated(harmonics(snr, bits), ones, correlation, private=private)
            error = model.moments(ones, model.fit(ones).combine).nmse()
            assert error >= limit(snr, r, uses) * (1 - 1e-9)
            if bits is None and r == 0:  # amplitudes attain it
                assert error == pytest.approx(limit(snr), rel=1e-6)


def test_amplitudes_are_within_1_5_db_at_0_db() -> None:
    correlation = np.full((20, 20), 0.3) + 0.7 * np.eye(20)
    ones = np.ones(20)
    model = Rotated(harmonics(ones, None, 8.0), ones, correlation)
    error = model.moments(ones, model.fit(ones).combine).nmse()
    assert 10 * math.log10(error / limit(ones, 0.3)) < 1.5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (([1.0], -0.1), "correlation must be from 0 to 1"),
        (([1.0], 0.1, 0.0), "uses must be positive"),
        (([-1.0],), "snr must be non-negative"),
    ],
)
def test_refuses(arguments: tuple, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        limit(*arguments)
