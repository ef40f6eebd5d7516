"""Expectation propagation, four coordinates at a time, compiled; one thread a call.

Updating a site changes the posterior covariance by a rank-one term. Four coordinates go side by side in the
last axis of every array: their covariances change with one vector instruction an entry, and their roots and
divisions overlap.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, call-arg"

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic
from scipy.special import erfcx

LANES = 4
UNDAMPED = 3  # sweeps before updates are damped
_LEAST_PRECISION = 1 / 1.2  # of a cavity, in units of the prior's
_ROOT_2PI = math.sqrt(2 * math.pi)


def _place(context, builder, signature, arguments, array, index):
    """Pointer to the four lanes at `index` of an array [n, 4]."""
    data = context.make_array(signature.args[array])(context, builder, arguments[array]).data
    offset = builder.mul(arguments[index], ir.Constant(ir.IntType(64), LANES))
    return builder.bitcast(builder.gep(data, [offset]), ir.VectorType(ir.DoubleType(), LANES).as_pointer())


@intrinsic
def _copy(context, target, i, source, j):
    """`target[i] = source[j]` for arrays [n, 4], in one vector register."""

    def emit(context, builder, signature, arguments):
        lanes = builder.load(_place(context, builder, signature, arguments, 2, 3), align=8)
        builder.store(lanes, _place(context, builder, signature, arguments, 0, 1), align=8)
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp), emit


@intrinsic
def _subtract(context, target, source, j, a0, a1, a2, a3):
    """`target[j] -= (a0, a1, a2, a3) * source[j]` for arrays [n, 4], in one vector register."""
    number = types.float64

    def emit(context, builder, signature, arguments):
        factor = ir.Constant(ir.VectorType(ir.DoubleType(), LANES), ir.Undefined)
        for lane in range(LANES):
            factor = builder.insert_element(factor, arguments[3 + lane], ir.Constant(ir.IntType(32), lane))
        place = _place(context, builder, signature, arguments, 0, 2)
        other = builder.load(_place(context, builder, signature, arguments, 1, 2), align=8)
        product = builder.fmul(factor, other, flags=("contract",))
        builder.store(
            builder.fsub(builder.load(place, align=8), product, flags=("contract",)), place, align=8
        )
        return context.get_dummy_value()

    return types.void(target, source, types.intp, number, number, number, number), emit


def _mills_polynomial():
    """Coefficients of `(x + 3) * Phi(-x)/phi(x)` in `t = (x - 3)/(x + 3)`, to 1e-10."""
    t = np.cos(np.pi * (np.arange(400) + 0.5) / 400)
    x = 3 * (1 + t) / (1 - t)
    values = math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)) * (x + 3)
    fit = np.polynomial.Chebyshev.fit(t, values, 14, domain=[-1, 1]).convert(kind=np.polynomial.Polynomial)
    return tuple(float(c) for c in fit.coef)


_M = _mills_polynomial()


@njit(inline="always")
def _pull(z, plus, minus):
    """`phi(z) * (plus - minus) / (plus * Phi(z) + minus * Phi(-z))`, finite for every z."""
    x = abs(z)
    near = 1 / (x + 3)
    t = (x - 3) * near
    t2 = t * t
    t4 = t2 * t2
    t8 = t4 * t4
    low = (
        (_M[0] + _M[1] * t) + (_M[2] + _M[3] * t) * t2 + ((_M[4] + _M[5] * t) + (_M[6] + _M[7] * t) * t2) * t4
    )
    high = (_M[8] + _M[9] * t) + (_M[10] + _M[11] * t) * t2 + ((_M[12] + _M[13] * t) + _M[14] * t2) * t4
    ratio = (low + high * t8) * near
    inverse_bell = _ROOT_2PI * math.exp(min(0.5 * x * x, 700.0))
    same, other = (plus, minus) if z >= 0 else (minus, plus)
    return (plus - minus) / (same * (inverse_bell - ratio) + other * ratio)


@njit(nogil=True, cache=True, fastmath={"contract"})
def _begin(llr, start, precision, slope, first, last, plus, minus, xi, nu, mu, sigma):
    """Set the initial sites of four coordinates, and the posterior that they give."""
    devices = llr.shape[0]
    for k in range(devices):
        for b in range(LANES):
            value = llr[k, min(first + b, last - 1)]
            small = math.exp(-2 * abs(value))
            large = 1 / (1 + small)
            plus[k, b] = large if value >= 0 else small * large
            minus[k, b] = small * large if value >= 0 else large
            xi[k, b] = precision[k]
            nu[k, b] = slope[k] * (plus[k, b] - minus[k, b])
    for i in range(devices):
        t0 = t1 = t2 = t3 = 0.0
        for k in range(devices):
            s = start[i, k]
            t0 += s * nu[k, 0]
            t1 += s * nu[k, 1]
            t2 += s * nu[k, 2]
            t3 += s * nu[k, 3]
        mu[i, 0], mu[i, 1], mu[i, 2], mu[i, 3] = t0, t1, t2, t3
        for k in range(i + 1):
            s = start[i, k]
            sigma[i, k, 0], sigma[i, k, 1], sigma[i, k, 2], sigma[i, k, 3] = s, s, s, s


@njit(nogil=True, cache=True, fastmath={"contract"})
def _site(k, hold, damping, column, plus, minus, xi, nu, mu, moved, shift, factor):
    """Match site k in every lane; fill the change, `shift` and `factor`; note the largest moves."""
    for b in range(LANES):
        variance, mean = column[k, b], mu[k, b]
        # Without this site the variance is at most a little more than the prior's, which is one. More is a
        # sign of other sites that are not in balance yet.
        left = max(1 - xi[k, b] * variance, variance * _LEAST_PRECISION)
        without = 1 / left
        cavity = variance * without
        centre = (mean - variance * nu[k, b]) * without
        root = math.sqrt(cavity)
        z = centre / root
        pull = _pull(z, plus[k, b], minus[k, b])
        # A bit that contradicts the cavity widens it: shrink is above one, and the site's precision negative.
        shrink = max(1 - pull * (z + pull), 1e-10)
        if hold:
            shrink = min(shrink, 1.0)
        new_mean = centre + root * pull
        precision = 1 / (cavity * shrink)
        delta_xi = damping * ((1 - shrink) * precision - xi[k, b])
        delta_nu = damping * ((new_mean - centre * shrink) * precision - nu[k, b])
        scale = 1 + delta_xi * variance
        if scale < 0.1:  # no update widens a variance more than tenfold
            delta_xi, scale = -0.9 / variance, 0.1
        scale = 1 / scale
        xi[k, b] += delta_xi
        nu[k, b] += delta_nu
        shift[b] = (delta_nu - delta_xi * mean) * scale
        factor[b] = delta_xi * scale
        move = (new_mean - mean) * (new_mean - mean)
        moved[b] = max(moved[b], move / variance) if move >= 0 else np.inf  # NaN counts as moved


@njit(nogil=True, cache=True, fastmath={"contract"})
def _change(column, shift, factor, mu, sigma):
    """Add a rank-one term to the covariance (lower triangle) and move the mean."""
    devices = column.shape[0]
    h0, h1, h2, h3 = -shift[0], -shift[1], -shift[2], -shift[3]
    for i in range(devices):
        _subtract(mu, column, i, h0, h1, h2, h3)
    f0, f1, f2, f3 = factor[0], factor[1], factor[2], factor[3]
    for i in range(devices):
        a0, a1, a2, a3 = f0 * column[i, 0], f1 * column[i, 1], f2 * column[i, 2], f3 * column[i, 3]
        row = sigma[i]
        for j in range(i + 1):
            _subtract(row, column, j, a0, a1, a2, a3)


@njit(nogil=True, cache=True, fastmath={"contract"})
def ep_groups(llr, start, precision, slope, combine, sweeps, tolerance, first, last, out, info):
    """Run EP for groups first ... last - 1 of four coordinates.

    `llr` [K, M]; `start` [K, K] is the covariance given the initial sites, which have `precision` [K] and the
    natural mean slope[k]*tanh(llr[k, m]); `combine` [R, K]; `out` [R, M]; `info` [M] int8 gets the number of
    sweeps, negative if the last one still moved a mean by `tolerance` standard deviations.
    """
    devices, size = llr.shape
    sigma = np.zeros((devices, devices, LANES))
    plus = np.empty((devices, LANES))
    minus = np.empty((devices, LANES))
    xi = np.empty((devices, LANES))
    nu = np.empty((devices, LANES))
    mu = np.empty((devices, LANES))
    column = np.empty((devices, LANES))
    moved = np.empty(LANES)
    shift = np.empty(LANES)
    factor = np.empty(LANES)
    settled = np.empty(LANES, np.bool_)
    limit = tolerance * tolerance
    for group in range(first, last):
        begin = group * LANES
        for b in range(LANES):
            settled[b] = begin + b >= size
        # A second try for coordinates that did not settle, without negative precisions: less accurate but
        # tame.
        for hold in (False, True):
            _begin(llr, start, precision, slope, begin, size, plus, minus, xi, nu, mu, sigma)
            done = 0
            while done < sweeps:
                moved[:] = 0.0
                damping = 1.0 if done < UNDAMPED else 0.7
                for k in range(devices):
                    for j in range(k + 1):
                        _copy(column, j, sigma[k], j)
                    for j in range(k + 1, devices):
                        _copy(column, j, sigma[j], k)
                    _site(k, hold, damping, column, plus, minus, xi, nu, mu, moved, shift, factor)
                    _change(column, shift, factor, mu, sigma)
                done += 1
                if moved.max() < limit:
                    break
            for b in range(min(LANES, size - begin)):
                if settled[b]:
                    continue
                settled[b] = moved[b] < limit
                info[begin + b] = done if settled[b] else -done
                if settled[b] or hold:
                    for r in range(combine.shape[0]):
                        total = 0.0
                        for k in range(devices):
                            total += combine[r, k] * mu[k, b]
                        out[r, begin + b] = total
            if settled.all():
                break
