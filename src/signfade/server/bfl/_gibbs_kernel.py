"""A Gibbs sampler for every coordinate, compiled; one thread a call."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import math

import numpy as np

from signfade._jit import njit
from signfade.server.bfl._quantile import normal_quantile

_ROOT_2PI = math.sqrt(2 * math.pi)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@njit(inline="always")
def _uniform(state):
    """SplitMix64: the next state, and a number strictly between 0 and 1."""
    state = state + _STEP
    x = state
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    x = x ^ (x >> np.uint64(31))
    return state, (np.float64(x >> np.uint64(12)) + 0.5) * 2.220446049250313e-16


@njit(inline="always")
def _above(z, u):
    """A standard normal number above -z."""
    p = 0.5 * math.erfc(-z * 0.7071067811865476)
    if p > 1e-280:
        return -normal_quantile(u * p)
    return -z - math.log(u) / (-z)  # so far out the tail is exponential


@njit(nogil=True, cache=True)
def gibbs_range(llr, inverse, combine, key, burn, batches, length, first, last, mean, error):
    """Sample coordinates first ... last - 1.

    `inverse` [K, K] is the precision matrix; `combine` [R, K]; after `burn` sweeps, `batches` batches of
    `length` sweeps are averaged; `mean`, `error` [R, M] get the mean and its standard error over batches.
    """
    devices = llr.shape[0]
    wanted = combine.shape[0]
    g = np.empty(devices)
    pulled = np.empty(devices)  # inverse @ g
    average = np.empty(devices)
    total = np.empty(wanted)
    squares = np.empty(wanted)
    for m in range(first, last):
        state = (key + np.uint64(m)) * _MIX_2 ^ key
        for k in range(devices):
            state, u = _uniform(state)
            g[k] = 0.1 if llr[k, m] >= 0 else -0.1
        for i in range(devices):
            pulled[i] = 0.0
            for k in range(devices):
                pulled[i] += inverse[i, k] * g[k]
        total[:] = 0.0
        squares[:] = 0.0
        for batch in range(-1, batches):
            average[:] = 0.0
            count = burn if batch < 0 else length
            for _ in range(count):
                for k in range(devices):
                    root = 1 / math.sqrt(inverse[k, k])
                    centre = g[k] - pulled[k] * root * root
                    z = centre / root
                    small = math.exp(-2 * abs(llr[k, m]))
                    plus = 1 / (1 + small) if llr[k, m] >= 0 else small / (1 + small)
                    minus = small / (1 + small) if llr[k, m] >= 0 else 1 / (1 + small)
                    up = plus * 0.5 * math.erfc(-z * 0.7071067811865476)
                    down = minus * 0.5 * math.erfc(z * 0.7071067811865476)
                    state, u = _uniform(state)
                    state, v = _uniform(state)
                    # Both sides impossible in float64: a certain sign, far from where the others pull.
                    positive = u * (up + down) < up if up + down > 0 else plus > minus
                    new = centre + root * (_above(z, v) if positive else -_above(-z, v))
                    bell = math.exp(-0.5 * z * z) / _ROOT_2PI
                    # The mean of the conditional distribution varies less than a draw from it.
                    average[k] += (
                        centre + root * (plus - minus) * bell / (up + down) if up + down > 1e-290 else new
                    )
                    change = new - g[k]
                    g[k] = new
                    for i in range(devices):
                        pulled[i] += change * inverse[k, i]
            if batch >= 0:
                for r in range(wanted):
                    value = 0.0
                    for k in range(devices):
                        value += combine[r, k] * average[k]
                    value /= length
                    total[r] += value
                    squares[r] += value * value
        for r in range(wanted):
            centre = total[r] / batches
            mean[r, m] = centre
            error[r, m] = math.sqrt(max(squares[r] / batches - centre * centre, 0.0) / (batches - 1))
