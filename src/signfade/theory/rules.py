"""What each elementwise rule makes of one noisy bit: its first two moments, as functions of the SNR.

Signal model: a device sends `s = sign(g - mean)`, ±1 with unit power; the server receives `y = h*s + n` with
real noise `n ~ N(0, sigma2)`; the SNR is `gamma = h**2/sigma2` and the half-LLR `l = h*y/sigma2`. A rule
estimates the centred coordinate as `scale*f(y)`.

Arguments are floats, sequences, NumPy arrays or torch tensors. Results are float64 NumPy arrays, or Python
floats for single numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import numpy as np
from scipy import special

from signfade._check import check_choice
from signfade.settings import Form
from signfade.theory._numbers import Array, Numbers, common_shape, non_negative, plain, real
from signfade.theory.quadrature import soft_bit

__all__ = [
    "LAWS",
    "Law",
    "Moments",
    "Rule",
    "bit_error",
    "gain",
    "mismatched_moments",
    "moments",
    "rho",
    "rho_complement",
]

Rule = Literal["sbfl", "blmmse", "high_snr", "hard", "zero_forcing", "ideal"]

# Trapezoidal; tanh(w*z) has its nearest pole pi/(2*w) away: up to w = 100 the sum is exact to 1e-9.
_Z = np.linspace(-9.0, 9.0, 4001)
_WEIGHT = np.exp(-(_Z**2) / 2) / np.exp(-(_Z**2) / 2).sum()
_STEEPEST = 100.0
_CHUNK = 1024


class Moments(NamedTuple):
    """`E[s*f]`, `E[f**2]`, and what each lacks to one (the form in which nothing cancels at high SNR)."""

    signal: Array
    power: Array
    signal_lack: Array
    power_lack: Array


class Law(NamedTuple):
    """What theory knows of one rule.

    Attributes:
        moments: From the SNR and the form to the moments; None for `ideal`, which makes no error.
        slope: From a known gain (not zero), a known noise variance and the form to the slope c of
            `f(c*y)`; None where theory has no moments for a link that is not as the server knows it.
        read: From c and the true `h` and `sigma2` to `E[s*f]` and `E[f**2]`; f is tanh, the identity or sign.
        fades: Whether the error has a finite mean over fading.
    """

    moments: Callable[[Array, Form], Moments] | None
    slope: Callable[[Array, Array, Form], Array] | None = None
    read: Callable[[Array, Array, Array], tuple[Array, Array]] | None = None
    fades: bool = True


def rho(snr: Numbers) -> Array:
    """How much of the sign's information survives the noise, from 0 to 1.

    `rho(gamma) = E[tanh(l)**2] = E[tanh(gamma + sqrt(gamma)*z)]`, `z ~ N(0, 1)`

    It is `gamma - gamma**2 + ...` at low SNR and tends to 1 at high SNR. Accurate to 1e-14 relative.

    Args:
        snr: Instantaneous SNR `gamma = h**2/sigma2`, any shape; zero and infinity are accepted.

    Returns:
        `rho`, shaped like `snr`.

    Example:
        >>> round(rho(1.0), 6)
        0.5504
        >>> rho([0.0, float("inf")])
        array([0., 1.])

    Reference:
        Theorem 1, corrected; docs/errata.md.
    """
    return plain(soft_bit(snr).power)


def rho_complement(snr: Numbers) -> Array:
    """What `rho` lacks to one, accurate to 1e-12 relative where `1 - rho` would cancel.

    `1 - rho(gamma) = exp(-gamma/2)/sqrt(2*pi*gamma) * int exp(-l**2/(2*gamma))/cosh(l) dl`

    Args:
        snr: Instantaneous SNR, any shape.

    Returns:
        `1 - rho`, shaped like `snr`; zero where it is below 1e-308 (beyond 31 dB).

    Example:
        >>> print(f"{rho_complement(100.0):.3e}")
        2.388e-23
    """
    return plain(soft_bit(snr).power_lack)


def bit_error(snr: Numbers) -> Array:
    """Probability that a detected bit is wrong, `Q(sqrt(gamma))`.

    Args:
        snr: Instantaneous SNR, any shape.

    Returns:
        The probability, shaped like `snr`: 1/2 at zero SNR.

    Example:
        >>> round(bit_error(1.0), 6)
        0.158655

    Reference:
        Section II, the detector before the vote.
    """
    gamma = non_negative("snr", snr, infinite=True)
    return plain(special.erfc(np.sqrt(gamma / 2)) / 2)


def moments(rule: Rule, snr: Numbers, form: Form = "corrected") -> tuple[Array, Array]:
    """First and second moment of a rule, from which its error follows.

    The rule's estimate of a centred coordinate is `scale*f(y)`; returned are `E[s*f]` and `E[f**2]`.

    | rule | f | E[s*f] | E[f**2] |
    |---|---|---|---|
    | sbfl | tanh(l) | rho | rho |
    | sbfl, published | tanh(2l) | integral | integral |
    | blmmse | h*y/(h**2+sigma2) | gamma/(1+gamma) | the same |
    | blmmse, published, c = 2/pi | h*y/(c*h**2+sigma2) | gamma/(1+c*gamma) | gamma*(1+gamma)/(1+c*gamma)**2 |
    | high_snr | sign(y/h) | 1-2*Pe | 1 |
    | hard | (1-2*Pe)*sign(y/h) | (1-2*Pe)**2 | the same |
    | zero_forcing | y/h | 1 | 1+1/gamma |

    At zero SNR these are the limits for vanishing SNR (`server` gives a device with `h = 0` no say at all).

    Args:
        rule: One of the rules above. (`ideal` reads the gradient, not its sign: it has no moments.)
        snr: Instantaneous SNR, any shape.
        form: `"corrected"` or `"published"`; matters to `sbfl` and `blmmse` only.

    Returns:
        `(E[s*f], E[f**2])`, each shaped like `snr`.

    Example:
        >>> moments("blmmse", 3.0)
        (0.75, 0.75)

    Reference:
        Propositions 1 to 3 and Corollary 1; docs/errata.md.
    """
    check_choice("rule", rule, [name for name, law in LAWS.items() if law.moments])
    check_choice("form", form, get_args(Form))
    law = LAWS[rule].moments
    assert law is not None
    found = law(non_negative("snr", snr, infinite=True), form)
    return plain(found.signal), plain(found.power)


def gain(rule: Rule, snr: Numbers, form: Form = "corrected") -> Array:
    """By how much a rule shrinks (or stretches) what it estimates: the effective step per unit step.

    `E[ghat | g] = mean + scale*gain*sign(g - mean)`, `gain = E[s*f]`

    A posterior mean shrinks when it knows little (`gain = rho`); dividing by the gain makes a step size carry
    over between SNRs. Arguments as in `moments`.

    Example:
        >>> gain("blmmse", [1.0, 3.0])
        array([0.5 , 0.75])
    """
    return moments(rule, snr, form)[0]


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
    makes the estimate zero.

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
    check_choice("rule", rule, [name for name, law in LAWS.items() if law.slope])
    check_choice("form", form, get_args(Form))
    law = LAWS[rule]
    assert law.slope is not None
    assert law.read is not None
    gain, noise = real("h", h), non_negative("sigma2", sigma2)
    known, variance = real("known_h", known_h), non_negative("known_sigma2", known_sigma2)
    shape = common_shape(h=gain, sigma2=noise, known_h=known, known_sigma2=variance)
    gain, noise, known, variance = (np.broadcast_to(part, shape) for part in (gain, noise, known, variance))
    alive = known != 0
    with np.errstate(divide="ignore", over="ignore"):
        slope = law.slope(np.where(alive, known, 1.0), variance, form)
    slope = np.clip(slope, -1e100, 1e100) * alive
    signal, power = law.read(slope, gain, noise)
    return plain(signal), plain(power)


def _soft_moments(gamma: Array, form: Form) -> Moments:
    return Moments(*soft_bit(gamma, 2.0 if form == "published" else 1.0))


def _bit_power(form: Form) -> float:
    """The power of a bit in blmmse's denominator; the paper has the square of `E|g|` there."""
    return 2 / np.pi if form == "published" else 1.0


