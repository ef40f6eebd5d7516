"""Moments of a rule on a link that is not as the server knows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import numpy as np
from scipy import special

from signfade._check import check_choice
from signfade.settings import Form
from signfade.theory.rules import Array, Numbers, Rule, bit_power, common_shape, non_negative, plain, real

__all__ = ["mismatched_moments"]

# Trapezoidal; tanh(w*z) has its nearest pole pi/(2*w) away: up to w = 100 the sum is exact to 1e-9.
_Z = np.linspace(-9.0, 9.0, 4001)
_WEIGHT = np.exp(-(_Z**2) / 2) / np.exp(-(_Z**2) / 2).sum()
_STEEPEST = 100.0
_CHUNK = 1024

Slope = Callable[[Array, Array, Form], Array]
Read = Callable[[Array, Array, Array], tuple[Array, Array]]


def mismatched_moments(
    rule: Rule,
    h: Numbers,
    sigma2: Numbers,
    known_h: Numbers,
    known_sigma2: Numbers,
    form: Form = "corrected",
) -> tuple[Array, Array]:
    """`E[s*f]` and `E[f**2]` of a rule made for a link `(known_h, known_sigma2)` on the link `(h, sigma2)`.

    `f = tanh(c*y)`, `c = known_h/known_sigma2` for sbfl, and so on; `E[s*f] = E[tanh(c*h +
    c*sqrt(sigma2)*z)]`. A known gain of the wrong sign makes the first moment negative; a known gain of zero
    makes the estimate zero. Gains and (positive) variances of any shape; the results broadcast.

    Example:
        >>> mismatched_moments("blmmse", 1.0, 1.0, 1.0, 3.0)
        (0.25, 0.125)

    Reference: docs/radio.md.
    """
    check_choice("rule", rule, list(_READERS))
    check_choice("form", form, get_args(Form))
    gain, noise = real("h", h), non_negative("sigma2", sigma2)
    known, variance = real("known_h", known_h), non_negative("known_sigma2", known_sigma2)
    shape = common_shape(h=gain, sigma2=noise, known_h=known, known_sigma2=variance)
    gain, noise, known, variance = (np.broadcast_to(part, shape) for part in (gain, noise, known, variance))
    alive = known != 0
    slope_of, read = _READERS[rule]
    with np.errstate(divide="ignore", over="ignore"):
        slope = slope_of(np.where(alive, known, 1.0), variance, form)
    signal, power = read(np.clip(slope, -1e100, 1e100) * alive, gain, noise)
    return plain(signal), plain(power)


def _read_soft(slope: Array, h: Array, sigma2: Array) -> tuple[Array, Array]:
    """`E[tanh(x)]` and `E[tanh(x)**2]` for `x ~ N(centre, width**2)`."""
    centre, width = slope * h, np.abs(slope) * np.sqrt(sigma2)
    shrink = np.minimum(1.0, _STEEPEST / np.maximum(width, 1e-300))  # a steeper tanh is a step like this one
    middle, deviation = (centre * shrink).reshape(-1), (width * shrink).reshape(-1)
    signal, power = np.empty_like(middle), np.empty_like(middle)
    for start in range(0, middle.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        soft = np.tanh(middle[part, None] + deviation[part, None] * _Z)
        signal[part], power[part] = soft @ _WEIGHT, soft**2 @ _WEIGHT
    return signal.reshape(centre.shape), power.reshape(centre.shape)


def _read_linear(slope: Array, h: Array, sigma2: Array) -> tuple[Array, Array]:
    return slope * h, slope**2 * (h**2 + sigma2)


def _read_sign(slope: Array, h: Array, sigma2: Array) -> tuple[Array, Array]:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(h == 0, 0.0, h / np.sqrt(2 * sigma2))
    return slope * special.erf(ratio), np.abs(slope)


# The slope c of `f(c*y)` from what the server knows, and from c and the true link to both moments.
_READERS: dict[Rule, tuple[Slope, Read]] = {
    "sbfl": (lambda h, sigma2, form: (2.0 if form == "published" else 1.0) * h / sigma2, _read_soft),
    "blmmse": (lambda h, sigma2, form: h / (bit_power(form) * h**2 + sigma2), _read_linear),
    "high_snr": (lambda h, sigma2, form: np.sign(h), _read_sign),
    "zero_forcing": (lambda h, sigma2, form: 1 / h, _read_linear),
}
