"""A model's other state (running statistics of batch normalisation) from many devices to one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["merge_buffers"]

_REACH = 10 * 1.4826  # ten deviations of a Gaussian, in median absolute deviations


def merge_buffers(reported: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Merge the buffers that devices report: robust means, and of counters the median.

    Of each number, over the devices, with `m = median(x)` and `s = 1.4826*median(|x - m|)`,

        mean(clip(x, m - 10*s, m + 10*s)),

    which is the plain mean unless a device is far from the others. Less than half of the devices, whatever
    they send, cannot move it further from the others' values than 15 times their range. Of an even number of
    counters it is the larger of the two in the middle.

    Args:
        reported: From each device the same list of tensors.

    Returns:
        One tensor for each of them, of its shape and type.

    Example:
        >>> means = [torch.tensor([x]) for x in (0.1, 0.2, 0.3, 0.4, 3e38)]
        >>> merged = merge_buffers([[mean, torch.tensor(7)] for mean in means])
        >>> round(float(merged[0]), 3), int(merged[1])
        (0.557, 7)
    """
    return [_merge(torch.stack(list(same))) for same in zip(*reported, strict=True)]


def _merge(values: Tensor) -> Tensor:
    """Merge one buffer of all devices, `[K, ...]`."""
    if not values.is_floating_point():
        return values.sort(dim=0).values[len(values) // 2]
    exact = values.double()
    middle = _median(exact)
    reach = _REACH * _median((exact - middle).abs())
    return exact.clamp(middle - reach, middle + reach).mean(dim=0).to(values)


def _median(values: Tensor) -> Tensor:
    """Return the median over the first dimension, of an even number the mean of the two in the middle."""
    ordered = values.sort(dim=0).values
    return ordered[(len(values) - 1) // 2] / 2 + ordered[len(values) // 2] / 2  # a sum could overflow
