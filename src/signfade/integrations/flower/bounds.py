"""How far one device's numbers of samples, losses and gradients may lie from those of the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.server import Devices

__all__ = ["bounded_gradients", "bounded_losses", "bounded_samples"]

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
_MOST_LOSS = 10.0  # times the median loss
_MOST_NORM = 10.0  # times the median norm


def _median(values: Floats) -> float:
    """Return the median, of an even number the lower one: then one of two cannot lift it."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def bounded_samples(first: Counts, devices: Devices, reported: Counts, most: float) -> tuple[Counts, Floats]:
    """Return the first numbers of samples that devices reported, and what they count for in this round.

    Args:
        first: The first number of each device of the cell, `[N]`, 0 where there is none yet. Not modified.
        devices: Who reports, `[K]`.
        reported: Their numbers of samples, `[K]`, positive.
        most: The largest weight, in medians of the first numbers of all devices that have replied so far.

    Returns:
        `first` with the new devices, and the weights `[K]`.

    Example:
        >>> first = np.zeros(3, dtype=np.int64)
        >>> first, weights = bounded_samples(first, np.arange(3), np.array([100, 120, 2**53]), most=4.0)
        >>> weights.tolist()
        [100.0, 120.0, 480.0]
        >>> bounded_samples(first, np.array([0]), np.array([2**53]), most=4.0)[1].tolist()
        [100.0]
    """
    first = first.copy()
    new = first[devices] == 0
    first[devices[new]] = reported[new]
    known = first.astype(np.float64)
    return first, np.minimum(known[devices], most * _median(known[known > 0]))


def bounded_losses(losses: Floats) -> Floats:
    """Clip losses to ten times their median in absolute value.

    Example:
        >>> bounded_losses(np.array([1.0, 2.0, 1e308])).tolist()
        [1.0, 2.0, 20.0]
    """
    most = _MOST_LOSS * _median(np.abs(losses))
    return np.clip(losses, -most, most)


def bounded_gradients(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Shorten gradients `[M]` to ten times their median norm.

    Example:
        >>> long = bounded_gradients([torch.tensor([3.0, 4.0]), torch.tensor([0.0, 3e38])])[1]
        >>> long.tolist()
        [0.0, 50.0]
    """
    norms = np.array([float(torch.linalg.vector_norm(g, dtype=torch.float64)) for g in gradients])
    most = _MOST_NORM * _median(norms)
    return [
        (gradient.double() * (most / norm)).float() if norm > most else gradient
        for gradient, norm in zip(gradients, norms, strict=True)
    ]
