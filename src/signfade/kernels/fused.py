"""The uplink and the server's sum in one pass, from packed bits to the estimate.

Every rule estimates `mean + scale*f(c*y)` with a slope c of its own and one of three functions f. With
`y = h*s + sqrt(sigma2)*z` this is `f(signal*s + noise*z)`, `signal = c*h` and `noise = c*sqrt(sigma2)`: two
numbers per device.

| rule | f | c |
|---|---|---|
| sbfl | tanh | h / sigma2 (published: twice that) |
| blmmse | identity | h / (h^2 + sigma2) (published: (2/pi)*h^2 in place of h^2) |
| zero_forcing | identity | 1 / h |
| linear | identity | 1 |
| high_snr, vote | sign | the sign of h |

A device with h = 0 has c = 0 and contributes its mean only.

Threads share out tiles of coordinates. Inside a tile devices are added one after another, in the order in
which they are given, each as `offset + factor*f` in float64: no result depends on the number of threads, nor
on how the devices are cut into calls that continue one accumulator.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, var-annotated"
# mypy: no-warn-unreachable

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numba import uint32
from numpy.typing import NDArray
from torch import Tensor

from signfade._check import check_choice, check_shape
from signfade.kernels.jit import njit
from signfade.kernels.noise import TILE, check_keys, tile_normal, tile_words
from signfade.kernels.simd import add, float_bits, from_bits, shift_left
from signfade.kernels.threads import available_threads, run_ranges

__all__ = ["add_soft_bits", "fused_sum", "received"]

Float64 = NDArray[np.float64]

TANH, IDENTITY, SIGN = 0, 1, 2

# 2^f = sum_i EXP2[i]*f^i on [-1/2, 1/2], minimax. The constant is 1, so that tanh(0) is 0.
EXP2: tuple[float, ...] = (1.0, 0.6931471807855991, 0.24022647782756684, 0.055503496608201454)
EXP2 += (0.009618284007328943, 0.0013396200517355428, 0.00015421208238729168)
TANH_LIMIT = 20.0  # tanh is 1 in float32 beyond 9.1

_LARGEST = 1e30  # a gain so small that the noise over it is larger carries no information
_LEAST = 1e-30
_CERTAIN = 1e12  # an SNR at which no noise within 6.4 deviations can turn a sign


class Rule(NamedTuple):
    """What the kernel makes of one symbol: `f(c*y)`.

    Attributes:
        function: f.
        slope: c, from gains other than zero, noise variances and the form.
        silent: Whether a device with a gain of zero contributes its mean only, and no noise.
        scalars: Whether devices have means and scales.
    """

    function: int
    slope: Callable[[Float64, Float64, str], Float64]
    silent: bool = True
    scalars: bool = True


def _soft_slope(gain: Float64, sigma2: Float64, form: str) -> Float64:
    certain = (sigma2 == 0) | (gain**2 > _CERTAIN * sigma2)
    slope = np.where(certain, _CERTAIN / gain, gain / np.where(certain, 1.0, sigma2))
    return slope * (2.0 if form == "published" else 1.0)


def _linear_slope(gain: Float64, sigma2: Float64, form: str) -> Float64:
    bits_power = 2 / math.pi if form == "published" else 1.0
    power = bits_power * gain**2 + sigma2
    return np.divide(gain, power, out=np.zeros_like(gain), where=power > 0)


RULES = {
    "sbfl": Rule(TANH, _soft_slope),
    "blmmse": Rule(IDENTITY, _linear_slope),
    "high_snr": Rule(SIGN, lambda gain, sigma2, form: np.sign(gain)),
    "zero_forcing": Rule(IDENTITY, lambda gain, sigma2, form: 1 / gain),
    "vote": Rule(SIGN, lambda gain, sigma2, form: np.sign(gain), scalars=False),
    "linear": Rule(IDENTITY, lambda gain, sigma2, form: np.ones_like(gain), silent=False),
}


def slopes(
    rule: str, form: str, h: Float64, sigma2: Float64, known: tuple[Float64, Float64] | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return `signal` and `noise`, float32 `[K]` each, of a rule whose estimate is `f(signal*s + noise*z)`.

    Noiseless links (sigma2 = 0) have `noise = 0`; with sbfl their `signal` is as good as infinite. With
    `known`, gains and variances `[K]` that the server takes for true, the slope c is made from those.

    Example:
        >>> slopes("blmmse", "corrected", np.array([1.0, 0.0]), np.array([1.0, 0.0]))
        (array([0.5, 0. ], dtype=float32), array([0.5, 0. ], dtype=float32))
    """
    law = RULES[rule]
    if known is not None:
        return _known_slopes(law, form, h, sigma2, *known)
    alive = h != 0
    gain = np.where(alive, h, 1.0)
    if law.function == TANH:
        with np.errstate(divide="ignore", over="ignore"):
            snr = (gain / np.sqrt(sigma2)) ** 2
        certain = snr > _CERTAIN
        factor = 2.0 if form == "published" else 1.0
        signal = factor * np.where(certain, _CERTAIN, snr)
        noise = factor * np.where(certain, 0.0, gain / np.sqrt(np.where(certain, 1.0, sigma2)))
    else:
        slope = law.slope(gain, sigma2, form)
        signal, noise = slope * gain, slope * np.sqrt(sigma2)
    signal = signal * alive
    if law.silent:
        noise = noise * alive
    noise = np.clip(noise, -_LARGEST, _LARGEST)
    return signal.astype(np.float32), noise.astype(np.float32)


