"""5x5 and 3x3 convolutions of one channel to 32 with 2x2 max-pooling and ReLU: the paper's first layer.

A window's 6x6 inputs are read once, and its four outputs stay in registers: nothing is written between the
convolution and the pooling. Loops over the 32 outputs have a fixed length and fixed distances between arrays,
which is what lets the compiler take sixteen numbers at a time. Weights and their gradient are `[25, 32]`,
flat, as is everything else. A 3x3 kernel is a 5x5 one with zeros around it.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import numpy as np
import torch
from numba import float32, uint8, uint64
from torch import Tensor
from torch.nn import functional

from signfade.kernels.jit import njit

__all__ = ["SHUT", "convolve_and_pool", "largest", "takes", "weight_gradient"]

LANES = 32
SHUT = 4  # the window's largest value was not positive: no gradient passes

# As in `pooled_conv`: products may be fused with sums, sums may not change places, indices are unsigned.
_jit = njit(nogil=True, cache=True, fastmath={"contract"})
_inline = njit(fastmath={"contract"}, inline="always")


@_inline
def largest(a, b, c, d, bias):
    """Return relu(max of four + bias) and which of them it came from; NaN goes on, to be seen."""
    value, place = a, uint8(0)
    if b > value or b != b:
        value, place = b, uint8(1)
    if c > value or c != c:
        value, place = c, uint8(2)
    if d > value or d != d:
        value, place = d, uint8(3)
    value += bias
    if value <= 0:
        value, place = float32(0), uint8(SHUT)
    return value, place


@_inline
def _six(x, at):
    return (
        x[at],
        x[at + uint64(1)],
        x[at + uint64(2)],
        x[at + uint64(3)],
        x[at + uint64(4)],
        x[at + uint64(5)],
    )


@_inline
def _window(x, at, width):
    """Return the six rows of six inputs that a window of 2x2 outputs sees."""
    two = width + width
    half = at + two + width
    return (
        _six(x, at),
        _six(x, at + width),
        _six(x, at + two),
        _six(x, half),
        _six(x, half + width),
        _six(x, half + two),
    )


@_inline
def _row(w, row, lane, a, b, c, d, e):
    """Return five inputs times a row of a kernel."""
    p, q = uint64(5 * LANES * row + lane), uint64(LANES)
    two = q + q
    return a * w[p] + b * w[p + q] + c * w[p + two] + d * w[p + two + q] + e * w[p + two + two]


@_inline
def _left(w, lane, f, g, h, i, j):
    """Return the output of a kernel at the left of a window; f to j are five of its rows."""
    top = _row(w, 0, lane, f[0], f[1], f[2], f[3], f[4]) + _row(w, 1, lane, g[0], g[1], g[2], g[3], g[4])
    low = _row(w, 2, lane, h[0], h[1], h[2], h[3], h[4]) + _row(w, 3, lane, i[0], i[1], i[2], i[3], i[4])
    return top + low + _row(w, 4, lane, j[0], j[1], j[2], j[3], j[4])


@_inline
def _right(w, lane, f, g, h, i, j):
    """Return the output of a kernel at the right of a window."""
    top = _row(w, 0, lane, f[1], f[2], f[3], f[4], f[5]) + _row(w, 1, lane, g[1], g[2], g[3], g[4], g[5])
    low = _row(w, 2, lane, h[1], h[2], h[3], h[4], h[5]) + _row(w, 3, lane, i[1], i[2], i[3], i[4], i[5])
    return top + low + _row(w, 4, lane, j[1], j[2], j[3], j[4], j[5])


@_jit
def _convolve_and_pool(x, samples, height, width, w, bias, z, winner):
    """Write relu(max over 2x2) and which of the four it came from to z and winner `[N, H', W', 32]`."""
    down, across = (height - 4) // 2, (width - 4) // 2
    for n in range(samples):
        for i in range(down):
            for j in range(across):
                corner = uint64((n * height + 2 * i) * width + 2 * j)
                a, b, c, d, e, f = _window(x, corner, uint64(width))
                to = uint64(((n * down + i) * across + j) * LANES)
                for lane in range(LANES):
                    first, second = _left(w, lane, a, b, c, d, e), _right(w, lane, a, b, c, d, e)
                    third, fourth = _left(w, lane, b, c, d, e, f), _right(w, lane, b, c, d, e, f)
                    value, place = largest(first, second, third, fourth, bias[lane])
                    z[to + uint64(lane)] = value
                    winner[to + uint64(lane)] = place


@_inline
def _add_row(out, row, lane, t, u, g0, g1, g2, g3):
    """Add to the gradient of a kernel's row; t, u: inputs above and below, g0 to g3: outputs' gradients."""
    p, q = uint64(5 * LANES * row + lane), uint64(LANES)
    two = q + q
    out[p] += (t[0] * g0 + t[1] * g1) + (u[0] * g2 + u[1] * g3)
    out[p + q] += (t[1] * g0 + t[2] * g1) + (u[1] * g2 + u[2] * g3)
    out[p + two] += (t[2] * g0 + t[3] * g1) + (u[2] * g2 + u[3] * g3)
    out[p + two + q] += (t[3] * g0 + t[4] * g1) + (u[3] * g2 + u[4] * g3)
    out[p + two + two] += (t[4] * g0 + t[5] * g1) + (u[4] * g2 + u[5] * g3)


@_jit
def _weight_gradient(g, winner, x, samples, height, width, out):
    """Add the gradient of the weights to out; g, winner: `[N, H', W', 32]`."""
    down, across = (height - 4) // 2, (width - 4) // 2
    for n in range(samples):
        for i in range(down):
            for j in range(across):
                corner = uint64((n * height + 2 * i) * width + 2 * j)
                a, b, c, d, e, f = _window(x, corner, uint64(width))
                to = uint64(((n * down + i) * across + j) * LANES)
                for lane in range(LANES):
                    value, place = g[to + uint64(lane)], winner[to + uint64(lane)]
                    g0 = value if place == 0 else float32(0)
                    g1 = value if place == 1 else float32(0)
                    g2 = value if place == 2 else float32(0)
                    g3 = value if place == 3 else float32(0)
                    _add_row(out, 0, lane, a, b, g0, g1, g2, g3)
                    _add_row(out, 1, lane, b, c, g0, g1, g2, g3)
                    _add_row(out, 2, lane, c, d, g0, g1, g2, g3)
                    _add_row(out, 3, lane, d, e, g0, g1, g2, g3)
                    _add_row(out, 4, lane, e, f, g0, g1, g2, g3)


def takes(weight: Tensor) -> bool:
    """Whether the functions below take a layer with these weights."""
    return weight.shape in {(LANES, 1, 5, 5), (LANES, 1, 3, 3)}


def convolve_and_pool(x: Tensor, weight: Tensor, bias: Tensor, z: Tensor, winner: Tensor) -> None:
    """Write relu(max over 2x2 of conv2d(x)) and which of the four it came from.

    x: `[N, 1, H, W]`; weight: `[32, 1, k, k]`; z, winner: `[N, H', W', 32]`, contiguous.
    """
    side = weight.shape[2]
    x, weight = _surround(x, side), _surround(weight, side)
    samples, _, height, width = x.shape
    kernels = weight.reshape(LANES, 25).t().contiguous()
    places = (z.view(-1).numpy(), winner.view(-1).numpy())
    _convolve_and_pool(_flat(x), samples, height, width, _flat(kernels), bias.numpy(), *places)


def weight_gradient(g: Tensor, winner: Tensor, x: Tensor, side: int) -> Tensor:
    """Return the gradient `[32, 1, k, k]` of the weights, where k is `side`.

    g, winner: `[N, H', W', 32]`; x: `[N, 1, H, W]`.
    """
    x = _surround(x, side)
    samples, _, height, width = x.shape
    out = torch.zeros(25 * LANES)
    _weight_gradient(_flat(g), _flat(winner), _flat(x), samples, height, width, out.numpy())
    edge = (5 - side) // 2
    return out.view(5, 5, LANES)[edge : edge + side, edge : edge + side].permute(2, 0, 1).unsqueeze(1)


def _surround(x: Tensor, side: int) -> Tensor:
    """Put the zeros around x, kernel or image, that make a kernel with this side one of 5x5."""
    return functional.pad(x, ((5 - side) // 2,) * 4) if side < 5 else x


def _flat(x: Tensor) -> np.ndarray:
    return x.contiguous().view(-1).numpy()
