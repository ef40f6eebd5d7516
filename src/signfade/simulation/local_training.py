"""Local training: E steps of SGD on a device, and the sum of its steps in place of a gradient.

A device starts at the weights w that were broadcast and makes steps `w_k <- w_k - eta*v`, `v <- beta*v + g`,
`g` the gradient of its mini-batch, plus `mu*(w_k - w)` (FedProx) and `c - c_k` (SCAFFOLD) where asked for.
It sends `d_k = (w - w_k)/eta`, the sum of its v; the server steps by eta times its own rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from signfade.settings import DeviceSettings

__all__ = ["ONE_GRADIENT", "batches", "sum_of_steps"]

ONE_GRADIENT = DeviceSettings()  # no local training

Parts = tuple[Tensor, ...]
Gradient = Callable[[Any], tuple[Tensor, Sequence[Tensor]]]


def batches(
    held: np.ndarray, batch: int | None, settings: DeviceSettings, draw: np.random.Generator
) -> Iterator[Tensor]:
    """Yield the rows of each local step: a fresh mini-batch per step, or whole passes in random order.

    Example:
        >>> rows = batches(np.arange(5), 2, DeviceSettings(epochs=1), np.random.default_rng(0))
        >>> [len(part) for part in rows]
        [2, 2, 1]
    """
    batch = len(held) if batch is None else min(batch, len(held))
    for _ in range(settings.epochs or 0):
        order = draw.permutation(held)
        yield from (torch.from_numpy(order[start : start + batch]) for start in range(0, len(held), batch))
    for _ in range(0 if settings.epochs else settings.local_steps):
        chosen = held if batch == len(held) else held[draw.choice(len(held), size=batch, replace=False)]
        yield torch.from_numpy(chosen)


@torch.no_grad()
def sum_of_steps(
    parameters: Sequence[Tensor],
    gradient: Gradient,
    rows: Iterable[Any],
    settings: DeviceSettings,
    control: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Parts]:
    """Train in place; return the loss of the first step and the sum of all steps, shaped like the parameters.

    `gradient` turns the rows of a mini-batch into a loss and the parameters' gradients; `control` is
    SCAFFOLD's `c - c_k`.
    """
    rate, pull = settings.learning_rate, settings.learning_rate * settings.proximal
    total: Parts = ()
    velocity: Parts = ()
    first: Tensor | None = None
    for chosen in rows:
        with torch.enable_grad():
            loss, found = gradient(chosen)
        step: Parts = tuple(found)
        first = loss if first is None else first
        if control is not None:
            step = torch._foreach_add(step, tuple(control))
        if pull and total:  # w_k - w = -rate*total
            step = torch._foreach_sub(step, total, alpha=pull)
        if settings.momentum:
            velocity = (
                torch._foreach_add(step, torch._foreach_mul(velocity, settings.momentum))
                if velocity
                else step
            )
            step = velocity
        total = torch._foreach_add(total, step) if total else step
        torch._foreach_sub_(list(parameters), step, alpha=rate)
    if first is None:
        raise ValueError("a device has no batch to train on")
    return first, total
