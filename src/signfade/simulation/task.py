"""What is learned: everything the round loop needs to know about a model and the data behind it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Devices", "Evaluation", "LocalGradients", "Task"]

Devices = NDArray[np.int64]


class LocalGradients(NamedTuple):
    """Gradients `[k, M]` and losses `[k]` of some devices, in the order they were asked for."""

    gradients: Tensor
    losses: Tensor


class Evaluation(NamedTuple):
    """How good the weights are on data no device holds; accuracy only where there are classes."""

    loss: float | None
    accuracy: float | None


class Task(Protocol):
    """A model and its data, spread over devices.

    Attributes:
        devices: Number of devices K.
        size: Number of weights M.
        segments: Lengths of the layers in the flat weight vector; they add up to M.
        shares: `N_k / N`, `[K]`.
        extra_bits: Bits a device sends in a round besides its one-bit gradient (a model's buffers).
    """

    devices: int
    size: int
    segments: tuple[int, ...]
    shares: NDArray[np.float64]
    extra_bits: int

    @property
    def step_unit(self) -> float:
        """What the step is measured in: 1, or 1/L where the smoothness L is known."""

    def initial_weights(self) -> Tensor:
        """Return the weights before the first round, `[M]`."""

    def local_gradients(self, weights: Tensor, devices: Devices, round: int) -> LocalGradients:
        """Return the devices' gradients at common weights. One device's never depend on another's."""

    def evaluate(self, weights: Tensor) -> Evaluation:
        """Return test loss and accuracy."""

    def end_round(self) -> None:
        """Merge what the devices sent besides gradients, after the last `local_gradients` of a round."""

    def state(self) -> dict[str, Tensor]:
        """Return what must be saved besides the weights."""

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
