"""The numba kernels. Nothing here is public; importing it loads numba and is done on first use.

All kernels release the GIL and run on one thread; callers cut the coordinates into ranges and hand them to
Python threads. Float arithmetic is plain IEEE (no fused multiply-add, no reordering), so that
`portable` can give the same bits.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint32

from signfade.kernels.table import CELL_BITS, FIRST_CELL, quantile_table

TILE = 512  # coordinates a tile: word 0 of its 256 counters, then word 1
HALF = TILE // 2
PARITY = np.uint32(0x1BD11BDA)
TABLE = quantile_table()
CONSTANT, SLOPE, CURVE = TABLE[0].copy(), TABLE[1].copy(), TABLE[2].copy()
_T_MASK = np.int32((1 << CELL_BITS) - 1)
_T_MIDDLE = np.int32(1 << (CELL_BITS - 1))
_CELL_BITS = np.int32(CELL_BITS)
_FIRST_CELL = np.int32(FIRST_CELL)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_SIGN = np.uint32(0x80000000)


@njit(inline="always")
def _rotate(x, r):
    return uint32((x << uint32(r)) | (x >> uint32(32 - r)))


@njit(inline="always")
def _four(x0, x1, a, b, c, d):
    x0 = uint32(x0 + x1)
    x1 = _rotate(x1, a) ^ x0
    x0 = uint32(x0 + x1)
    x1 = _rotate(x1, b) ^ x0
    x0 = uint32(x0 + x1)
    x1 = _rotate(x1, c) ^ x0
    x0 = uint32(x0 + x1)
    x1 = _rotate(x1, d) ^ x0
    return x0, x1


@njit(inline="always")
def threefry(k0, k1, x0, x1):
    """Threefry2x32, 20 rounds."""
    k2 = uint32(k0 ^ k1 ^ PARITY)
    x0 = uint32(x0 + k0)
    x1 = uint32(x1 + k1)
    x0, x1 = _four(x0, x1, 13, 15, 26, 6)
    x0 = uint32(x0 + k1)
    x1 = uint32(x1 + k2 + uint32(1))
    x0, x1 = _four(x0, x1, 17, 29, 16, 24)
    x0 = uint32(x0 + k2)
    x1 = uint32(x1 + k0 + uint32(2))
    x0, x1 = _four(x0, x1, 13, 15, 26, 6)
    x0 = uint32(x0 + k0)
    x1 = uint32(x1 + k1 + uint32(3))
    x0, x1 = _four(x0, x1, 17, 29, 16, 24)
    x0 = uint32(x0 + k1)
    x1 = uint32(x1 + k2 + uint32(4))
    x0, x1 = _four(x0, x1, 13, 15, 26, 6)
    x0 = uint32(x0 + k2)
    x1 = uint32(x1 + k0 + uint32(5))
    return x0, x1


@njit(nogil=True, cache=True)
def words_tile(key, tile, words):
    """Fill `words` [512] uint32 with the random words of coordinates tile*512 ... tile*512 + 511."""
    k0 = uint32(key & np.uint64(0xFFFFFFFF))
    k1 = uint32(key >> np.uint64(32))
    first = np.uint64(tile) * np.uint64(HALF)
    low = uint32(first & np.uint64(0xFFFFFFFF))  # HALF divides 2^32: the low word does not overflow in a tile
    high = uint32(first >> np.uint64(32))
    for j in range(HALF):
        x0, x1 = threefry(k0, k1, uint32(low + uint32(j)), high)
        words[j] = x0
        words[HALF + j] = x1


@njit(nogil=True, cache=True)
def normal_tile(words, position, z):
    """Turn the random `words` of a tile into normal numbers `z`; `position` [512] int32 is scratch."""
    floats = z.view(np.int32)
    for j in range(TILE):
        z[j] = np.float32(np.int32(words[j] & _MAGNITUDE)) + np.float32(0.5)
    for j in range(TILE):
        position[j] = floats[j]
    for j in range(TILE):
        bits = position[j]
        cell = (bits >> _CELL_BITS) - _FIRST_CELL
        t = np.float32((bits & _T_MASK) - _T_MIDDLE)
        z[j] = CONSTANT[cell] + t * (SLOPE[cell] + t * CURVE[cell])
    signed = z.view(np.uint32)
    for j in range(TILE):
        signed[j] = signed[j] ^ (words[j] & _SIGN)


@njit(nogil=True, cache=True)
def fill_normal(keys, start, out, first_tile, last_tile):
    """Fill the part of `out` [K, size] that lies in tiles first_tile ... last_tile - 1 of every stream."""
    words = np.empty(TILE, np.uint32)
    position = np.empty(TILE, np.int32)
    z = np.empty(TILE, np.float32)
    size = out.shape[1]
    for k in range(keys.shape[0]):
        for tile in range(first_tile, last_tile):
            words_tile(keys[k], tile, words)
            normal_tile(words, position, z)
            begin = max(tile * TILE, start)
            end = min((tile + 1) * TILE, start + size)
            for m in range(begin, end):
                out[k, m - start] = z[m - tile * TILE]
