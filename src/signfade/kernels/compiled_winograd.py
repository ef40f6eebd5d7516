"""The two transforms of Winograd's 5x5 convolution in numba; `kernels.winograd` says what they are for.

An 8x8 patch has 64 places, each with the numbers of 32 channels side by side. A transform works on the rows,
then on the columns, in place, all channels at once: loops of 32 that the compiler takes eight at a time.
"""

# mypy: ignore-errors
# (numba infers the types of this file itself)

from __future__ import annotations

import numpy as np
from numba import float32, uint64

from signfade._jit import njit

LANES = 32
_ROW = 8 * LANES

# As in `compiled_pool`: products may be fused with sums, sums may not change places, indices are unsigned.
_jit = njit(nogil=True, cache=True, fastmath={"contract"})
_inline = njit(fastmath={"contract"}, inline="always")


@_inline
def _eight(a, p, q):
    """Return the eight numbers at p, p + q, ..."""
    two, half = q + q, p + uint64(4) * q
    return a[p], a[p + q], a[p + two], a[p + two + q], a[half], a[half + q], a[half + two], a[half + two + q]


@_inline
def _transform_patch(a, start, step):
    """Replace eight numbers, `step` apart, by B' times them."""
    for lane in range(LANES):
        p, q = uint64(start + lane), uint64(step)
        d0, d1, d2, d3, d4, d5, d6, d7 = _eight(a, p, q)
        a[p] = d0 - d6 + (d4 - d2) * float32(5.25)
        even, odd = d2 + d6 - d4 * float32(4.25), d1 + d5 - d3 * float32(4.25)
        a[p + q], a[p + uint64(2) * q] = even + odd, even - odd
        even = d6 + d2 * float32(0.25) - d4 * float32(1.25)
        odd = d1 * float32(0.5) - d3 * float32(2.5) + d5 * float32(2)
        a[p + uint64(3) * q], a[p + uint64(4) * q] = even + odd, even - odd
        even = d6 + (d2 - d4 * float32(1.25)) * float32(4)
        odd = d1 * float32(2) - d3 * float32(2.5) + d5 * float32(0.5)
        a[p + uint64(5) * q], a[p + uint64(6) * q] = even + odd, even - odd
        a[p + uint64(7) * q] = d7 - d1 + (d3 - d5) * float32(5.25)


@_inline
def _transform_product(a, start, step):
    """Replace the first four of eight numbers, `step` apart, by A' times the eight."""
    for lane in range(LANES):
        p, q = uint64(start + lane), uint64(step)
        m0, m1, m2, m3, m4, m5, m6, m7 = _eight(a, p, q)
        even1, even2, even3 = m1 + m2, m3 + m4, m5 + m6
        odd1, odd2, odd3 = m1 - m2, m3 - m4, m5 - m6
        a[p] = m0 + even1 + even2 + even3
        a[p + q] = odd1 + odd2 * float32(2) + odd3 * float32(0.5)
        a[p + uint64(2) * q] = even1 + even2 * float32(4) + even3 * float32(0.25)
        a[p + uint64(3) * q] = odd1 + odd2 * float32(8) + odd3 * float32(0.125) + m7


@_inline
def _copy(source, start, target, to, count):
    for lane in range(count):
        target[uint64(to + lane)] = source[uint64(start + lane)]


@_inline
def _corner(tile, height, width, down, across):
    """Return the place of a tile's first pixel; tiles are 4 apart, `down` times `across` a sample."""
    sample, place = divmod(tile, down * across)
    return (sample * height + 4 * (place // across)) * width + 4 * (place % across)


@_jit
def transform_patches(x, samples, height, width, channels, tiles, v):
    """Write B' patch B of every patch to v `[64, tiles, C]`, flat; x: `[samples, height, width, C]`, flat."""
    down, across = (height - 4) // 4, (width - 4) // 4
    a = np.empty(64 * LANES, np.float32)
    for tile in range(samples * down * across):
        corner = _corner(tile, height, width, down, across)
        for c in range(0, channels, LANES):
            count = min(LANES, channels - c)
            for r in range(8):
                for s in range(8):
                    _copy(x, (corner + r * width + s) * channels + c, a, r * _ROW + s * LANES, count)
            for s in range(8):
                _transform_patch(a, s * LANES, _ROW)
            for r in range(8):
                _transform_patch(a, r * _ROW, LANES)
            for k in range(64):
                _copy(a, k * LANES, v, (k * tiles + tile) * channels + c, count)


@_jit
def transform_products(m, samples, height, width, channels, tiles, y):
    """Write A' product A of m `[64, tiles, O]` to y `[samples, height, width, O]`, both flat."""
    down, across = height // 4, width // 4
    a = np.empty(64 * LANES, np.float32)
    for tile in range(samples * down * across):
        corner = _corner(tile, height, width, down, across)
        for c in range(0, channels, LANES):
            count = min(LANES, channels - c)
            for k in range(64):
                _copy(m, (k * tiles + tile) * channels + c, a, k * LANES, count)
            for s in range(8):
                _transform_product(a, s * LANES, _ROW)
            for r in range(4):
                _transform_product(a, r * _ROW, LANES)
                for s in range(4):
                    _copy(a, r * _ROW + s * LANES, y, (corner + r * width + s) * channels + c, count)
