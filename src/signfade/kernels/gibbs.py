"""A Gibbs sampler along given directions for every coordinate, compiled; one thread per call."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import math

import numpy as np

from signfade.kernels.jit import njit

_ROOT_HALF = 0.7071067811865476
_LOG_ROOT_2PI = 0.9189385332046727
_FAR = 35.0  # beyond, a tail is exponential to 1e-3 and its probability near the end of float64
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@njit(inline="always")
def _uniform(state):
    """SplitMix64: the next state, and a number strictly between 0 and 1."""
    state = state + _STEP
    x = state
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    x = x ^ (x >> np.uint64(31))
    return state, (np.float64(x >> np.uint64(12)) + 0.5) * 2.220446049250313e-16


@njit(nogil=True, cache=True)
def normal_quantile(p):
    """z with Phi(z) = p, to 1e-13, for p from 1e-290 to 1 - 1e-16: Halley's steps on the tail's logarithm."""
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


@njit(nogil=True, cache=True)
def log_mass(a, b):
    """log(Phi(b) - Phi(a)) for a < b, also far out."""
    if b <= 0:
        a, b = -b, -a
    if a < 0:
        return math.log(0.5 * (math.erf(b * _ROOT_HALF) - math.erf(a * _ROOT_HALF)) + 1e-300)
    if a < _FAR:
        mass = 0.5 * (math.erfc(a * _ROOT_HALF) - math.erfc(b * _ROOT_HALF))
        return math.log(mass) if mass > 0 else -np.inf
    width = -math.expm1(-a * (b - a)) if b < np.inf else 1.0
    return -0.5 * a * a - math.log(a) - _LOG_ROOT_2PI + math.log(width) if width > 0 else -np.inf


@njit(nogil=True, cache=True)
def draw_between(a, b, u):
    """The normal number between a and b below which a share of about u, or 1 - u, of the interval lies."""
    mirrored = b <= 0
    if mirrored:
        a, b = -b, -a
    if a < _FAR:
        low = 0.5 * math.erfc(b * _ROOT_HALF)
        value = -normal_quantile(low + u * (0.5 * math.erfc(a * _ROOT_HALF) - low))
    else:
        width = -math.expm1(-a * (b - a)) if b < np.inf else 1.0
        value = a - math.log1p(-u * width) / a
    value = min(max(value, a), b)
    return -value if mirrored else value


@njit(nogil=True, cache=True)
def sort_edges(edge, order):
    """Sort `edge`, and `order` along with it (Shell's sort: NumPy's takes many seconds to compile)."""
    gap = len(edge) // 2
    while gap > 0:
        for i in range(gap, len(edge)):
            value, name, j = edge[i], order[i], i
            while j >= gap and edge[j - gap] > value:
                edge[j], order[j] = edge[j - gap], order[j - gap]
                j -= gap
            edge[j], order[j] = value, name
        gap = 1 if gap == 2 else gap * 5 // 11


@njit(nogil=True)
def _move(state, half, heat, u, step, only, z, g, edge, order, level):
    """Draw the place along one direction given all else; return the state, and the mean place less the old.

    Along the unit direction `u` of z the prior is N(0, 1), and the likelihood is constant between the places
    where a variable changes its sign. `step = L @ u`; `only` is the one variable that moves, or -1.
    """
    here = 0.0
    for i in range(len(z)):
        here += u[i] * z[i]
    if only >= 0:
        count = 1
        edge[0] = here - g[only] / step[only]
        order[0] = only
    else:
        count = len(g)
        for k in range(count):
            edge[k] = here - g[k] / step[k] if abs(step[k]) > 1e-12 else np.inf
            order[k] = k
        sort_edges(edge, order)
    score = 0.0
    for i in range(count):
        k = order[i]
        score -= heat * half[k] if step[k] > 0 else -heat * half[k]
    top = -np.inf
    for i in range(count + 1):
        low = edge[i - 1] if i > 0 else -np.inf
        high = edge[i] if i < count else np.inf
        level[i] = score + log_mass(low, high) if low < high else -np.inf
        top = max(top, level[i])
        if i < count:
            score += 2 * heat * half[order[i]] if step[order[i]] > 0 else -2 * heat * half[order[i]]
    total = 0.0
    for i in range(count + 1):
        level[i] = math.exp(level[i] - top)
        total += level[i]
    state, v = _uniform(state)
    chosen, rest = 0, v * total - level[0]
    while rest > 0 and chosen < count:
        chosen += 1
        rest -= level[chosen]
    state, v = _uniform(state)
    low = edge[chosen - 1] if chosen > 0 else -np.inf
    high = edge[chosen] if chosen < count else np.inf
    change = draw_between(low, high, v) - here
    for i in range(len(z)):
        z[i] += change * u[i]
    if only < 0:
        for k in range(count):
            g[k] += change * step[k]
        return state, 0.0
    g[only] += change * step[only]
    # The mean of N(0, 1) times exp(-+w) on either side of an edge e: phi(e) * 2 sinh(w) / mass.
    w = heat * half[only] if step[only] > 0 else -heat * half[only]
    bell = -0.5 * edge[0] * edge[0] - _LOG_ROOT_2PI - top - math.log(total)
    return state, math.exp(w + bell) - math.exp(bell - w) - here


@njit(nogil=True, cache=True)
def gibbs_range(llr, root, along, steps, only, combine, plan, key, first, last, mean, error):
    """Sample coordinates first ... last - 1.

    `root` [d, r], g = root @ z, z ~ N(0, I); unit directions `along` [J, r], `steps` [J, d] = along @ root.T,
    `only` [J] the variable that a direction moves by itself, or -1; `combine` [R, d];
    `plan` = (chains, batches per chain, sweeps per batch, sweeps before); `mean`, `error` [R, M].
    """
    chains, batches, length, burn = plan
    d, r = root.shape
    z, g, half, average = np.empty(r), np.empty(d), np.empty(d), np.empty(d)
    edge, order, level = np.empty(d), np.empty(d, np.int64), np.empty(d + 1)
    single = np.zeros(d, np.bool_)
    for k in only:
        if k >= 0:
            single[k] = True
    long = math.sqrt(2) * math.exp(math.lgamma(0.5 * (r + 1)) - math.lgamma(0.5 * r))  # E|z|
    values = np.empty((len(combine), chains, batches))
    for m in range(first, last):
        for k in range(d):
            half[k] = min(25.0, max(-25.0, llr[k, m]))
        for chain in range(chains):
            state = (key + np.uint64(m * chains + chain)) * _MIX_2 ^ key
            for i in range(r):
                state, v = _uniform(state)
                z[i] = normal_quantile(v)
            for batch in range(-1, batches):
                average[:] = 0.0
                for k in range(d):  # again, lest rounding adds up
                    g[k] = 0.0
                    for i in range(r):
                        g[k] += root[k, i] * z[i]
                count = burn if batch < 0 else length
                for sweep in range(count):
                    # Certain bits are let in slowly: a chain could not cross from one pattern to another.
                    heat = min(1.0, 2.0 * (sweep + 1) / count) if batch < 0 else 1.0
                    for j in range(len(along)):
                        k = only[j]
                        before = g[k]
                        state, ahead = _move(
                            state, half, heat, along[j], steps[j], k, z, g, edge, order, level
                        )
                        if k >= 0:
                            average[k] += before + ahead * steps[j, k]
                    # Signs do not change with the length of z: it is that of r normal numbers. Nor does the
                    # prior with its sign: the two are weighed by the likelihood only.
                    score, power, drawn = 0.0, 0.0, 0.0
                    for k in range(d):
                        score += heat * half[k] if g[k] > 0 else -heat * half[k]
                    for i in range(r):
                        power += z[i] * z[i]
                    for _ in range(r // 2):
                        state, v = _uniform(state)
                        drawn -= 2 * math.log(v)
                    if r % 2 == 1:
                        state, v = _uniform(state)
                        drawn += normal_quantile(v) ** 2
                    for k in range(d):
                        if not single[k]:
                            average[k] += g[k] * math.tanh(score) * long / math.sqrt(power)
                    state, v = _uniform(state)
                    factor = math.sqrt(drawn / power)
                    if v * (1 + math.exp(-2 * abs(score))) > 1:
                        factor = factor if score < 0 else -factor
                    elif score < 0:
                        factor = -factor
                    z *= factor
                    g *= factor
                if batch >= 0:
                    for i in range(len(combine)):
                        values[i, chain, batch] = 0.0
                        for k in range(d):
                            values[i, chain, batch] += combine[i, k] * average[k] / length
        for i in range(len(combine)):
            mean[i, m], error[i, m] = spread(values[i])


@njit(nogil=True, cache=True)
def spread(values):
    """The mean of batches [chains, batches] and its standard error.

    From all batches; but from the chains where these differ by more than their batches explain (F test, 5 %):
    then a batch was too short to forget the one before.
    """
    chains, batches = values.shape
    mean = values.mean()
    between, within = 0.0, 0.0
    for chain in range(chains):
        middle = values[chain].mean()
        between += (middle - mean) ** 2
        for batch in range(batches):
            within += (values[chain, batch] - middle) ** 2
    every = (within + batches * between) / (chains * batches * (chains * batches - 1))
    apart = between / (chains * (chains - 1))
    limit = 2.42 * within / (chains * (batches - 1)) / (chains * batches)
    return mean, math.sqrt(apart if apart > limit else every)
