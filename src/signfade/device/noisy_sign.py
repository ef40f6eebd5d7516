"""The stochastic sign: noise before the sign, `b = sign(g - mean + n)`, so that large coordinates show.

A plain sign forgets every size. With noise of about the gradient's own size a bit is more often right the
larger its coordinate is, and the average of many devices or rounds recovers sizes too. The price is known:
the posterior mean of the coordinate is `mean + E[(g - mean)*b] * tanh(l)` for any noise whose law is
symmetric, so a device that sends `E[(g - mean)*b]` as its scale keeps the server's rule exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade._check import check_choice, check_shape
from signfade.device.prior import FAMILIES, Prior, check_segments, spread
from signfade.kernels import standard_normal
from signfade.settings import Family

__all__ = ["add_sign_noise", "noisy_scale", "sign_noise_factor"]


def sign_noise_factor(noise: float, family: str = "gaussian") -> float:
    """Return what noise before the sign leaves of a scale.

    `E[d*sign(d + n)] / E|d|`, `n ~ N(0, (noise*std)^2)`. Gaussian d: `1/sqrt(1 + noise^2)`. Laplacian d, `r =
    sqrt(2)*noise`: `(1 - r^2)*erfcx(r/sqrt(2)) + r*sqrt(2/pi)`. Both fall from 1 like `c/noise`.

    Args:
        noise: Deviation of the noise over the standard deviation of d, 0 or more.
        family: `"gaussian"` or `"laplacian"`, the law of d.

    Raises:
        ValueError: A negative noise, or a family without a law of its own.

    Example:
        >>> round(sign_noise_factor(1.0), 4), round(sign_noise_factor(1.0, "laplacian"), 4)
        (0.7071, 0.7008)
    """
    check_choice("family", family, get_args(Family))
    if not 0 <= noise < math.inf:
        raise ValueError(f"noise must be 0 or more and finite; got {noise}")
    if family == "gaussian":
        return 1 / math.hypot(1, noise)
    ratio = math.sqrt(2) * noise
    tail = float(torch.special.erfcx(torch.tensor(ratio / math.sqrt(2), dtype=torch.float64)))
    return (1 - ratio**2) * tail + ratio * math.sqrt(2 / math.pi)


def noisy_scale(g: Tensor, prior: Prior, noise: float, segments: Sequence[int]) -> Tensor:
    """Return the scale a device sends when it adds noise before the sign: `E[(g - mean)*b]`.

    Under a family with a law it is `sign_noise_factor` times the family's scale; `empirical` takes the mean
    of `d*erf(d/(sqrt(2)*noise*std))` over its own coordinates, which is right for any law.

    Args:
        g: Gradients, `[K, M]`.
        prior: What `fit_prior` made of them with the same segments.
        noise: Deviation of the noise over the prior's std.
        segments: Lengths of the S layers, which sum to M.

    Returns:
        `[K, S]`, in the prior's dtype.

    Example:
        >>> from signfade.device.prior import fit_prior
        >>> g = torch.tensor([[-1.0, 1.0]])
        >>> noisy_scale(g, fit_prior(g, "empirical", [2]), 1.0, [2])  # erf(1/sqrt(2))
        tensor([[0.6827]])
    """
    check_choice("family", prior.family, FAMILIES)
    lengths = check_segments(segments, g.shape[1])
    check_shape("prior.mean", prior.mean, (g.shape[0], len(lengths)))
    if prior.family != "empirical" or noise == 0:
        factor = 1.0 if noise == 0 else sign_noise_factor(noise, prior.family)
        return prior.scale * factor
    result = torch.empty_like(prior.scale)
    start = 0
    for layer, length in enumerate(lengths):
        d = g[:, start : start + length].double() - prior.mean[:, layer, None].double()
        width = math.sqrt(2) * noise * prior.std[:, layer, None].double()
        # Without deviation there is nothing to be uncertain about, and nothing to multiply either.
        sure = torch.erf(d / width.clamp_min(1e-300))
        result[:, layer] = (d * sure).mean(dim=1).to(result)
        start += length
    return result


def add_sign_noise(
    g: Tensor, std: Tensor, noise: float, segments: Sequence[int], keys: NDArray[np.uint64]
) -> Tensor:
    """Add Gaussian noise of deviation `noise*std` to every coordinate, layer by layer.

    Args:
        g: Gradients, `[K, M]`, float32 or float64. Not modified.
        std: Deviations of the devices' layers, `[K, S]`.
        noise: Deviation of the noise in their units, 0 or more.
        segments: Lengths of the S layers, which sum to M.
        keys: Keys of the devices' streams, uint64 `[K]`, see `signfade.keys.stream_keys`.

    Returns:
        `[K, M]`, in g's dtype.

    Example:
        >>> g, keys = torch.zeros(1, 4), np.array([5], dtype=np.uint64)
        >>> noisy = add_sign_noise(g, torch.ones(1, 1), 2.0, [4], keys)
        >>> bool((noisy == 2.0 * torch.from_numpy(standard_normal(keys, 4))).all())
        True
    """
    lengths = check_segments(segments, g.shape[1])
    check_shape("std", std, (g.shape[0], len(lengths)))
    drawn = torch.from_numpy(standard_normal(keys, g.shape[1])).to(g)
    return g + noise * spread(std.to(g), lengths) * drawn
