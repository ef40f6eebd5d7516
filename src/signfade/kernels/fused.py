"""The uplink and the server's sum in one pass: keyed noise, symbols, and what a rule makes of them.

Coordinate m of noise stream k is a function of (keys[k], m) and of nothing else. A draw is a 32-bit word of
Threefry: its top bit is the sign, its other 31 bits are an integer v, and `|z| = Phi^-1(1 - p/2)` with
`p = (v + 1/2) / 2^31`. The quantile is a piecewise quadratic, whose cells are cut where the *floating-point*
form of v + 1/2 cuts them: 32 cells in every octave, 32 octaves. So the tail down to a probability of 2^-33
on each side (|z| = 6.338) is followed as closely as the centre, and no logarithm is taken.

Threads share out tiles of 512 coordinates, which stay in the first-level cache. Inside a tile devices are
added one after another, in the order in which they are given, each as `offset + factor*f` in float64: no
result depends on the number of threads, nor on how the devices are cut into calls that continue one
accumulator. Float arithmetic is plain IEEE, without fused multiply-add, so every machine gets the same bits.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, var-annotated"
# mypy: no-warn-unreachable

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist

import numpy as np
import torch
from numba import uint32
from numpy.typing import NDArray
from torch import Tensor

from signfade._check import check_choice
from signfade.kernels.jit import njit
from signfade.kernels.rules import RULES, SIGN, TANH, check_keys, check_sent, scalars, slopes
from signfade.kernels.simd import add, float_bits, from_bits, rotate, shift_left, shift_right, sub, to_float
from signfade.kernels.threads import run_ranges

__all__ = ["TILE", "add_soft_bits", "fused_sum", "received", "standard_normal"]

TILE = 512  # coordinates that share a run of counters; a stream's bits depend on it
HALF = TILE // 2  # a tile's counters: word 0 of each makes its first half, word 1 its second
CELL_BITS = 18  # mantissa bits left below the 5 that choose one of an octave's 32 cells
FIRST_CELL = (127 - 1) << 5  # the cell of 0.5 = float(0 + 1/2), the smallest argument

# 2^f = sum_i EXP2[i]*f^i on [-1/2, 1/2], minimax. The constant is 1, so that tanh(0) is 0.
EXP2: tuple[float, ...] = (1.0, 0.6931471807855991, 0.24022647782756684, 0.055503496608201454)
EXP2 += (0.009618284007328943, 0.0013396200517355428, 0.00015421208238729168)
TANH_LIMIT = 20.0  # tanh is 1 in float32 beyond 9.1


@cache
def quantile_table() -> NDArray[np.float32]:
    """Return the coefficients `[3, 1025]` of `z = c0 + t*(c1 + t*c2)`, one column per cell.

    t is the integer position in the cell, counted from its middle (-2^17 <= t < 2^17). Every quadratic meets
    the quantile in the three Chebyshev nodes of its cell, which is close to the best one. The last cell
    holds the single argument 2^31 (v rounded up), where z = 0.
    """
    cells = np.arange(32 * 32)
    width = 2.0 ** (cells // 32 - 1) / 32
    start = width * (32 + cells % 32)
    nodes = np.cos(np.pi * np.array([1.0, 3.0, 5.0]) / 6) / 2  # in cell widths, from the middle
    upper_tail = (start + width * (nodes[:, None] + 0.5)) / 2**32
    z = -np.vectorize(NormalDist().inv_cdf)(upper_tail)
    coefficients = np.linalg.solve(np.vander(nodes, increasing=True), z)
    coefficients *= 2.0 ** (-CELL_BITS * np.arange(3.0))[:, None]
    table: NDArray[np.float32] = np.zeros((3, 32 * 32 + 1), dtype=np.float32)
    table[:, :-1] = coefficients
    return table


# Compiled in as constants, a quarter faster than arguments.
CONSTANT, SLOPE, CURVE = (row.copy() for row in quantile_table())
_E1, _E2, _E3, _E4, _E5, _E6 = (np.float32(c) for c in EXP2[1:])
_LIMIT = np.float32(TANH_LIMIT)
_MINUS_TWO_LOG2E = np.float32(-2 / math.log(2))
_ROUND = np.float32(1.5 * 2**23)  # adding it rounds to an integer, which then stands in the low bits
_ONE = np.float32(1)


@njit(inline="always")
def _four_rounds(x0, x1, a, b, c, d):
    x0 = add(x0, x1)
    x1 = rotate(x1, a) ^ x0
    x0 = add(x0, x1)
    x1 = rotate(x1, b) ^ x0
    x0 = add(x0, x1)
    x1 = rotate(x1, c) ^ x0
    x0 = add(x0, x1)
    x1 = rotate(x1, d) ^ x0
    return x0, x1


@njit(inline="always")
def _threefry(k0, k1, x0, x1):
    """Threefry2x32-20 (Salmon, Moraes, Dror, Shaw 2011)."""
    k2 = k0 ^ k1 ^ uint32(0x1BD11BDA)
    x0, x1 = _four_rounds(add(x0, k0), add(x1, k1), 13, 15, 26, 6)
    x0, x1 = _four_rounds(add(x0, k1), add(x1, add(k2, 1)), 17, 29, 16, 24)
    x0, x1 = _four_rounds(add(x0, k2), add(x1, add(k0, 2)), 13, 15, 26, 6)
    x0, x1 = _four_rounds(add(x0, k0), add(x1, add(k1, 3)), 17, 29, 16, 24)
    x0, x1 = _four_rounds(add(x0, k1), add(x1, add(k2, 4)), 13, 15, 26, 6)
    return add(x0, k2), add(x1, add(k0, 5))


@njit(nogil=True, cache=True)
def _words(key, tile, words):
    """Fill `words` [512] with the random words of a tile's coordinates."""
    k0 = uint32(key & np.uint64(0xFFFFFFFF))
    k1 = uint32(key >> np.uint64(32))
    first = np.uint64(tile) * np.uint64(HALF)
    low = uint32(first & np.uint64(0xFFFFFFFF))  # HALF divides 2^32: the low word cannot overflow in a tile
    high = uint32(first >> np.uint64(32))
    for j in range(HALF):
        x0, x1 = _threefry(k0, k1, add(low, j), high)
        words[j] = x0
        words[HALF + j] = x1


