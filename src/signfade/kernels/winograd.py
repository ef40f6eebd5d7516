"""5x5 convolutions of many channels with a sixth of the products (Winograd 1980; Lavin and Gray 2016).

A 4x4 patch of outputs takes 64 products per channel instead of 400,

    y = A' [(G g G') * (B' d B)] A,

with an 8x8 patch d of the input, the kernel g, and the points 0, 1, -1, 2, -2, 1/2, -1/2 and infinity.
Channels are summed inside the bracket, as 64 products of matrices. An output's error, root mean square, is
below 4e-6 of the outputs' deviation, six times that of direct sums in float32; in trained networks it is
1e-6, not twice theirs. Transforms work in place on the rows, then on the columns, 32 channels at a time.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import threading
from functools import cache

import numpy as np
import torch
from numba import float32, uint64
from torch import Tensor

from signfade.kernels.jit import njit

__all__ = ["conv5x5", "fits"]

LANES = 32
_ROW = 8 * LANES

# As in `pooled_conv`: products may be fused with sums, sums may not change places, indices are unsigned.
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
    """Return the place of a tile's first pixel; tiles are 4 apart, `down` times `across` per sample."""
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


_POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
# With fewer channels the transforms cost what the products save.
_LEAST_CHANNELS = 16
# Samples at a time, measured: more leave a core's cache, fewer make small products of matrices.
_SAMPLES = 16


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether `conv5x5` can take these tensors and pays: 5x5 kernels, whole 4x4 patches, enough channels."""
    outputs, inputs, *kernel = weight.shape
    return (
        kernel == [5, 5]
        and min(inputs, outputs) >= _LEAST_CHANNELS
        and all(side >= 8 and side % 4 == 0 for side in x.shape[2:])
    )


def conv5x5(x: Tensor, weight: Tensor) -> Tensor:
    """Return the convolution of x `[N, C, H, W]` with weight `[O, C, 5, 5]`, as `[N, H-4, W-4, O]`.

    Both are float32 on the CPU, without gradients; channels last is best.

    Example:
        >>> x, weight = torch.ones(1, 32, 8, 8), torch.ones(32, 32, 5, 5)
        >>> y = conv5x5(x, weight)
        >>> y.shape, bool((y - 800).abs().max() < 0.01)
        (torch.Size([1, 4, 4, 32]), True)
    """
    samples, inputs, height, width = x.shape
    outputs = len(weight)
    kernels = _KERNELS.of(weight)
    flat = x.permute(0, 2, 3, 1).contiguous().view(samples, height * width * inputs)
    y = torch.empty(samples, height - 4, width - 4, outputs, dtype=torch.float32)
    # One tile more than there are: places a power of two apart would share a line of the cache.
    tiles = min(samples, _SAMPLES) * (height - 4) * (width - 4) // 16 + 1
    patches = torch.zeros(64, tiles, inputs, dtype=torch.float32)
    products = torch.empty(64, tiles, outputs, dtype=torch.float32)
    v, m = patches.view(-1).numpy(), products.view(-1).numpy()
    for first in range(0, samples, _SAMPLES):
        part, to = flat[first : first + _SAMPLES], y[first : first + _SAMPLES]
        transform_patches(part.reshape(-1).numpy(), len(part), height, width, inputs, tiles, v)
        torch.bmm(patches, kernels, out=products)
        transform_products(m, len(part), height - 4, width - 4, outputs, tiles, to.view(-1).numpy())
    return y


class _Kernels(threading.local):
    """The kernels a thread used last, transformed: all devices of a round have the same."""

    def __init__(self) -> None:
        self._weight = self._transformed = torch.empty(0)

    def of(self, weight: Tensor) -> Tensor:
        """Return G g G' of every kernel g as `[64, C, O]`."""
        if not torch.equal(weight, self._weight):
            self._weight = weight.clone()
            outputs, inputs = weight.shape[:2]
            flat = weight.permute(2, 3, 1, 0).reshape(25, -1)
            self._transformed = (_kernel_matrix() @ flat).view(64, inputs, outputs)
        return self._transformed


_KERNELS = _Kernels()


@cache
def _kernel_matrix() -> Tensor:
    """Return G on rows and columns at once, `[64, 25]`."""
    powers = np.vander(_POINTS, 5, increasing=True)
    others = [[p - q for q in _POINTS if q != p] for p in _POINTS]
    scale = np.prod(others, axis=1)
    scale[0] = -scale[0]  # the first row of B' is kept with a leading 1
    g = np.vstack([powers / scale[:, None], [0, 0, 0, 0, 1]])
    return torch.from_numpy(np.kron(g, g)).float()
