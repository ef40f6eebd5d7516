"""The quantile function of the normal distribution, for compiled code."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import math

from signfade._jit import njit


@njit(nogil=True, cache=True)
def normal_quantile(p):
    """z with Phi(z) = p, to 1e-13, for p from 1e-290 to 1/2 and up to 1 - 1e-16.

    A rough start from the tail's logarithm, then Halley steps on the logarithm of the tail, which is nearly a
    parabola: each step triples the digits.
    """
    tail = p if p <= 0.5 else 1 - p
    if tail > 0.49:  # nearly linear here
        z = (0.5 - tail) * 2.5066282746310002
    else:
        s = math.sqrt(-2 * math.log(tail))
        z = s - (2.30753 + 0.27061 * s) / (1 + s * (0.99229 + 0.04481 * s))
    for _ in range(2):
        q = 0.5 * math.erfc(z * 0.7071067811865476)
        bell = math.exp(-0.5 * z * z) * 0.3989422804014327
        rate = bell / q
        f = math.log(q / tail)  # f' = -rate, f'' = -rate * (rate - z)
        z += 2 * f * rate / (2 * rate * rate + f * rate * (rate - z))
    return -z if p <= 0.5 else z