def _linear_moments(gamma: Array, form: Form) -> Moments:
    """`f = h*y/(share*h**2 + sigma2)`, written so that neither zero nor infinite SNR is special."""
    share = _bit_power(form)
    low = gamma < 1
    small = np.where(low, gamma, 0.0)
    noise = 1 / np.where(low, 1.0, gamma)
    signal = np.where(low, small / (1 + share * small), 1 / (noise + share))
    power = np.where(low, small * (1 + small) / (1 + share * small) ** 2, (1 + noise) / (noise + share) ** 2)
    if share != 1:
        return Moments(signal, power, 1 - signal, 1 - power)
    lack = np.where(low, 1 / (1 + small), noise / (1 + noise))
    return Moments(signal, signal, lack, lack)


def _sign_moments(gamma: Array, form: Form) -> Moments:
    right, wrong = special.erf(np.sqrt(gamma / 2)), special.erfc(np.sqrt(gamma / 2))
    return Moments(right, np.ones_like(gamma), wrong, np.zeros_like(gamma))


def _hard_moments(gamma: Array, form: Form) -> Moments:
    right, wrong = special.erf(np.sqrt(gamma / 2)), special.erfc(np.sqrt(gamma / 2))
    return Moments(right**2, right**2, wrong * (2 - wrong), wrong * (2 - wrong))


