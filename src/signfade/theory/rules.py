"""What each rule makes of one noisy bit: its moments, the integrals behind them, and their input checks.

Signal model: a device sends `s = sign(g - mean)`, ±1 with unit power; the server receives `y = h*s + n` with
real noise `n ~ N(0, sigma2)`. The SNR is `gamma = h**2/sigma2`; the half-LLR `l = h*y/sigma2` is
`N(gamma, gamma)` given s = +1. A rule estimates the centred coordinate as `scale*f(y)`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, Union, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from signfade._check import check_choice
from signfade.settings import Fading, Family, Form

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LAWS", "Law", "Moments", "Rule", "bit_error", "gain", "kappa_of", "moments", "rho"]

Array: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = Union[ArrayLike, "Tensor"]
Rule = Literal["sbfl", "blmmse", "high_snr", "hard", "zero_forcing", "ideal"]

# kappa/std: E|g| of a centred variable with unit variance.
_MEAN_ABS: dict[Family, float] = {"gaussian": np.sqrt(2 / np.pi), "laplacian": np.sqrt(1 / 2)}

# The integrals are trapezoidal sums. For an integrand that is analytic in a strip of half-width d about the
# real axis and decays at both ends, the sum with spacing q is off by about exp(-2*pi*d/q). The nearest pole,
# of tanh(2l), is pi/4 away in l: exp(-2*pi*(pi/4)/0.1) = 4e-22. In z = l/sqrt(gamma) it is farther away,
# which is why a coarser grid serves below -10 dB: exp(-2*pi*2.48/0.3) = 3e-23.
_SPACING, _COARSE = 0.1, 0.3
_LENGTH_Z = 12.0  # beyond 12 deviations exp(-z**2/2 + z) is below 1e-26
_LENGTH_L = 40.0  # beyond 40 the integrands are below exp(-40) = 4e-18
_NO_ERRORS = 1500.0  # from this SNR on exp(-gamma/2) is below the smallest float64
_CHUNK = 4096  # SNRs at a time: bounds the memory to a few tens of megabytes
_NO_FADING = 1e12  # from this ratio of direct to scattered power on a link fades by less than 1e-6
_LOG_SPACING = 0.2  # in ln(h**2); the strip is pi/2 wide: exp(-pi**2/0.2) = 4e-22


def real(name: str, value: Numbers, *, infinite: bool = False) -> Array:
    """Convert a float, a sequence, a NumPy array or a torch tensor to float64; refuse NaN and infinity."""
    if hasattr(value, "detach"):  # a tensor: it may need a gradient, be on a device, or be a bfloat16
        value = cast("Tensor", value).detach().cpu().double().numpy()
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be real numbers; got {value!r}") from None
    if np.isnan(array).any() or (not infinite and np.isinf(array).any()):
        raise ValueError(f"{name} must be {'a number' if infinite else 'finite'}; got NaN or infinity")
    return array


def non_negative(name: str, value: Numbers, *, infinite: bool = False) -> Array:
    """Convert as `real` does and refuse numbers below zero."""
    array = real(name, value, infinite=infinite)
    if (array < 0).any():
        raise ValueError(f"{name} must be non-negative; its smallest entry is {array.min():g}")
    return array


def common_shape(**arrays: Array) -> tuple[int, ...]:
    """Return the shape that the named arrays broadcast to, or raise with their names and shapes."""
    try:
        return np.broadcast_shapes(*(array.shape for array in arrays.values()))
    except ValueError:
        got = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        raise ValueError(f"{', '.join(arrays)} must have shapes that broadcast together; got {got}") from None


def plain(value: Any) -> Array:
    """Return a Python float for a single number, which the annotation does not say, and else the array."""
    array = np.asarray(value, dtype=np.float64)
    return cast(Array, float(array)) if array.ndim == 0 else array


class Moments(NamedTuple):
    """`E[s*f]`, `E[f**2]`, and what each lacks to one (the form in which nothing cancels at high SNR)."""

    signal: Array
    power: Array
    signal_lack: Array
    power_lack: Array


def soft_bit(snr: Numbers, slope: float = 1.0) -> Moments:
    """Moments of the soft bit `f = tanh(slope*l)`, each and its complement to full relative accuracy.

    The density of the half-LLR is `exp(-gamma/2)*cosh(l)*N(l; 0, gamma)`, and `E[s|l] = tanh(l)`. Hence
    `E[s*tanh(a*l)] = exp(-gamma/2) * int N(l; 0, gamma) * sinh(l)*tanh(a*l) dl`,
    `1 - E[s*tanh(a*l)] = exp(-gamma/2) * int N(l; 0, gamma) * cosh((a-1)*l)/cosh(a*l) dl`,
    `E[tanh(a*l)**2]` and its complement likewise, with `cosh(l)*tanh(a*l)**2` and `cosh(l)/cosh(a*l)**2`.
    Every integrand is positive: nothing cancels. The first kind is used below 0 dB, the second above.

    Takes SNRs of any shape, zero and infinity included, and a slope in [1, 2]: 1 for the corrected rule, 2
    for the published one. A complement below 1e-308 is returned as zero.

    Example:
        >>> soft_bit(1.0).signal.round(6)
        np.float64(0.5504)

    Reference: Theorem 1; docs/errata.md.
    """
    if not 1 <= slope <= 2:
        raise ValueError(f"slope must be in [1, 2]; got {slope}")
    gamma = non_negative("snr", snr, infinite=True)
    flat = gamma.reshape(-1)
    out = np.empty((4, flat.size))
    for start in range(0, flat.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        out[:, part] = _soft_bit(flat[part], slope)
    return Moments(*out.reshape(4, *gamma.shape))


def _soft_bit(gamma: Array, slope: float) -> Array:
    out = np.repeat([[1.0], [1.0], [0.0], [0.0]], gamma.size, axis=1)
    for below, above, spacing in ((-1.0, 0.1, _COARSE), (0.1, 1.0, _SPACING)):
        part = (gamma >= below) & (gamma < above)
        signal, power = _below_0_db(gamma[part], slope, spacing)
        out[:, part] = signal, power, 1 - signal, 1 - power
    part = (gamma >= 1) & (gamma < _NO_ERRORS)
    signal_lack, power_lack = _lack_above_0_db(gamma[part], slope)
    out[:, part] = 1 - signal_lack, 1 - power_lack, signal_lack, power_lack
    return out


def _below_0_db(gamma: Array, slope: float, spacing: float) -> tuple[Array, Array]:
    z, weight = _noise_nodes(spacing)
    llr = np.sqrt(gamma)[:, None] * z
    soft = np.tanh(slope * llr)
    tilt = np.exp(-gamma / 2)
    signal = tilt * ((np.sinh(llr) * soft) @ weight)
    if slope == 1:  # sinh = cosh*tanh: the two moments are one
        return signal, signal
    return signal, tilt * ((np.cosh(llr) * soft**2) @ weight)


@cache
def _noise_nodes(spacing: float) -> tuple[Array, Array]:
    # The integrands are even and vanish at z = 0.
    z: Array = spacing * np.arange(1, round(_LENGTH_Z / spacing) + 1, dtype=np.float64)
    weight: Array = 2 * spacing * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return z, weight


def _lack_above_0_db(gamma: Array, slope: float) -> Array:
    square, lacks = _llr_nodes(slope)
    tilt: Array = np.exp(-gamma / 2) / np.sqrt(2 * np.pi * gamma)
    found: Array = tilt * (np.exp(square / (-2 * gamma[:, None])) @ lacks).T
    return found


@cache
def _llr_nodes(slope: float) -> tuple[Array, Array]:
    """Squares of the half-LLRs, and the integrands over their bell, signal and power side by side."""
    llr: Array = _SPACING * np.arange(round(_LENGTH_L / _SPACING) + 1, dtype=np.float64)
    weight = np.where(llr > 0, 2 * _SPACING, _SPACING)
    signal = weight * np.cosh((slope - 1) * llr) / np.cosh(slope * llr)
    power = weight * np.cosh(llr) / np.cosh(slope * llr) ** 2
    return llr**2, np.stack((signal, power), axis=1)


def fading_nodes(fading: Fading, rician_k: float = 4.0, antennas: int = 1) -> tuple[Array, Array]:
    """Nodes and weights, `[Q]` each, for averages over fading: `E[F(h**2)] = sum_q weight_q * F(node_q)`.

    All kinds have `E[h**2] = 1`: gaussian `h ~ N(0, 1)` (the paper's), rayleigh `h**2 ~ Exp(1)`, rician with
    a line of sight of `rician_k` times the scattered power, none `h = 1`. Maximum-ratio combining adds up the
    powers of several `antennas`, which fade independently. The sum is trapezoidal in
    `ln(h**2)`, the variable in which a function of the SNR is smooth at every mean SNR.

    Example:
        >>> power, weight = fading_nodes("rayleigh")
        >>> round(float(weight @ power**2), 12)
        2.0

    Reference: Section VI-A, network model.
    """
    check_choice("fading", fading, get_args(Fading))
    factor = float(non_negative("rician_k", rician_k))
    if antennas < 1:
        raise ValueError(f"antennas must be at least 1; got {antennas!r}")
    if fading == "none" or (fading == "rician" and factor > _NO_FADING):
        return np.full(1, float(antennas)), np.ones(1)
    if fading in ("gaussian", "rayleigh") or factor < 1e-15:  # the power has a gamma distribution
        shape, scale = (antennas / 2, 2.0) if fading == "gaussian" else (float(antennas), 1.0)
        # At 60 dB only h**2 below 1e-6 matters; less than exp(-40) is left out at either end.
        first = -80.0 if fading == "gaussian" else -52.0
        last = np.log(scale * (shape + 74 + 9 * np.sqrt(shape)))
        spacing = _LOG_SPACING / np.sqrt(max(shape, 1.0))
        power = _log_grid(first, last, spacing)
        log_density = shape * np.log(power / scale) - power / scale - special.gammaln(shape)
        return power, spacing * np.exp(log_density)
    # The amplitude sqrt((1 + k)*h**2) stays within 6.5 of where it is without noise, but for about exp(-42).
    middle = np.sqrt(antennas * factor)
    lowest = max(middle - 6.5, np.exp(-26.0))
    spacing = _LOG_SPACING / np.sqrt(antennas * (1 + factor))  # a strong line of sight makes a narrow peak
    highest = middle + 5.5 + np.sqrt(antennas)
    scattered = _log_grid(2 * np.log(lowest), 2 * np.log(highest), spacing)
    distance = np.sqrt(scattered) - middle
    order, argument = antennas - 1, 2 * middle * np.sqrt(scattered)
    bessel: Array = special.i0e(argument) * np.exp(-(order**2) / (2 * argument))  # for large arguments
    if order > 0:
        bessel = np.where(argument < 1e9, special.ive(order, np.minimum(argument, 1e9)), bessel)
    ratio = (scattered / middle**2) ** (order / 2)
    return scattered / (1 + factor), spacing * scattered * ratio * bessel * np.exp(-(distance**2))


def _log_grid(first: float, last: float, spacing: float) -> Array:
    grid: Array = np.exp(first + spacing * np.arange(int((last - first) / spacing) + 1))
    return grid


def rho(snr: Numbers) -> Array:
    """How much of the sign's information survives the noise, from 0 to 1; shaped like `snr`.

    `rho(gamma) = E[tanh(l)**2] = E[tanh(gamma + sqrt(gamma)*z)]`, `z ~ N(0, 1)`. It is
    `gamma - gamma**2 + ...` at low SNR and tends to 1 at high SNR. Accurate to 1e-14 relative.

    Example:
        >>> round(rho(1.0), 6), rho([0.0, float("inf")])
        (0.5504, array([0., 1.]))

    Reference: Theorem 1, corrected; docs/errata.md.
    """
    return plain(soft_bit(snr).power)


def bit_error(snr: Numbers) -> Array:
    """Probability that a detected bit is wrong, `Q(sqrt(gamma))`: 1/2 at zero SNR.

    Example:
        >>> round(bit_error(1.0), 6)
        0.158655

    Reference: Section II, the detector before the vote.
    """
    return plain(special.erfc(np.sqrt(non_negative("snr", snr, infinite=True) / 2)) / 2)


def kappa_of(std: Numbers, family: Family = "gaussian", mean_abs: Numbers | None = None) -> Array:
    """`kappa = E|g - mean|` of a prior: Gaussian `sqrt(2/pi)*std`, Laplacian `std/sqrt(2)`.

    Where the true `kappa` is known, `mean_abs`, it is returned; it cannot exceed `std`. Shapes broadcast.

    Example:
        >>> round(kappa_of(2.0), 4), round(kappa_of(2.0, "laplacian"), 4)
        (1.5958, 1.4142)

    Reference: Propositions 1 and 3.
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


def moments(rule: Rule, snr: Numbers, form: Form = "corrected") -> tuple[Array, Array]:
    """First and second moment of a rule, `E[s*f]` and `E[f**2]`, each shaped like `snr`.

    | rule | f | E[s*f] | E[f**2] |
    |---|---|---|---|
    | sbfl | tanh(l) | rho | rho |
    | sbfl, published | tanh(2l) | integral | integral |
    | blmmse | h*y/(h**2+sigma2) | gamma/(1+gamma) | the same |
    | blmmse, published, c = 2/pi | h*y/(c*h**2+sigma2) | gamma/(1+c*gamma) | gamma*(1+gamma)/(1+c*gamma)**2 |
    | high_snr | sign(y/h) | 1-2*Pe | 1 |
    | hard | (1-2*Pe)*sign(y/h) | (1-2*Pe)**2 | the same |
    | zero_forcing | y/h | 1 | 1+1/gamma |

    At zero SNR these are the limits for vanishing SNR (`server` ignores a device with `h = 0`). `ideal` reads
    the gradient, not its sign, and has no moments.

    Example:
        >>> moments("blmmse", 3.0)
        (0.75, 0.75)

    Reference: Propositions 1 to 3 and Corollary 1; docs/errata.md.
    """
    check_choice("rule", rule, [name for name, law in LAWS.items() if law.moments])
    check_choice("form", form, get_args(Form))
    law = LAWS[rule].moments
    assert law is not None
    found = law(non_negative("snr", snr, infinite=True), form)
    return plain(found.signal), plain(found.power)


def gain(rule: Rule, snr: Numbers, form: Form = "corrected") -> Array:
    """By how much a rule shrinks (or stretches) what it estimates: the effective step per unit step.

    `E[ghat | g] = mean + scale*gain*sign(g - mean)`, `gain = E[s*f]`. A posterior mean shrinks when it knows
    little (`gain = rho`); dividing by the gain makes a learning rate carry over between SNRs.

    Example:
        >>> gain("blmmse", [1.0, 3.0])
        array([0.5 , 0.75])
    """
    return moments(rule, snr, form)[0]


class Law(NamedTuple):
    """What theory knows of one rule."""

    moments: Callable[[Array, Form], Moments] | None  # None for `ideal`, which makes no error
    fades: bool = True  # whether the error has a finite mean over fading


def bit_power(form: Form) -> float:
    """The power of a bit in blmmse's denominator; the paper has the square of `E|g|` there."""
    return 2 / np.pi if form == "published" else 1.0


def _soft_moments(gamma: Array, form: Form) -> Moments:
    return soft_bit(gamma, 2.0 if form == "published" else 1.0)


def _linear_moments(gamma: Array, form: Form) -> Moments:
    """`f = h*y/(share*h**2 + sigma2)`, written so that neither zero nor infinite SNR is special."""
    share = bit_power(form)
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


LAWS: dict[Rule, Law] = {
    "sbfl": Law(_soft_moments),
    "blmmse": Law(_linear_moments),
    "high_snr": Law(_sign_moments),
    "hard": Law(_hard_moments),
    "zero_forcing": Law(_inverse_moments, fades=False),
    "ideal": Law(None),
}
