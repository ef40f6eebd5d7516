"""One large run over several workers: each computes the gradients of its share of the devices.

Only the gradients are computed elsewhere. They come back row by row, and everything after them (sums, bits,
the air, the server) is done here as always, in the same chunks: so the split cannot change a byte of a run.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.simulation.buffers import merge_buffers
from signfade.simulation.synthetic import RegressionTask
from signfade.simulation.task import Devices, Evaluation, LocalGradients, Task

__all__ = ["Crew", "Part", "ShardedTask", "Share", "compute", "cut"]


@dataclass(frozen=True)
class Share:
    """What a worker has to compute in a round: gradients of these devices, as rows from `first` on."""

    first: int
    devices: Devices
    round: int
    state: dict[str, Tensor]  # the model's buffers; empty where there are none


@dataclass(frozen=True)
class Part:
    """What a worker has computed: losses `[k]`, and of each device the buffers it reports."""

    first: int
    losses: Tensor
    reports: list[list[Tensor]] = field(default_factory=list)


class Crew(Protocol):
    """Workers that hold the same task, here or elsewhere."""

    size: int

    def compute(self, weights: Tensor, shares: Sequence[Share], gradients: Tensor) -> list[Part]:
        """Compute all shares, one a worker, and put the gradients in the rows of `gradients`, `[k, M]`."""


def cut(count: int, parts: int, grain: int = 1) -> list[slice]:
    """Cut a sequence into at most `parts` pieces of about the same length, at multiples of `grain`.

    Example:
        >>> cut(10, 3)
        [slice(0, 3, None), slice(3, 7, None), slice(7, 10, None)]
        >>> cut(20, 2, grain=16)
        [slice(0, 16, None), slice(16, 20, None)]
    """
    blocks = -(-count // grain)
    ends = [min(count, grain * round(blocks * i / parts)) for i in range(parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(ends) if a < b]


def compute(task: Task, share: Share, weights: Tensor, gradients: Tensor) -> Part:
    """Compute a worker's share, as a worker does.

    A device's buffers are those that a round of this device alone would leave.

    Args:
        task: what is learned.
        share: whose gradients.
        weights: the common model, `[M]`.
        gradients: where to put them, `[k, M]`; its rows are the share's.

    Returns:
        Losses and buffers.
    """
    if not share.state:
        local = task.local_gradients(weights, share.devices, share.round)
        gradients.copy_(local.gradients)
        return Part(share.first, local.losses)
    losses, reports = torch.empty(len(share.devices)), []
    for row in range(len(share.devices)):
        task.restore(share.state)
        local = task.local_gradients(weights, share.devices[row : row + 1], share.round)
        task.end_round()
        gradients[row], losses[row] = local.gradients[0], local.losses[0]
        reports.append(list(task.state().values()))
    return Part(share.first, losses, reports)


class ShardedTask:
    """A task whose gradients a crew computes; all numbers are those of the task itself.

    Args:
        task: what is learned.
        crew: workers that hold the same task.
    """

    def __init__(self, task: Task, crew: Crew) -> None:
        self._task, self._crew = task, crew
        self._grain = task.grain if isinstance(task, RegressionTask) else 1
        self._reported: list[list[Tensor]] = []
        self.devices: int = task.devices
        self.size: int = task.size
        self.segments: tuple[int, ...] = task.segments
        self.shares: NDArray[np.float64] = task.shares
        self.extra_bits: int = task.extra_bits

    @property
    def step_unit(self) -> float:
        """What the step is measured in."""
        return self._task.step_unit

    def initial_weights(self) -> Tensor:
        """Return the weights before the first round, `[M]`."""
        return self._task.initial_weights()

    def local_gradients(self, weights: Tensor, devices: Devices, round: int) -> LocalGradients:
        """Have the crew compute, and put the rows together in the order of the devices."""
        state = self._task.state() if self.extra_bits else {}
        pieces = cut(len(devices), self._crew.size, self._grain)
        shares = [Share(piece.start, devices[piece], round, state) for piece in pieces]
        gradients = torch.empty(len(devices), self.size)
        parts = sorted(self._crew.compute(weights, shares, gradients), key=lambda part: part.first)
        self._reported += [report for part in parts for report in part.reports]
        return LocalGradients(gradients, torch.cat([part.losses for part in parts]))

    def evaluate(self, weights: Tensor) -> Evaluation:
        """Return test loss and accuracy, found here."""
        return self._task.evaluate(weights)

    def end_round(self) -> None:
        """Merge the buffers that the devices reported, in their order."""
        if self._reported:
            self._task.restore(dict(zip(self._task.state(), merge_buffers(self._reported), strict=True)))
            self._reported.clear()

    def state(self) -> dict[str, Tensor]:
        """Return what must be saved besides the weights."""
        return self._task.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        self._task.restore(state)
