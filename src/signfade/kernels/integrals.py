"""Integrals of posterior means: over a shared factor, a mixture, orthants. One thread works on a call."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import math

import numpy as np

from signfade.kernels.jit import njit

__all__ = ["factor_range", "mixture_range", "sign_moments"]

GROUP = 16  # likelihoods multiplied before a logarithm is taken: their product cannot overflow
NEGLIGIBLE = 40.0  # nodes this many nats below the mode are left out
NEGLIGIBLE_COMPONENT = 45.0  # components this many nats below the nearest one are left out


@njit(nogil=True, cache=True, fastmath={"contract"})
def factor_range(llr, above, below, slope, node, log_weight, shared_sum, first, last, out):
    """Fill `out[first:last]` with the posterior mean of the centred sum.

    `llr` [K, M] half-LLRs; `above`, `below`, `slope` [K, Q] are Phi(alpha), Phi(-alpha) and
    weight*private*phi(alpha) of device k at node q; `node`, `log_weight` [Q].
    """
    devices = llr.shape[0]
    nodes = len(node)
    plus = np.empty(devices)
    minus = np.empty(devices)
    level = np.empty(nodes)
    product = np.empty(nodes)
    total = np.empty(nodes)
    for m in range(first, last):
        for k in range(devices):
            small = math.exp(-2 * abs(llr[k, m]))
            large = 1 / (1 + small)
            if llr[k, m] >= 0:
                plus[k], minus[k] = large, small * large
            else:
                plus[k], minus[k] = small * large, large
        level[:] = log_weight
        for begin in range(0, devices, GROUP):
            product[:] = 1.0
            for k in range(begin, min(begin + GROUP, devices)):
                p, n, a, b = 2 * plus[k], 2 * minus[k], above[k], below[k]
                for q in range(nodes):
                    product[q] *= p * a[q] + n * b[q]
            for q in range(nodes):
                level[q] += math.log(product[q]) if product[q] > 0 else -np.inf
        # At the node zero every likelihood is one half, so the mode is finite.
        mode = level.max()
        low, high = 0, nodes - 1
        while level[low] < mode - NEGLIGIBLE:
            low += 1
        while level[high] < mode - NEGLIGIBLE:
            high -= 1
        for q in range(low, high + 1):
            total[q] = shared_sum * node[q]
        for k in range(devices):
            p, n, difference = plus[k], minus[k], plus[k] - minus[k]
            a, b, c = above[k], below[k], slope[k]
            for q in range(low, high + 1):
                total[q] += difference * c[q] / (p * a[q] + n * b[q] + 1e-300)
        mass = mean = 0.0
        for q in range(low, high + 1):
            weight = math.exp(level[q] - mode)
            if weight > 0:
                mass += weight
                mean += weight * total[q]
        out[m] = mean / mass


@njit(nogil=True, cache=True)
def mixture_range(y, level, log_weight, value, variance, slope, first, last, out):
    """Fill `out[first:last]` with `slope*y + sum_c value_c*p_c(y)`.

    `level` [C], ascending, `log_weight` [C] and `value` [C] are the components; `p_c` their probabilities
    given y. The weights are sums of equal ones, at most `NEGLIGIBLE_COMPONENT` apart.
    """
    count = len(level)
    most = log_weight.max() - log_weight.min() + NEGLIGIBLE_COMPONENT
    for m in range(first, last):
        here = np.searchsorted(level, y[m])
        if here == count or (here > 0 and y[m] - level[here - 1] < level[here] - y[m]):
            here -= 1
        nearest = -((y[m] - level[here]) ** 2) / (2 * variance)
        best, total, mean = -np.inf, 0.0, 0.0
        left, right = here, here
        while left > 0 and -((y[m] - level[left - 1]) ** 2) / (2 * variance) > nearest - most:
            left -= 1
        while right < count - 1 and -((y[m] - level[right + 1]) ** 2) / (2 * variance) > nearest - most:
            right += 1
        for c in range(left, right + 1):
            best = max(best, log_weight[c] - (y[m] - level[c]) ** 2 / (2 * variance))
        for c in range(left, right + 1):
            weight = math.exp(log_weight[c] - (y[m] - level[c]) ** 2 / (2 * variance) - best)
            total += weight
            mean += weight * value[c]
        out[m] = slope * y[m] + mean / total


# Nested integrals for the mean of a product of signs, see `signfade.server.joint`.


@njit(inline="always")
def _clip(x):
    return min(1.0, max(-1.0, x))


@njit(inline="always")
def _shrunk(theta, top, x):
    """sin(theta)/sin(top), also where both vanish."""
    return x if abs(top) < 1e-8 else math.sin(theta) / math.sin(top)


@njit(nogil=True, cache=True)
def _four(r, x, w, work):
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


def _next_order(order, inner):
    """Return the integral over `order` signs, from the one over two fewer.

    One function per order: a compiled function that calls itself does not survive the cache on disk.
    """

    @njit(nogil=True)
    def integral(r, x, w, work):
        total = 0.0
        for j in range(1, order):
            top = math.asin(_clip(r[0, j]))
            for q in range(len(x)):
                theta = top * x[q]
                given = work[order // 2 - 3]
                _given(r, order, j, math.sin(theta), _shrunk(theta, top, x[q]), given)
                total += top * w[q] * inner(given, x, w, work)
        return total * (2 / math.pi)

    return integral


_six = _next_order(6, _four)
_eight = _next_order(8, _six)
_ten = _next_order(10, _eight)


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
            out[b] = _four(r, x, w, work)
        elif n == 6:
            out[b] = _six(r, x, w, work)
        elif n == 8:
            out[b] = _eight(r, x, w, work)
        else:
            out[b] = _ten(r, x, w, work)
