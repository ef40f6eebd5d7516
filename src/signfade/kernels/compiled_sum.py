"""The fused uplink in numba: bits, noise, rule and sum in one pass over tiles that stay in the cache.

Threads share out tiles of coordinates. Inside a tile devices are added one after another, in the order in
which they are given, each as `offset + factor*f` in float64: no result depends on the number of threads, nor
on how the devices are cut into calls that continue one accumulator.
"""

# mypy: ignore-errors
# (numba infers the types of this file itself)

from __future__ import annotations

import math

import numpy as np
from numba import uint32

from signfade._jit import njit
from signfade.kernels.compiled import tile_normal, tile_words
from signfade.kernels.lanes import add, float_bits, from_bits, shift_left
from signfade.kernels.rules import EXP2, TANH_LIMIT
from signfade.kernels.table import TILE

_E1, _E2, _E3, _E4, _E5, _E6 = (np.float32(c) for c in EXP2[1:])
_LIMIT = np.float32(TANH_LIMIT)
_MINUS_TWO_LOG2E = np.float32(-2 / math.log(2))
_ROUND = np.float32(1.5 * 2**23)  # adding it rounds to an integer, which then stands in the low bits
_ONE = np.float32(1)


@njit(nogil=True, cache=True)
def tile_flips(packed, first_byte, flips):
    """Expand the bits of a tile: the sign bit of `flips[j]` is set where device j's sign is -1."""
    count = min(TILE // 8, packed.shape[0] - first_byte)
    for j in range(count):
        byte = uint32(packed[first_byte + j]) ^ uint32(0xFF)
        for i in range(8):
            flips[8 * j + i] = shift_left(byte, 24 + i) & uint32(0x80000000)


@njit(nogil=True, cache=True)
def tile_argument(flips, signal, noise, z, argument):
    """`argument = signal*s + noise*z`."""
    bits = float_bits(signal)
    for j in range(TILE):
        argument[j] = from_bits(bits ^ flips[j]) + noise * z[j]


@njit(nogil=True, cache=True, error_model="numpy")  # the default tests every divisor, one by one
def tile_tanh(x, y):
    """`y = tanh(x)` through exp(-2|x|), within 1.2e-7 of it."""
    for j in range(TILE):
        bits = float_bits(x[j])
        sign = bits & uint32(0x80000000)
        size = from_bits(bits ^ sign)
        power = (size if size < _LIMIT else _LIMIT) * _MINUS_TWO_LOG2E
        shifted = power + _ROUND
        f = power - (shifted - _ROUND)
        p = _ONE + f * (_E1 + f * (_E2 + f * (_E3 + f * (_E4 + f * (_E5 + f * _E6)))))
        e = from_bits(add(float_bits(p), shift_left(float_bits(shifted), 23)))
        y[j] = from_bits(float_bits((_ONE - e) / (_ONE + e)) ^ sign)


@njit(nogil=True, cache=True)
def tile_sign(x, y, size):
    """`y = size*sign(x)`, +size at 0."""
    for j in range(TILE):
        y[j] = size if x[j] >= 0 else -size


@njit(nogil=True, cache=True)
def tile_add(offset, factor, f, sums):
    """`sums += offset + factor*f` in float64."""
    for j in range(f.shape[0]):
        sums[j] += offset + factor * np.float64(f[j])


@njit(nogil=True, cache=True)
def add_devices(
    function, packed, signal, noise, keys, offset, factor, bounds, total, result, first_tile, last_tile
):
    """Add all devices over tiles first_tile ... last_tile - 1.

    `total` [M] float64 is continued if it is not empty; else sums start at 0 and go to `result` [M] float32.
    `offset`, `factor` [K, S] hold for the coordinates bounds[s] ... bounds[s + 1] - 1.
    """
    words = np.empty(TILE, np.uint32)
    cell = np.empty(TILE, np.uint32)
    flips = np.zeros(TILE, np.uint32)
    scratch = np.empty((4, TILE), np.float32)
    z = np.zeros(TILE, np.float32)
    x = np.empty(TILE, np.float32)
    y = np.empty(TILE, np.float32)
    sums = np.empty(TILE, np.float64)
    size = bounds[-1]
    segment = 0
    for tile in range(first_tile, last_tile):
        begin = tile * TILE
        length = min(TILE, size - begin)
        while bounds[segment + 1] <= begin:
            segment += 1
        sums[:] = 0.0
        if total.shape[0] > 0:
            sums[:length] = total[begin : begin + length]
        for k in range(packed.shape[0]):
            tile_flips(packed[k], begin // 8, flips)
            if noise[k] != 0:
                tile_words(keys[k], tile, words)
                tile_normal(words, cell, scratch, z)
            tile_argument(flips, signal[k], noise[k], z, x)
            f = x
            if function == 0:
                tile_tanh(x, y)
                f = y
            elif function == 2:
                tile_sign(x, y, np.float32(1) if signal[k] != 0 else np.float32(0))
                f = y
            s = segment
            start = 0
            while start < length:
                stop = min(bounds[s + 1] - begin, length)
                tile_add(offset[k, s], factor[k, s], f[start:stop], sums[start:stop])
                start = stop
                s += 1
        if total.shape[0] > 0:
            total[begin : begin + length] = sums[:length]
        else:
            for j in range(length):
                result[begin + j] = np.float32(sums[j])


@njit(nogil=True, cache=True)
def add_soft_bits(y, slope, weight, result, first_tile, last_tile):
    """`result = sum_k weight_k*tanh(slope_k*y_k)` over tiles first_tile ... last_tile - 1 of `y` [K, M].

    In float64, devices one after another; NaN where a y is not finite.
    """
    x = np.zeros(TILE, np.float32)
    f = np.empty(TILE, np.float32)
    sums = np.empty(TILE, np.float64)
    size = y.shape[1]
    for tile in range(first_tile, last_tile):
        begin = tile * TILE
        length = min(TILE, size - begin)
        sums[:] = 0.0
        for k in range(y.shape[0]):
            part = y[k, begin : begin + length]
            for j in range(length):
                x[j] = slope[k] * part[j]
            tile_tanh(x, f)
            for j in range(length):
                sums[j] += weight[k] * np.float64(f[j]) + np.float64(part[j] * np.float32(0))
        for j in range(length):
            result[begin + j] = np.float32(sums[j])


@njit(nogil=True, cache=True)
def fill_received(packed, gain, deviation, keys, start, out, first_tile, last_tile):
    """Fill the part of `out` [K, n], received symbols from coordinate `start` on, that lies in the tiles."""
    words = np.empty(TILE, np.uint32)
    cell = np.empty(TILE, np.uint32)
    flips = np.zeros(TILE, np.uint32)
    scratch = np.empty((4, TILE), np.float32)
    z = np.zeros(TILE, np.float32)
    y = np.empty(TILE, np.float32)
    for k in range(packed.shape[0]):
        for tile in range(first_tile, last_tile):
            tile_flips(packed[k], tile * TILE // 8, flips)
            if deviation[k] != 0:
                tile_words(keys[k], tile, words)
                tile_normal(words, cell, scratch, z)
            begin = tile * TILE - start
            if begin >= 0 and begin + TILE <= out.shape[1]:
                tile_argument(flips, gain[k], deviation[k], z, out[k, begin : begin + TILE])
                continue
            tile_argument(flips, gain[k], deviation[k], z, y)
            first, last = max(begin, 0), min(begin + TILE, out.shape[1])
            out[k, first:last] = y[first - begin : last - begin]
