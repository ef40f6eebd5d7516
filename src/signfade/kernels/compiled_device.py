"""The device's side in numba: sums over layers in a fixed order, and signs packed without being stored.

A sum runs over 16 lanes, lane j adding entries j, j + 16, ... of the layer in float64, and then over the
lanes, neighbours first. One thread works on a device's row, so no result depends on the number of threads.
"""

# mypy: ignore-errors
# (numba infers the types of this file itself)

from __future__ import annotations

import numpy as np

from signfade._jit import njit

LANES = 16


@njit(nogil=True, cache=True)
def _join(lanes):
    step = 1
    while step < LANES:
        for j in range(0, LANES, 2 * step):
            lanes[j] += lanes[j + step]
        step *= 2
    return lanes[0]


@njit(nogil=True, cache=True)
def _sum(x, lanes):
    lanes[:] = 0.0
    whole = x.shape[0] // LANES
    for i in range(whole):
        part = x[i * LANES : (i + 1) * LANES]
        for j in range(LANES):
            lanes[j] += np.float64(part[j])
    for j in range(x.shape[0] - whole * LANES):
        lanes[j] += np.float64(x[whole * LANES + j])
    return _join(lanes)


@njit(nogil=True, cache=True)
def _deviations(x, centre, absolute, square):
    absolute[:] = 0.0
    square[:] = 0.0
    whole = x.shape[0] // LANES
    for i in range(whole):
        part = x[i * LANES : (i + 1) * LANES]
        for j in range(LANES):
            d = np.float64(part[j]) - centre
            absolute[j] += abs(d)
            square[j] += d * d
    for j in range(x.shape[0] - whole * LANES):
        d = np.float64(x[whole * LANES + j]) - centre
        absolute[j] += abs(d)
        square[j] += d * d
    return _join(absolute), _join(square)


@njit(nogil=True, cache=True)
def layer_sums(g, bounds, total, first, last):
    """Fill rows first ... last - 1 of `total` [K, S] with the sums over the layers of `g` [K, M]."""
    lanes = np.empty(LANES)
    for k in range(first, last):
        for s in range(bounds.shape[0] - 1):
            total[k, s] = _sum(g[k, bounds[s] : bounds[s + 1]], lanes)


@njit(nogil=True, cache=True)
def layer_deviations(g, centre, bounds, absolute, square, first, last):
    """Fill rows of `absolute` and `square` [K, S] with the sums of |d| and d^2, d = g - centre."""
    lanes = np.empty(LANES)
    other = np.empty(LANES)
    for k in range(first, last):
        for s in range(bounds.shape[0] - 1):
            a, b = _deviations(g[k, bounds[s] : bounds[s + 1]], centre[k, s], lanes, other)
            absolute[k, s] = a
            square[k, s] = b


@njit(nogil=True, cache=True)
def _compare(x, threshold, flags):
    for j in range(x.shape[0]):
        flags[j] = not (x[j] < threshold)


@njit(nogil=True, cache=True)
def _pack(flags, packed):
    for i in range(packed.shape[0]):
        part = flags[8 * i : 8 * i + 8]
        byte = 0
        for j in range(8):
            byte |= part[j] << (7 - j)
        packed[i] = byte


@njit(nogil=True, cache=True)
def pack_rows(g, threshold, bounds, packed, first, last):
    """Fill rows of `packed` [K, ceil(M/8)]: bit 1 where g >= threshold [K, S], the first bit on top."""
    flags = np.zeros(8 * packed.shape[1], np.uint8)
    for k in range(first, last):
        for s in range(bounds.shape[0] - 1):
            _compare(g[k, bounds[s] : bounds[s + 1]], threshold[k, s], flags[bounds[s] : bounds[s + 1]])
        _pack(flags, packed[k])
