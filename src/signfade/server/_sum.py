"""What every aggregator shares: its input checks, and the weighted sum over devices."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from signfade._check import check_choice, check_finite, check_positive, check_shape

Form = Literal["corrected", "published"]
FORMS: tuple[Form, ...] = ("corrected", "published")


def check_received(
    y: Tensor,
    h: Tensor,
    *,
    sigma2: Tensor | None = None,
    mean: Tensor | None = None,
    scale: Tensor | None = None,
    weights: Tensor | None = None,
    form: str = "corrected",
) -> None:
    """Raise a ValueError that names the first argument that cannot be right."""
    check_choice("form", form, FORMS)
    if y.ndim != 2:
        raise ValueError(f"y must have shape [K, M]; got {list(y.shape)}")
    if not y.is_floating_point():
        raise ValueError(f"y must be a floating-point tensor; got {y.dtype}")
    devices, size = y.shape
    check_finite("y", y)
    for name, value in {"h": h, "sigma2": sigma2, "weights": weights}.items():
        if value is not None:
            check_shape(name, value, (devices,))
            check_finite(name, value)
    for name, value in {"mean": mean, "scale": scale}.items():
        if value is not None:
            check_shape(name, value, (devices,), (devices, size))
            check_finite(name, value)
    if sigma2 is not None:
        check_positive("sigma2", sigma2, zero=True)
    if scale is not None:
        check_positive("scale", scale, zero=True)


def column(value: Tensor, like: Tensor) -> Tensor:
    """Turn one number a device, `[K]`, into a column that multiplies `[K, M]`; leave `[K, M]` alone."""
    value = value.to(device=like.device, dtype=like.dtype)
    return value.unsqueeze(1) if value.ndim == 1 else value


def weighted_sum(mean: Tensor, centred: Tensor, weights: Tensor | None) -> Tensor:
    """Return `sum_k alpha_k * (mean_k + centred_k)`, `[M]`."""
    total = column(mean, centred) + centred
    if weights is None:
        return total.sum(dim=0)
    return torch.mv(total.T, weights.to(total))
