"""Pooling and the gradient of a pooled convolution in numba, on channels-last arrays seen as flat.

A 2x2 window hands its gradient to one of its four inputs, and to none where ReLU is shut: of the
convolution's outputs at most a quarter has a gradient. Only those are visited, four at a time, each with the
k rows of k*C neighbouring numbers it saw. One thread works on a batch, so results have one order.
"""

# mypy: ignore-errors
# (numba infers the types of this file itself)

from __future__ import annotations

import numpy as np
from numba import uint64

from signfade.kernels.jit import njit

SHUT = 4  # the window's largest value was not positive: no gradient passes

# Products may be fused with sums, sums may not change places. Unsigned indices cannot be negative, which
# spares a test at every access and lets the compiler take eight numbers at a time.
_jit = njit(nogil=True, cache=True, fastmath={"contract"})


@_jit
def pool(y, bias, z, winner):
    """Write relu(max over 2x2 + bias) of y `[N, H, W, O]` and which of the four it came from."""
    for n in range(z.shape[0]):
        for i in range(z.shape[1]):
            for j in range(z.shape[2]):
                a, b = y[n, 2 * i, 2 * j], y[n, 2 * i, 2 * j + 1]
                c, d = y[n, 2 * i + 1, 2 * j], y[n, 2 * i + 1, 2 * j + 1]
                best, place = z[n, i, j], winner[n, i, j]
                for o in range(bias.size):
                    value, k = a[o], 0
                    if b[o] > value or b[o] != b[o]:  # NaN goes on, to be seen
                        value, k = b[o], 1
                    if c[o] > value or c[o] != c[o]:
                        value, k = c[o], 2
                    if d[o] > value or d[o] != d[o]:
                        value, k = d[o], 3
                    value += bias[o]
                    if value <= 0:
                        value, k = np.float32(0), SHUT
                    best[o] = value
                    place[o] = k


@_jit
def spread(g, winner, full):
    """Write the gradient before pooling, `[N, H, W, O]`; what no window covers is left alone."""
    for n in range(g.shape[0]):
        for i in range(g.shape[1]):
            for j in range(g.shape[2]):
                value, place = g[n, i, j], winner[n, i, j]
                for k in range(4):
                    to = full[n, 2 * i + (k >> 1), 2 * j + (k & 1)]
                    for o in range(value.size):
                        to[o] = value[o] if place[o] == k else np.float32(0)


@_jit
def bias_gradient(g, winner, out):
    """Add the gradient of the bias to out `[O]`."""
    for n in range(g.shape[0]):
        for i in range(g.shape[1]):
            for j in range(g.shape[2]):
                value, place = g[n, i, j], winner[n, i, j]
                for o in range(out.size):
                    out[o] += value[o] if place[o] != SHUT else np.float32(0)


@_jit
def _add_patches(count, s, at, a, a_row, b, to, b_row, rows, length):
    """Add s[q] times the patch of `a` at at[q], for all q < count, to the patch of `b` at `to`.

    Four at a time, so that `b` is fetched and stored a quarter as often; the last four are filled up with
    nothing, for which `s` and `at` have room.
    """
    for q in range(count, (count + 3) // 4 * 4):
        s[q] = 0
        at[q] = at[0]
    for q in range(0, count, 4):
        s0, s1, s2, s3 = s[q], s[q + 1], s[q + 2], s[q + 3]
        i, j = uint64(at[q]), uint64(at[q + 1])
        k, m = uint64(at[q + 2]), uint64(at[q + 3])
        end = uint64(to)
        for _ in range(rows):
            for v in range(length):
                v = uint64(v)
                b[end + v] += (s0 * a[i + v] + s1 * a[j + v]) + (s2 * a[k + v] + s3 * a[m + v])
            end += uint64(b_row)
            i += uint64(a_row)
            j += uint64(a_row)
            k += uint64(a_row)
            m += uint64(a_row)


@_jit
def weight_gradient(g, winner, x, height, width, rows, length, out):
    """Add the gradient of the weights to out `[O*rows*length]`.

    g, winner: `[N, Hp, Wp, O]`. x: the inputs, flat, `height` rows of `width` numbers per sample. A patch has
    `rows` rows of `length` numbers.
    """
    samples, across, down, channels = g.shape
    s = np.empty(across * down + 3, np.float32)
    at = np.empty(across * down + 3, np.int64)
    step = length // rows
    for n in range(samples):
        for o in range(channels):
            count = 0
            for i in range(across):
                for j in range(down):
                    k = winner[n, i, j, o]
                    if k != SHUT:
                        s[count] = g[n, i, j, o]
                        at[count] = (n * height + 2 * i + (k >> 1)) * width + (2 * j + (k & 1)) * step
                        count += 1
            _add_patches(count, s, at, x, width, out, o * rows * length, length, rows, length)


@_jit
def input_gradient(g, winner, w, height, width, rows, length, out):
    """Add the gradient of the inputs to out `[N*height*width]`; w: `[O*rows*length]`, else as above."""
    samples, across, down, channels = g.shape
    s = np.empty((4, channels + 3), np.float32)
    at = np.empty((4, channels + 3), np.int64)
    count = np.empty(4, np.int64)
    step = length // rows
    for n in range(samples):
        for i in range(across):
            for j in range(down):
                count[:] = 0
                for o in range(channels):
                    k = winner[n, i, j, o]
                    if k != SHUT:
                        s[k, count[k]] = g[n, i, j, o]
                        at[k, count[k]] = o * rows * length
                        count[k] += 1
                for k in range(4):
                    to = (n * height + 2 * i + (k >> 1)) * width + (2 * j + (k & 1)) * step
                    _add_patches(count[k], s[k], at[k], w, length, out, to, width, rows, length)
