"""Nested integrals for the mean of a product of signs, compiled; one thread a call. See `_orthants`."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import math

import numpy as np

from signfade.kernels.jit import njit


@njit(inline="always")
def _clip(x):
    return min(1.0, max(-1.0, x))


@njit(inline="always")
def _shrunk(theta, top, x):
    """sin(theta)/sin(top), also where both vanish."""
    return x if abs(top) < 1e-8 else math.sin(theta) / math.sin(top)


@njit(nogil=True, cache=True)
def _four(r, x, w):
    total = 0.0
    for j in range(1, 4):
        k = 1 if j != 1 else 2
        n = 3 if j != 3 else 2
        top = math.asin(_clip(r[0, j]))
        inner = 0.0
        for q in range(len(x)):
            theta = top * x[q]
            pair, t = math.sin(theta), _shrunk(theta, top, x[q])
            scale = 1 / (1 - pair * pair)
            ak, an, bk, bn = t * r[0, k], t * r[0, n], r[j, k], r[j, n]
            kn = r[k, n] - (ak * an + bk * bn - pair * (ak * bn + an * bk)) * scale
            kk = 1 - (ak * ak + bk * bk - 2 * pair * ak * bk) * scale
            nn = 1 - (an * an + bn * bn - 2 * pair * an * bn) * scale
            inner += w[q] * math.asin(_clip(kn / math.sqrt(max(kk, 1e-14) * max(nn, 1e-14))))
        total += top * inner
    return total * (4 / math.pi**2)


@njit(nogil=True, cache=True)
def _given(r, n, j, pair, t, out):
    """Correlations of all but 0 and j given that both are zero, with 0's correlations cut to t of them."""
    scale = 1 / (1 - pair * pair)
    a = 0
    for k in range(1, n):
        if k == j:
            continue
        b = 0
        for m in range(1, k + 1):
            if m == j:
                continue
            ak, am, bk, bm = t * r[0, k], t * r[0, m], r[j, k], r[j, m]
            out[a, b] = r[k, m] - (ak * am + bk * bm - pair * (ak * bm + am * bk)) * scale
            b += 1
        a += 1
    for a in range(n - 2):
        out[a, a] = 1 / math.sqrt(max(out[a, a], 1e-14))
    for a in range(n - 2):
        for b in range(a):
            out[a, b] *= out[a, a] * out[b, b]
            out[b, a] = out[a, b]
    for a in range(n - 2):
        out[a, a] = 1.0


# One function an order: a compiled function that calls itself does not survive the cache on disk.


@njit(nogil=True, cache=True)
def _six(r, x, w, work):
    total = 0.0
    for j in range(1, 6):
        top = math.asin(_clip(r[0, j]))
        for q in range(len(x)):
            theta = top * x[q]
            _given(r, 6, j, math.sin(theta), _shrunk(theta, top, x[q]), work[0])
            total += top * w[q] * _four(work[0], x, w)
    return total * (2 / math.pi)


@njit(nogil=True, cache=True)
def _eight(r, x, w, work):
    total = 0.0
    for j in range(1, 8):
        top = math.asin(_clip(r[0, j]))
        for q in range(len(x)):
            theta = top * x[q]
            _given(r, 8, j, math.sin(theta), _shrunk(theta, top, x[q]), work[1])
            total += top * w[q] * _six(work[1], x, w, work)
    return total * (2 / math.pi)


@njit(nogil=True, cache=True)
def _ten(r, x, w, work):
    total = 0.0
    for j in range(1, 10):
        top = math.asin(_clip(r[0, j]))
        for q in range(len(x)):
            theta = top * x[q]
            _given(r, 10, j, math.sin(theta), _shrunk(theta, top, x[q]), work[2])
            total += top * w[q] * _eight(work[2], x, w, work)
    return total * (2 / math.pi)


@njit(nogil=True, cache=True)
def sign_moments(matrices, x, w, first, last, out):
    """Fill `out[first:last]` with E[prod sign(g)] for correlations [B, n, n]; n is 2, 4, 6, 8 or 10."""
    n = matrices.shape[1]
    work = np.empty((3, 8, 8))
    for b in range(first, last):
        r = matrices[b]
        if n == 2:
            out[b] = (2 / math.pi) * math.asin(_clip(r[0, 1]))
        elif n == 4:
            out[b] = _four(r, x, w)
        elif n == 6:
            out[b] = _six(r, x, w, work)
        elif n == 8:
            out[b] = _eight(r, x, w, work)
        else:
            out[b] = _ten(r, x, w, work)
