"""The integral over the shared factor, compiled; one thread a call."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import math

import numpy as np

from signfade._jit import njit

GROUP = 16  # likelihoods multiplied before a logarithm is taken: their product cannot overflow
NEGLIGIBLE = 40.0  # nodes this many nats below the mode are left out


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
        for q in range(nodes):
            level[q] = log_weight[q]
        for begin in range(0, devices, GROUP):
            for q in range(nodes):
                product[q] = 1.0
            for k in range(begin, min(begin + GROUP, devices)):
                p, n, a, b = 2 * plus[k], 2 * minus[k], above[k], below[k]
                for q in range(nodes):
                    product[q] *= p * a[q] + n * b[q]
            for q in range(nodes):
                level[q] += math.log(product[q]) if product[q] > 0 else -np.inf
        # At the node zero every likelihood is one half, so the mode is finite.
        mode = level[0]
        for q in range(1, nodes):
            mode = max(mode, level[q])
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
