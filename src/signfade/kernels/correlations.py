"""Correlations between devices: sums of products of their signals, and how to shrink what is seen of bits."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from signfade.kernels.jit import is_compiled, njit
from signfade.kernels.threads import run_ranges

__all__ = ["least_squares", "pair_sums", "shrink_common", "sweeps"]

CHUNK = 1024  # coordinates summed in the precision of y before they join a float64 total
_PLAIN_CHUNK = 4096  # the same, of the plain form


@njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz"})
def gram_tiles(y, first, last, out):
    """Fill tiles first ... last - 1 of `out` [K, K], float64, with sums of products; K a multiple of 4.

    A tile is 4 x 4. Tiles are counted along the lower triangle, so that equal ranges are equal work, and a
    tile's value does not depend on the range it came in.
    """
    size = y.shape[1]
    count = last - first
    rows, columns = np.empty(count, np.int64), np.empty(count, np.int64)
    i = j = 0
    for tile in range(last):
        if tile >= first:
            rows[tile - first], columns[tile - first] = 4 * i, 4 * j
        j += 1
        if j > i:
            i, j = i + 1, 0
    totals = np.zeros((count, 4, 4), np.float64)
    for begin in range(0, size, CHUNK):
        end = min(begin + CHUNK, size)
        for tile in range(count):
            r, c = rows[tile], columns[tile]
            total = totals[tile]
            c0, c1 = y[c, begin:end], y[c + 1, begin:end]
            c2, c3 = y[c + 2, begin:end], y[c + 3, begin:end]
            for a in range(4):
                x = y[r + a, begin:end]
                s0 = s1 = s2 = s3 = y.dtype.type(0)
                for m in range(end - begin):
                    s0 += x[m] * c0[m]
                    s1 += x[m] * c1[m]
                    s2 += x[m] * c2[m]
                    s3 += x[m] * c3[m]
                total[a, 0] += s0
                total[a, 1] += s1
                total[a, 2] += s2
                total[a, 3] += s3
    for tile in range(count):
        r, c = rows[tile], columns[tile]
        out[r : r + 4, c : c + 4] = totals[tile]
        out[c : c + 4, r : r + 4] = totals[tile].T


def pair_sums(y: Tensor, threads: int | None = None) -> Tensor:
    """Return `y @ y.T` in float64, `[K, K]`; the same bits for any number of threads.

    Example:
        >>> pair_sums(torch.tensor([[1.0, 2.0], [3.0, -1.0]]))
        tensor([[ 5.,  1.],
                [ 1., 10.]], dtype=torch.float64)
    """
    y = y.detach()
    devices = len(y)
    if not is_compiled(y):
        total = torch.zeros(devices, devices, dtype=torch.float64, device=y.device)
        for first in range(0, y.shape[1], _PLAIN_CHUNK):
            part = y[:, first : first + _PLAIN_CHUNK]
            total += (part @ part.T).double()
        return total.cpu()
    padded = -(-devices // 4) * 4
    rows = y.contiguous().numpy()
    if padded != devices:
        rows = np.concatenate((rows, np.zeros((padded - devices, rows.shape[1]), rows.dtype)))
    out = np.empty((padded, padded), np.float64)
    side = padded // 4
    run_ranges(lambda first, last: gram_tiles(rows, first, last, out), side * (side + 1) // 2, threads)
    return torch.from_numpy(out[:devices, :devices].copy())


@njit(cache=True)
def shrink_common(product, squares):
    """The correlation common to all pairs: `product/squares`, of variance `2/squares`, shrunk.

    Below two standard deviations it is nothing; and no more is assumed than that correlations of bits have
    a variance of about 0.1.
    """
    if squares <= 0:
        return 0.0
    value, variance = product / squares, 2 / squares
    if value**2 <= 4 * variance:
        return 0.0
    return value * math.sqrt(1 - 4 * variance / value**2) * 0.1 / (0.1 + variance)


@njit(cache=True)
def least_squares(values, edge):
    """The eigenvalues that bring the kept eigenvectors' matrix closest to the truth."""
    return np.sign(values) * np.sqrt(values**2 - edge**2)


@njit(nogil=True, cache=True)
def sweeps(seen, root, edge, squares, total, shared, count):
    """Return the common correlation, and the eigenvalues and eigenvectors above the edge of the noise."""
    devices = root.shape[0]
    precision = root**2
    diagonal = np.zeros(devices)
    for _ in range(count):
        rest = seen - shared * np.outer(root, root)
        for k in range(devices):
            rest[k, k] = diagonal[k]
        values, vectors = np.linalg.eigh(rest)
        kept = np.flatnonzero(np.abs(values) > edge)
        values, vectors = values[kept], np.ascontiguousarray(vectors[:, kept])
        if len(kept) == 0 and not diagonal.any():
            break  # pure noise, and so it would be again
        strength = least_squares(values, edge)
        diagonal = vectors**2 @ strength
        explained = (root @ vectors) ** 2 @ strength - precision @ diagonal
        shared = shrink_common(total - explained, squares)
    return shared, values, vectors
