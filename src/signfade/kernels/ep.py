"""Expectation propagation, eight coordinates at a time, compiled; one thread per call.

Changing site k changes the posterior covariance S to `S - f_k * c_k c_k^T`, where `c_k` was its column k. S
is not changed site by site. Row k of an array is made into c_k when its turn comes, from the S of before the
sweep: `c_k = S[k] - sum_{m<k} f_m * c_m[k] * c_m`, summed up in registers.

The sites to come need the part of c_k from the diagonal on, a third of the work, and the means after the
sweep follow from these parts alone. The rest of c_k and the new S are made only if another sweep is needed.
"""

# mypy: ignore-errors
# (numba infers the types of this file itself)

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.special import erfcx

from signfade.kernels.jit import njit

# numba's cache watches this file alone: save it anew after a change to the other.
from signfade.kernels.simd import WIDTH, choose, load, maximum, minimum, root, store, times_power

__all__ = ["WIDTH", "ep_groups"]

TILE = 4  # entries of a row that are summed together: eight vector registers
UNDAMPED = 3  # sweeps before updates are damped
_LEAST_PRECISION = 1 / 1.2  # of a cavity, in units of the prior's
_ROOT_2PI = math.sqrt(2 * math.pi)
_LOG2E = 1 / math.log(2)
_ROUND = 1.5 * 2**52  # adding it rounds to an integer, which then stands in the low bits


class _Group(NamedTuple):
    """What is known of eight coordinates: `[K, 8]` each, but for `rows` and `moved`."""

    rows: Any  # [K * width, 8], width a multiple of TILE: c_k, or S
    plus: Any  # P(+1) and P(-1) of each sign by its own signal
    minus: Any
    xi: Any  # precisions of the sites
    nu: Any  # their natural means
    mu: Any  # posterior means
    factor: Any  # f_k of the last sweep
    shift: Any  # site k moved the mean by shift_k * c_k
    scratch: Any
    moved: Any  # [1, 8], largest squared move of a mean in the last sweep, in variances


def _polynomial(function, reach, degree, nodes):
    """Coefficients of the polynomial that meets a function on [-reach, reach] best at Chebyshev's nodes."""
    t = reach * np.cos(np.pi * (np.arange(nodes) + 0.5) / nodes)
    fit = np.polynomial.Chebyshev.fit(t, function(t), degree, domain=[-reach, reach])
    return tuple(float(c) for c in fit.convert(kind=np.polynomial.Polynomial).coef)


def _mills(t):
    """`(x + 3) * Phi(-x)/phi(x)`, `t = (x - 3)/(x + 3)`."""
    x = 3 * (1 + t) / (1 - t)
    return math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)) * (x + 3)


_M = _polynomial(_mills, 1, 14, 400)  # to 1e-10
_E = _polynomial(lambda f: 2.0**f, 0.5, 9, 100)  # to 1e-13


@njit(nogil=True)
def _exp(x):
    """`exp(x)` for |x| up to 700."""
    power = x * _LOG2E
    n = power + _ROUND
    f = power - (n - _ROUND)
    f2 = f * f
    f4 = f2 * f2
    low = (_E[0] + _E[1] * f) + (_E[2] + _E[3] * f) * f2
    high = (_E[4] + _E[5] * f) + (_E[6] + _E[7] * f) * f2 + (_E[8] + _E[9] * f) * f4
    return times_power(low + high * f4, n)


@njit(nogil=True)
def _pull(z, plus, minus):
    """`phi(z) * (plus - minus) / (plus * Phi(z) + minus * Phi(-z))`, finite for every z."""
    x = maximum(0.0 - z, z)
    near = 1.0 / (x + 3.0)
    t = (x - 3.0) * near
    t2 = t * t
    t4 = t2 * t2
    t8 = t4 * t4
    low = (
        (_M[0] + _M[1] * t) + (_M[2] + _M[3] * t) * t2 + ((_M[4] + _M[5] * t) + (_M[6] + _M[7] * t) * t2) * t4
    )
    high = (_M[8] + _M[9] * t) + (_M[10] + _M[11] * t) * t2 + ((_M[12] + _M[13] * t) + _M[14] * t2) * t4
    ratio = (low + high * t8) * near
    inverse_bell = _ROOT_2PI * _exp(minimum(700.0, 0.5 * x * x))
    same, other = choose(z, 0.0, plus, minus), choose(z, 0.0, minus, plus)
    return (plus - minus) / (same * (inverse_bell - ratio) + other * ratio)