def _inverse_moments(gamma: Array, form: Form) -> Moments:
    with np.errstate(divide="ignore", over="ignore"):  # zero SNR: infinite noise
        noise = 1 / gamma
    return Moments(np.ones_like(gamma), 1 + noise, np.zeros_like(gamma), -noise)


def _read_soft(slope: Array, h: Array, sigma2: Array) -> tuple[Array, Array]:
    """`E[tanh(x)]` and `E[tanh(x)**2]` for `x ~ N(centre, width**2)`."""
    centre, width = slope * h, np.abs(slope) * np.sqrt(sigma2)
    shrink = np.minimum(1.0, _STEEPEST / np.maximum(width, 1e-300))  # a steeper tanh is a step like this one
    middle, spread = (centre * shrink).reshape(-1), (width * shrink).reshape(-1)
    signal, power = np.empty_like(middle), np.empty_like(middle)
    for start in range(0, middle.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        soft = np.tanh(middle[part, None] + spread[part, None] * _Z)
        signal[part], power[part] = soft @ _WEIGHT, soft**2 @ _WEIGHT
    return signal.reshape(centre.shape), power.reshape(centre.shape)


def _read_linear(slope: Array, h: Array, sigma2: Array) -> tuple[Array, Array]:
    return slope * h, slope**2 * (h**2 + sigma2)


def _read_sign(slope: Array, h: Array, sigma2: Array) -> tuple[Array, Array]:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(h == 0, 0.0, h / np.sqrt(2 * sigma2))
    return slope * special.erf(ratio), np.abs(slope)


def _soft_slope(h: Array, sigma2: Array, form: Form) -> Array:
    return (2.0 if form == "published" else 1.0) * h / sigma2


def _linear_slope(h: Array, sigma2: Array, form: Form) -> Array:
    slope: Array = h / (_bit_power(form) * h**2 + sigma2)
    return slope


LAWS: dict[Rule, Law] = {
    "sbfl": Law(_soft_moments, _soft_slope, _read_soft),
    "blmmse": Law(_linear_moments, _linear_slope, _read_linear),
    "high_snr": Law(_sign_moments, lambda h, sigma2, form: np.sign(h), _read_sign),
    "hard": Law(_hard_moments),
    "zero_forcing": Law(_inverse_moments, lambda h, sigma2, form: 1 / h, _read_linear, fades=False),
    "ideal": Law(None),
}
