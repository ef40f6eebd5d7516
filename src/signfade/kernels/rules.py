"""The arguments of a fused sum, checked, and what each rule makes of a symbol as two numbers per device.

Every rule estimates `mean + scale*f(c*y)` with a slope c of its own and one of three functions f. With
`y = h*s + sqrt(sigma2)*z` this is `f(signal*s + noise*z)`, `signal = c*h` and `noise = c*sqrt(sigma2)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade._check import check_shape

__all__ = ["RULES", "SIGN", "TANH", "check_keys", "check_sent", "scalars", "slopes"]

Float64 = NDArray[np.float64]

TANH, IDENTITY, SIGN = 0, 1, 2

_LARGEST = 1e30  # a gain so small that the noise over it is larger carries no information
_LEAST = 1e-30
_CERTAIN = 1e12  # an SNR at which no noise within 6.4 deviations can turn a sign


class Rule(NamedTuple):
    """A rule's `f(c*y)`."""

    function: int
    slope: Callable[[Float64, Float64, str], Float64]  # c, from gains other than zero, variances and the form
    silent: bool = True  # a device with a gain of zero contributes its mean only, and no noise
    scalars: bool = True  # devices have means and scales


def _soft_slope(gain: Float64, sigma2: Float64, form: str) -> Float64:
    certain = np.abs(gain) > math.sqrt(_CERTAIN) * np.sqrt(sigma2)
    slope = np.where(certain, _CERTAIN / gain, gain / np.where(certain, 1.0, sigma2))
    return slope * (2.0 if form == "published" else 1.0)


def _linear_slope(gain: Float64, sigma2: Float64, form: str) -> Float64:
    bits_power = 2 / math.pi if form == "published" else 1.0
    power = bits_power * gain**2 + sigma2
    return np.divide(gain, power, out=np.zeros_like(gain), where=power > 0)


def _sign_slope(gain: Float64, sigma2: Float64, form: str) -> Float64:
    return np.sign(gain)


RULES = {
    "sbfl": Rule(TANH, _soft_slope),
    "blmmse": Rule(IDENTITY, _linear_slope),
    "high_snr": Rule(SIGN, _sign_slope),
    "zero_forcing": Rule(IDENTITY, lambda gain, sigma2, form: 1 / gain),
    "vote": Rule(SIGN, _sign_slope, scalars=False),
    "linear": Rule(IDENTITY, lambda gain, sigma2, form: np.ones_like(gain), silent=False),
}


def slopes(
    rule: str, form: str, h: Float64, sigma2: Float64, known: tuple[Float64, Float64] | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return `signal` and `noise`, float32 `[K]` each, of a rule whose estimate is `f(signal*s + noise*z)`.

    `known` are the gains and variances `[K]` that the server takes for true, from which c is made.

    Example:
        >>> slopes("blmmse", "corrected", np.array([1.0, 0.0]), np.array([1.0, 0.0]))
        (array([0.5, 0. ], dtype=float32), array([0.5, 0. ], dtype=float32))
    """
    law = RULES[rule]
    known_h, known_sigma2 = (h, sigma2) if known is None else known
    alive = known_h != 0
    with np.errstate(over="ignore", under="ignore"):  # gains at the edge of float64
        slope = np.nan_to_num(law.slope(np.where(alive, known_h, 1.0), known_sigma2, form))
        slope = slope * alive if law.silent else slope
        signal, noise = slope * h, slope * np.sqrt(sigma2)
    if law.function == SIGN:  # a dead link taken for a live one votes with its noise; a zero would not vote
        signal = np.where((signal == 0) & alive, _LEAST, signal)
    limits = (-_LARGEST, _LARGEST)
    return np.clip(signal, *limits).astype(np.float32), np.clip(noise, *limits).astype(np.float32)


def check_sent(packed: Tensor, size: int, h: Tensor, sigma2: Tensor) -> tuple[Float64, Float64]:
    """Return h and sigma2, or raise."""
    if packed.dtype != torch.uint8 or packed.ndim != 2:
        raise ValueError(
            f"packed must be uint8 of shape [K, ceil(size/8)]; got {packed.dtype}, {list(packed.shape)}"
        )
    devices = len(packed)
    check_shape("packed", packed, (devices, -(-size // 8)))
    gain, variance = scalars("h", h, devices)[:, 0], scalars("sigma2", sigma2, devices)[:, 0]
    if devices and variance.min() < 0:
        raise ValueError(f"sigma2 must be non-negative; its smallest entry is {variance.min():g}")
    return gain, variance


def check_keys(keys: NDArray[np.uint64], devices: int | None = None) -> NDArray[np.uint64]:
    """Return `keys` as a contiguous `[K]` array of uint64, or raise."""
    keys = np.asarray(keys)
    if keys.ndim != 1 or keys.dtype != np.uint64:
        raise ValueError(f"keys must be uint64 of shape [K]; got {keys.dtype} of shape {list(keys.shape)}")
    if devices is not None and len(keys) != devices:
        raise ValueError(f"keys must have shape [{devices}]; got {list(keys.shape)}")
    return keys.copy()  # contiguous and writable: kernels are compiled anew for every kind of array


def scalars(name: str, values: Tensor, devices: int, parts: int = 1) -> Float64:
    """Return finite scalars of K devices as float64 `[K, 1]` or `[K, S]`, or raise."""
    # NumPy: these arrays are small, and a call of torch costs several times one of NumPy.
    check_shape(name, values, (devices,), (devices, parts))
    array: Float64 = values.detach().cpu().numpy().astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite; got NaN or infinity")
    return array.reshape(devices, 1 if array.ndim == 1 else parts)
