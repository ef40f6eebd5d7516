"""What a rule does to one received symbol, reduced to a few numbers a device.

Every rule estimates `mean + scale*f(c*y)` with a slope c of its own and one of three functions f. With
`y = h*s + sqrt(sigma2)*z` this is `f(signal*s + noise*z)`, `signal = c*h` and `noise = c*sqrt(sigma2)`: two
numbers a device.

| rule | f | c |
|---|---|---|
| sbfl | tanh | h / sigma2 (published: twice that) |
| blmmse | identity | h / (h^2 + sigma2) (published: (2/pi)*h^2 in place of h^2) |
| zero_forcing | identity | 1 / h |
| linear | identity | 1 |
| high_snr, vote | sign | the sign of h |

A device with h = 0 has c = 0 and contributes its mean alone.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["EXP2", "FUNCTIONS", "RULES", "TANH_LIMIT", "Float64", "slopes"]

Float64 = NDArray[np.float64]

RULES = ("sbfl", "blmmse", "high_snr", "zero_forcing", "vote", "linear")
FUNCTIONS = {
    "sbfl": 0,
    "blmmse": 1,
    "zero_forcing": 1,
    "linear": 1,
    "high_snr": 2,
    "vote": 2,
}  # tanh, identity, sign

# 2^f = sum_i EXP2[i]*f^i on [-1/2, 1/2], minimax. The constant is 1, so that tanh(0) is 0.
EXP2: tuple[float, ...] = (1.0, 0.6931471807855991, 0.24022647782756684, 0.055503496608201454)
EXP2 += (0.009618284007328943, 0.0013396200517355428, 0.00015421208238729168)
TANH_LIMIT = 20.0  # tanh is 1 in float32 beyond 9.1

_LARGEST = 1e30  # a gain so small that the noise over it is larger carries no information
_LEAST = 1e-30
_CERTAIN = 1e12  # an SNR at which no noise within 6.4 deviations can turn a sign


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
    if known is not None:
        return _known_slopes(rule, form, h, sigma2, *known)
    heard = h != 0
    gain = np.where(heard, h, 1.0)
    if rule == "sbfl":
        with np.errstate(divide="ignore", over="ignore"):
            snr = (gain / np.sqrt(sigma2)) ** 2
        certain = snr > _CERTAIN
        factor = 2.0 if form == "published" else 1.0
        signal = factor * np.where(certain, _CERTAIN, snr)
        noise = factor * np.where(certain, 0.0, gain / np.sqrt(np.where(certain, 1.0, sigma2)))
    else:
        slope = _slope(rule, form, gain, sigma2)
        signal, noise = slope * gain, slope * np.sqrt(sigma2)
    if rule == "linear":  # a given linear rule may listen to a dead link: it hears noise
        signal = signal * heard
    else:
        signal, noise = signal * heard, noise * heard
    noise = np.clip(noise, -_LARGEST, _LARGEST)
    return signal.astype(np.float32), noise.astype(np.float32)


def _slope(rule: str, form: str, gain: Float64, sigma2: Float64) -> Float64:
    """Return c for gains other than zero; any rule but sbfl."""
    if rule == "blmmse":
        bits_power = 2 / math.pi if form == "published" else 1.0
        power = bits_power * gain**2 + sigma2
        return np.divide(gain, power, out=np.zeros_like(gain), where=power > 0)
    if rule == "zero_forcing":
        return 1 / gain
    return np.ones_like(gain) if rule == "linear" else np.sign(gain)


def _known_slopes(
    rule: str, form: str, h: Float64, sigma2: Float64, known_h: Float64, known_sigma2: Float64
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    heard = known_h != 0
    gain = np.where(heard, known_h, 1.0)
    limits = (-_LARGEST, _LARGEST)
    with np.errstate(over="ignore", under="ignore"):  # gains at the edge of float64
        if rule == "sbfl":
            certain = (known_sigma2 == 0) | (gain**2 > _CERTAIN * known_sigma2)
            slope = np.where(certain, _CERTAIN / gain, gain / np.where(certain, 1.0, known_sigma2))
            slope = slope * (2.0 if form == "published" else 1.0)
        else:
            slope = _slope(rule, form, gain, known_sigma2)
        slope = np.clip(slope if rule == "linear" else slope * heard, *limits)
        signal, noise = slope * h, slope * np.sqrt(sigma2)
    if FUNCTIONS[rule] == 2:  # a dead link taken for a live one votes with its noise; a zero would not vote
        signal = np.where((signal == 0) & heard, _LEAST, signal)
    return np.clip(signal, *limits).astype(np.float32), np.clip(noise, *limits).astype(np.float32)