@njit(nogil=True)
def _begin(llr, start, precision, slope, first, width, group):
    """Set the initial sites of eight coordinates, and the posterior that they give."""
    devices, size = llr.shape
    for k in range(devices):
        for b in range(WIDTH):
            group.scratch[k, b] = llr[k, min(first + b, size - 1)]
    for k in range(devices):
        value = load(group.scratch, k)
        small = _exp(maximum(-700.0, -2.0 * maximum(0.0 - value, value)))
        large = 1.0 / (1.0 + small)
        small = small * large
        plus, minus = choose(value, 0.0, large, small), choose(value, 0.0, small, large)
        store(group.plus, k, plus)
        store(group.minus, k, minus)
        store(group.xi, k, precision[k])
        store(group.nu, k, slope[k] * (plus - minus))
    for k in range(devices):
        mean = start[k, 0] * load(group.nu, 0)
        for i in range(1, devices):
            mean = mean + start[k, i] * load(group.nu, i)
        store(group.mu, k, mean)
        for i in range(k // TILE * TILE, devices):
            store(group.rows, k * width + i, start[k, i])


@njit(nogil=True)
def _reduce(rows, width, k, first, last, begin, end, weight):
    """`rows[k, i] -= sum_m weight[m] * rows[m, i]`, `begin <= m < end`, `first <= i < last` (whole tiles)."""
    for i in range(first, last, TILE):
        own = k * width + i
        x0, x1, x2, x3 = load(rows, own), load(rows, own + 1), load(rows, own + 2), load(rows, own + 3)
        for m in range(begin, end):
            w, other = load(weight, m), m * width + i
            x0 = x0 - w * load(rows, other)
            x1 = x1 - w * load(rows, other + 1)
            x2 = x2 - w * load(rows, other + 2)
            x3 = x3 - w * load(rows, other + 3)
        store(rows, own, x0)
        store(rows, own + 1, x1)
        store(rows, own + 2, x2)
        store(rows, own + 3, x3)


@njit(nogil=True)
def _site(k, hold, damping, variance, mean, group):
    """Match site k in every lane; note how it changes the posterior, and how far it moves the mean."""
    xi, nu = load(group.xi, k), load(group.nu, k)
    # Without this site the variance is at most a little more than the prior's, which is one. More is a sign
    # of other sites that are not in balance yet.
    left = maximum(variance * _LEAST_PRECISION, 1.0 - xi * variance)
    # The cavity has the variance variance/left. Written so that a site takes one root and four divisions.
    inverse = 1.0 / root(left * variance)
    deviation, one_over_deviation, precision = variance * inverse, left * inverse, left * inverse * inverse
    z = (mean - variance * nu) * inverse
    pull = _pull(z, load(group.plus, k), load(group.minus, k))
    # A bit that contradicts the cavity widens it: shrink is above one, and the site's precision negative.
    shrink = maximum(1e-10, 1.0 - pull * (z + pull))
    if hold:
        shrink = minimum(1.0, shrink)
    # Changes of xi and nu times shrink. None widens a variance more than tenfold.
    lost = 1.0 - shrink
    delta_xi = damping * (lost * one_over_deviation * one_over_deviation - xi * shrink)
    delta_xi = maximum(-0.9 * shrink * precision, delta_xi)
    delta_nu = damping * ((pull + z * lost) * one_over_deviation - nu * shrink)
    scale = shrink + delta_xi * variance
    both = 1.0 / (shrink * scale)
    store(group.xi, k, xi + delta_xi * (both * scale))
    store(group.nu, k, nu + delta_nu * (both * scale))
    store(group.factor, k, delta_xi * (both * shrink))
    store(group.shift, k, (delta_nu - delta_xi * mean) * (both * shrink))
    step = deviation * (z + pull) - mean
    move = step * step * precision
    store(group.moved, 0, maximum(load(group.moved, 0), choose(move, 0.0, move, np.inf)))  # NaN: moved


@njit(nogil=True)
def _sweep(devices, width, hold, damping, group):
    """Visit all sites and find the new means; fill `rows` from the tiles on the diagonal on."""
    rows, mu, factor, shift, scratch = group.rows, group.mu, group.factor, group.shift, group.scratch
    for k in range(devices):
        mean = load(mu, k)
        for m in range(k):
            shared = load(rows, m * width + k)
            store(scratch, m, load(factor, m) * shared)
            mean = mean + load(shift, m) * shared
        store(mu, k, mean)
        _reduce(rows, width, k, k // TILE * TILE, width, 0, k, scratch)
        _site(k, hold, damping, load(rows, k * width + k), mean, group)
    # The mean of i so far lacks shift_k * c_k[i] for k > i, entries that were not made. But c_k is row k of S
    # less weighted c_m, m < k; taking the last c_k apart first, only the made ones are left.
    for i in range(devices):
        store(scratch, i, 0.0)
    for k in range(devices - 1, -1, -1):
        later = load(scratch, k)
        weight = load(shift, k) - load(factor, k) * later
        store(mu, k, load(mu, k) + later + load(rows, k * width + k) * weight)
        for i in range(k):
            store(scratch, i, load(scratch, i) + load(rows, i * width + k) * weight)


@njit(nogil=True)
def _renew(devices, width, group):
    """Make the covariance after a sweep, in `rows` from the tiles on the diagonal on."""
    rows, factor, weight = group.rows, group.factor, group.scratch
    # The other part of every c_k. For j < k, c_j[k] already is S[k, j] less the terms m < j.
    for k in range(TILE, devices):
        for m in range(k):
            store(weight, m, load(factor, m) * load(rows, m * width + k))
        for first in range(0, k // TILE * TILE, TILE):
            last = first + TILE
            for j in range(first, last):
                total = load(rows, j * width + k)
                for m in range(j, last):
                    total = total - load(weight, m) * load(rows, m * width + j)
                store(rows, k * width + j, total)
            _reduce(rows, width, k, first, last, last, k, weight)
    # c_i is what S[i] was before site i. Take off what the sites from i on did to it.
    for i in range(devices):
        for m in range(i, devices):
            store(weight, m, load(factor, m) * load(rows, m * width + i))
        tile = i // TILE * TILE
        _reduce(rows, width, i, 0, tile + TILE, i, devices, weight)
        for j in range(tile):
            store(rows, j * width + i, load(rows, i * width + j))


@njit(nogil=True, cache=True)
def ep_groups(llr, start, precision, slope, combine, sweeps, tolerance, first, last, out, info):
    """Run EP for groups first ... last - 1 of eight coordinates.

    `llr` [K, M]; `start` [K, K] is the covariance given the initial sites, which have `precision` [K] and the
    natural mean slope[k]*tanh(llr[k, m]); `combine` [R, K]; `out` [R, M]; `info` [M] int8 gets the number of
    sweeps, negative if the last one still moved a mean by `tolerance` standard deviations.
    """
    devices, size = llr.shape
    width = -(-devices // TILE) * TILE
    rows = np.zeros((devices * width, WIDTH))
    fields = np.zeros((8, devices, WIDTH))
    moved = np.empty((1, WIDTH))
    group = _Group(
        rows, fields[0], fields[1], fields[2], fields[3], fields[4], fields[5], fields[6], fields[7], moved
    )
    limit = tolerance * tolerance
    settled = np.empty(WIDTH, np.bool_)
    for number in range(first, last):
        begin = number * WIDTH
        count = min(WIDTH, size - begin)
        for b in range(WIDTH):
            settled[b] = b >= count
        # A second try for coordinates that did not settle, without negative precisions: less accurate but
        # tame.
        for hold in (False, True):
            _begin(llr, start, precision, slope, begin, width, group)
            done = 0
            moved[:] = np.inf
            while done < sweeps and not moved.max() < limit:
                if done > 0:
                    _renew(devices, width, group)
                moved[:] = 0.0
                _sweep(devices, width, hold, 1.0 if done < UNDAMPED else 0.7, group)
                done += 1
            for r in range(combine.shape[0]):
                total = combine[r, 0] * load(group.mu, 0)
                for k in range(1, devices):
                    total = total + combine[r, k] * load(group.mu, k)
                store(group.scratch, 0, total)
                for b in range(count):
                    if not settled[b]:
                        out[r, begin + b] = group.scratch[0, b]
            for b in range(count):
                if not settled[b]:
                    settled[b] = moved[0, b] < limit
                    info[begin + b] = done if settled[b] else -done
            if settled.all():
                break
