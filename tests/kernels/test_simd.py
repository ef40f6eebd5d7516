"""Eight numbers as one in compiled code: all operations lane by lane, and two functions built on them."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.special import log_ndtr

from signfade.kernels.ep import _exp, _pull
from signfade.kernels.simd import WIDTH, choose, load, maximum, minimum, root, store, times_power

Float64 = NDArray[np.float64]


@njit
def _operations(a: Float64, b: Float64, out: Float64) -> None:
    x, y = load(a, 1), load(b, 0)
    store(out, 0, x + y)
    store(out, 1, 2 - x * y)
    store(out, 2, (1.0 - x) / (y + 3))
    store(out, 3, maximum(x, y) - minimum(x, 0.25))
    store(out, 4, choose(x, y, 1.0, y))
    store(out, 5, root(x * x))
    store(out, 6, times_power(x, y - y + (1.5 * 2**52 - 3)))
    store(out, 7, 4.0)


@njit
def _functions(z: Float64, plus: Float64, minus: Float64, power: Float64, pull: Float64) -> None:
    for i in range(len(z)):
        store(power, i, _exp(load(z, i)))
        store(pull, i, _pull(load(z, i), load(plus, i), load(minus, i)))


def test_operations_are_those_of_numpy() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 3, WIDTH))
    x, y = a[1], b[0]
    b[0, 2] = a[1, 2]  # `choose` at equality
    out = np.empty((8, WIDTH))
    _operations(a, b, out)
    np.testing.assert_array_equal(out[0], x + y)
    np.testing.assert_allclose(out[1], 2 - x * y, rtol=0, atol=1e-15)  # may be fused
    np.testing.assert_array_equal(out[2], (1 - x) / (y + 3))
    np.testing.assert_array_equal(out[3], np.maximum(x, y) - np.minimum(x, 0.25))
    np.testing.assert_array_equal(out[4], np.where(x >= y, 1.0, y))
    np.testing.assert_array_equal(out[5], np.sqrt(x * x))
    np.testing.assert_array_equal(out[6], x / 8)
    np.testing.assert_array_equal(out[7], np.full(WIDTH, 4.0))


def test_exp_and_pull_over_their_whole_range() -> None:
    """The pull is `phi(z) * (2*p - 1) / (p * Phi(z) + (1-p) * Phi(-z))`; here through logarithms."""
    z = np.linspace(-35, 35, 141 * WIDTH).reshape(-1, WIDTH)
    for llr in (-300.0, -20.0, -1.0, 1e-3, 0.5, 20.0):
        log_plus, log_minus = -np.logaddexp(0, -2 * llr), -np.logaddexp(0, 2 * llr)
        plus, minus = np.full_like(z, np.exp(log_plus)), np.full_like(z, np.exp(log_minus))
        power, pull = np.empty_like(z), np.empty_like(z)
        _functions(z, plus, minus, power, pull)
        log_bell = -0.5 * z**2 - 0.5 * np.log(2 * np.pi)
        log_total = np.logaddexp(log_plus + log_ndtr(z), log_minus + log_ndtr(-z))
        np.testing.assert_allclose(pull, np.tanh(llr) * np.exp(log_bell - log_total), rtol=1e-9, atol=1e-300)
        np.testing.assert_allclose(power, np.exp(z), rtol=1e-12)
    far = np.array([-700.0, -699.3, -350.0, -1e-9, 0.0, 1e-9, 350.0, 700.0])[None]
    power, pull = np.empty_like(far), np.empty_like(far)
    _functions(far, np.full_like(far, 0.7), np.full_like(far, 0.3), power, pull)
    np.testing.assert_allclose(power, np.exp(far), rtol=1e-12)
    assert np.isfinite(pull).all()
