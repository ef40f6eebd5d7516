"""What every aggregator shares: its input checks, and the weighted sum over devices."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from signfade._check import check_choice, check_finite, check_positive, check_rows, check_shape

Form = Literal["corrected", "published"]
FORMS: tuple[Form, ...] = ("corrected", "published")

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
    check_choice("form", form, FORMS)
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
    """Turn one number a device, `[K]`, into a column that multiplies `[K, M]`; leave `[K, M]` alone."""
    value = value.to(device=like.device, dtype=like.dtype)
    return value.unsqueeze(1) if value.ndim == 1 else value


def weighted_sum(mean: Tensor, centred: Tensor, weights: Tensor | None) -> Tensor:
    """Return `sum_k alpha_k * (mean_k + centred_k)`, `[M]`."""
    total = column(mean, centred) + centred
    if weights is None:
        return total.sum(dim=0)
    return torch.mv(total.T, weights.to(total))
