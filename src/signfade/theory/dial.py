"""The rate dial as one number: the error of the sum of K like devices, from a thousandth of a bit up."""

from __future__ import annotations

import numpy as np
from pydantic import ValidationError

from signfade.settings import MethodSettings
from signfade.theory.rate import Rotated, harmonics
from signfade.theory.rules import Array, Numbers, non_negative, plain

__all__ = ["dial_nmse", "dial_uses", "equal_correlation"]


def dial_uses(bits_per_weight: float | str) -> float:
    """Channel uses per weight: one for an amplitude, otherwise one for each bit.

    Example:
        >>> dial_uses(0.1), dial_uses(4), dial_uses("analog")
        (0.1, 4.0, 1.0)
    """
    method = _method(bits_per_weight)
    return method.part * (method.level_bits or 1)


def equal_correlation(devices: int, r: float) -> Array:
    """All devices correlated by r, `[K, K]`; from `-1/(K - 1)` to 1."""
    least = -1 / max(1, devices - 1)
    if not least <= r <= 1:
        raise ValueError(f"correlation must be from {least:.3g} to 1 for {devices} devices; got {r:g}")
    return np.full((devices, devices), float(r)) + (1 - r) * np.eye(devices)


def dial_nmse(
    snr: Numbers,
    bits_per_weight: float | str = 1.0,
    correlation: float = 0.0,
    *,
    private: bool = False,
    papr_db: float | None = None,
) -> Array:
    """Normalised error of the best weighted sum of soft values, `E|ghat - g|^2/E|g|^2`.

    K devices of one variance, all correlated by r. For r = 0 it is `1 - f*mean_k E[z_k**2]`, f the part of
    the coordinates that is sent; see `signfade.theory.rate`. `snr` is `[..., K]`, and more axes are rounds,
    fades or sweeps; `bits_per_weight` is 0.001 to 1, 2, 3, 4 or "analog", whose peak is `papr_db` above the
    mean power (None: no peak limit).

    Example:
        >>> [round(dial_nmse([1.0] * 20, rate), 3) for rate in (0.1, 1, 2, "analog")]
        [0.965, 0.65, 0.577, 0.5]
        >>> [round(dial_nmse([10.0] * 20, 1, 0.9, private=own), 3) for own in (False, True)]
        [0.21, 0.031]
    """
    method = _method(bits_per_weight)
    gamma = np.atleast_1d(non_negative("snr", snr, infinite=True))
    matrix, ones = equal_correlation(gamma.shape[-1], correlation), np.ones(gamma.shape[-1])
    found = []
    for row in gamma.reshape(-1, gamma.shape[-1]):
        coefficients = harmonics(row, method.level_bits, papr_db)
        model = Rotated(coefficients, ones, matrix, method.part, private=private)
        found.append(model.moments(ones, model.fit(ones).combine).nmse())
    return plain(np.reshape(found, gamma.shape[:-1]))


def _method(bits_per_weight: float | str) -> MethodSettings:
    """The setting, which the method's settings check."""
    try:
        return MethodSettings.model_validate({"bits_per_weight": bits_per_weight})
    except ValidationError:
        allowed = "from 0.001 to 1, or 2, 3, 4 or analog"
        raise ValueError(f"bits_per_weight must be {allowed}; got {bits_per_weight!r}") from None
