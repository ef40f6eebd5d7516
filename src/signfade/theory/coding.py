"""How often a bit is wrong and a short codeword is lost: at one SNR, and over block fading.

A codeword of n coded bits ±1 carries k bits (its check included) over `y = h*s + noise`, real noise of
variance sigma2, SNR `gamma = h**2/sigma2`, one gain for the whole word. The information of a coded bit is
`i = 1 - log2(1 + exp(-2*l))` with the half-LLR `l ~ N(gamma, gamma)` given s = +1.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
from scipy import optimize, special

from signfade._check import check_choice
from signfade.settings import Fading
from signfade.theory.rules import Array, Numbers, bit_error, common_shape, fading_nodes, non_negative, plain

__all__ = ["bit_error_faded", "block_error", "block_error_faded", "outage", "threshold_snr"]

# Trapezoidal nodes of the noise; the integrand's nearest pole is pi/(2*sqrt(gamma)) away, so that up to 30
# dB the sum is exact to rounding, and beyond nothing is left to integrate.
_NODES = np.linspace(-10.0, 10.0, 2001)
_WEIGHTS = np.exp(-(_NODES**2) / 2) / np.exp(-(_NODES**2) / 2).sum()
_CHUNK = 512


def information(gamma: Array) -> tuple[Array, Array]:
    """Capacity `E[i]` in bits and dispersion `Var[i]` in bits squared of a coded bit, shaped like gamma."""
    flat = np.minimum(gamma.reshape(-1), 1e3)
    mean, square = np.empty_like(flat), np.empty_like(flat)
    for start in range(0, flat.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        llr = flat[part, None] + np.sqrt(flat[part, None]) * _NODES
        missing = np.logaddexp(0.0, -2 * llr) / np.log(2)
        mean[part], square[part] = missing @ _WEIGHTS, missing**2 @ _WEIGHTS
    return (1 - mean).reshape(gamma.shape), (square - mean**2).reshape(gamma.shape)


def block_error(snr: Numbers, bits: int, length: int) -> Array:
    """Error probability of the best code, by the normal approximation; shaped like `snr`.

    `Q((n*C - k + log2(n)/2) / sqrt(n*V))` with capacity C and dispersion V, for k `bits` in n coded bits,
    `length`. Good codes of this length are a few tenths of a dB behind it.

    Example:
        >>> [round(block_error(snr, 32, 128), 3) for snr in (0.4, 0.6, 0.8)]
        [0.38, 0.049, 0.003]

    Reference: Polyanskiy, Poor, Verdu: Channel coding rate in the finite blocklength regime (2010).
    """
    _check_sizes(bits, length)
    mean, variance = information(non_negative("snr", snr, infinite=True))
    spare = length * mean - bits + np.log2(length) / 2
    with np.errstate(divide="ignore"):
        distance = spare / np.sqrt(length * np.maximum(variance, 0.0))
    return plain(special.ndtr(-distance))


def _check_sizes(bits: int, length: int) -> None:
    if not 1 <= bits <= length:
        raise ValueError(f"bits must be at least 1 and at most length; got {bits} and {length}")


def threshold_snr(bits: int, length: int, error: float = 0.5) -> float:
    """The SNR, a ratio, at which the normal approximation reaches an error probability.

    With the default, one half, it is where a slowly fading link goes in and out of outage.

    Example:
        >>> round(float(10 * np.log10(threshold_snr(32, 128))), 2)
        -4.4
    """
    _check_sizes(bits, length)
    if not 0 < error < 1:
        raise ValueError(f"error must be between 0 and 1; got {error!r}")
    ends = (-60.0, 25.0)
    if block_error(10 ** (ends[1] / 10), bits, length) >= error:
        raise ValueError(f"length must be above bits for an error of {error}; got {length} and {bits}")

    def beyond(snr_db: float) -> float:
        return float(block_error(10 ** (snr_db / 10), bits, length)) - error

    return float(10 ** (optimize.brentq(beyond, *ends, xtol=1e-10) / 10))


def outage(
    threshold: Numbers,
    mean_snr: Numbers,
    fading: Fading = "gaussian",
    rician_k: float = 4.0,
    antennas: int = 1,
) -> Array:
    """Probability that a fading link is below the SNR that a code needs, `P(mean_snr*h**2 < threshold)`.

    With `x = threshold/mean_snr`: gaussian (real `h ~ N(0, 1)`, the paper's) `erf(sqrt(x/2))`, rayleigh
    `1 - exp(-x)`, rician `1 - Q1(sqrt(2*k), sqrt(2*(1+k)*x))` with Marcum's Q and the line of sight
    `rician_k` times as strong as the scattered paths, none a step. With `antennas` combined, the power of
    gaussian and rayleigh fading has a gamma, that of rician a noncentral chi-square distribution. Shapes
    broadcast.

    Example:
        >>> (100 * outage(10**0.2, [10.0, 100.0])).round().tolist()  # a code that needs 2 dB, at 10 and 20 dB
        [31.0, 10.0]

    Reference: Section VI-A, network model; docs/radio.md.
    """
    check_choice("fading", fading, get_args(Fading))
    needed, mean = non_negative("threshold", threshold), non_negative("mean_snr", mean_snr, infinite=True)
    factor = float(non_negative("rician_k", rician_k))
    common_shape(threshold=needed, mean_snr=mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(needed == 0, 0.0, needed / mean)
    if fading == "gaussian":
        return plain(special.gammainc(antennas / 2, ratio / 2))
    if fading == "rayleigh":
        return plain(special.gammainc(antennas, ratio))
    if fading == "rician":
        from scipy import stats  # takes a second to load, and few runs need it

        return plain(stats.ncx2.cdf(2 * (1 + factor) * ratio, 2 * antennas, 2 * antennas * factor))
    return plain(np.where(ratio > antennas, 1.0, 0.0))


def bit_error_faded(
    mean_snr: Numbers, fading: Fading = "gaussian", rician_k: float = 4.0, antennas: int = 1
) -> Array:
    """`bit_error` averaged over fading, `E[Q(sqrt(mean_snr*h**2))]`: the share of wrong bits, of its shape.

    With `antennas` combined, `mean_snr` is that at one of them.

    One antenna: gaussian (the paper's) `arctan(1/sqrt(mean_snr))/pi`, rayleigh
    `(1 - sqrt(mean_snr/(2 + mean_snr)))/2`.

    Example:
        >>> bit_error_faded([1.0, 100.0]).round(4).tolist(), round(bit_error_faded(10.0, "rayleigh"), 4)
        ([0.25, 0.0317], 0.0436)
    """
    mean = non_negative("mean_snr", mean_snr)
    power, weight = fading_nodes(fading, rician_k, antennas)
    return plain(np.asarray(bit_error(mean[..., None] * power)) @ weight)


def block_error_faded(
    mean_snr: Numbers,
    bits: int,
    length: int,
    fading: Fading = "gaussian",
    rician_k: float = 4.0,
    antennas: int = 1,
) -> Array:
    """`block_error` averaged over block fading: the share of rounds in which a word is lost.

    Shaped like `mean_snr`, and close to `outage(threshold_snr(bits, length), mean_snr, ...)`.

    Example:
        >>> lost = block_error_faded([10.0, 100.0], 32, 128)
        >>> short = outage(threshold_snr(32, 128), [10.0, 100.0])
        >>> bool(abs(lost / short - 1).max() < 0.03)
        True
    """
    mean = non_negative("mean_snr", mean_snr)
    # By parts, so that a steep error curve needs no fine grid of fades: a word is lost when the link is
    # below a threshold, and the error curve is the law of that threshold.
    centre_db = 10 * np.log10(threshold_snr(bits, length))
    grid = 10 ** ((centre_db + np.arange(-25.0, 10.0, 0.05)) / 10)
    error = np.asarray(block_error(grid, bits, length))
    middle, share = np.sqrt(grid[1:] * grid[:-1]), error[:-1] - error[1:]
    kind = (fading, rician_k, antennas)
    lost = np.asarray(outage(middle, mean[..., None], *kind)) @ share
    return plain(lost + (1 - error[0]) * np.asarray(outage(grid[0], mean, *kind)) + error[-1])
