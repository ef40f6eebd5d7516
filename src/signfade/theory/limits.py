"""The least error that any scheme can reach: how far a rule is from what information theory allows.

Gaussian coordinates, `uses` real channel uses per coordinate and device, each at SNR gamma. Independent
devices: `(1 + gamma)**-uses`. Devices that are equally correlated by r > 0 see one common variable through
independent noise, `g_k = X + n_k`, `Var n_k / Var X = s = (1 - r)/r`: the Gaussian CEO problem, whose
sum-rate function is known (Oohama 1998; Prabhakaran, Tse and Ramchandran 2004). The sum of the gradients is
what X is best estimated from, so its error is that of X less what even the gradients leave open.
"""

from __future__ import annotations

import numpy as np

from signfade.theory.rules import Array, Numbers, non_negative, plain

__all__ = ["above_db", "limit"]


def above_db(error: Numbers, least: Numbers) -> Array:
    """How far an error is above the limit, `10*log10(error/least)`; infinite where the limit is zero.

    Example:
        >>> round(above_db(0.2, 0.1), 2)
        3.01
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return plain(
            10 * np.log10(non_negative("error", error, infinite=True) / non_negative("least", least))
        )


def limit(snr: Numbers, correlation: float = 0.0, uses: float = 1.0) -> Array:
    """Least normalised error of the sum of K equally correlated devices' gradients, `E|ghat - g|^2/E|g|^2`.

    With rates `R_k = uses*ln(1 + gamma_k)/2` (nats per coordinate) solve
    `K*q + ln(1 + K*(1 - exp(-2q))/s)/2 = sum_k R_k` for q; `D = 1/(1 + K*(1 - exp(-2q))/s)`,
    `D0 = 1/(1 + K/s)`, and the limit is `(D - D0)/(1 - D0)`. Devices of unequal SNR are bounded by the
    sum of all rates and by each device's own; for r > 0 no scheme need attain that bound. For r = 0 the
    limit is the mean over devices.

    Args:
        snr: Instantaneous SNRs as ratios, `[..., K]`; more axes are rounds, fades or sweeps.
        correlation: r, from 0 to 1; devices that disagree (r < 0) have no known limit.
        uses: Channel uses per coordinate; `method.bits_per_weight` is that number.

    Example:
        >>> [round(limit([10 ** (db / 10)] * 20, 0.3), 4) for db in (0, 10)]
        [0.1098, 0.0116]
        >>> round(limit([1.0] * 20), 4), round(limit([1.0], 0.3), 4)  # one device has nobody to agree with
        (0.5, 0.5)
    """
    gamma = np.atleast_1d(non_negative("snr", snr))
    if not 0 <= correlation <= 1:
        raise ValueError(f"correlation must be from 0 to 1; got {correlation}")
    if not uses > 0:
        raise ValueError(f"uses must be positive; got {uses}")
    rates = uses * np.log1p(gamma) / 2
    devices = gamma.shape[-1]
    if correlation == 0 or devices == 1:
        return plain(np.exp(-2 * rates).mean(axis=-1))
    found = np.array([_common(row, correlation) for row in rates.reshape(-1, devices)])
    return plain(found.reshape(rates.shape[:-1]))


def _common(rates: Array, r: float) -> float:
    """The limit of devices correlated by r in (0, 1]: the largest T = 1/D that the rates pay for."""
    total = float(rates.sum())
    if total == 0:
        return 1.0
    if r == 1:  # all devices see X itself: one encoder of all rates
        return float(np.exp(-2 * total))
    s, devices = (1 - r) / r, len(rates)

    def unpaid(t: float) -> float:
        """Rate that T = t asks for beyond what there is."""
        # Device k alone pays at most R_k: x = exp(-2*q_k) >= the root of G*x**2/s + G*(t - 1/s)*x = t.
        b, c = s * t - 1, s * t * np.exp(-2 * rates)
        least = np.where(b > 0, 2 * c / (b + np.sqrt(b * b + 4 * c)), (np.sqrt(b * b + 4 * c) - b) / 2)
        wanted = devices - s * (t - 1)  # of sum_k x_k; equal x_k are cheapest
        if least.sum() >= wanted:
            return float("inf")
        ordered = np.sort(np.minimum(least, 1.0))[::-1]  # the largest floors bind first
        bound = np.append(0.0, np.cumsum(ordered))[:-1]
        level = (wanted - bound) / np.arange(devices, 0, -1)
        common = level[np.argmax(level >= ordered)]
        return float(-np.log(np.maximum(least, common)).sum() / 2 + np.log(t) / 2 - total)

    low, high = 1.0, 1 + devices / s
    while low < (middle := (low + high) / 2) < high:  # until they are neighbours
        low, high = (middle, high) if unpaid(middle) <= 0 else (low, middle)
    return (1 / low - s / (s + devices)) / (devices / (s + devices))
