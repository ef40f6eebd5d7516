"""The sweeps of `shrink_bits` for few devices, compiled: on small matrices calls cost more than numbers."""

# mypy: ignore-errors
# (numba infers the types of this file itself)

from __future__ import annotations

import numpy as np

from signfade._jit import njit
from signfade.server.bfl import _shrink

_common = njit(cache=True)(_shrink._shrink_common)
_strengths = njit(cache=True)(_shrink._least_squares)


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
        strength = _strengths(values, edge)
        diagonal = vectors**2 @ strength
        explained = (root @ vectors) ** 2 @ strength - precision @ diagonal
        shared = _common(total - explained, squares)
    return shared, values, vectors
