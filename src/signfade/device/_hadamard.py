"""The compiled half of `rotate`: a Walsh-Hadamard transform in two passes over the cache, on one thread.

Callers cut the work into ranges and hand them to Python threads; no number depends on where the cuts are.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import numpy as np
from numba import njit

STRIP = 128  # columns at a time in the second pass: long loops that still fit the cache


@njit(nogil=True, cache=True, fastmath={"contract"})
def within_blocks(source, signs, flip, out, block, first, last):
    """Transform blocks first ... last - 1 of all devices: copy, flip signs, pad with zeros, butterflies.

    `source` [K, size] is left alone; `out` [K, n] with n a multiple of `block`, a power of two.
    """
    size = source.shape[1]
    blocks = out.shape[1] // block
    for task in range(first, last):
        device, begin = task // blocks, (task % blocks) * block
        row = out[device, begin : begin + block]
        given = max(0, min(block, size - begin))
        taken = source[device, begin : begin + given]
        if flip:
            sign = signs[begin : begin + given]
            for i in range(given):
                row[i] = taken[i] * sign[i]
        else:
            for i in range(given):
                row[i] = taken[i]
        row[given:] = 0
        _butterflies(row, block)


@njit(nogil=True, cache=True, fastmath={"contract"})
def _butterflies(row, block):
    step = 1
    while step * 4 <= block:  # two stages at a time: half the trips to memory
        if step == 1:
            for i in range(0, block, 4):
                a, b, c, d = row[i], row[i + 1], row[i + 2], row[i + 3]
                e, f, g, h = a + b, a - b, c + d, c - d
                row[i], row[i + 1], row[i + 2], row[i + 3] = e + g, f + h, e - g, f - h
        else:
            for begin in range(0, block, 4 * step):
                p = row[begin : begin + step]
                q = row[begin + step : begin + 2 * step]
                r = row[begin + 2 * step : begin + 3 * step]
                s = row[begin + 3 * step : begin + 4 * step]
                for i in range(step):
                    a, b, c, d = p[i], q[i], r[i], s[i]
                    e, f, g, h = a + b, a - b, c + d, c - d
                    p[i], q[i], r[i], s[i] = e + g, f + h, e - g, f - h
        step *= 4
    if step < block:
        for i in range(step):
            a, b = row[i], row[step + i]
            row[i], row[step + i] = a + b, a - b


@njit(nogil=True, cache=True, fastmath={"contract"})
def across_blocks(middle, factor, signs, flip, scale, out, block, first, last):
    """Transform across the blocks, strip by strip of columns, and write `out` [K, size].

    The n/block rows of a device are seen as [p, R]: Walsh-Hadamard over R, then the dense `factor` [p, p].
    """
    size = out.shape[1]
    rows = middle.shape[1] // block
    order = factor.shape[0]
    inner = rows // order
    width = min(STRIP, block)
    strips = block // width
    taken = np.empty((rows, width), out.dtype)
    mixed = np.empty((rows, width), out.dtype)
    for task in range(first, last):
        device, begin = task // strips, (task % strips) * width
        for row in range(rows):
            source = middle[device, row * block + begin : row * block + begin + width]
            target = taken[row]
            for i in range(width):
                target[i] = source[i]
        _rows(taken, order, inner, width)
        result = taken
        if order > 1:
            _mix(taken, factor, mixed, order, inner, width)
            result = mixed
        for row in range(rows):
            start = row * block + begin
            given = max(0, min(width, size - start))
            source = result[row]
            target = out[device, start : start + given]
            if flip:
                sign = signs[start : start + given]
                for i in range(given):
                    target[i] = source[i] * (scale * sign[i])
            else:
                for i in range(given):
                    target[i] = source[i] * scale


@njit(nogil=True, cache=True, fastmath={"contract"})
def _rows(taken, order, inner, width):
    for group in range(order):
        base = group * inner
        step = 1
        while step < inner:
            for begin in range(base, base + inner, 2 * step):
                for row in range(begin, begin + step):
                    upper, lower = taken[row], taken[row + step]
                    for i in range(width):
                        a, b = upper[i], lower[i]
                        upper[i], lower[i] = a + b, a - b
            step *= 2


@njit(nogil=True, cache=True, fastmath={"contract"})
def _mix(taken, factor, mixed, order, inner, width):
    # Tiles of four rows by four (every order above one is a multiple of four): a row read once serves four.
    for r in range(inner):
        for i in range(0, order, 4):
            t0, t1 = mixed[i * inner + r], mixed[(i + 1) * inner + r]
            t2, t3 = mixed[(i + 2) * inner + r], mixed[(i + 3) * inner + r]
            for c in range(width):
                t0[c] = t1[c] = t2[c] = t3[c] = 0
            for j in range(0, order, 4):
                a0, a1, a2, a3 = factor[i, j], factor[i, j + 1], factor[i, j + 2], factor[i, j + 3]
                b0, b1, b2, b3 = (
                    factor[i + 1, j],
                    factor[i + 1, j + 1],
                    factor[i + 1, j + 2],
                    factor[i + 1, j + 3],
                )
                c0, c1, c2, c3 = (
                    factor[i + 2, j],
                    factor[i + 2, j + 1],
                    factor[i + 2, j + 2],
                    factor[i + 2, j + 3],
                )
                d0, d1, d2, d3 = (
                    factor[i + 3, j],
                    factor[i + 3, j + 1],
                    factor[i + 3, j + 2],
                    factor[i + 3, j + 3],
                )
                x0, x1 = taken[j * inner + r], taken[(j + 1) * inner + r]
                x2, x3 = taken[(j + 2) * inner + r], taken[(j + 3) * inner + r]
                for c in range(width):
                    p, q, u, v = x0[c], x1[c], x2[c], x3[c]
                    t0[c] += (a0 * p + a1 * q) + (a2 * u + a3 * v)
                    t1[c] += (b0 * p + b1 * q) + (b2 * u + b3 * v)
                    t2[c] += (c0 * p + c1 * q) + (c2 * u + c3 * v)
                    t3[c] += (d0 * p + d1 * q) + (d2 * u + d3 * v)
