"""Keyed Gaussian noise: coordinate m of stream k is a function of (keys[k], m) and of nothing else.

A draw is a 32-bit word: its top bit is the sign, its other 31 bits are an integer v, and
`|z| = Phi^-1(1 - p/2)` with `p = (v + 1/2) / 2^31`. The quantile is a piecewise quadratic, whose cells are
cut where the *floating-point* form of v + 1/2 cuts them: 32 cells in every octave, 32 octaves. So cells
shrink with p, and the tail down to a probability of 2^-33 on each side (|z| = 6.338) is followed as closely
as the centre. Index and position inside a cell are plain bit fields of that float; no logarithm is taken.

Kernels release the GIL and run on one thread; callers cut the coordinates into ranges and hand them to Python
threads. Float arithmetic is plain IEEE, without fused multiply-add, so every machine gets the same bits. Work
goes through tiles of 512 coordinates that stay in the first-level cache, in short loops that the compiler
turns into vector instructions.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, var-annotated"
# mypy: no-warn-unreachable

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np
from numba import uint32
from numpy.typing import NDArray

from signfade.kernels.jit import njit
from signfade.kernels.simd import add, float_bits, from_bits, rotate, shift_right, sub, to_float
from signfade.kernels.threads import available_threads, run_ranges

__all__ = ["CELL_BITS", "FIRST_CELL", "TILE", "check_keys", "quantile_table", "standard_normal"]

TILE = 512  # coordinates that share a run of counters; a stream's bits depend on it
CELL_BITS = 18  # mantissa bits left below the 5 that choose one of an octave's 32 cells
FIRST_CELL = (127 - 1) << 5  # the cell of 0.5 = float(0 + 1/2), the smallest argument


@cache
def quantile_table() -> NDArray[np.float32]:
    """Return the coefficients `[3, 1025]` of `z = c0 + t*(c1 + t*c2)`, one column per cell.

    t is the integer position in the cell, counted from its middle (-2^17 <= t < 2^17). Every quadratic meets
    the quantile in the three Chebyshev nodes of its cell, which is close to the best one. The last cell
    holds the single argument 2^31 (v rounded up), where z = 0.

    Example:
        >>> quantile_table().shape
        (3, 1025)
    """
    cells = np.arange(32 * 32)
    start = 2.0 ** (cells // 32 - 1) * (1 + cells % 32 / 32)
    width = 2.0 ** (cells // 32 - 1) / 32
    nodes = np.cos(np.pi * np.array([1.0, 3.0, 5.0]) / 6) / 2  # in cell widths, from the middle
    upper_tail = (start + width * (nodes[:, None] + 0.5)) / 2**32
    inverse = NormalDist().inv_cdf
    z = np.array([[-inverse(p) for p in row] for row in upper_tail.tolist()])
    coefficients = np.linalg.solve(np.vander(nodes, increasing=True), z)
    coefficients *= 2.0 ** (-CELL_BITS * np.arange(3.0))[:, None]
    table: NDArray[np.float32] = np.zeros((3, 32 * 32 + 1), dtype=np.float32)
    table[:, :-1] = coefficients
    table.flags.writeable = False
    return table


# Compiled in as constants, a quarter faster than arguments.
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


def check_keys(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return `keys` as a contiguous `[K]` array of uint64, or raise."""
    keys = np.asarray(keys)
    if keys.ndim != 1 or keys.dtype != np.uint64:
        raise ValueError(f"keys must be uint64 of shape [K]; got {keys.dtype} of shape {list(keys.shape)}")
    return keys.copy()  # contiguous and writable: kernels are compiled anew for every kind of array


def standard_normal(
    keys: NDArray[np.uint64],
    size: int,
    start: int = 0,
    *,
    threads: int | None = None,
) -> NDArray[np.float32]:
    """Draw standard normal numbers from counter-based streams.

    `word(k, m) = Threefry2x32-20(keys[k], counter of m)`, `z = +-Phi^-1(1 - p/2)`, `p = (v + 1/2) / 2^31`
    with 31 bits v and one sign bit of the word. The quantile is read from a piecewise quadratic table: it is
    within 5.2e-7 of the true one (2.5e-7 where |z| < 1) up to |z| = 6.338, a tail of 2^-33 on each side.

    Args:
        keys: one 64-bit key per stream, uint64 `[K]` (see `signfade.keys.stream_key`).
        size: how many coordinates.
        start: the first coordinate; coordinate m is the same number whatever `start` and `size` are.
        threads: at most this many threads, by default as many as there are cores. Never changes a result.

    Returns:
        float32 `[K, size]`.

    Raises:
        ValueError: keys of another type or shape, a negative size or start.

    Example:
        >>> keys = np.array([3, 4], dtype=np.uint64)
        >>> z = standard_normal(keys, 1000)
        >>> z.shape, bool((z[1:, 10:20] == standard_normal(keys[1:], 10, start=10)).all())
        ((2, 1000), True)

    Reference:
        Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3 (2011), for Threefry.
    """
    keys = check_keys(keys)
    if size < 0 or start < 0:
        raise ValueError(f"size and start must be non-negative; got {size} and {start}")
    out: NDArray[np.float32] = np.empty((len(keys), size), dtype=np.float32)
    if out.size == 0:
        return out
    first, last = start // TILE, -(-(start + size) // TILE)

    def work(a: int, b: int) -> None:
        fill_normal(keys, start, out, first + a, first + b)

    run_ranges(work, last - first, threads or available_threads())
    return out
