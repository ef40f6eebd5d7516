"""What one device may say at most, given what the others say: numbers of samples, losses, gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.simulation.task import Devices

__all__ = ["SampleCounts", "bounded_gradients", "bounded_losses"]

Floats = NDArray[np.float64]
_MOST_LOSS = 10.0  # times the usual loss
_MOST_NORM = 10.0  # times the usual norm


def _usual(values: Floats) -> float:
    """Return the median, of an even number the lower one: then one of two cannot lift it."""
    return float(np.sort(values)[(len(values) - 1) // 2])


class SampleCounts:
    """Numbers of samples, as each device first said; none counts for more than some times the median.

    Args:
        devices: Number of devices K in the cell.
        most: A device's largest weight, in medians of the numbers of all devices that have replied so far.

    Example:
        >>> counts = SampleCounts(devices=3, most=4.0)
        >>> counts.weights(np.arange(3), np.array([100, 120, 2**53])).tolist()
        [100.0, 120.0, 480.0]
        >>> counts.weights(np.array([0]), np.array([2**53])).tolist()
        [100.0]
    """

    def __init__(self, devices: int, most: float) -> None:
        if not most >= 1:
            raise ValueError(f"most_samples must be 1 or more, times the median; got {most}")
        self._most = most
        self._first = np.zeros(devices, dtype=np.int64)

    def weights(self, devices: Devices, said: NDArray[np.int64]) -> Floats:
        """Return what numbers of samples count for.

        Args:
            devices: Who says them, `[k]`.
            said: Numbers of samples, `[k]`, positive.
        """
        new = self._first[devices] == 0
        self._first[devices[new]] = said[new]
        first = self._first.astype(np.float64)
        return np.minimum(first[devices], self._most * _usual(first[first > 0]))

    def state(self) -> Tensor:
        """Return what must be saved."""
        return torch.from_numpy(self._first.copy())

    def restore(self, state: Tensor) -> None:
        """Take back what `state` returned."""
        self._first = state.numpy().copy()


def bounded_losses(losses: Floats) -> Floats:
    """Cut losses down to ten times the usual one in absolute value.

    Example:
        >>> bounded_losses(np.array([1.0, 2.0, 1e308])).tolist()
        [1.0, 2.0, 20.0]
    """
    most = _MOST_LOSS * _usual(np.abs(losses))
    return np.clip(losses, -most, most)


def bounded_gradients(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Shorten gradients `[M]` to ten times their usual norm.

    Example:
        >>> long = bounded_gradients([torch.tensor([3.0, 4.0]), torch.tensor([0.0, 3e38])])[1]
        >>> long.tolist()
        [0.0, 50.0]
    """
    norms = np.array([float(torch.linalg.vector_norm(g, dtype=torch.float64)) for g in gradients])
    most = _MOST_NORM * _usual(norms)
    return [
        (gradient.double() * (most / norm)).float() if norm > most else gradient
        for gradient, norm in zip(gradients, norms, strict=True)
    ]
