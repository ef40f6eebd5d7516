"""What a rule makes of one noisy bit when it takes the link for another than it is.

The symbol is `y = h*s + n`, `n ~ N(0, sigma2)` real; the rule was made for a gain and a variance that the
server takes for true. Its first two moments follow as in `signfade.theory.rules`, where both are the same.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
from scipy import special

from signfade._check import check_choice
from signfade.theory._numbers import Array, Numbers, common_shape, non_negative, plain, real
from signfade.theory.rules import Form, Rule

__all__ = ["mismatched_moments"]

# Trapezoidal; tanh(w*z) has its nearest pole pi/(2*w) away: up to w = 100 the sum is exact to 1e-9.
_Z = np.linspace(-9.0, 9.0, 4001)
_WEIGHT = np.exp(-(_Z**2) / 2) / np.exp(-(_Z**2) / 2).sum()
_STEEPEST = 100.0
_CHUNK = 1024


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
    c*sqrt(sigma2)*z)]`. A gain of the wrong sign makes the first moment negative. A rule that takes the
    gain for zero is zero.

    Args:
        rule: `"sbfl"`, `"blmmse"`, `"high_snr"` or `"zero_forcing"`.
        h: True gains, any shape.
        sigma2: True variances of the real noise, positive.
        known_h: Gains that the rule was made for.
        known_sigma2: Variances that it was made for, positive.
        form: `"corrected"` or `"published"`.

    Returns:
        Both moments, of the broadcast shape.

    Example:
        >>> mismatched_moments("blmmse", 1.0, 1.0, 1.0, 3.0)
        (0.25, 0.125)

    Reference:
        docs/radio.md.
    """
    check_choice("rule", rule, ("sbfl", "blmmse", "high_snr", "zero_forcing"))
    check_choice("form", form, get_args(Form))
    gain, noise = real("h", h), non_negative("sigma2", sigma2)
    believed, variance = real("known_h", known_h), non_negative("known_sigma2", known_sigma2)
    shape = common_shape(h=gain, sigma2=noise, known_h=believed, known_sigma2=variance)
    gain, noise, believed, variance = (
        np.broadcast_to(part, shape) for part in (gain, noise, believed, variance)
    )
    heard = believed != 0
    divisor = np.where(heard, believed, 1.0)
    if rule == "high_snr":
        with np.errstate(divide="ignore", invalid="ignore"):
            signal = np.sign(believed) * special.erf(np.where(gain == 0, 0.0, gain / np.sqrt(2 * noise)))
        return plain(signal), plain(heard.astype(np.float64))
    with np.errstate(divide="ignore", over="ignore"):
        if rule == "sbfl":
            slope = (2.0 if form == "published" else 1.0) * divisor / variance
        elif rule == "zero_forcing":
            slope = 1 / divisor
        else:
            slope = divisor / ((2 / np.pi if form == "published" else 1.0) * divisor**2 + variance)
    slope = np.clip(slope, -1e100, 1e100) * heard
    if rule == "sbfl":
        signal, power = _soft(slope * gain, np.abs(slope) * np.sqrt(noise))
        return plain(signal), plain(power)
    return plain(slope * gain), plain(slope**2 * (gain**2 + noise))


def _soft(centre: Array, width: Array) -> tuple[Array, Array]:
    """`E[tanh(x)]` and `E[tanh(x)**2]` for `x ~ N(centre, width**2)`."""
    shrink = np.minimum(1.0, _STEEPEST / np.maximum(width, 1e-300))  # a steeper tanh is a step like this one
    middle, spread = (centre * shrink).reshape(-1), (width * shrink).reshape(-1)
    signal, power = np.empty_like(middle), np.empty_like(middle)
    for start in range(0, middle.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        soft = np.tanh(middle[part, None] + spread[part, None] * _Z)
        signal[part], power[part] = soft @ _WEIGHT, soft**2 @ _WEIGHT
    return signal.reshape(centre.shape), power.reshape(centre.shape)
