"""The error of every rule, per device and of the sum over devices, and of the majority vote.

Signal model as in `signfade.theory.rules`. For any prior symmetric about its mean, with
`kappa = E|g - mean|`, a rule that estimates the centred coordinate as `scale*f(y)` has the error
`Var - 2*kappa*scale*E[s*f] + scale**2*E[f**2]`.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from scipy import special

from signfade._check import check_choice
from signfade.settings import Fading, Family, Form, Tie
from signfade.theory.rules import (
    LAWS,
    Array,
    Moments,
    Numbers,
    Rule,
    bit_error,
    common_shape,
    fading_nodes,
    kappa_of,
    non_negative,
    plain,
    real,
    soft_bit,
)

__all__ = ["Printed", "mse", "mse_faded", "nmse", "printed_mse", "tie_probability", "vote_nmse"]

Printed = Literal["theorem_1", "corollary_2", "corollary_3", "corollary_3_limit"]


def mse(
    rule: Rule,
    snr: Numbers,
    std: Numbers = 1.0,
    *,
    family: Family = "gaussian",
    form: Form = "corrected",
    scale: Numbers | None = None,
    mean_abs: Numbers | None = None,
    fading: Fading | None = None,
    rician_k: float = 4.0,
    antennas: int = 1,
) -> Array:
    """Mean squared error of a rule per coordinate and device, of the broadcast shape.

    `MSE = Var - 2*kappa*scale*E[s*f] + scale**2*E[f**2]`, `Var = std**2`, `kappa = E|g - mean|`

    With the right scale: sbfl `Var - kappa**2*rho`, the minimum; blmmse `Var - kappa**2*gamma/(1+gamma)`;
    hard `Var - kappa**2*(1-2*Pe)**2`, a closed-form upper bound on the minimum; zero_forcing
    `Var - kappa**2 + kappa**2/gamma`; ideal 0. Accurate to 1e-12 relative from -60 to 60 dB. Errors of
    independent devices add: multiply by `alpha_k**2` and sum over devices.

    Args:
        rule: `"sbfl"`, `"blmmse"`, `"high_snr"`, `"hard"`, `"zero_forcing"` or `"ideal"`.
        snr: Instantaneous SNR, any shape; with `fading` the mean SNR `E[h**2]/sigma2`.
        std: Standard deviation of the gradient's coordinates, any shape.
        family: `"gaussian"`, `kappa = sqrt(2/pi)*std`, or `"laplacian"`, `kappa = std/sqrt(2)`.
        form: `"corrected"` or `"published"`; matters to `sbfl` and `blmmse` only.
        scale: The `kappa` the server used, where it differs from the true one (quantised, say).
        mean_abs: The true `kappa`, where it is known (`empirical` prior): overrides the family.
        fading: Average over this kind of block fading, `gamma = snr*h**2`; see `fading_nodes`.
        rician_k: Power of the line of sight over the scattered power, for `"rician"`.
        antennas: Receive antennas, combined; `snr` is that at one of them.

    Example:
        >>> [round(mse(rule, 1.0), 3) for rule in ("sbfl", "blmmse", "hard", "high_snr", "zero_forcing")]
        [0.65, 0.682, 0.703, 0.767, 1.0]
        >>> mse("sbfl", float("inf"), std=[1.0, 2.0], family="laplacian")
        array([0.5, 2. ])

    Reference: Theorem 1 and Corollaries 2 and 3, corrected; docs/errata.md.
    """
    deviation, kappa = non_negative("std", std), np.asarray(kappa_of(std, family, mean_abs))
    used = kappa if scale is None else non_negative("scale", scale)
    shape = common_shape(std=kappa, scale=used)
    deviation, kappa, used = (np.broadcast_to(part, shape) for part in (deviation, kappa, used))
    check_choice("rule", rule, list(LAWS))
    check_choice("form", form, get_args(Form))
    name = "snr" if fading is None else "mean_snr"
    gamma = non_negative(name, snr, infinite=True)
    shape = common_shape(**{name: gamma, "std": used})
    power, weight = fading_nodes(fading or "none", rician_k, antennas)
    law = LAWS[rule].moments
    if law is None:
        return plain(np.zeros(shape))
    # E[1/h**2] is finite as soon as the density of h**2 vanishes at zero
    if LAWS[rule].fades or fading in (None, "none") or antennas > (2 if fading == "gaussian" else 1):
        found = Moments(*(part @ weight for part in law(gamma[..., None] * power, form)))
    else:
        noise = np.where(np.isinf(gamma), 0.0, np.inf)
        found = Moments(np.ones_like(gamma), 1 + noise, np.zeros_like(gamma), -noise)
    return plain(_combine(found, deviation, kappa, used, gamma))


def mse_faded(
    rule: Rule, mean_snr: Numbers, std: Numbers = 1.0, *, fading: Fading = "gaussian", **options: Any
) -> Array:
    """`mse` averaged over block fading, `gamma = mean_snr*h**2` with `E[h**2] = 1`; options as in `mse`.

    The average for `zero_forcing` is infinite for every kind of fading but none: `E[1/h**2]` diverges as soon
    as the density of `h**2` does not vanish at zero.

    Example:
        >>> round(mse_faded("sbfl", 10.0), 4), mse_faded("zero_forcing", 10.0, fading="rayleigh")
        (0.521, inf)

    Reference: Section VI-A, network model.
    """
    return mse(rule, mean_snr, std, fading=fading, **options)


def _combine(found: Moments, deviation: Array, kappa: Array, used: Array, gamma: Array) -> Array:
    # Two ways to write one number: the first is exact when the moments are small, the second when they are
    # close to one, where Var - kappa**2*rho loses digits if the prior is nearly two-valued (Var = kappa**2).
    with np.errstate(invalid="ignore"):  # inf * 0, where a scale of zero meets infinite noise
        low = deviation**2 - 2 * kappa * used * found.signal + used**2 * found.power
        high = (
            (deviation - kappa) * (deviation + kappa)
            + (kappa - used) ** 2
            + 2 * kappa * used * found.signal_lack
            - used**2 * found.power_lack
        )
    chosen: Array = np.where(used == 0, deviation**2, np.where(gamma < 1, low, high))
    return chosen


def printed_mse(which: Printed, snr: Numbers, std: Numbers = 1.0) -> Array:
    """The paper's formulas for the error per coordinate, as printed. They are not the errors of its rules.

    theorem_1: `std**2*(1 - (2/pi)*E[tanh(2l)**2])`, claimed for the posterior mean: it would be right for
    tanh(l), and is below the error of the printed rule tanh(2l) and below the true minimum.
    corollary_2: `std**2*(1 - 2/pi)`, claimed as an upper bound on the minimum: it is a lower bound, attained
    without noise.
    corollary_3: `std**2*(1 - c*gamma/(c*gamma + 1))`, `c = 2/pi`, claimed for blmmse: below the true minimum.
    corollary_3_limit: `std**2*(1 - 2/pi)`, claimed for zero forcing: right only without noise.

    Example:
        >>> round(printed_mse("corollary_3", 1.0), 3), round(mse("sbfl", 1.0), 3)
        (0.611, 0.65)

    Reference: Theorem 1, Corollaries 2 and 3; docs/errata.md.
    """
    check_choice("which", which, get_args(Printed))
    gamma = non_negative("snr", snr, infinite=True)
    variance = non_negative("std", std) ** 2
    share = 2 / np.pi
    if which == "theorem_1":
        return plain(variance * (1 - share * soft_bit(gamma, 2.0).power))
    if which == "corollary_3":
        return plain(variance / (share * gamma + 1))
    return plain(variance * np.full_like(gamma, 1 - share))


def nmse(
    rule: Rule | Literal["majority_vote"],
    snr: Numbers,
    std: Numbers = 1.0,
    weights: Numbers | None = None,
    *,
    family: Family = "gaussian",
    form: Form = "corrected",
    scale: Numbers | None = None,
    mean_abs: Numbers | None = None,
    tie: Tie = "zero",
) -> float:
    """Normalised error of a rule's estimate of the weighted sum of independent, centred gradients.

    `sum_k alpha_k**2*MSE_k / sum_k alpha_k**2*Var_k`: the errors of independent devices have mean zero, so
    their squares add. Guessing zero has 1; a rule can do worse. For the majority vote, `vote_nmse`.

    SNRs `[K]`; std, weights (ones if None), scale and mean_abs `[K]` or one for all; otherwise as in `mse`.

    Example:
        >>> round(nmse("sbfl", [1.0, 1.0]), 3), round(nmse("majority_vote", [1.0, 1.0]), 3)
        (0.65, 0.703)

    Reference: Theorem 1, summed over devices as there; docs/errata.md.
    """
    check_choice("rule", rule, [*LAWS, "majority_vote"])
    if rule == "majority_vote":
        return vote_nmse(snr, std, weights, family=family, mean_abs=mean_abs, tie=tie)
    gamma, deviation, alpha, energy = _devices(snr, std, weights)
    error = mse(rule, gamma, deviation, family=family, form=form, scale=scale, mean_abs=mean_abs)
    share = alpha**2
    counted = share > 0  # a device without weight adds nothing, however large its error
    return float((share[counted] * error[counted]).sum() / energy)


def _devices(snr: Numbers, std: Numbers, weights: Numbers | None) -> tuple[Array, Array, Array, float]:
    """SNRs, standard deviations and weights, `[K]` each, and the energy of the target."""
    gamma = non_negative("snr", snr, infinite=True)
    if gamma.ndim != 1 or len(gamma) == 0:
        raise ValueError(f"snr must have shape [K]; got {list(gamma.shape)}")
    deviation = non_negative("std", std)
    alpha = real("weights", 1.0 if weights is None else weights)
    for name, value in (("std", deviation), ("weights", alpha)):
        if value.shape not in ((), gamma.shape):
            raise ValueError(
                f"{name} must have shape [{len(gamma)}] or be one number; got {list(value.shape)}"
            )
    deviation, alpha = np.broadcast_to(deviation, gamma.shape), np.broadcast_to(alpha, gamma.shape)
    energy = (alpha**2 * deviation**2).sum()
    if energy == 0:
        raise ValueError("std and weights must not all be zero: the target has no energy")
    return gamma, deviation, alpha, energy


def tie_probability(devices: int) -> float:
    """Probability that one bit decides the vote of K fair, independent bits.

    `C(n, n/2)/2**n`, `n = 2*floor(K/2)`: about `sqrt(2/(pi*K))`. For odd K the others' sum is 0. For even K
    it is -1 where a tie counts as +1; where it counts as zero or a coin, the others' sum is 1 or -1, twice as
    likely, and the bit decides between a vote and a tie: half as much. For even K it is also the
    probability of a tie.

    Example:
        >>> [round(tie_probability(k), 12) for k in (1, 2, 3, 4, 5)]
        [1.0, 0.5, 0.5, 0.375, 0.375]
    """
    if devices < 1:
        raise ValueError(f"devices must be at least 1; got {devices}")
    half = devices // 2
    # C(2m, m)/4**m = Gamma(m + 1/2)/(Gamma(m + 1)*Gamma(1/2)); poch is exact where factorials overflow.
    return float(1 / (special.poch(half + 0.5, 0.5) * np.sqrt(np.pi)))


def vote_nmse(
    snr: Numbers,
    std: Numbers = 1.0,
    weights: Numbers | None = None,
    *,
    family: Family = "gaussian",
    mean_abs: Numbers | None = None,
    tie: Tie = "zero",
) -> float:
    """Normalised error, in [0, 1], of the best-scaled majority vote v of independent devices.

    `1 - (sum_k alpha_k*kappa_k*c_k)**2 / (E[v**2] * sum_k alpha_k**2*Var_k)`,
    `c_k = E[v*s_k] = (1 - 2*Pe_k) * tie_probability(K)`

    For a target t the best multiple of v leaves `E[t**2] - E[t*v]**2/E[v**2]`: one minus the squared cosine.
    `E[g_k*v] = E|g_k| * E[s_k*v]` because the vote knows `g_k` by its sign only. `E[v**2]` is 1, but
    `1 - P(tie)` where a tie counts as zero. Signs that are +1 as often as -1 are received so, whatever their
    error probability. A device that never votes (`h = 0` exactly) is not part of K.

    Arguments as in `nmse`; `tie` says what a sum of zero gives: "zero", "plus" (+1) or "random" (a coin).

    Example:
        >>> [round(vote_nmse([1e9] * 20, tie=tie), 3) for tie in ("zero", "plus", "random")]
        [0.52, 0.605, 0.605]

    Reference: Section II, majority vote.
    """
    check_choice("tie", tie, get_args(Tie))
    gamma, deviation, alpha, energy = _devices(snr, std, weights)
    kappa = kappa_of(deviation, family, mean_abs)
    decides = tie_probability(len(gamma))
    product = (alpha * kappa * ((1 - 2 * bit_error(gamma)) * decides)).sum()
    tied = decides if len(gamma) % 2 == 0 and tie == "zero" else 0.0
    return float(1 - product**2 / ((1 - tied) * energy))
