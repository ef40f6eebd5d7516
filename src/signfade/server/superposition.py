"""What a superposed signal says about the sum: all devices sent at once.

Signal model: `y = sum_k a_k s_k + n`, `n ~ N(0, sigma2)` real, with amplitudes a_k that the server knows
(`signfade.uplink.over_the_air`) and signs of centred gradients, independent and +1 as often as -1. The
target is `sum_k alpha_k g_k`, whose mean given the signs is `sum_k alpha_k (mean_k + scale_k s_k)`. All
coordinates share the amplitudes, so the posterior mean is one function of one number.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from signfade._check import check_choice, check_finite, check_positive, check_rows, check_shape, check_tensor
from signfade.kernels.integrals import mixture_range
from signfade.kernels.threads import available_threads, run_ranges

__all__ = ["over_the_air", "superposed_vote"]

AirMethod = Literal["auto", "exact", "gaussian"]
Float64 = NDArray[np.float64]

MOST_COMPONENTS = 1 << 16
AUTO_COMPONENTS = 1 << 8
# A device this much weaker than the deviation of all weaker ones and the noise together is one of many: the
# law of their sum is normal for all that matters.
WEAK = 0.35


def over_the_air(
    y: Tensor,
    amplitude: Tensor,
    sigma2: float,
    mean: Tensor,
    scale: Tensor,
    weights: Tensor | None = None,
    method: AirMethod = "auto",
) -> Tensor:
    """Posterior mean of the weighted sum of the gradients given the superposed signal.

    `ghat = sum_k alpha_k mean_k + E[sum_k alpha_k scale_k s_k | y]`. With levels `T_c = sum_k a_k s_k` and
    values `V_c = sum_k alpha_k scale_k s_k` over all sign patterns c, `E = sum_c V_c exp(-(y - T_c)^2/(2
    sigma2)) / sum_c exp(-(y - T_c)^2/(2 sigma2))`. Devices received alike need only be counted, so that
    inversion costs K + 1 patterns and not `2^K`.

    Args:
        y: Received signal, `[M]`.
        amplitude: Amplitudes `a_k`, `[K]`, non-negative; a device with zero is silent.
        sigma2: Variance of the real noise of y, positive.
        mean: Means, `[K]`.
        scale: `E|g - mean|`, `[K]`.
        weights: `alpha_k`, `[K]`; ones if None.
        method: "exact" counts all patterns, up to 65536. "gaussian" takes the sum of all signs as normal,
            which is the best linear rule, `y sum_k alpha_k scale_k a_k / (sum_k a_k^2 + sigma2)`. "auto"
            counts the patterns of the strongest devices, up to 256, and takes the others and the noise
            together as normal; its error is the least possible but for a thousandth.

    Returns:
        The estimate, `[M]`, of the dtype of y.

    Raises:
        ValueError: Shapes that do not match, a negative amplitude or scale, too many patterns for "exact".

    Example:
        >>> y = torch.tensor([2.1, 0.2, -1.8])
        >>> one = torch.ones(2)
        >>> over_the_air(y, amplitude=one, sigma2=0.5, mean=0 * one, scale=one)
        tensor([ 1.9521,  0.0318, -1.8492])

    Reference: docs/radio.md.
    """
    a, value, offset = _check(y, amplitude, sigma2, mean, scale, weights, method)
    active = a > 0
    a, value = a[active], value[active]
    parts = _patterns(a, value, sigma2, method)
    signal = y.double().numpy() if y.device.type == "cpu" else y.double().cpu().numpy()
    if len(parts.level) == 1:
        estimate = parts.slope * signal
    else:
        estimate = np.empty(len(signal))
        adjusted = parts.value - parts.slope * parts.level

        def work(first: int, last: int) -> None:
            mixture_range(
                signal,
                parts.level,
                parts.log_weight,
                adjusted,
                parts.variance,
                parts.slope,
                first,
                last,
                estimate,
            )

        if len(signal):
            run_ranges(work, len(signal), available_threads())
    return torch.from_numpy(estimate + offset).to(y)


def superposed_vote(y: Tensor) -> Tensor:
    """The majority vote taken by the air: `sign(y)`, `[M]`, with `sign(0) = 0`. Noise breaks all ties.

    Example:
        >>> superposed_vote(torch.tensor([1.2, -0.3, 0.0]))
        tensor([ 1., -1.,  0.])

    Reference: docs/radio.md.
    """
    return y.sign()


class _Patterns(NamedTuple):
    """Components of the law of y: levels ascending, log weights, values, one variance; and the normal
    rest's slope.

    Given component c the estimate is `value_c + slope*(y - level_c)`.
    """

    level: Float64
    log_weight: Float64
    value: Float64
    variance: float
    slope: float


def _patterns(a: Float64, value: Float64, sigma2: float, method: AirMethod) -> _Patterns:
    """Count the patterns of the strongest devices, group by group of equals, and take the rest as normal."""
    amplitudes, group = np.unique(-a, return_inverse=True)
    level, log_weight, worth = np.zeros(1), np.zeros(1), np.zeros(1)
    counted = np.zeros(len(a), dtype=bool)
    for g, strength in enumerate(-amplitudes):
        members = group == g
        count = int(members.sum())
        rest = float((a[~counted] ** 2).sum()) + sigma2
        if method == "gaussian" or (method == "auto" and strength < WEAK * np.sqrt(rest)):
            break
        if len(level) * (count + 1) > (MOST_COMPONENTS if method == "exact" else AUTO_COMPONENTS):
            if method == "exact":
                raise ValueError(
                    f"method must be 'auto' or 'gaussian' for so many patterns; more than {MOST_COMPONENTS}"
                )
            break
        up = np.arange(count + 1)
        excess = 2.0 * up - count
        level = np.add.outer(level, strength * excess).ravel()
        worth = np.add.outer(worth, value[members].sum() * excess / count).ravel()
        chance = special.gammaln(count + 1) - special.gammaln(up + 1) - special.gammaln(count - up + 1)
        log_weight = np.add.outer(log_weight, chance).ravel()
        counted |= members
    variance = float((a[~counted] ** 2).sum()) + sigma2
    slope = float((value * a)[~counted].sum()) / variance
    order = np.argsort(level, kind="stable")
    return _Patterns(level[order], log_weight[order], worth[order], variance, slope)


def _check(
    y: Tensor,
    amplitude: Tensor,
    sigma2: float,
    mean: Tensor,
    scale: Tensor,
    weights: Tensor | None,
    method: str,
) -> tuple[Float64, Float64, float]:
    """Return amplitudes, `alpha_k scale_k` and `sum_k alpha_k mean_k`, or raise."""
    check_choice("method", method, get_args(AirMethod))
    check_tensor("y", y)
    if y.ndim != 1 or y.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"y must be float32 or float64 of shape [M]; got {y.dtype} {list(y.shape)}")
    check_finite("y", y)
    check_rows("amplitude", amplitude, "[K]")
    devices = len(amplitude)
    alpha = torch.ones(devices) if weights is None else weights
    named = {"amplitude": amplitude, "mean": mean, "scale": scale, "weights": alpha}
    for name, tensor in named.items():
        check_shape(name, tensor, (devices,))
        check_finite(name, tensor)
    check_positive("amplitude", amplitude, zero=True)
    check_positive("scale", scale, zero=True)
    if not 0 < sigma2 < float("inf"):
        raise ValueError(f"sigma2 must be positive and finite; got {sigma2!r}")
    a, mu, kappa, alpha = (tensor.detach().cpu().double() for tensor in named.values())
    return a.numpy(), (alpha * kappa).numpy(), float(alpha @ mu)
