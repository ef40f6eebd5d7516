"""What is learned: everything the round needs to know about a model and the data behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.server import Devices

__all__ = [
    "DeviceEvaluation",
    "Devices",
    "Evaluation",
    "LocalGradients",
    "Task",
    "merge_buffers",
    "one_thread",
]

_REACH = 10 * 1.4826  # ten deviations of a Gaussian, in median absolute deviations


class LocalGradients(NamedTuple):
    """Updates in units of gradients, `[k, M]`, and losses `[k]` of some devices, in the order asked for."""

    gradients: Tensor
    losses: Tensor


class Evaluation(NamedTuple):
    """How good the weights are on data no device holds; accuracy only where there are classes."""

    loss: float | None
    accuracy: float | None
    perplexity: float | None = None  # exp(loss), where each position of a sample has a label


class DeviceEvaluation(NamedTuple):
    """How good each device's model is on data like its own, `[K]` each; accuracy only with classes."""

    loss: NDArray[np.float64]
    accuracy: NDArray[np.float64] | None


class Task(Protocol):
    """A model and its data, spread over devices."""

    devices: int  # K
    size: int  # number of weights M
    segments: tuple[int, ...]  # lengths of the layers in the flat weight vector; they add up to M
    shares: NDArray[np.float64]  # N_k / N, [K]
    extra_bits: int  # that a device sends in a round besides its one-bit gradient (a model's buffers)

    @property
    def step_unit(self) -> float:
        """What the step is measured in: 1, or 1/L where the smoothness L is known."""

    def initial_weights(self) -> Tensor:
        """Return the weights before the first round, `[M]`."""

    def local_updates(
        self, weights: Tensor, devices: Devices, round: int, control: Tensor | None = None
    ) -> LocalGradients:
        """Return the devices' gradients at common weights, or the sums of their local steps from there.

        One device's never depend on another's. `control` `[k, M]` is added to every step's gradient.
        """

    def evaluate(self, weights: Tensor) -> Evaluation:
        """Return test loss, accuracy and perplexity."""

    def training_loss(self, weights: Tensor) -> float | None:
        """Return the mean loss over all samples of all devices; None where there is no loss."""

    def evaluate_devices(self, models: Tensor, of: NDArray[np.int64], round: int) -> DeviceEvaluation:
        """Return each device's test loss and accuracy after `round` rounds, device k with `models[of[k]]`."""

    def groups_of(self, round: int) -> NDArray[np.int64]:
        """Return the group of labels that each device has in a round, `[K]`."""

    def end_round(self) -> None:
        """Merge what the devices sent besides gradients, after the last `local_updates` of a round."""

    def state(self) -> dict[str, Tensor]:
        """Return what must be saved besides the weights."""

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread inside the block, so that results do not depend on how work is shared out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def merge_buffers(reported: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Merge the buffers that devices report, each the same list of tensors: robust means, median counters.

    Of each number, over the devices, with `m = median(x)` and `s = 1.4826*median(|x - m|)`,

        mean(clip(x, m - 10*s, m + 10*s)),

    which is the plain mean unless a device is far from the others. Less than half of the devices, whatever
    they send, cannot move it further from the others' values than 15 times their range.

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
