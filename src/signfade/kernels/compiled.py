"""The noise kernels in numba. Nothing here is public; importing it loads numba and is done on first use.

All kernels release the GIL and run on one thread; callers cut the coordinates into ranges and hand them to
Python threads. Float arithmetic is plain IEEE (no fused multiply-add, no reordering), so that
`portable` can give the same bits. Work goes through tiles of 512 coordinates that stay in the first-level
cache, in several short loops a tile: short loops are what the compiler turns into vector instructions.
"""

# mypy: ignore-errors
# (numba infers the types of this file itself)

from __future__ import annotations

import numpy as np
from numba import uint32

from signfade._jit import njit
from signfade.kernels.lanes import add, float_bits, from_bits, rotate, shift_right, sub, to_float
from signfade.kernels.table import CELL_BITS, FIRST_CELL, TILE, quantile_table

# Compiled in as constants, a quarter faster than arguments. numba's cache watches this file alone: save it
# anew after a change to the table.
CONSTANT, SLOPE, CURVE = (row.copy() for row in quantile_table())
HALF = TILE // 2  # a tile's counters: word 0 of each makes its first half, word 1 its second


@njit(inline="always")
def _four_rounds(x0, x1, a, b, c, d):
    x0 = add(x0, x1)
    x1 = rotate(x1, a) ^ x0
    x0 = add(x0, x1)
    x1 = rotate(x1, b) ^ x0
    x0 = add(x0, x1)
    x1 = rotate(x1, c) ^ x0
    x0 = add(x0, x1)
    x1 = rotate(x1, d) ^ x0
    return x0, x1


@njit(inline="always")
def _threefry(k0, k1, x0, x1):
    k2 = k0 ^ k1 ^ uint32(0x1BD11BDA)
    x0 = add(x0, k0)
    x1 = add(x1, k1)
    x0, x1 = _four_rounds(x0, x1, 13, 15, 26, 6)
    x0 = add(x0, k1)
    x1 = add(x1, add(k2, 1))
    x0, x1 = _four_rounds(x0, x1, 17, 29, 16, 24)
    x0 = add(x0, k2)
    x1 = add(x1, add(k0, 2))
    x0, x1 = _four_rounds(x0, x1, 13, 15, 26, 6)
    x0 = add(x0, k0)
    x1 = add(x1, add(k1, 3))
    x0, x1 = _four_rounds(x0, x1, 17, 29, 16, 24)
    x0 = add(x0, k1)
    x1 = add(x1, add(k2, 4))
    x0, x1 = _four_rounds(x0, x1, 13, 15, 26, 6)
    x0 = add(x0, k2)
    x1 = add(x1, add(k0, 5))
    return x0, x1


@njit(nogil=True, cache=True)
def tile_words(key, tile, words):
    """Fill `words` [512] with the random words of a tile's coordinates."""
    k0 = uint32(key & np.uint64(0xFFFFFFFF))
    k1 = uint32(key >> np.uint64(32))
    first = np.uint64(tile) * np.uint64(HALF)
    low = uint32(first & np.uint64(0xFFFFFFFF))  # HALF divides 2^32: the low word cannot overflow in a tile
    high = uint32(first >> np.uint64(32))
    for j in range(HALF):
        x0, x1 = _threefry(k0, k1, add(low, j), high)
        words[j] = x0
        words[HALF + j] = x1


@njit(nogil=True, cache=True)
def tile_normal(words, cell, scratch, z):
    """Turn the random `words` [512] of a tile into normal numbers `z` [512]."""
    t, c0, c1, c2 = scratch[0], scratch[1], scratch[2], scratch[3]
    for j in range(TILE):
        bits = float_bits(to_float(words[j] & uint32(0x7FFFFFFF)) + np.float32(0.5))
        cell[j] = sub(shift_right(bits, CELL_BITS), FIRST_CELL)
        t[j] = to_float(sub(bits & uint32((1 << CELL_BITS) - 1), 1 << (CELL_BITS - 1)))
    for j in range(TILE):
        i = cell[j]
        c0[j] = CONSTANT[i]
        c1[j] = SLOPE[i]
        c2[j] = CURVE[i]
    for j in range(TILE):
        magnitude = c0[j] + t[j] * (c1[j] + t[j] * c2[j])
        z[j] = from_bits(float_bits(magnitude) ^ (words[j] & uint32(0x80000000)))


@njit(nogil=True, cache=True)
def fill_normal(keys, start, out, first_tile, last_tile):
    """Fill the part of `out` [K, size] that lies in tiles first_tile ... last_tile - 1 of every stream."""
    words = np.empty(TILE, np.uint32)
    cell = np.empty(TILE, np.uint32)
    scratch = np.empty((4, TILE), np.float32)
    z = np.empty(TILE, np.float32)
    size = out.shape[1]
    for k in range(keys.shape[0]):
        for tile in range(first_tile, last_tile):
            tile_words(keys[k], tile, words)
            tile_normal(words, cell, scratch, z)
            begin = max(tile * TILE, start)
            end = min((tile + 1) * TILE, start + size)
            out[k, begin - start : end - start] = z[begin - tile * TILE : end - tile * TILE]
