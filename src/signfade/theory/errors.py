"""Mean squared error per coordinate of every rule that reads one device's symbol at a time.

Signal model and noise convention as in `signfade.theory.rules`. For any prior symmetric about its mean, with
`kappa = E|g - mean|`, a rule that estimates the centred coordinate as `scale*f(y)` has the error
`Var - 2*kappa*scale*E[s*f] + scale**2*E[f**2]`.

Arguments are floats, sequences, NumPy arrays or torch tensors and broadcast against each other. Results are
float64 NumPy arrays, or Python floats if all arguments are single numbers.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from signfade._check import check_choice
from signfade.settings import Fading, Family, Form
from signfade.theory._numbers import Array, Numbers, common_shape, non_negative, plain
from signfade.theory.quadrature import fading_nodes, soft_bit
from signfade.theory.rules import LAWS, Moments, Rule

__all__ = ["Printed", "kappa_of", "mse", "mse_faded", "printed_mse"]

Printed = Literal["theorem_1", "corollary_2", "corollary_3", "corollary_3_limit"]

# kappa/std: E|g| of a centred variable with unit variance.
_MEAN_ABS: dict[Family, float] = {"gaussian": np.sqrt(2 / np.pi), "laplacian": np.sqrt(1 / 2)}


def kappa_of(std: Numbers, family: Family = "gaussian", mean_abs: Numbers | None = None) -> Array:
    """`kappa = E|g - mean|` of a prior with the given standard deviation.

    Gaussian `sqrt(2/pi)*std`, Laplacian `std/sqrt(2)`; `mean_abs` itself where it is given.

    Args:
        std: Standard deviation, any shape.
        family: `"gaussian"` or `"laplacian"`.
        mean_abs: The true `kappa`, where it is known; it cannot exceed `std`.

    Returns:
        `kappa`, of the broadcast shape.

    Example:
        >>> round(kappa_of(2.0), 4), round(kappa_of(2.0, "laplacian"), 4)
        (1.5958, 1.4142)

    Reference:
        Propositions 1 and 3.
    """
    check_choice("family", family, get_args(Family))
    deviation = non_negative("std", std)
    if mean_abs is None:
        return plain(_MEAN_ABS[family] * deviation)
    kappa = non_negative("mean_abs", mean_abs)
    common_shape(std=deviation, mean_abs=kappa)
    if (kappa > deviation * (1 + 1e-6)).any():  # the slack is for means taken in float32
        raise ValueError(f"mean_abs must not exceed std, as E|g| never does; got {mean_abs!r} above {std!r}")
    return plain(np.minimum(kappa, deviation))


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
) -> Array:
    """Mean squared error of a rule per coordinate and device.

    `MSE = Var - 2*kappa*scale*E[s*f] + scale**2*E[f**2]`, `Var = std**2`, `kappa = E|g - mean|`

    With the right scale: sbfl `Var - kappa**2*rho`, the minimum; blmmse `Var - kappa**2*gamma/(1+gamma)`;
    hard `Var - kappa**2*(1-2*Pe)**2`, a closed-form upper bound on the minimum; zero_forcing
    `Var - kappa**2 + kappa**2/gamma`; ideal 0. Errors of independent devices add: multiply by `alpha_k**2`
    and sum over devices.

    Args:
        rule: `"sbfl"`, `"blmmse"`, `"high_snr"`, `"hard"`, `"zero_forcing"` or `"ideal"`.
        snr: Instantaneous SNR (with `fading`: the mean SNR), any shape.
        std: Standard deviation of the gradient's coordinates, any shape.
        family: `"gaussian"`, `kappa = sqrt(2/pi)*std`, or `"laplacian"`, `kappa = std/sqrt(2)`.
        form: `"corrected"` or `"published"`; matters to `sbfl` and `blmmse` only.
        scale: The `kappa` the server used, where it differs from the true one (quantised, say).
        mean_abs: The true `kappa`, where it is known (`empirical` prior): overrules the family.
        fading: None, or the kind of fading to average over, as in `mse_faded`.
        rician_k: As in `mse_faded`.

    Returns:
        The error, of the broadcast shape. Accurate to 1e-12 relative from -60 to 60 dB.

    Example:
        >>> [round(mse(rule, 1.0), 3) for rule in ("sbfl", "blmmse", "hard", "high_snr", "zero_forcing")]
        [0.65, 0.682, 0.703, 0.767, 1.0]
        >>> mse("sbfl", float("inf"), std=[1.0, 2.0], family="laplacian")
        array([0.5, 2. ])

    Reference:
        Theorem 1 and Corollaries 2 and 3, corrected; docs/errata.md.
    """
    if fading is not None:
        return mse_faded(
            rule,
            snr,
            std,
            fading=fading,
            family=family,
            form=form,
            scale=scale,
            mean_abs=mean_abs,
            rician_k=rician_k,
        )
    deviation, kappa, used = _prior(std, family, scale, mean_abs)
    gamma = _checked_snr("snr", rule, snr, form)
    shape = common_shape(snr=gamma, std=used)
    law = LAWS[rule].moments
    if law is None:
        return plain(np.zeros(shape))
    return plain(_combine(law(gamma, form), deviation, kappa, used, gamma))


def mse_faded(
    rule: Rule,
    mean_snr: Numbers,
    std: Numbers = 1.0,
    *,
    fading: Fading = "gaussian",
    family: Family = "gaussian",
    form: Form = "corrected",
    scale: Numbers | None = None,
    mean_abs: Numbers | None = None,
    rician_k: float = 4.0,
) -> Array:
    """`mse` averaged over block fading, `gamma = mean_snr*h**2` with `E[h**2] = 1`.

    The average for `zero_forcing` is infinite for every kind of fading but none: `E[1/h**2]` diverges as soon
    as the density of `h**2` does not vanish at zero.

    Args:
        mean_snr: `E[h**2]/sigma2`, any shape.
        fading: `"gaussian"` (real `h ~ N(0, 1)`, the paper's), `"rayleigh"` (`h**2 ~ Exp(1)`), `"rician"` or
            `"none"`.
        rician_k: Power of the line of sight over the scattered power, for `"rician"`.

    Other arguments as in `mse`.

    Returns:
        The mean error, of the broadcast shape.

    Example:
        >>> round(mse_faded("sbfl", 10.0, fading="gaussian"), 4)
        0.521
        >>> mse_faded("zero_forcing", 10.0, fading="rayleigh")
        inf

    Reference:
        Section VI-A, network model.
    """
    deviation, kappa, used = _prior(std, family, scale, mean_abs)
    gamma = _checked_snr("mean_snr", rule, mean_snr, form)
    power, weight = fading_nodes(fading, rician_k)
    shape = common_shape(mean_snr=gamma, std=used)
    law = LAWS[rule].moments
    if law is None:
        return plain(np.zeros(shape))
    if not LAWS[rule].fades and fading != "none":
        noise = np.where(np.isinf(gamma), 0.0, np.inf)
        found = Moments(np.ones_like(gamma), 1 + noise, np.zeros_like(gamma), -noise)
    else:
        found = Moments(*(part @ weight for part in law(gamma[..., None] * power, form)))
    return plain(_combine(found, deviation, kappa, used, gamma))


def _checked_snr(name: str, rule: Rule, snr: Numbers, form: Form) -> Array:
    check_choice("rule", rule, list(LAWS))
    check_choice("form", form, get_args(Form))
    return non_negative(name, snr, infinite=True)


def _prior(
    std: Numbers, family: Family, scale: Numbers | None, mean_abs: Numbers | None
) -> tuple[Array, Array, Array]:
    """Standard deviation, true kappa, and the kappa in use, of one shape."""
    deviation, kappa = non_negative("std", std), np.asarray(kappa_of(std, family, mean_abs))
    used = kappa if scale is None else non_negative("scale", scale)
    shape = common_shape(std=kappa, scale=used)
    return np.broadcast_to(deviation, shape), np.broadcast_to(kappa, shape), np.broadcast_to(used, shape)


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

    Args:
        which: The statement.
        snr: Instantaneous SNR, any shape.
        std: Standard deviation of the Gaussian coordinates, any shape.

    Returns:
        The printed value, of the broadcast shape.

    Example:
        >>> round(printed_mse("corollary_3", 1.0), 3), round(mse("sbfl", 1.0), 3)
        (0.611, 0.65)

    Reference:
        Theorem 1, Corollaries 2 and 3; docs/errata.md.
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
