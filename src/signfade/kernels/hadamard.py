"""The compiled half of `rotate`: a Walsh-Hadamard transform in few passes over the cache, on one thread.

Callers cut the work into ranges and hand them to Python threads; no number depends on where the cuts are.
Three stages at a time on vectors of eight: a number is loaded once for eight that it meets.
"""

# mypy: ignore-errors
# (numba infers the types of this file itself)

from __future__ import annotations

import numpy as np

from signfade.kernels.jit import njit
from signfade.kernels.simd import WIDTH, lane_butterflies, load, store

STRIP = 128  # columns at a time in the second pass: long loops that still fit the cache


@njit(nogil=True, cache=True)
def within_blocks(source, signs, flip, scale, out, block, first, last):
    """Transform blocks first ... last - 1 of all devices: copy, pad with zeros, butterflies.

    With `flip` signs and scale come first. `source` [K, size] is left alone; `out` is [K, n], n a multiple of
    `block`, a power of two.
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
                row[i] = taken[i] * (scale * sign[i])
        else:
            for i in range(given):
                row[i] = taken[i]
        row[given:] = 0
        _butterflies(row, block)


@njit(nogil=True, cache=True)
def across_blocks(middle, factor, codes, signs, flip, scale, out, block, first, last):
    """Transform across the blocks, strip by strip of columns, and write `out` [K, size].

    The n/block rows of a device are seen as [p, R]: Walsh-Hadamard over R, then the dense `factor` [p, p],
    which `codes` tells in another way. `middle` and `out` may be the same.
    """
    size = out.shape[1]
    rows = middle.shape[1] // block
    order = factor.shape[0]
    inner = rows // order
    width = min(STRIP, block)
    strips = block // width
    taken = np.empty(rows * width, out.dtype)
    mixed = np.empty(rows * width if order > 1 else 0, out.dtype)
    table = np.empty(order * 4 * WIDTH, out.dtype)
    for task in range(first, last):
        device, begin = task // strips, (task % strips) * width
        for row in range(rows):
            source = middle[device, row * block + begin : row * block + begin + width]
            target = taken[row * width : (row + 1) * width]
            for i in range(width):
                target[i] = source[i]
        for group in range(order):
            _stages(taken[group * inner * width : (group + 1) * inner * width], width, inner * width)
        result = taken
        if order > 1:
            if width < WIDTH:
                _mix_plainly(taken, factor, mixed, order, inner * width)
            else:
                _mix(taken, codes, table, mixed, order, inner * width)
            result = mixed
        for row in range(rows):
            start = row * block + begin
            given = max(0, min(width, size - start))
            source = result[row * width : row * width + given]
            target = out[device, start : start + given]
            if flip:
                sign = signs[start : start + given]
                for i in range(given):
                    target[i] = source[i] * (scale * sign[i])
            else:
                for i in range(given):
                    target[i] = source[i]


@njit(nogil=True, cache=True)
def whole_devices(source, factor, codes, signs, inverse, scale, out, block, first, last):
    """Transform devices first ... last - 1 one by one: what is between the passes stays in the cache."""
    n = max(source.shape[1], out.shape[1])
    rows = n // block
    middle = np.empty((1, n if inverse else 0), out.dtype)
    strips = block // min(STRIP, block)
    for device in range(first, last):
        row = out[device : device + 1]
        between = middle if inverse else row
        within_blocks(source[device : device + 1], signs, not inverse, scale, between, block, 0, rows)
        across_blocks(between, factor, codes, signs, inverse, scale, row, block, 0, strips)


@njit(nogil=True, cache=True)
def _butterflies(row, block):
    if block >= WIDTH:
        for i in range(0, block, WIDTH):
            store(row, i, lane_butterflies(load(row, i)))
        _stages(row, WIDTH, block)
    else:
        _stages(row, 1, block)


@njit(nogil=True, cache=True)
def _stages(x, step, size):
    """All stages from `step` on, of a transform of `size` entries."""
    while step < min(WIDTH, size):
        for begin in range(0, size, 2 * step):
            for i in range(begin, begin + step):
                a, b = x[i], x[i + step]
                x[i], x[i + step] = a + b, a - b
        step *= 2
    while 8 * step <= size:
        _three_stages(x, step, size)
        step *= 8
    while 2 * step <= size:
        _one_stage(x, step, size)
        step *= 2


@njit(nogil=True, cache=True)
def _one_stage(x, step, size):
    for begin in range(0, size, 2 * step):
        for i in range(begin, begin + step, WIDTH):
            a, b = load(x, i), load(x, i + step)
            store(x, i, a + b)
            store(x, i + step, a - b)


@njit(nogil=True, cache=True)
def _three_stages(x, step, size):
    for begin in range(0, size, 8 * step):
        for i in range(begin, begin + step, WIDTH):
            a, b = load(x, i), load(x, i + step)
            c, d = load(x, i + 2 * step), load(x, i + 3 * step)
            e, f = load(x, i + 4 * step), load(x, i + 5 * step)
            g, h = load(x, i + 6 * step), load(x, i + 7 * step)
            a, b, c, d, e, f, g, h = a + b, a - b, c + d, c - d, e + f, e - f, g + h, g - h
            a, c, b, d, e, g, f, h = a + c, a - c, b + d, b - d, e + g, e - g, f + h, f - h
            store(x, i, a + e)
            store(x, i + step, b + f)
            store(x, i + 2 * step, c + g)
            store(x, i + 3 * step, d + h)
            store(x, i + 4 * step, a - e)
            store(x, i + 5 * step, b - f)
            store(x, i + 6 * step, c - g)
            store(x, i + 7 * step, d - h)


@njit(nogil=True, cache=True)
def _mix_plainly(taken, factor, mixed, order, length):
    for i in range(order):
        for c in range(length):
            total = taken[c] * factor[i, 0]
            for j in range(1, order):
                total += factor[i, j] * taken[j * length + c]
            mixed[i * length + c] = total


@njit(nogil=True, cache=True)
def _mix(taken, codes, table, mixed, order, length):
    # Every row of the factor is made of signs, so of four inputs it needs one of sixteen sums: all are made
    # once, and an output adds up order/4 of them ("four Russians"). `codes` [p, p/4] says where they stand.
    for c in range(0, length, WIDTH):
        for j in range(0, order, 4):
            _sixteen_sums(taken, j * length + c, length, table, 4 * j * WIDTH)
        for i in range(0, order, 4):
            p, q, r, s = codes[i], codes[i + 1], codes[i + 2], codes[i + 3]
            a, b, e, f = load(table, p[0]), load(table, q[0]), load(table, r[0]), load(table, s[0])
            for j in range(1, order // 4):
                a = a + load(table, p[j])
                b = b + load(table, q[j])
                e = e + load(table, r[j])
                f = f + load(table, s[j])
            store(mixed, i * length + c, a)
            store(mixed, (i + 1) * length + c, b)
            store(mixed, (i + 2) * length + c, e)
            store(mixed, (i + 3) * length + c, f)


@njit(nogil=True, cache=True)
def _sixteen_sums(x, start, step, table, place):
    """Bit i of an entry's number says that x_i is taken negative."""
    a, b = load(x, start), load(x, start + step)
    c, d = load(x, start + 2 * step), load(x, start + 3 * step)
    p, q, r, s = a + b, b - a, c + d, d - c
    _both_signs(table, place, 0, p + r)
    _both_signs(table, place, 1, q + r)
    _both_signs(table, place, 2, r - q)
    _both_signs(table, place, 3, r - p)
    _both_signs(table, place, 4, p + s)
    _both_signs(table, place, 5, q + s)
    _both_signs(table, place, 6, s - q)
    _both_signs(table, place, 7, s - p)


@njit(nogil=True, cache=True)
def _both_signs(table, place, number, value):
    store(table, place + number * WIDTH, value)
    store(table, place + (15 - number) * WIDTH, value * -1.0)
