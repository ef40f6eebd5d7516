"""What every aggregator shares: input checks, the weighted sum over devices, and its fused form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

import torch
from torch import Tensor

from signfade._check import check_choice, check_finite, check_positive, check_rows, check_shape
from signfade.device import sign, spread
from signfade.kernels import fused_sum
from signfade.kernels.jit import is_compiled
from signfade.settings import Form
from signfade.uplink import Signals, symbols

# A ratio y/h beyond this carries no information; the bound keeps float32 sums over many devices finite.
LARGEST_RATIO = 1e30


def check_symbols(y: Tensor, name: str = "y") -> None:
    """Raise unless y is `[K, M]` and float32 or float64: half precision overflows in a sum over devices."""
    check_rows(name, y)
    if y.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{name} must be float32 or float64; got {y.dtype}")


def check_devices(devices: int, size: int | None = None, /, **given: Tensor | None) -> None:
    """Raise unless what is given of K devices is finite and `[K]`; mean and scale may also be `[K, size]`."""
    for name, value in given.items():
        if value is not None:
            wide = size is not None and name in ("mean", "scale")
            check_shape(name, value, (devices,), *([(devices, size or 0)] if wide else []))
            check_finite(name, value)
            if name in ("sigma2", "scale", "amplitude"):
                check_positive(name, value, zero=True)


def check_received(y: Tensor, h: Tensor, *, form: str = "corrected", **given: Tensor | None) -> None:
    """Raise a ValueError that names the first argument that cannot be right."""
    check_choice("form", form, get_args(Form))
    check_symbols(y)
    check_finite("y", y)
    check_devices(*y.shape, h=h, **given)


def column(value: Tensor, like: Tensor) -> Tensor:
    """Turn one number per device, `[K]`, into a column that multiplies `[K, M]`; leave `[K, M]` alone."""
    value = value.to(device=like.device, dtype=like.dtype)
    return value.unsqueeze(1) if value.ndim == 1 else value


def weighted_sum(mean: Tensor, centred: Tensor, weights: Tensor | None) -> Tensor:
    """Return `sum_k alpha_k * (mean_k + centred_k)`, `[M]`."""
    total = column(mean, centred) + centred
    return total.sum(dim=0) if weights is None else torch.mv(total.T, weights.to(total))


def detect(y: Tensor, h: Tensor) -> Tensor:
    """Maximum-likelihood detection of the sent bits, `sign(y / h)`, from symbols `[K, M]` and gains `[K]`.

    The result, `[K, M]`, is +1 or -1, and 0 for a device with `h = 0`, which has no say.

    Example:
        >>> detect(torch.tensor([[0.2, -0.1, 0.0]]), torch.tensor([-2.0]))
        tensor([[-1.,  1.,  1.]])

    Reference: Section II, the detector before the vote.
    """
    check_received(y, h)
    side = column(h, y).sign()  # y * sign(h) has the sign of y / h, without its overflow
    return sign(y * side) * side.abs()


def add_up(
    rule: str,
    read: Callable[[Tensor], Tensor],
    y: Tensor | Signals,
    h: Tensor,
    sigma2: Tensor | None,
    mean: Tensor,
    scale: Tensor,
    weights: Tensor | None,
    form: str = "corrected",
    segments: Sequence[int] | None = None,
) -> Tensor:
    """Return `sum_k alpha_k * (mean_k + scale_k * read(y)_k)`, `[M]`.

    Lazy signals are added up by the fused kernel of this rule's name; symbols `[K, M]` by plain torch, on any
    device.
    """
    total = fused(rule, y, h, sigma2, mean, scale, weights, form, segments)
    if total is not None:
        return total
    y = symbols(y)
    if segments is not None:
        mean, scale = spread(mean, segments), spread(scale, segments)
    check_received(y, h, sigma2=sigma2, mean=mean, scale=scale, weights=weights, form=form)
    return weighted_sum(mean, column(scale, y) * read(y), weights)


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
    bits, link, known = y.bits, y.link, None
    if h is not link.h or (sigma2 is not None and sigma2 is not link.sigma2):
        known = (h, link.sigma2 if sigma2 is None else sigma2)
    sent, prior = (bits.packed, bits.size, link.h, link.sigma2), (mean, scale, weights)
    return fused_sum(rule, *sent, *prior, y.keys, form=form, segments=segments, known=known)
