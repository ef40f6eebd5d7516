"""What a device tells the server about its gradient besides the bits: a mean and a scale.

For any symmetric prior of the centred gradient the server's posterior mean needs one number, the mean
absolute deviation `E|g - mean|` (docs/model.md). A family is a way of estimating that number; noise before
the sign shortens it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade._check import check_choice, check_finite, check_positive, check_shape, check_tensor
from signfade.kernels import layer_deviations, layer_sums, standard_normal
from signfade.settings import Family, PriorKind

__all__ = ["FAMILIES", "Prior", "add_sign_noise", "fit_prior", "noisy_scale", "sign_noise_factor", "spread"]

FAMILIES: tuple[PriorKind, ...] = get_args(PriorKind)


@dataclass(frozen=True, eq=False)
class Prior:
    """The prior of every device's gradient: one mean and one scale per device, or per layer.

    Reference: paper Sec. IV-A, the local gradient prior; Sec. IV-B, the Laplacian prior.
    """

    mean: Tensor  # what the device centres with, [K], or [K, S] for S layers
    scale: Tensor  # E|g - mean| under the family, same shape, non-negative
    std: Tensor  # the empirical root mean square of g - mean, same shape
    family: str  # "gaussian", "laplacian" or "empirical": how `scale` was estimated

    def __post_init__(self) -> None:
        check_choice("family", self.family, FAMILIES)
        if self.mean.dim() not in (1, 2):
            raise ValueError(f"mean must have shape [K] or [K, S]; got {list(self.mean.shape)}")
        for name, value in (("mean", self.mean), ("scale", self.scale), ("std", self.std)):
            check_shape(name, value, tuple(self.mean.shape))
            check_finite(name, value)
            if name != "mean":
                check_positive(name, value, zero=True)


def fit_prior(
    g: Tensor,
    family: str = "gaussian",
    segments: Sequence[int] | None = None,
    *,
    mean: Tensor | None = None,
) -> Prior:
    """Fit the mean and the scale of every device's gradient, or of every layer of it.

    With n coordinates and the centred gradient `d = g - mean`,

        mean = sum(g)/n,    std = sqrt(sum(d**2)/n),
        scale = sqrt(2/pi)*std      gaussian
                sum(|d|)/n          laplacian (the maximum-likelihood lambda) and empirical

    All sums run in double precision about the mean, so a mean far above the deviation costs no digits.

    Args:
        g: Gradients, `[K, M]`, floating point, finite, M at least 1.
        family: `"gaussian"`, `"laplacian"` or `"empirical"`.
        segments: Lengths of the S layers within the flat gradient, which sum to M. None: one prior for the
            whole gradient.
        mean: The mean the device really sends, `[K]` (`[K, S]` with segments). A device first quantises its
            mean, then centres with what the server will decode; the deviations are then about that number.
            None: the sample mean.

    Returns:
        The prior, fields `[K]` (`[K, S]` with segments) on the CPU, in g's precision but at least float32.
        The deviations are about the returned, rounded mean.

    Example:
        >>> prior = fit_prior(torch.tensor([[1.0, 2.0, 6.0]]), family="empirical")
        >>> prior.mean, prior.scale
        (tensor([3.]), tensor([2.]))

    Reference: paper Sec. IV-A, eqs. for mu and nu**2; Proposition 3 for the Laplacian; docs/errata.md.
    """
    check_choice("family", family, FAMILIES)
    check_tensor("g", g)
    if g.dim() != 2 or g.shape[1] == 0 or not g.is_floating_point():
        raise ValueError(f"g must be floating point [K, M] with M >= 1; got {g.dtype} {list(g.shape)}")
    g = g.detach()
    lengths = [g.shape[1]] if segments is None else check_segments(segments, g.shape[1])
    shape = (g.shape[0], len(lengths))
    size = torch.tensor(lengths, dtype=torch.float64)
    dtype = torch.promote_types(g.dtype, torch.float32)

    wide = g if g.dtype == torch.float64 else g.float()
    if mean is None:
        centre = (layer_sums(wide, lengths) / size).to(dtype)
    else:
        check_shape("mean", mean, shape if segments is not None else shape[:1])
        check_finite("mean", mean)
        centre = mean.detach().to(dtype).reshape(shape).cpu()
    absolute, square = layer_deviations(wide, centre, lengths)
    if not bool(square.isfinite().all()):  # one NaN or infinity in g is enough to get here
        check_finite("g", g)
        raise ValueError(
            f"g must have a variance that fits float64; its largest magnitude is {g.abs().max():g}"
        )

    std = (square / size).sqrt()
    scale = math.sqrt(2 / math.pi) * std if family == "gaussian" else absolute / size
    mean, scale, std = centre, scale.to(dtype), std.to(dtype)
    if segments is None:
        mean, scale, std = mean[:, 0], scale[:, 0], std[:, 0]
    return Prior(mean, scale, std, family)


def spread(values: Tensor, segments: Sequence[int]) -> Tensor:
    """Repeat per-layer values over the coordinates of their layers: `[K, S]` to `[K, M]`.

    Example:
        >>> spread(torch.tensor([[1.0, 2.0]]), [1, 3])
        tensor([[1., 2., 2., 2.]])
    """
    lengths = check_segments(segments)
    if values.dim() != 2 or values.shape[1] != len(lengths):
        raise ValueError(f"values must have shape [K, {len(lengths)}]; got {list(values.shape)}")
    pieces = [values[:, s : s + 1].expand(-1, length) for s, length in enumerate(lengths)]
    return torch.cat(pieces, dim=1)  # an order of magnitude faster than repeat_interleave


def check_segments(segments: Sequence[int], size: int | None = None) -> list[int]:
    """Return the segments as plain integers; raise unless they are positive and sum to `size` (if given)."""
    try:
        lengths = [operator.index(length) for length in segments]
    except TypeError:
        raise ValueError(f"segments must be one positive length per layer; got {segments!r}") from None
    if not lengths or min(lengths) < 1:
        raise ValueError(f"segments must be one positive length per layer; got {lengths}")
    if size is not None and sum(lengths) != size:
        raise ValueError(f"segments must sum to M = {size}; got {lengths}, which sum to {sum(lengths)}")
    return lengths


def sign_noise_factor(noise: float, family: str = "gaussian") -> float:
    """Return what Gaussian noise before the sign leaves of a scale: `E[d*sign(d + n)] / E|d|`.

    The deviation of n is `noise` times that of d. Gaussian d: `1/sqrt(1 + noise^2)`. Laplacian d, `r =
    sqrt(2)*noise`: `(1 - r^2)*erfcx(r/sqrt(2)) + r*sqrt(2/pi)`. Both fall from 1 like `c/noise`.

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
    """Return the scale `[K, S]` of a device that adds noise before the sign b: `E[(g - mean)*b]`.

    Under a family with a law it is `sign_noise_factor` times the family's scale; `empirical` takes the mean
    of `d*erf(d/(sqrt(2)*noise*std))` over its own coordinates, which is right for any law.

    Example:
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
    """Add Gaussian noise of deviation `noise*std` to every coordinate, `[K, M]`, layer by layer.

    A plain sign forgets every size. With noise of about the gradient's own size a bit is more often right the
    larger its coordinate is, and the average of many devices or rounds recovers sizes too. The posterior mean
    of a coordinate is `mean + E[(g - mean)*b] * tanh(l)` for any noise whose law is symmetric, so a device
    that sends `E[(g - mean)*b]` as its scale (`noisy_scale`) keeps the server's rule exact. `std` is
    `[K, S]`; `keys` are those of the devices' streams, see `signfade.keys.stream_keys`.

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