@njit(nogil=True, cache=True)
def _normal(key, tile, words, cell, scratch, z):
    """Fill `z` [512] with the normal numbers of a tile's coordinates; the arrays before it are scratch."""
    _words(key, tile, words)
    t, c0, c1, c2 = scratch[0], scratch[1], scratch[2], scratch[3]
    for j in range(TILE):
        bits = float_bits(to_float(words[j] & uint32(0x7FFFFFFF)) + np.float32(0.5))
        cell[j] = sub(shift_right(bits, CELL_BITS), FIRST_CELL)
        t[j] = to_float(sub(bits & uint32((1 << CELL_BITS) - 1), 1 << (CELL_BITS - 1)))
    for j in range(TILE):
        i = cell[j]
        c0[j] = CONSTANT[i]
        c1[j] = SLOPE[i]
        c2[j] = CURVE[i]
    for j in range(TILE):
        magnitude = c0[j] + t[j] * (c1[j] + t[j] * c2[j])
        z[j] = from_bits(float_bits(magnitude) ^ (words[j] & uint32(0x80000000)))


@njit(nogil=True, cache=True)
def _flips(packed, first_byte, flips):
    """Expand the bits of a tile: the sign bit of `flips[j]` is set where the device's sign is -1."""
    count = min(TILE // 8, packed.shape[0] - first_byte)
    for j in range(count):
        byte = uint32(packed[first_byte + j]) ^ uint32(0xFF)
        for i in range(8):
            flips[8 * j + i] = shift_left(byte, 24 + i) & uint32(0x80000000)


@njit(nogil=True, cache=True)
def _scratch():
    """Return arrays for one tile of one device: words, cells, their coefficients, normal numbers, flips."""
    words, cell, flips = np.empty(TILE, np.uint32), np.empty(TILE, np.uint32), np.zeros(TILE, np.uint32)
    return words, cell, np.empty((4, TILE), np.float32), np.zeros(TILE, np.float32), flips


@njit(inline="always")
def _symbols(packed, key, tile, signal, noise, work, out):
    """`out = signal*s + noise*z` [512] of one device."""
    words, cell, coefficients, z, flips = work
    _flips(packed, tile * TILE // 8, flips)
    if noise != 0:
        _normal(key, tile, words, cell, coefficients, z)
    bits = float_bits(signal)
    for j in range(TILE):
        out[j] = from_bits(bits ^ flips[j]) + noise * z[j]


@njit(nogil=True, cache=True, error_model="numpy")  # the default tests every divisor, one by one
def _tanh(x, y):
    """`y = tanh(x)` through exp(-2|x|), within 1.2e-7 of it."""
    for j in range(TILE):
        bits = float_bits(x[j])
        sign = bits & uint32(0x80000000)
        size = from_bits(bits ^ sign)
        power = (size if size < _LIMIT else _LIMIT) * _MINUS_TWO_LOG2E
        shifted = power + _ROUND
        f = power - (shifted - _ROUND)
        p = _ONE + f * (_E1 + f * (_E2 + f * (_E3 + f * (_E4 + f * (_E5 + f * _E6)))))
        e = from_bits(add(float_bits(p), shift_left(float_bits(shifted), 23)))
        y[j] = from_bits(float_bits((_ONE - e) / (_ONE + e)) ^ sign)


@njit(nogil=True, cache=True)
def _add(offset, factor, f, sums):
    """`sums += offset + factor*f` in float64."""
    for j in range(f.shape[0]):
        sums[j] += offset + factor * np.float64(f[j])


@njit(nogil=True, cache=True)
def _add_devices(
    function, packed, signal, noise, keys, offset, factor, bounds, total, result, first_tile, last_tile
):
    """Add all devices over tiles first_tile ... last_tile - 1.

    `total` [M] float64 is continued if it is not empty; else sums start at 0 and go to `result` [M] float32.
    `offset`, `factor` [K, S] hold for the coordinates bounds[s] ... bounds[s + 1] - 1.
    """
    work = _scratch()
    x, y = np.empty(TILE, np.float32), np.empty(TILE, np.float32)
    sums = np.empty(TILE, np.float64)
    size = bounds[-1]
    segment = 0
    for tile in range(first_tile, last_tile):
        begin = tile * TILE
        length = min(TILE, size - begin)
        while bounds[segment + 1] <= begin:
            segment += 1
        sums[:] = 0.0
        if total.shape[0] > 0:
            sums[:length] = total[begin : begin + length]
        for k in range(packed.shape[0]):
            _symbols(packed[k], keys[k], tile, signal[k], noise[k], work, x)
            f = x
            if function == TANH:
                _tanh(x, y)
                f = y
            elif function == SIGN:
                one = np.float32(1) if signal[k] != 0 else np.float32(0)
                for j in range(TILE):
                    y[j] = one if x[j] >= 0 else -one
                f = y
            s = segment
            start = 0
            while start < length:
                stop = min(bounds[s + 1] - begin, length)
                _add(offset[k, s], factor[k, s], f[start:stop], sums[start:stop])
                start = stop
                s += 1
        if total.shape[0] > 0:
            total[begin : begin + length] = sums[:length]
        else:
            for j in range(length):
                result[begin + j] = np.float32(sums[j])


@njit(nogil=True, cache=True)
def add_soft_bits(y, slope, weight, result, first_tile, last_tile):
    """`result = sum_k weight_k*tanh(slope_k*y_k)` over tiles first_tile ... last_tile - 1 of `y` [K, M].

    In float64, devices one after another; NaN where a y is not finite.
    """
    x, f = np.zeros(TILE, np.float32), np.empty(TILE, np.float32)
    sums = np.empty(TILE, np.float64)
    size = y.shape[1]
    for tile in range(first_tile, last_tile):
        begin = tile * TILE
        length = min(TILE, size - begin)
        sums[:] = 0.0
        for k in range(y.shape[0]):
            part = y[k, begin : begin + length]
            for j in range(length):
                x[j] = slope[k] * part[j]
            _tanh(x, f)
            for j in range(length):
                sums[j] += weight[k] * np.float64(f[j]) + np.float64(part[j] * np.float32(0))
        for j in range(length):
            result[begin + j] = np.float32(sums[j])


@njit(nogil=True, cache=True)
def _fill(packed, gain, deviation, keys, start, out, first_tile, last_tile):
    """Fill the part of `out` [K, n] in these tiles: symbols, or normal numbers if `packed` is empty."""
    work = _scratch()
    y = np.empty(TILE, np.float32)
    for k in range(keys.shape[0]):
        for tile in range(first_tile, last_tile):
            if packed.shape[0] == 0:
                _normal(keys[k], tile, work[0], work[1], work[2], y)
            else:
                _symbols(packed[k], keys[k], tile, gain[k], deviation[k], work, y)
            begin = max(tile * TILE, start)
            end = min((tile + 1) * TILE, start + out.shape[1])
            out[k, begin - start : end - start] = y[begin - tile * TILE : end - tile * TILE]


def _filled(
    packed: NDArray[np.uint8],
    gain: NDArray[np.float32],
    deviation: NDArray[np.float32],
    keys: NDArray[np.uint64],
    start: int,
    stop: int,
    threads: int | None,
) -> NDArray[np.float32]:
    """Return coordinates start ... stop - 1 of symbols, or of normal numbers, float32 `[K, stop - start]`."""
    out: NDArray[np.float32] = np.empty((len(keys), stop - start), dtype=np.float32)
    first, last = start // TILE, -(-stop // TILE)

    def work(a: int, b: int) -> None:
        _fill(packed, gain, deviation, keys, start, out, first + a, first + b)

    if out.size:
        run_ranges(work, last - first, threads)
    return out


_NO_BITS: NDArray[np.uint8] = np.empty((0, 0), dtype=np.uint8)
_NO_LINK: NDArray[np.float32] = np.empty(0, dtype=np.float32)


def standard_normal(
    keys: NDArray[np.uint64], size: int, start: int = 0, *, threads: int | None = None
) -> NDArray[np.float32]:
    """Draw standard normal numbers from counter-based streams, float32 `[K, size]`.

    `word(k, m) = Threefry2x32-20(keys[k], counter of m)`, `z = +-Phi^-1(1 - p/2)`, `p = (v + 1/2) / 2^31`
    with 31 bits v and one sign bit of the word. The quantile is within 5.2e-7 of the true one (2.5e-7 where
    |z| < 1) up to |z| = 6.338. `keys`, uint64 `[K]`, are as `signfade.keys.stream_key` makes them; coordinate
    m is the same number whatever `start`, `size` and `threads` are.

    Example:
        >>> keys = np.array([3, 4], dtype=np.uint64)
        >>> z = standard_normal(keys, 1000)
        >>> z.shape, bool((z[1:, 10:20] == standard_normal(keys[1:], 10, start=10)).all())
        ((2, 1000), True)
    """
    keys = check_keys(keys)
    if size < 0 or start < 0:
        raise ValueError(f"size and start must be non-negative; got {size} and {start}")
    return _filled(_NO_BITS, _NO_LINK, _NO_LINK, keys, start, start + size, threads)


def received(
    packed: Tensor,
    size: int,
    h: Tensor,
    sigma2: Tensor,
    keys: NDArray[np.uint64],
    *,
    start: int = 0,
    stop: int | None = None,
    threads: int | None = None,
) -> Tensor:
    """Return the received symbols `start ... stop - 1` themselves, for rules that read all devices together.

    `y = h*s + sqrt(sigma2)*z`, float32 `[K, stop - start]`: bit for bit what `transmit` makes of the unpacked
    signs and the same keys. Other arguments as in `fused_sum`. Reference: Sec. II, "Uplink transmission".

    Example:
        >>> packed, keys = torch.tensor([[0b10100000]], dtype=torch.uint8), np.array([1], dtype=np.uint64)
        >>> received(packed, 3, torch.tensor([-2.0]), torch.zeros(1), keys)
        tensor([[-2.,  2., -2.]])
    """
    gain, _ = check_sent(packed, size, h, sigma2)
    keys = check_keys(keys, len(packed))
    stop = size if stop is None else stop
    if not 0 <= start <= stop <= size:
        raise ValueError(f"start and stop must satisfy 0 <= start <= stop <= {size}; got {start} and {stop}")
    deviation: NDArray[np.float32] = sigma2.detach().sqrt().cpu().float().numpy()
    bits = packed.contiguous().cpu().numpy()
    made = _filled(bits, gain.astype(np.float32), deviation, keys, start, stop, threads)
    return torch.from_numpy(made).to(packed.device)


def fused_sum(
    rule: str,
    packed: Tensor,
    size: int,
    h: Tensor,
    sigma2: Tensor,
    mean: Tensor | None,
    scale: Tensor | None,
    weights: Tensor | None,
    keys: NDArray[np.uint64],
    *,
    form: str = "corrected",
    segments: Sequence[int] | None = None,
    known: tuple[Tensor, Tensor] | None = None,
    out: Tensor | None = None,
    threads: int | None = None,
) -> Tensor:
    """Send every device's bits over its link and add up what the rule makes of them, float32 `[M]`.

    `sum_k weights_k*(mean_k + scale_k*f(y_k))`, `y_k = h_k*s_k + sqrt(sigma2_k)*z_k`, where z_k is the stream
    `standard_normal(keys)[k]` and f belongs to the rule: `tanh(h*y/sigma2)` (sbfl), `h*y/(h^2 + sigma2)`
    (blmmse), `sign(y/h)` (high_snr, vote), `y/h` (zero_forcing), `y` (linear). It is what `transmit` followed
    by the function of that name in `signfade.server` gives, up to float rounding.

    `packed` are signs as `pack_signs` makes them, uint8 `[K, ceil(size/8)]`; `h`, `sigma2` (per real symbol),
    `weights` and `keys` are `[K]`; `mean` and `scale = E|g - mean|` are `[K]`, or `[K, S]` with the lengths
    of S layers in `segments`. None stands for a mean of 0, a scale or a weight of 1. A device with a gain of
    zero contributes its mean only (linear: its noise, too). The server takes `known` gains and variances for
    true in place of `h` and `sigma2`. A float64 accumulator `out` `[M]` is continued in place, and returned.

    Example:
        >>> packed = torch.tensor([[0b10100000], [0b11000000]], dtype=torch.uint8)
        >>> one, keys = torch.ones(2), np.array([1, 2], dtype=np.uint64)
        >>> fused_sum("sbfl", packed, 3, one, 0 * one, 0 * one, one, None, keys)
        tensor([2., 0., 0.])

    Reference: Propositions 1 to 3, Corollary 1, Sec. II for the vote; docs/errata.md for the two forms.
    """
    check_choice("rule", rule, list(RULES))
    check_choice("form", form, ("corrected", "published"))
    if not RULES[rule].scalars and not (mean is None and scale is None):
        raise ValueError("mean and scale must be None for the vote: it adds signs")
    devices, (gain, variance) = len(packed), check_sent(packed, size, h, sigma2)
    keys = check_keys(keys, devices)
    lengths = [size] if segments is None else [int(n) for n in segments]
    if sum(lengths) != size or min(lengths, default=1) < 1:
        raise ValueError(f"segments must be positive and add up to size = {size}; got {lengths}")
    parts = len(lengths)
    alpha = np.ones((devices, 1)) if weights is None else scalars("weights", weights, devices)
    factor = alpha * (np.ones((devices, 1)) if scale is None else scalars("scale", scale, devices, parts))
    offset = alpha * (np.zeros((devices, 1)) if mean is None else scalars("mean", mean, devices, parts))
    factor, offset = (np.broadcast_to(a, (devices, parts)).copy() for a in (factor, offset))
    if out is not None and (out.dtype != torch.float64 or tuple(out.shape) != (size,)):
        raise ValueError(f"out must be float64 of shape [{size}]; got {out.dtype} of shape {list(out.shape)}")
    taken = None if known is None else check_sent(packed, size, *known)
    signal, noise = slopes(rule, form, gain, variance, taken)
    function, bounds = RULES[rule].function, np.cumsum([0, *lengths])
    bits = packed.contiguous().numpy()
    total = np.empty(0) if out is None else out.numpy()
    result: NDArray[np.float32] = np.empty(size if out is None else 0, dtype=np.float32)

    def work(first: int, last: int) -> None:
        _add_devices(function, bits, signal, noise, keys, offset, factor, bounds, total, result, first, last)

    run_ranges(work, -(-size // TILE), threads)
    return torch.from_numpy(result) if out is None else out
