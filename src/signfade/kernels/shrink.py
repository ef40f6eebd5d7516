"""The sweeps of `shrink_bits` for few devices, compiled: on small matrices calls cost more than numbers."""

# mypy: ignore-errors
# (numba infers the types of this file itself)

from __future__ import annotations

import math

import numpy as np

from signfade.kernels.jit import njit


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
