"""The two integrals behind the theory: over the noise of a soft bit, and over the fading of a link.

Both are trapezoidal sums. For an integrand that is analytic in a strip of half-width d about the real axis
and decays at both ends, the sum with spacing q is off by about `exp(-2*pi*d/q)`: with the spacings below,
less than the rounding of float64.

Noise convention: signs are ±1 with unit power, sigma2 is the variance of the real noise per symbol, the SNR
is `gamma = h**2/sigma2`, and the half-LLR `l = h*y/sigma2` is `N(gamma, gamma)` given s = +1.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, get_args

import numpy as np
from numpy.polynomial import Chebyshev
from scipy import special

from signfade._check import check_choice
from signfade.settings import Fading
from signfade.theory._numbers import Array, Numbers, non_negative

__all__ = ["SoftBit", "fading_nodes", "soft_bit"]

# The nearest pole, of tanh(2l), is pi/4 away in l: exp(-2*pi*(pi/4)/0.1) = 4e-22. In z = l/sqrt(gamma) it is
# farther away, which is why a coarser grid serves below -10 dB: exp(-2*pi*2.48/0.3) = 3e-23.
_SPACING, _COARSE = 0.1, 0.3
_LENGTH_Z = 12.0  # beyond 12 deviations exp(-z**2/2 + z) is below 1e-26
_LENGTH_L = 40.0  # beyond 40 the integrands are below exp(-40) = 4e-18
_NO_ERRORS = 1500.0  # from this SNR on exp(-gamma/2) is below the smallest float64
_CHUNK = 4096  # SNRs at a time: bounds the memory to a few tens of megabytes
_MANY = 1 << 15  # from so many SNRs on, polynomials take the place of most integrals
# In ln(gamma) the integrals are analytic in a strip of half-width pi/2: on pieces of at most 1.5 this degree
# is right to the last digits. The middle break is 0 dB, where the kind of integral changes.
_BREAKS = np.log(np.concatenate((np.geomspace(0.1, 1, 3), np.geomspace(1, _NO_ERRORS, 6)[1:])))
_DEGREE = 24
_NO_FADING = 1e12  # from this ratio of direct to scattered power on a link fades by less than 1e-6
_LOG_SPACING = 0.2  # in ln(h**2); the strip is pi/2 wide: exp(-pi**2/0.2) = 4e-22


class SoftBit(NamedTuple):
    """`E[s*f]`, `E[f**2]` for `f = tanh(slope*l)`, and what each lacks to one; all shaped like the SNR."""

    signal: Array
    power: Array
    signal_lack: Array
    power_lack: Array


def soft_bit(snr: Numbers, slope: float = 1.0) -> SoftBit:
    """Moments of the soft bit `tanh(slope*l)`, each and its complement to full relative accuracy.

    The density of the half-LLR is `exp(-gamma/2)*cosh(l)*N(l; 0, gamma)`, and `E[s|l] = tanh(l)`. Hence
    `E[s*tanh(a*l)] = exp(-gamma/2) * int N(l; 0, gamma) * sinh(l)*tanh(a*l) dl`,
    `1 - E[s*tanh(a*l)] = exp(-gamma/2) * int N(l; 0, gamma) * cosh((a-1)*l)/cosh(a*l) dl`,
    `E[tanh(a*l)**2]` and its complement likewise, with `cosh(l)*tanh(a*l)**2` and `cosh(l)/cosh(a*l)**2`.
    Every integrand is positive: nothing cancels. The first kind is used below 0 dB, the second above.

    Args:
        snr: Instantaneous SNR gamma, any shape; zero and infinity are accepted.
        slope: `a`, in [1, 2]: 1 for the corrected rule, 2 for the published one.

    Returns:
        A `SoftBit` of arrays shaped like `snr`. A complement below 1e-308 is returned as zero.

    Example:
        >>> soft_bit(1.0).signal.round(6)
        np.float64(0.5504)

    Reference:
        Theorem 1; docs/errata.md.
    """
    if not 1 <= slope <= 2:
        raise ValueError(f"slope must be in [1, 2]; got {slope}")
    gamma = non_negative("snr", snr, infinite=True)
    flat = gamma.reshape(-1)
    out = np.empty((4, flat.size))
    if flat.size >= _MANY:
        rest = (flat < np.exp(_BREAKS[0])) | (flat >= _NO_ERRORS)
        out[:, ~rest] = _fitted_soft_bit(flat[~rest], slope)
        for index in np.array_split(np.flatnonzero(rest), 1 + rest.sum() // _CHUNK):
            out[:, index] = _soft_bit(flat[index], slope)
        return SoftBit(*out.reshape(4, *gamma.shape))
    for start in range(0, flat.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        out[:, part] = _soft_bit(flat[part], slope)
    return SoftBit(*out.reshape(4, *gamma.shape))


def _soft_bit(gamma: Array, slope: float) -> Array:
    out = np.repeat([[1.0], [1.0], [0.0], [0.0]], gamma.size, axis=1)
    for below, above, spacing in ((-1.0, 0.1, _COARSE), (0.1, 1.0, _SPACING)):
        part = (gamma >= below) & (gamma < above)
        signal, power = _below_0_db(gamma[part], slope, spacing)
        out[:, part] = signal, power, 1 - signal, 1 - power
    part = (gamma >= 1) & (gamma < _NO_ERRORS)
    signal_lack, power_lack = (_tilt(gamma[part]) * integral for integral in _above_0_db(gamma[part], slope))
    out[:, part] = 1 - signal_lack, 1 - power_lack, signal_lack, power_lack
    return out


def _fitted_soft_bit(gamma: Array, slope: float) -> Array:
    out = np.empty((4, gamma.size))
    piece = np.clip(np.searchsorted(_BREAKS, np.log(gamma), side="right") - 1, 0, len(_BREAKS) - 2)
    for i in range(len(_BREAKS) - 1):
        part = np.flatnonzero(piece == i)
        log_snr = np.log(gamma[part])
        signal, power = (np.exp(fit(log_snr)) for fit in _fits(i, slope))
        if _BREAKS[i] < 0:
            out[:, part] = signal, power, 1 - signal, 1 - power
        else:
            tilt = _tilt(gamma[part])
            out[:, part] = 1 - tilt * signal, 1 - tilt * power, tilt * signal, tilt * power
    return out


@cache
def _fits(piece: int, slope: float) -> tuple[Chebyshev, Chebyshev]:
    """Logarithms of the two integrals on a piece, as polynomials in ln(gamma)."""
    domain = _BREAKS[piece : piece + 2]

    def integrals(log_snr: Array) -> Array:
        gamma = np.exp(log_snr)
        if domain[0] < 0:
            return np.log(_below_0_db(gamma, slope, _SPACING))
        return np.log(_above_0_db(gamma, slope))

    return (
        Chebyshev.interpolate(lambda x: integrals(x)[0], _DEGREE, domain),
        Chebyshev.interpolate(lambda x: integrals(x)[1], _DEGREE, domain),
    )


def _tilt(gamma: Array) -> Array:
    """What the integrals above 0 dB are multiplied by; it takes the steep part."""
    tilt: Array = np.exp(-gamma / 2) / np.sqrt(2 * np.pi * gamma)
    return tilt


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


def _above_0_db(gamma: Array, slope: float) -> tuple[Array, Array]:
    """What the moments lack to one, over the tilt."""
    square, lacks = _llr_nodes(slope)
    found = np.exp(square / (-2 * gamma[:, None])) @ lacks
    return found[:, 0], found[:, 1]


@cache
def _llr_nodes(slope: float) -> tuple[Array, Array]:
    """Squares of the half-LLRs, and the integrands over their bell, signal and power side by side."""
    llr: Array = _SPACING * np.arange(round(_LENGTH_L / _SPACING) + 1, dtype=np.float64)
    weight = np.where(llr > 0, 2 * _SPACING, _SPACING)
    signal = weight * np.cosh((slope - 1) * llr) / np.cosh(slope * llr)
    power = weight * np.cosh(llr) / np.cosh(slope * llr) ** 2
    return llr**2, np.stack((signal, power), axis=1)


def fading_nodes(fading: Fading, rician_k: float = 4.0) -> tuple[Array, Array]:
    """Nodes and weights for averages over block fading, `E[F(h**2)] = sum_q weight_q * F(node_q)`.

    All kinds have `E[h**2] = 1`: gaussian `h ~ N(0, 1)` (the paper's), rayleigh `h**2 ~ Exp(1)`, rician with
    a line of sight of `rician_k` times the scattered power, none `h = 1`. The sum is trapezoidal in
    `ln(h**2)`, the variable in which a function of the SNR is smooth at every mean SNR.

    Args:
        fading: The kind.
        rician_k: Power of the line of sight over the scattered power, for rician.

    Returns:
        `(nodes, weights)`, `[Q]` each; the weights sum to one.

    Example:
        >>> power, weight = fading_nodes("rayleigh")
        >>> round(float(weight @ power**2), 12)
        2.0

    Reference:
        Section VI-A, network model.
    """
    check_choice("fading", fading, get_args(Fading))
    factor = float(non_negative("rician_k", rician_k))
    if fading == "none" or (fading == "rician" and factor > _NO_FADING):
        return np.ones(1), np.ones(1)
    if fading == "gaussian":
        power = _log_grid(-80.0, 5.0, _LOG_SPACING)  # exp(-40) is left out below, exp(-70) above
        return power, _LOG_SPACING * np.sqrt(power / (2 * np.pi)) * np.exp(-power / 2)
    if fading == "rayleigh":
        power = _log_grid(-52.0, 4.5, _LOG_SPACING)  # at 60 dB only h**2 below 1e-6 matters
        return power, _LOG_SPACING * power * np.exp(-power)
    # The amplitude sqrt((1 + k)*h**2) stays within 6.5 of sqrt(k), but for a part of about exp(-42).
    middle = np.sqrt(factor)
    lowest = max(middle - 6.5, np.exp(-26.0))
    spacing = _LOG_SPACING / np.sqrt(1 + factor)  # a strong line of sight makes the peak this narrow
    scattered = _log_grid(2 * np.log(lowest), 2 * np.log(middle + 6.5), spacing)
    distance = np.sqrt(scattered) - middle
    bessel: Array = special.i0e(2 * middle * np.sqrt(scattered))
    return scattered / (1 + factor), spacing * scattered * bessel * np.exp(-(distance**2))


def _log_grid(first: float, last: float, spacing: float) -> Array:
    grid: Array = np.exp(first + spacing * np.arange(int((last - first) / spacing) + 1))
    return grid
