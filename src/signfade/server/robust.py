"""Scalars that cannot be trusted: a bound on what devices report, from what the others report.

The scale a device reports is its weight in the sum, and nothing in the air limits it. An honest scale lies
among the others': on a logarithmic axis within a few robust deviations of their median. Liars want large
scales, so the deviation is that of the lower half, and neither it nor the median moves far while fewer than
half of the devices lie.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from signfade._check import check_finite, check_positive, check_shape

__all__ = ["ScalarState", "bound_scalars", "initial_scalars"]

_TO_DEVIATION = 1.4826  # a Gaussian's deviation over its median absolute deviation
_SMALLEST_SPREAD = 0.1  # of log scales: devices that are all but alike may still differ by a few tenths


@dataclass(frozen=True)
class ScalarState:
    """What past rounds taught about honest scalars, a column for each of the S layers.

    `limits` `[4, S]` holds the middle and the spread of the logarithms of the scales, then those of the means
    in units of the typical scale; NaN until a round has been heard.
    """

    limits: Tensor


def initial_scalars(layers: int = 1) -> ScalarState:
    """Return the state that has heard nothing.

    Example:
        >>> initial_scalars(2).limits.shape
        torch.Size([4, 2])
    """
    return ScalarState(torch.full((4, layers), torch.nan, dtype=torch.float64))


def bound_scalars(
    state: ScalarState,
    mean: Tensor,
    scale: Tensor,
    deviations: float = 3.0,
    rate: float = 0.2,
    mean_step: float = 0.0,
    scale_step: float = 1.0,
) -> tuple[Tensor, Tensor, ScalarState]:
    """Replace reported means and scales that the others do not make believable by the others' median.

    With `x = ln(scale)` of the devices that are not silent, `middle = median(x)` and `spread = max(0.1,
    1.4826*median(middle - x))` over those at or below the middle, both smoothed over rounds,

        scale <- exp(middle)   where   scale > exp(middle + deviations*spread),

    and a mean, in units of `exp(middle)`, more than `deviations` robust deviations from this round's median
    becomes that median. So who exaggerates beyond belief gains nothing, not even the bound. A small scale is
    let pass: a device may be silent.

    Args:
        state: From `initial_scalars` or the last round. Not modified.
        mean: Decoded means, `[K, S]`.
        scale: Decoded scales, `[K, S]`, non-negative.
        deviations: How many robust deviations are believed.
        rate: Weight of this round in the smoothed middle and spread; 1 forgets the past.
        mean_step: Step of the means' quantiser, in units of a device's scale: a mean one step beyond the
            others' is believed too, or all would have to be those of the majority where steps are coarse.
        scale_step: Ratio of two neighbouring levels of the scales' quantiser: one level more is believed too.

    Returns:
        `(mean, scale, state)`, in the shapes and dtypes given.

    Raises:
        ValueError: Shapes that do not match, a negative scale, NaN.

    Example:
        >>> scale = torch.tensor([[1.0], [1.1], [0.9], [1000.0]])
        >>> _, bounded, _ = bound_scalars(initial_scalars(), torch.zeros(4, 1), scale)
        >>> bounded.ravel()
        tensor([1.0000, 1.1000, 0.9000, 1.0488])
    """
    if scale.ndim != 2 or state.limits.shape[1] != scale.shape[1]:
        raise ValueError(f"scale must have shape [K, {state.limits.shape[1]}]; got {list(scale.shape)}")
    check_shape("mean", mean, tuple(scale.shape))
    check_finite("mean", mean)
    check_finite("scale", scale)
    check_positive("scale", scale, zero=True)
    if not deviations > 0 or not 0 < rate <= 1:
        raise ValueError(f"deviations must be positive and rate in (0, 1]; got {deviations} and {rate}")
    limits = torch.stack([_layer(mean[:, s], scale[:, s]) for s in range(scale.shape[1])], dim=1)
    limits = torch.where(limits.isnan(), state.limits, limits)
    smooth = state.limits + rate * (limits - state.limits)
    smooth = torch.where(smooth.isnan(), limits, smooth)
    smooth[2:] = limits[2:]  # a rotation gives all devices another mean each round
    middle, spread, centre, width = smooth.nan_to_num(0.0)
    unit = middle.exp()
    largest = (middle + deviations * spread).exp().to(scale) * scale_step
    known = ~smooth[0].isnan()
    bounded = torch.where(known & (scale > largest), unit.to(scale), scale)
    reach = deviations * width * unit + 1.01 * mean_step * torch.maximum(bounded, unit.to(bounded))
    low, high = ((centre * unit + side * reach).to(mean) for side in (-1, 1))
    outside = (mean < low) | (mean > high)
    usual = (centre * unit).to(mean)
    return torch.where(known & outside, usual, mean), bounded, ScalarState(smooth)


def _layer(mean: Tensor, scale: Tensor) -> Tensor:
    """Middle and spread of one layer's log scales, then of its means over the middle scale; NaN if silent."""
    heard = scale > 0
    if not bool(heard.any()):
        return torch.full((4,), torch.nan, dtype=torch.float64)
    logs = scale[heard].double().log()
    middle = torch.quantile(logs, 0.5)
    spread = _TO_DEVIATION * torch.quantile(middle - logs[logs <= middle], 0.5)
    means = mean[heard].double() / middle.exp()
    centre = torch.quantile(means, 0.5)
    width = _TO_DEVIATION * torch.quantile((means - centre).abs(), 0.5)
    return torch.stack([middle, spread.clamp_min(_SMALLEST_SPREAD), centre, width])
