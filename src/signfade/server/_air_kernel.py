"""The posterior mean under a mixture of normal laws of one width, compiled; one thread a call."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import math

import numpy as np

from signfade._jit import njit

NEGLIGIBLE = 45.0  # components this many nats below the nearest one are left out


@njit(nogil=True, cache=True)
def mixture_range(y, level, log_weight, value, variance, slope, first, last, out):
    """Fill `out[first:last]` with `slope*y + sum_c value_c*p_c(y)`.

    `level` [C], ascending, `log_weight` [C] and `value` [C] are the components; `p_c` their probabilities
    given y. The weights are sums of equal ones, at most `NEGLIGIBLE` apart.
    """
    count = len(level)
    most = log_weight.max() - log_weight.min() + NEGLIGIBLE
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
