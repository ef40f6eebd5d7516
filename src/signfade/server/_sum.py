"""What every aggregator shares: its input checks, and the weighted sum over devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import torch
from torch import Tensor

from signfade._check import check_choice, check_finite, check_positive, check_rows, check_shape
from signfade.device import spread
from signfade.kernels import fused_sum
from signfade.kernels.jit import is_compiled
from signfade.settings import Form
from signfade.uplink import Signals

# A ratio y/h beyond this carries no information; the bound keeps float32 sums over many devices finite.
LARGEST_RATIO = 1e30


def check_received(
    y: Tensor,
    h: Tensor,
    *,
    sigma2: Tensor | None = None,
    mean: Tensor | None = None,
    scale: Tensor | None = None,
    weights: Tensor | None = None,
    form: str = "corrected",
    name: str = "y",
) -> None:
    """Raise a ValueError that names the first argument that cannot be right; `name` is what y is called."""
    check_choice("form", form, get_args(Form))
    check_rows(name, y)
    if y.dtype not in (torch.float32, torch.float64):  # half precision overflows in a sum over devices
        raise ValueError(f"{name} must be float32 or float64; got {y.dtype}")
    devices, size = y.shape
    check_finite(name, y)
    for what, value in {"h": h, "sigma2": sigma2, "weights": weights}.items():
        if value is not None:
            check_shape(what, value, (devices,))
            check_finite(what, value)
    for what, value in {"mean": mean, "scale": scale}.items():
        if value is not None:
            check_shape(what, value, (devices,), (devices, size))
            check_finite(what, value)
    if sigma2 is not None:
        check_positive("sigma2", sigma2, zero=True)
    if scale is not None:
        check_positive("scale", scale, zero=True)


def column(value: Tensor, like: Tensor) -> Tensor:
    """Turn one number per device, `[K]`, into a column that multiplies `[K, M]`; leave `[K, M]` alone."""
    value = value.to(device=like.device, dtype=like.dtype)
    return value.unsqueeze(1) if value.ndim == 1 else value


def weighted_sum(mean: Tensor, centred: Tensor, weights: Tensor | None) -> Tensor:
    """Return `sum_k alpha_k * (mean_k + centred_k)`, `[M]`."""
    total = column(mean, centred) + centred
    if weights is None:
        return total.sum(dim=0)
    return torch.mv(total.T, weights.to(total))


def by_layer(value: Tensor, segments: Sequence[int] | None) -> Tensor:
    """Turn numbers of S layers, `[K, S]`, into one per coordinate, `[K, M]`; leave others alone."""
    return value if segments is None else spread(value, segments)


def fused(
    rule: str,
    y: Tensor | Signals,
    h: Tensor,
    sigma2: Tensor | None,
    mean: Tensor | None = None,
    scale: Tensor | None = None,
    weights: Tensor | None = None,
    form: str = "corrected",
    segments: Sequence[int] | None = None,
) -> Tensor | None:
    """Add lazy signals up in one pass that never stores a symbol; None where that is not possible."""
    if not isinstance(y, Signals) or y.dtype != torch.float32 or not is_compiled(y.bits.packed):
        return None
    if any(value is not None and value.ndim == 2 for value in (mean, scale)) and segments is None:
        return None
    known = None
    if h is not y.link.h or (sigma2 is not None and sigma2 is not y.link.sigma2):
        known = (h, y.link.sigma2 if sigma2 is None else sigma2)
    bits, link = y.bits, y.link
    return fused_sum(
        rule,
        bits.packed,
        bits.size,
        link.h,
        link.sigma2,
        mean,
        scale,
        weights,
        y.keys,
        form=form,
        segments=segments,
        known=known,
    )
