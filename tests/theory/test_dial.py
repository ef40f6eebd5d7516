"""The rate dial as one number, against simulation and the limit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from signfade.theory import above_db, limit
from signfade.theory.dial import dial_nmse, dial_uses


@pytest.mark.parametrize("r", [0.0, 0.3, 0.9])
def test_one_bit_with_a_shared_rotation_is_what_a_simulation_measures(r: float) -> None:
    """Soft bits of correlated coordinates and the least squares that fit their sum best."""
    rng, devices, size, gamma = np.random.default_rng(3), 8, 400_000, 2.0
    x = math.sqrt(r) * rng.normal(size=size) + math.sqrt(1 - r) * rng.normal(size=(devices, size))
    y = math.sqrt(gamma) * np.sign(x) + rng.normal(size=x.shape)
    z, total = np.tanh(math.sqrt(gamma) * y), x.sum(axis=0)
    combine = np.linalg.solve(z @ z.T, z @ total)
    measured = np.mean((combine @ z - total) ** 2) / np.mean(total**2)
    assert dial_nmse([gamma] * devices, 1, r) == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("rate", [0.001, 0.1])
def test_a_subset_of_independent_devices_loses_what_is_not_sent(rate: float, private: bool) -> None:
    whole = dial_nmse([0.5, 4.0], 1)
    assert dial_nmse([0.5, 4.0], rate, private=private) == pytest.approx(1 - rate * (1 - whole), rel=1e-9)


def test_amplitudes_without_a_peak_attain_the_limit() -> None:
    snr = np.array([[0.1, 1.0, 30.0], [2.0, 0.0, 5.0]])
    assert dial_nmse(snr, "analog") == pytest.approx(limit(snr), rel=1e-6)


@pytest.mark.parametrize("rate", [0.01, 1, 3, "analog"])
@pytest.mark.parametrize("r", [0.0, 0.5])
def test_nothing_on_the_dial_is_below_the_limit(rate: float | str, r: float) -> None:
    snr = np.geomspace(0.05, 50, 6)
    for private in (False, True):
        for papr_db in (None, 3.0):
            error = dial_nmse(snr, rate, r, private=private, papr_db=papr_db)
            assert error >= limit(snr, r, dial_uses(rate)) * (1 - 1e-6)


def test_decibels() -> None:
    assert above_db(0.65, 0.5) == pytest.approx(1.1394, abs=1e-4)
    assert above_db([0.2, 0.1], 0.1) == pytest.approx([10 * math.log10(2), 0.0])
    assert above_db(0.1, 0.0) == math.inf


@pytest.mark.parametrize(
    ("rate", "r", "says"),
    [
        (5, 0.0, "bits_per_weight must be from 0.001 to 1, or 2, 3, 4 or analog"),
        (1, -0.6, "correlation must be from -0.5 to 1 for 3 devices; got -0.6"),
        (1, 1.1, "correlation must be from -0.5 to 1 for 3 devices; got 1.1"),
    ],
)
def test_refuses(rate: float, r: float, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        dial_nmse([1.0] * 3, rate, r)