def _known_slopes(
    law: Rule, form: str, h: Float64, sigma2: Float64, known_h: Float64, known_sigma2: Float64
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    alive = known_h != 0
    limits = (-_LARGEST, _LARGEST)
    with np.errstate(over="ignore", under="ignore"):  # gains at the edge of float64
        slope = law.slope(np.where(alive, known_h, 1.0), known_sigma2, form)
        slope = np.clip(slope * alive if law.silent else slope, *limits)
        signal, noise = slope * h, slope * np.sqrt(sigma2)
    if law.function == SIGN:  # a dead link taken for a live one votes with its noise; a zero would not vote
        signal = np.where((signal == 0) & alive, _LEAST, signal)
    return np.clip(signal, *limits).astype(np.float32), np.clip(noise, *limits).astype(np.float32)


_E1, _E2, _E3, _E4, _E5, _E6 = (np.float32(c) for c in EXP2[1:])
_LIMIT = np.float32(TANH_LIMIT)
_MINUS_TWO_LOG2E = np.float32(-2 / math.log(2))
_ROUND = np.float32(1.5 * 2**23)  # adding it rounds to an integer, which then stands in the low bits
_ONE = np.float32(1)


@njit(nogil=True, cache=True)
def tile_flips(packed, first_byte, flips):
    """Expand the bits of a tile: the sign bit of `flips[j]` is set where device j's sign is -1."""
    count = min(TILE // 8, packed.shape[0] - first_byte)
    for j in range(count):
        byte = uint32(packed[first_byte + j]) ^ uint32(0xFF)
        for i in range(8):
            flips[8 * j + i] = shift_left(byte, 24 + i) & uint32(0x80000000)


@njit(nogil=True, cache=True)
def tile_argument(flips, signal, noise, z, argument):
    """`argument = signal*s + noise*z`."""
    bits = float_bits(signal)
    for j in range(TILE):
        argument[j] = from_bits(bits ^ flips[j]) + noise * z[j]


@njit(nogil=True, cache=True, error_model="numpy")  # the default tests every divisor, one by one
def tile_tanh(x, y):
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
def tile_sign(x, y, size):
    """`y = size*sign(x)`, +size at 0."""
    for j in range(TILE):
        y[j] = size if x[j] >= 0 else -size


@njit(nogil=True, cache=True)
def tile_add(offset, factor, f, sums):
    """`sums += offset + factor*f` in float64."""
    for j in range(f.shape[0]):
        sums[j] += offset + factor * np.float64(f[j])


@njit(nogil=True, cache=True)
def add_devices(
    function, packed, signal, noise, keys, offset, factor, bounds, total, result, first_tile, last_tile
):
    """Add all devices over tiles first_tile ... last_tile - 1.

    `total` [M] float64 is continued if it is not empty; else sums start at 0 and go to `result` [M] float32.
    `offset`, `factor` [K, S] hold for the coordinates bounds[s] ... bounds[s + 1] - 1.
    """
    words = np.empty(TILE, np.uint32)
    cell = np.empty(TILE, np.uint32)
    flips = np.zeros(TILE, np.uint32)
    scratch = np.empty((4, TILE), np.float32)
    z = np.zeros(TILE, np.float32)
    x = np.empty(TILE, np.float32)
    y = np.empty(TILE, np.float32)
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
            tile_flips(packed[k], begin // 8, flips)
            if noise[k] != 0:
                tile_words(keys[k], tile, words)
                tile_normal(words, cell, scratch, z)
            tile_argument(flips, signal[k], noise[k], z, x)
            f = x
            if function == TANH:
                tile_tanh(x, y)
                f = y
            elif function == SIGN:
                tile_sign(x, y, np.float32(1) if signal[k] != 0 else np.float32(0))
                f = y
            s = segment
            start = 0
            while start < length:
                stop = min(bounds[s + 1] - begin, length)
                tile_add(offset[k, s], factor[k, s], f[start:stop], sums[start:stop])
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
    x = np.zeros(TILE, np.float32)
    f = np.empty(TILE, np.float32)
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
            tile_tanh(x, f)
            for j in range(length):
                sums[j] += weight[k] * np.float64(f[j]) + np.float64(part[j] * np.float32(0))
        for j in range(length):
            result[begin + j] = np.float32(sums[j])


@njit(nogil=True, cache=True)
def fill_received(packed, gain, deviation, keys, start, out, first_tile, last_tile):
    """Fill the part of `out` [K, n], received symbols from coordinate `start` on, that lies in the tiles."""
    words = np.empty(TILE, np.uint32)
    cell = np.empty(TILE, np.uint32)
    flips = np.zeros(TILE, np.uint32)
    scratch = np.empty((4, TILE), np.float32)
    z = np.zeros(TILE, np.float32)
    y = np.empty(TILE, np.float32)
    for k in range(packed.shape[0]):
        for tile in range(first_tile, last_tile):
            tile_flips(packed[k], tile * TILE // 8, flips)
            if deviation[k] != 0:
                tile_words(keys[k], tile, words)
                tile_normal(words, cell, scratch, z)
            begin = tile * TILE - start
            if begin >= 0 and begin + TILE <= out.shape[1]:
                tile_argument(flips, gain[k], deviation[k], z, out[k, begin : begin + TILE])
                continue
            tile_argument(flips, gain[k], deviation[k], z, y)
            first, last = max(begin, 0), min(begin + TILE, out.shape[1])
            out[k, first:last] = y[first - begin : last - begin]


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
    """Send every device's bits over its link and add up what the rule makes of them.

    `sum_k weights_k*(mean_k + scale_k*f(y_k))`, `y_k = h_k*s_k + sqrt(sigma2_k)*z_k`, where z_k is the stream
    `standard_normal(keys)[k]` and f belongs to the rule: `tanh(h*y/sigma2)` (sbfl), `h*y/(h^2 + sigma2)`
    (blmmse), `sign(y/h)` (high_snr, vote), `y/h` (zero_forcing), `y` (linear). It is what `transmit` followed
    by the function of that name in `signfade.server` gives, up to float rounding: tanh is within 1.2e-7, sums
    are float64. sigma2 is the variance of the real noise per symbol; signs have unit power.

    The signals are never stored. Devices are added one after another in the order given; threads share out
    the coordinates. So the bytes of the result depend neither on the number of threads nor on how the devices
    are cut into calls that pass `out` on.

    Args:
        rule: "sbfl", "blmmse", "high_snr", "zero_forcing", "vote" (the sum of the detected signs), "linear".
        packed: signs, eight to a byte as `pack_signs` makes them, uint8 `[K, ceil(size/8)]`.
        size: number of coordinates M.
        h: gains `[K]`. With a gain of zero a device contributes its mean only (linear: its noise, too).
        sigma2: noise variances `[K]`; zero is a noiseless link.
        mean: `[K]`, or `[K, S]` with `segments`; zero if None. None for the vote.
        scale: `E|g - mean|`, `[K]` or `[K, S]`; one if None. None for the vote.
        weights: `[K]`; one if None.
        keys: keys of the noise streams, uint64 `[K]`.
        form: "corrected" or "published", for sbfl and blmmse.
        segments: lengths of the S layers where mean or scale differ by layer.
        known: gains and variances `[K]` from which the rule makes its slope, where the server does not know
            `h` and `sigma2` themselves.
        out: a float64 accumulator `[M]` to add into, in place. Then it is what is returned.
        threads: at most this many threads, by default as many as there are cores.

    Returns:
        The sum, float32 `[M]`, or `out`. Nothing else of that length is allocated.

    Raises:
        ValueError: shapes or types that do not match, an unknown rule or form, a negative variance.

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
    devices, gain, variance = _check_sent(packed, size, h, sigma2)
    keys = _check_stream(keys, devices)
    lengths = [size] if segments is None else [int(n) for n in segments]
    if sum(lengths) != size or min(lengths, default=1) < 1:
        raise ValueError(f"segments must be positive and add up to size = {size}; got {lengths}")
    parts = len(lengths)
    alpha = np.ones((devices, 1)) if weights is None else _scalars("weights", weights, devices)
    factor = alpha * (np.ones((devices, 1)) if scale is None else _scalars("scale", scale, devices, parts))
    offset = alpha * (np.zeros((devices, 1)) if mean is None else _scalars("mean", mean, devices, parts))
    factor, offset = (np.broadcast_to(a, (devices, parts)).copy() for a in (factor, offset))
    if out is not None and (out.dtype != torch.float64 or tuple(out.shape) != (size,)):
        raise ValueError(f"out must be float64 of shape [{size}]; got {out.dtype} of shape {list(out.shape)}")
    taken = None if known is None else _check_sent(packed, size, *known)[1:]
    signal, noise = slopes(rule, form, gain, variance, taken)
    function, bounds = RULES[rule].function, np.cumsum([0, *lengths])
    bits = packed.contiguous().numpy()
    total64 = np.empty(0) if out is None else out.numpy()
    result: NDArray[np.float32] = np.empty(size if out is None else 0, dtype=np.float32)

    def work(first: int, last: int) -> None:
        add_devices(function, bits, signal, noise, keys, offset, factor, bounds, total64, result, first, last)

    run_ranges(work, -(-size // TILE), threads or available_threads())
    return torch.from_numpy(result) if out is None else out


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
    """Return the received symbols themselves, for rules that read all devices together.

    `y = h*s + sqrt(sigma2)*z`: bit for bit what `transmit` makes of the unpacked signs and the same keys.
    sigma2 is the variance of the real noise per symbol; signs have unit power.

    Args:
        packed: signs, eight to a byte, uint8 `[K, ceil(size/8)]`.
        size: number of coordinates M.
        h: gains `[K]`.
        sigma2: noise variances `[K]`.
        keys: keys of the noise streams, uint64 `[K]`.
        start: first coordinate wanted.
        stop: one past the last; `size` if None. Columns can so be worked on in groups.
        threads: as in `fused_sum`.

    Returns:
        float32 `[K, stop - start]`.

    Example:
        >>> packed, keys = torch.tensor([[0b10100000]], dtype=torch.uint8), np.array([1], dtype=np.uint64)
        >>> received(packed, 3, torch.tensor([-2.0]), torch.zeros(1), keys)
        tensor([[-2.,  2., -2.]])

    Reference: Sec. II, "Uplink transmission".
    """
    devices, gains, _ = _check_sent(packed, size, h, sigma2)
    keys = _check_stream(keys, devices)
    stop = size if stop is None else stop
    if not 0 <= start <= stop <= size:
        raise ValueError(f"start and stop must satisfy 0 <= start <= stop <= {size}; got {start} and {stop}")
    gain = gains.astype(np.float32)
    deviation: NDArray[np.float32] = sigma2.detach().sqrt().cpu().float().numpy()
    y: NDArray[np.float32] = np.empty((devices, stop - start), dtype=np.float32)
    first, last = start // TILE, -(-stop // TILE)
    bits = packed.contiguous().numpy()

    def work(a: int, b: int) -> None:
        fill_received(bits, gain, deviation, keys, start, y, first + a, first + b)

    if y.size:
        run_ranges(work, last - first, threads or available_threads())
    return torch.from_numpy(y)


def _check_sent(packed: Tensor, size: int, h: Tensor, sigma2: Tensor) -> tuple[int, Float64, Float64]:
    """Return K, h and sigma2, or raise."""
    if packed.dtype != torch.uint8 or packed.ndim != 2:
        raise ValueError(
            f"packed must be uint8 of shape [K, ceil(size/8)]; got {packed.dtype}, {list(packed.shape)}"
        )
    devices = packed.shape[0]
    check_shape("packed", packed, (devices, -(-size // 8)))
    gain, variance = _scalars("h", h, devices)[:, 0], _scalars("sigma2", sigma2, devices)[:, 0]
    if devices and variance.min() < 0:
        raise ValueError(f"sigma2 must be non-negative; its smallest entry is {variance.min():g}")
    return devices, gain, variance


def _check_stream(keys: NDArray[np.uint64], devices: int) -> NDArray[np.uint64]:
    keys = check_keys(keys)
    if len(keys) != devices:
        raise ValueError(f"keys must have shape [{devices}]; got {list(keys.shape)}")
    return keys


def _scalars(name: str, values: Tensor, devices: int, parts: int = 1) -> Float64:
    """Return finite scalars of K devices as float64 `[K, 1]` or `[K, S]`, or raise."""
    # NumPy: these arrays are small, and a call of torch costs several times one of NumPy.
    check_shape(name, values, (devices,), (devices, parts))
    array: Float64 = values.detach().cpu().numpy().astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite; got NaN or infinity")
    return array.reshape(devices, 1 if array.ndim == 1 else parts)
