"""Successive cancellation list decoding of polar codes, compiled; one thread per call.

The code of length `n = 2**stages` is `x = u F^{(x) stages}`, `F = [[1, 0], [1, 1]]`, in natural order: the
first half of x is the sum of the codewords of the two halves of u, the second half is that of the second.
So stage s of the decoder holds `2**s` LLRs per path, and bit i of u needs those of the stages below the
lowest one in i.

Sums of bits and the price of a path are exact, `ln(1 + exp(.))` included: the min-sum form would take less
than half the time, but lose a tenth of a decibel on words of a hundred bits.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import math

import numpy as np

from signfade.kernels.jit import njit


@njit(nogil=True, cache=True)
def _check(a, b):
    """LLR of the sum of two bits."""
    least = min(abs(a), abs(b))
    least = least if (a < 0) == (b < 0) else -least
    return least + math.log1p(math.exp(-abs(a + b))) - math.log1p(math.exp(-abs(a - b)))


@njit(nogil=True, cache=True)
def _price(llr):
    """What a path pays for a bit of 0."""
    return max(-llr, 0.0) + math.log1p(math.exp(-abs(llr)))


@njit(nogil=True, cache=True)
def _update(i, stages, path, llr, source, left):
    """Bring one path's LLRs down to bit i; `llr[path, 2**s:2**(s + 1)]` is stage s.

    `source[path, s]` is the path whose memory holds stage s: a clone reads its parent's until all paths write
    the stage anew, which they do together.
    """
    low = stages - 1
    if i > 0:
        low = 0
        while (i >> low) & 1 == 0:
            low += 1
    for s in range(low, -1, -1):
        half = 1 << s
        above = source[path, s + 1]
        up, here = 2 * half, half
        if i > 0 and s == low:
            for j in range(half):
                a, b = llr[above, up + j], llr[above, up + half + j]
                llr[path, here + j] = b - a if left[path, half + j] else b + a
        else:
            for j in range(half):
                llr[path, here + j] = _check(llr[above, up + j], llr[above, up + half + j])
        source[path, s] = path


@njit(nogil=True, cache=True)
def _decide(i, bit, path, left, scratch):
    """Note bit i of a path: add up the subtrees it completes. `left[path, 2**s:2**(s + 1)]` is stage s."""
    scratch[0] = bit
    s = 0
    while (i >> s) & 1:
        half = 1 << s
        for j in range(half):
            scratch[half + j] = scratch[j]
            scratch[j] ^= left[path, half + j]
        s += 1
    half = 1 << s
    for j in range(half):
        left[path, half + j] = scratch[j]


@njit(nogil=True, cache=True)
def _keep(offered, count, wanted, kept):
    """Mark the `wanted` smallest of `count` metrics; of equal ones the first."""
    for i in range(count):
        kept[i] = wanted == count
    if wanted == count:
        return
    for _ in range(wanted):
        best = -1
        for i in range(count):
            if not kept[i] and (best < 0 or offered[i] < offered[best]):
                best = i
        kept[best] = True


@njit(nogil=True, cache=True)
def _remainder(word, size, polynomial, degree):
    """Remainder of the first `size` bits of `word`, shifted by `degree`, by the polynomial."""
    register = 0
    top = 1 << (degree - 1)
    for i in range(size):
        carry = ((register & top) != 0) ^ (word[i] != 0)
        register = (register << 1) & ((1 << degree) - 1)
        if carry:
            register ^= polynomial
    return register


@njit(nogil=True, cache=True)
def decode_range(channel, frozen, paths, payload, polynomial, degree, mask, first, last, bits, checked):
    """Decode codewords first ... last - 1.

    `channel` [K, n] LLRs, `ln P(0)/P(1)`; `frozen` [n]; `paths` the size of the list; `payload` bits and
    their `degree` check bits stand on the free positions in order. `bits` [K, payload] gets the most likely
    path that passes the check, or the most likely one, and `checked` [K] whether it does. No check if
    `degree` is 0.
    """
    size = channel.shape[1]
    stages = 0
    while (1 << stages) < size:
        stages += 1
    free = payload + degree
    llr = np.empty((paths, 2 * size), dtype=np.float32)
    source = np.empty((paths, stages + 1), dtype=np.int64)
    left = np.zeros((paths, 2 * size), dtype=np.uint8)
    words = np.zeros((paths, free), dtype=np.uint8)
    scratch = np.empty(size, dtype=np.uint8)
    metric = np.empty(paths)
    offered = np.empty(2 * paths)
    kept = np.empty(2 * paths, dtype=np.bool_)
    for k in range(first, last):
        llr[0, size:] = channel[k]
        source[0] = 0
        active, known = 1, 0
        metric[0] = 0.0
        for i in range(size):
            for path in range(active):
                _update(i, stages, path, llr, source, left)
            if frozen[i]:
                for path in range(active):
                    metric[path] += _price(llr[path, 1])
                    _decide(i, 0, path, left, scratch)
                continue
            for path in range(active):
                offered[2 * path] = metric[path] + _price(llr[path, 1])
                offered[2 * path + 1] = metric[path] + _price(-llr[path, 1])
            wanted = min(2 * active, paths)
            _keep(offered, 2 * active, wanted, kept)
            # A path with two children keeps the likelier and lends the other the place of a path with none.
            vacant = 0 if wanted == active else active
            for path in range(active):
                if not (kept[2 * path] and kept[2 * path + 1]):
                    continue
                while vacant < active and (kept[2 * vacant] or kept[2 * vacant + 1]):
                    vacant += 1
                place = vacant
                vacant += 1
                source[place] = source[path]
                left[place, :size] = left[path, :size]
                words[place, :known] = words[path, :known]
                first_bit = 0 if offered[2 * path] <= offered[2 * path + 1] else 1
                metric[place] = offered[2 * path + 1 - first_bit]
                words[place, known] = 1 - first_bit
                metric[path] = offered[2 * path + first_bit]
                words[path, known] = first_bit
            for path in range(active):
                if kept[2 * path] != kept[2 * path + 1]:
                    bit = 0 if kept[2 * path] else 1
                    metric[path] = offered[2 * path + bit]
                    words[path, known] = bit
            active = wanted
            for path in range(active):
                _decide(i, words[path, known], path, left, scratch)
            known += 1
        best, passes = 0, False
        for path in range(active):
            right = True
            if degree > 0:
                check = 0
                for j in range(degree):
                    check = (check << 1) | words[path, payload + j]
                right = check ^ mask == _remainder(words[path], payload, polynomial, degree)
            if (right and not passes) or (right == passes and metric[path] < metric[best]):
                best, passes = path, right
        bits[k] = words[best, :payload]
        checked[k] = passes
