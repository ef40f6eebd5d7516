"""Scalars that cannot be trusted: a bound on what devices report, from what the others report.

An honest scale is near the others' on a logarithmic axis: within three robust deviations of their median and
a factor of four. Breakdown point: one half. While fewer than half of the devices compared are hostile, the
median of the log scales lies between honest ones, whatever the hostile ones report, so no scale passes that
is more than `LARGEST_RATIO` times the largest honest one. The median of the means lies between honest ones
too, the median absolute deviation about it is at most their range R, and none passes more than
`1.4826*deviations*R` beyond that range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from signfade._check import check_finite, check_positive, check_shape

__all__ = ["LARGEST_RATIO", "ScalarState", "accepted_scale", "bound_scalars", "initial_scalars"]

LARGEST_RATIO = 4.0  # of a scale to the median; on digits the largest honest one is at 2 in most rounds
_TO_DEVIATION = 1.4826  # a Gaussian's deviation over its median absolute deviation
_SMALLEST_SPREAD = 0.1  # of log scales: devices that are all but alike may still differ by a few tenths
_COMPARED = 25  # devices at least, if there are so many: the last ones received, each once
_CANDIDATES = 400  # scales that attackers try


@dataclass(frozen=True)
class ScalarState:
    """The last report of each of N devices, one column per layer."""

    last_received: Tensor  # in which round each device was last received, int64 `[N]`; from 1, 0 is never
    logs: (
        Tensor  # logarithms of the scales, float64 `[N, S]`; NaN for a device that was silent or not received
    )
    means: Tensor  # float64 `[N, S]`; NaN likewise


def initial_scalars(population: int, layers: int = 1) -> ScalarState:
    """Return the state before the first report of `population` devices."""
    nothing = torch.full((population, layers), torch.nan, dtype=torch.float64)
    return ScalarState(torch.zeros(population, dtype=torch.int64), nothing, nothing)


def bound_scalars(
    state: ScalarState,
    mean: Tensor,
    scale: Tensor,
    devices: Tensor | None = None,
    deviations: float = 3.0,
    mean_step: float = 0.0,
    scale_step: float = 1.0,
) -> tuple[Tensor, Tensor, ScalarState]:
    """Replace reported means and scales that the others' do not support by the others' median.

    With `x = ln(scale)` of the devices compared, `middle = median(x)` and
    `spread = max(0.1, 1.4826*median|x - middle|)`, a scale above
    `exp(middle + min(deviations*spread, ln 4))` becomes `exp(middle)`, and a mean more than `deviations`
    robust deviations from the median of the means becomes that median. An exaggeration beyond the bound gains
    nothing, not even the bound. A small scale is let pass: a device may be silent. Compared are the devices
    of this round and, if those are fewer than 25, the last ones received before: a device counts once, with
    its last report.

    Args:
        state: From `initial_scalars` or the last round. Not modified.
        mean: Decoded means, `[K, S]`.
        scale: Decoded scales, `[K, S]`, non-negative.
        devices: Who reports them, int64 `[K]`, distinct, below N; `0 ... K-1` if None.
        deviations: How many robust deviations are accepted.
        mean_step: Step of the means' quantiser, in units of a device's scale; one step more is accepted too.
        scale_step: Ratio of two neighbouring levels of the scales' quantiser; one level more is accepted too.

    Example:
        >>> scale = torch.tensor([[1.0], [1.1], [0.9], [1000.0]])
        >>> _, bounded, _ = bound_scalars(initial_scalars(4), torch.zeros(4, 1), scale)
        >>> bounded.ravel()
        tensor([1.0000, 1.1000, 0.9000, 1.0488])
    """
    if scale.ndim != 2 or state.logs.shape[1] != scale.shape[1]:
        raise ValueError(f"scale must have shape [K, {state.logs.shape[1]}]; got {list(scale.shape)}")
    check_shape("mean", mean, tuple(scale.shape))
    check_finite("mean", mean)
    check_finite("scale", scale)
    check_positive("scale", scale, zero=True)
    if not deviations > 0:
        raise ValueError(f"deviations must be positive; got {deviations}")
    state = _remembered(state, mean, scale, torch.arange(len(scale)) if devices is None else devices)
    compared = _compared(state.last_received, len(scale))
    middle, reach = _accepted(state.logs[compared], deviations)
    known = ~middle.isnan()
    unit = middle.nan_to_num(0.0).exp().to(scale)
    largest = (middle + reach).nan_to_num(0.0).exp().to(scale) * scale_step
    bounded = torch.where(known & (scale > largest), unit, scale)
    centre = torch.nanquantile(state.means[compared], 0.5, dim=0)
    width = _TO_DEVIATION * torch.nanquantile((state.means[compared] - centre).abs(), 0.5, dim=0)
    away = (mean.double() - centre).abs()
    outside = away > deviations * width + 1.01 * mean_step * torch.maximum(bounded, unit).double()
    return torch.where(known & outside, centre.nan_to_num(0.0).to(mean), mean), bounded, state


def accepted_scale(honest: Tensor, attackers: int, deviations: float = 3.0) -> Tensor:
    """Return the largest scale that passes `bound_scalars` when all attackers report it.

    What an attacker can reach that knows the defence and all honest scales of the round, `[H, S]`; found by
    trying. float64 `[S]`, at most `LARGEST_RATIO` times the largest honest scale for fewer than H attackers.

    Example:
        >>> accepted_scale(torch.tensor([[1.0], [1.2], [0.9]]), attackers=1).round(decimals=1)
        tensor([2.1000], dtype=torch.float64)
    """
    logs = honest.double().clamp_min(1e-38).log()
    low, high = logs.amin(dim=0), logs.amax(dim=0) + 2 * math.log(LARGEST_RATIO)
    tried = low + torch.linspace(0, 1, _CANDIDATES, dtype=torch.float64)[:, None] * (high - low)
    reports = (logs.expand(_CANDIDATES, *logs.shape), tried.unsqueeze(1).expand(-1, attackers, -1))
    middle, reach = _accepted(torch.cat(reports, dim=1), deviations)
    passes = torch.where(tried <= middle + reach, tried, low)
    return passes.amax(dim=0).exp() * (1 - 1e-6)  # below the bound in float32 as well


def _remembered(state: ScalarState, mean: Tensor, scale: Tensor, devices: Tensor) -> ScalarState:
    """Put this round's reports in the place of the devices' last ones."""
    last_received, logs, means = state.last_received.clone(), state.logs.clone(), state.means.clone()
    reported = scale > 0
    last_received[devices] = last_received.max() + 1
    logs[devices] = torch.where(reported, scale.double(), torch.nan).log()
    means[devices] = torch.where(reported, mean.double(), torch.nan)
    return ScalarState(last_received, logs, means)


def _compared(last_received: Tensor, now: int) -> Tensor:
    """Mark the last devices received, at least `max(now, 25)` where so many were received at all, `[N]`."""
    recent = torch.topk(last_received, min(max(now, _COMPARED), len(last_received))).values[-1]
    return last_received >= recent.clamp_min(1)


def _accepted(logs: Tensor, deviations: float) -> tuple[Tensor, Tensor]:
    """Middle of log scales `[..., n, S]` and how far above it they are accepted, `[..., S]`; NaN if none."""
    middle = torch.nanquantile(logs, 0.5, dim=-2)
    away = (logs - middle.unsqueeze(-2)).abs()
    spread = _TO_DEVIATION * torch.nanquantile(away, 0.5, dim=-2)
    return middle, (deviations * spread.clamp_min(_SMALLEST_SPREAD)).clamp_max(math.log(LARGEST_RATIO))
