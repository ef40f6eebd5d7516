"""What a device tells the server about its gradient besides the bits: a mean and a scale.

For any symmetric prior of the centred gradient the server's posterior mean needs one number, the mean
absolute deviation `E|g - mean|` (docs/model.md). A family is a way of estimating that number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from signfade._check import check_choice, check_finite, check_positive, check_shape, check_tensor
from signfade.kernels import layer_deviations, layer_sums
from signfade.settings import PriorKind

__all__ = ["FAMILIES", "Prior", "fit_prior", "spread"]

FAMILIES: tuple[PriorKind, ...] = get_args(PriorKind)


@dataclass(frozen=True, eq=False)
class Prior:
    """The prior of every device's gradient: one mean and one scale per device, or per layer.

    Args:
        mean: The mean the device centres with, `[K]` or `[K, S]` for S layers.
        scale: `E|g - mean|` under the family, same shape, non-negative.
        std: The empirical root mean square of `g - mean`, same shape, non-negative.
        family: `"gaussian"`, `"laplacian"` or `"empirical"`: how `scale` was estimated.

    Raises:
        ValueError: A field has another shape, is not finite or is negative, or the family is unknown.

    Example:
        >>> prior = Prior(torch.zeros(3), torch.ones(3), torch.ones(3), family="empirical")
        >>> prior.scale.shape
        torch.Size([3])

    Reference: paper Sec. IV-A, the local gradient prior; Sec. IV-B, the Laplacian prior.
    """

    mean: Tensor
    scale: Tensor
    std: Tensor
    family: str

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
    match: str = "likelihood",
) -> Prior:
    """Fit the mean and the scale of every device's gradient, or of every layer of it.

    With n coordinates and the centred gradient `d = g - mean`,

        mean = sum(g)/n,    std = sqrt(sum(d**2)/n),
        scale = sqrt(2/pi)*std      gaussian
                sum(|d|)/n          laplacian, match="likelihood" (the maximum-likelihood lambda)
                std/sqrt(2)         laplacian, match="variance"
                sum(|d|)/n          empirical

    By maximum likelihood the Laplacian's scale *is* the empirical one, so the two families then coincide.
    All sums run in double precision about the mean, so a mean far above the deviation costs no digits.

    Args:
        g: Gradients, `[K, M]`, floating point, finite, M at least 1.
        family: `"gaussian"`, `"laplacian"` or `"empirical"`.
        segments: Lengths of the layers within the flat gradient, S positive integers that sum to M. None: one
            prior for the whole gradient.
        mean: The mean the device really sends, `[K]` (`[K, S]` with segments). A device first quantises its
            mean, then centres with what the server will decode; the deviations are then about that number.
            None: the sample mean.
        match: `"likelihood"` or `"variance"`, what the Laplacian's scale is matched to; the others ignore it.

    Returns:
        The prior, fields `[K]` (`[K, S]` with segments), in g's precision but at least float32. The
        deviations are about the returned, rounded mean.

    Raises:
        ValueError: g or mean has the wrong shape or is not finite, the segments do not fit, or an unknown
            family or match.

    Example:
        >>> prior = fit_prior(torch.tensor([[1.0, 2.0, 6.0]]), family="empirical")
        >>> prior.mean, prior.scale
        (tensor([3.]), tensor([2.]))
        >>> fit_prior(torch.tensor([[1.0, 2.0, 6.0]]), segments=[2, 1]).mean
        tensor([[1.5000, 6.0000]])

    Reference: paper Sec. IV-A, eqs. for mu and nu**2; Proposition 3 for the Laplacian; docs/errata.md.
    """
    check_choice("family", family, FAMILIES)
    check_choice("match", match, ("likelihood", "variance"))
    check_tensor("g", g)
    if g.dim() != 2 or g.shape[1] == 0 or not g.is_floating_point():
        raise ValueError(f"g must be floating point [K, M] with M >= 1; got {g.dtype} {list(g.shape)}")
    g = g.detach()
    lengths = [g.shape[1]] if segments is None else check_segments(segments, g.shape[1])
    shape = (g.shape[0], len(lengths))
    size = g.new_tensor(lengths, dtype=torch.float64)
    dtype = torch.promote_types(g.dtype, torch.float32)

    wide = g if g.dtype == torch.float64 else g.float()
    if mean is None:
        centre = (layer_sums(wide, lengths) / size).to(dtype)
    else:
        check_shape("mean", mean, shape if segments is not None else shape[:1])
        check_finite("mean", mean)
        centre = mean.detach().to(dtype).reshape(shape)
    absolute, square = layer_deviations(wide, centre, lengths)
    if not bool(square.isfinite().all()):  # one NaN or infinity in g is enough to get here
        check_finite("g", g)
        raise ValueError(
            f"g must have a variance that fits float64; its largest magnitude is {g.abs().max():g}"
        )

    std = (square / size).sqrt()
    if family == "gaussian":
        scale = math.sqrt(2 / math.pi) * std
    elif family == "laplacian" and match == "variance":
        scale = std / math.sqrt(2)
    else:
        scale = absolute / size
    mean, scale, std = centre, scale.to(dtype), std.to(dtype)
    if segments is None:
        mean, scale, std = mean[:, 0], scale[:, 0], std[:, 0]
    return Prior(mean, scale, std, family)


def spread(values: Tensor, segments: Sequence[int]) -> Tensor:
    """Repeat per-layer values over the coordinates of their layers: `[K, S]` to `[K, M]`.

    Args:
        values: One value a device and layer, `[K, S]`.
        segments: Lengths of the S layers, positive integers; M is their sum.

    Returns:
        `[K, M]`, column m holding the value of the layer that m lies in.

    Raises:
        ValueError: The number of segments is not S, or one is not a positive integer.

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
        raise ValueError(f"segments must be one positive length a layer; got {segments!r}") from None
    if not lengths or min(lengths) < 1:
        raise ValueError(f"segments must be one positive length a layer; got {lengths}")
    if size is not None and sum(lengths) != size:
        raise ValueError(f"segments must sum to M = {size}; got {lengths}, which sum to {sum(lengths)}")
    return lengths
