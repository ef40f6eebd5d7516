"""What each elementwise rule makes of one noisy bit: its first two moments, as functions of the SNR.

Signal model: a device sends `s = sign(g - mean)`, ±1 with unit power; the server receives `y = h*s + n` with
real noise `n ~ N(0, sigma2)`; the SNR is `gamma = h**2/sigma2` and the half-LLR `l = h*y/sigma2`. A rule
estimates the centred coordinate as `scale*f(y)`.

Arguments are floats, sequences, NumPy arrays or torch tensors. Results are float64 NumPy arrays, or Python
floats for single numbers.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np
from scipy import special

from signfade._check import check_choice
from signfade.theory._numbers import Array, Numbers, non_negative, plain
from signfade.theory.quadrature import soft_bit

__all__ = ["Form", "Moments", "Rule", "bit_error", "gain", "moments", "rho", "rho_complement", "rule_moments"]

Rule = Literal["sbfl", "blmmse", "high_snr", "hard", "zero_forcing", "ideal"]
Form = Literal["corrected", "published"]


class Moments(NamedTuple):
    """`E[s*f]`, `E[f**2]`, and what each lacks to one (the form in which nothing cancels at high SNR)."""

    signal: Array
    power: Array
    signal_lack: Array
    power_lack: Array


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
    check_choice("rule", rule, [r for r in get_args(Rule) if r != "ideal"])
    check_choice("form", form, get_args(Form))
    found = rule_moments(rule, non_negative("snr", snr, infinite=True), form)
    return plain(found.signal), plain(found.power)


def rule_moments(rule: Rule, gamma: Array, form: Form) -> Moments:
    """`moments` and their complements for arguments already checked; any rule but ideal."""
    one = np.ones_like(gamma)
    if rule == "sbfl":
        return Moments(*soft_bit(gamma, 2.0 if form == "published" else 1.0))
    if rule == "blmmse":
        return _linear(gamma, 2 / np.pi if form == "published" else 1.0)
    with np.errstate(divide="ignore", over="ignore"):  # zero SNR: infinite noise
        noise = 1 / gamma
    if rule == "zero_forcing":
        return Moments(one, 1 + noise, 0 * one, -noise)
    right, wrong = special.erf(np.sqrt(gamma / 2)), special.erfc(np.sqrt(gamma / 2))
    if rule == "high_snr":
        return Moments(right, one, wrong, 0 * one)
    return Moments(right**2, right**2, wrong * (2 - wrong), wrong * (2 - wrong))


def _linear(gamma: Array, share: float) -> Moments:
    """`f = h*y/(share*h**2 + sigma2)`, written so that neither zero nor infinite SNR is special."""
    low = gamma < 1
    small = np.where(low, gamma, 0.0)
    noise = 1 / np.where(low, 1.0, gamma)
    signal = np.where(low, small / (1 + share * small), 1 / (noise + share))
    power = np.where(low, small * (1 + small) / (1 + share * small) ** 2, (1 + noise) / (noise + share) ** 2)
    if share != 1:
        return Moments(signal, power, 1 - signal, 1 - power)
    lack = np.where(low, 1 / (1 + small), noise / (1 + noise))
    return Moments(signal, signal, lack, lack)


def gain(rule: Rule, snr: Numbers, form: Form = "corrected") -> Array:
    """By how much a rule shrinks (or stretches) what it estimates: the effective step per unit step.

    `E[ghat | g] = mean + scale*gain*sign(g - mean)`, `gain = E[s*f]`

    A posterior mean shrinks when it knows little (`gain = rho`); dividing by the gain makes a step size carry
    over between SNRs.

    Args:
        rule: As in `moments`.
        snr: Instantaneous SNR, any shape.
        form: As in `moments`.

    Returns:
        The gain, shaped like `snr`.

    Example:
        >>> gain("blmmse", [1.0, 3.0])
        array([0.5 , 0.75])
    """
    return moments(rule, snr, form)[0]
