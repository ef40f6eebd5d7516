"""The error of a rule whose channel was estimated from P pilots, averaged over fading and pilots.

The receiver has `hhat` with `h = hhat + error`, `error ~ N(0, eps)` (`signfade.uplink.pilots`). One symbol
then is `y | s ~ N(hhat*s, sigma2 + eps)`: a link of SNR `hhat**2/(sigma2 + eps)`. Three ways to use it:

- naive: the rule takes hhat for h. Its slope is too steep by `1 + eps/sigma2`.
- aware: the rule counts the error as noise, `tanh(hhat*y/(sigma2 + eps))`: the best for one symbol.
- refined: many symbols tell `|h|` exactly, the pilots its sign: `tanh(|h|*hhat/eps) * tanh(|h|*y/sigma2)`.
  For gaussian fading the error is `Var - kappa**2*E[rho(gamma)*rho(P*gamma)]`: the pilots are one more bit,
  sent P times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import numpy as np

from signfade._check import check_choice
from signfade.settings import Fading, Family, PilotUse
from signfade.theory.rules import LAWS, Array, Numbers, fading_nodes, kappa_of, non_negative, plain, soft_bit

__all__ = ["PilotRule", "pilot_mse"]

PilotRule = Literal["sbfl", "blmmse"]

_Z = np.arange(-8.0, 8.1, 0.2)  # of the error; trapezoidal
_Z_WEIGHT = np.exp(-(_Z**2) / 2) / np.exp(-(_Z**2) / 2).sum()


class _Estimate(NamedTuple):
    """Nodes of `hhat**2` and their weights, `[Q]`, and the error variance eps."""

    power: Array
    weight: Array
    error: float


def _estimate(sigma2: float, pilots: int, fading: Fading, rician_k: float) -> _Estimate:
    """The law of the estimate: that of the gain with the error's share of the scattered power taken out.

    `eps = v*sigma2/(P*v + sigma2)` with the prior variance v in one dimension: 1 for gaussian fading, 1/2 for
    rayleigh, `1/(2*(1 + k))` for rician.
    """
    if fading == "none":
        return _Estimate(np.ones(1), np.ones(1), 0.0)
    ratio = rician_k if fading == "rician" else 0.0
    dimensions = 1 if fading == "gaussian" else 2
    variance = 1 / (dimensions * (1 + ratio))
    error = variance * sigma2 / (pilots * variance + sigma2)
    scattered = dimensions * (variance - error)
    direct = ratio / (1 + ratio)
    if fading == "rician":
        power, weight = fading_nodes("rician", direct / scattered)
    else:
        power, weight = fading_nodes(fading)
    return _Estimate((direct + scattered) * power, weight, error)


def pilot_mse(
    rule: PilotRule,
    mean_snr: Numbers,
    pilots: int,
    std: float = 1.0,
    *,
    use: PilotUse = "aware",
    fading: Fading = "gaussian",
    rician_k: float = 4.0,
    family: Family = "gaussian",
) -> Array:
    """Mean squared error per coordinate with a gain estimated from pilots, averaged over fading and pilots.

    `MSE = Var - 2*kappa**2*E[s*f] + kappa**2*E[f**2]`. For aware and refined rules both moments are equal.
    Shaped like `mean_snr`, which is `E[h**2]/sigma2`; `"refined"` is the limit of many symbols.

    Example:
        >>> [round(pilot_mse("sbfl", 1.0, 1, use=use), 4) for use in ("naive", "aware", "refined")]
        [0.8782, 0.8711, 0.8469]

    Reference: Theorem 1, corrected, with an estimated channel; docs/radio.md.
    """
    check_choice("rule", rule, get_args(PilotRule))
    check_choice("use", use, get_args(PilotUse))
    check_choice("fading", fading, get_args(Fading))
    if pilots < 1:
        raise ValueError(f"pilots must be at least 1; got {pilots}")
    snr = non_negative("mean_snr", mean_snr)
    if (snr == 0).any():
        raise ValueError("mean_snr must be positive; got 0")
    variance, kappa = float(non_negative("std", std)) ** 2, float(kappa_of(std, family))
    known = np.empty((2, snr.size))
    for i, one in enumerate(snr.reshape(-1).tolist()):
        known[:, i] = _moments(rule, use, 1 / one, pilots, fading, rician_k)
    signal, power = known.reshape(2, *snr.shape)
    return plain(variance - kappa**2 * (2 * signal - power))


def _moments(
    rule: PilotRule, use: PilotUse, sigma2: float, pilots: int, fading: Fading, rician_k: float
) -> tuple[float, float]:
    """`E[s*f]` and `E[f**2]`."""

    def matched(snr: Array) -> Array:
        law = LAWS[rule].moments
        assert law is not None
        return law(snr, "corrected").power

    if use == "refined" and fading == "gaussian":
        power, weight = fading_nodes("gaussian")
        sign = soft_bit(pilots * power / sigma2).power
        both = float((sign * matched(power / sigma2)) @ weight)
        return both, both
    power, weight, error = _estimate(sigma2, pilots, fading, rician_k)
    if use == "refined" and error > 0:
        guess = np.sqrt(power)[:, None]
        h = guess + np.sqrt(error) * _Z
        sign = np.tanh(np.abs(h) * guess / error) ** 2
        both = float(weight @ (sign * matched(h**2 / sigma2)) @ _Z_WEIGHT)
        return both, both
    if use != "naive":
        both = float(weight @ matched(power / (sigma2 + error)))
        return both, both
    first, second = _NAIVE[rule](power, error, sigma2)
    return float(weight @ first), float(weight @ second)


def _naive_soft(power: Array, error: float, sigma2: float) -> tuple[Array, Array]:
    soft = soft_bit(power / (sigma2 + error), 1 + error / sigma2)
    return soft.signal, soft.power


def _naive_linear(power: Array, error: float, sigma2: float) -> tuple[Array, Array]:
    linear = power / (power + sigma2)
    return linear, linear * (1 + error / (power + sigma2))


# `E[s*f]` and `E[f**2]` of a rule that takes the estimate for the gain, at nodes of `hhat**2`.
_NAIVE: dict[PilotRule, Callable[[Array, float, float], tuple[Array, Array]]] = {
    "sbfl": _naive_soft,
    "blmmse": _naive_linear,
}
