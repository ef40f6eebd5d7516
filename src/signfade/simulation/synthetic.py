"""Tasks without a neural network: the paper's regression, and gradients that are Gaussian by construction."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.data import RegressionData
from signfade.kernels import standard_normal
from signfade.kernels.threads import run_ranges
from signfade.keys import generator, stream_keys
from signfade.settings import DeviceSettings
from signfade.simulation.local_training import ONE_GRADIENT, batches, sum_of_steps
from signfade.simulation.task import DeviceEvaluation, Devices, Evaluation, LocalGradients, one_thread

__all__ = ["GaussianTask", "RegressionTask"]

_BLOCK_BYTES, _LARGEST_BLOCK_BYTES = 1 << 21, 1 << 28


class _Stateless:
    """What tasks without buffers share."""

    extra_bits = 0
    devices: int

    def groups_of(self, round: int) -> NDArray[np.int64]:
        """All devices are in one group."""
        return np.zeros(self.devices, dtype=np.int64)

    def end_round(self) -> None:
        """Nothing to merge."""

    def state(self) -> dict[str, Tensor]:
        """Nothing to save."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Nothing to take back."""


def _block(device_bytes: int) -> int:
    """Return how many devices are computed at a time.

    A product handles rows in groups, and how a row is rounded depends on its place in one: blocks of 16
    devices and multiples begin with a group whatever the number of samples, so cutting changes no byte.
    """
    if 16 * device_bytes > _LARGEST_BLOCK_BYTES:
        return max(1, _LARGEST_BLOCK_BYTES // device_bytes)
    return 16 * max(1, _BLOCK_BYTES // (16 * device_bytes))


class RegressionTask(_Stateless):
    """Least squares, `f_k(w) = |X_k w - z_k|^2`; devices go in blocks that fit the cache, over threads.

    Losses are reported per sample, and the test loss is the excess over the least-squares optimum. The step
    is in units of `1/L`, L being the smoothness of the summed loss (or of its weighted mean when `mean` is
    set). Devices may be asked for in parts, cut at multiples of `grain`, without a byte changing.

    Reference: Section VI-A, linear regression; docs/errata.md for the gradient's factor two.
    """

    def __init__(
        self,
        data: RegressionData,
        batch: int | None,
        seed: int,
        mean: bool = False,
        workers: int = 1,
        local: DeviceSettings = ONE_GRADIENT,
    ) -> None:
        self.data = data
        self.devices = data.devices
        self.size = data.size
        self.segments: tuple[int, ...] = (data.size,)
        self.shares = np.full(data.devices, 1 / data.devices)
        self._mean = mean
        self._block = _block(4 * data.samples * data.size)
        self.grain = min(16, self._block)
        self._batch = None if batch is None or batch >= data.samples else batch
        self._seed = seed
        self._workers, self._local = workers, local

    @cached_property
    def _smoothness(self) -> float:
        with one_thread():  # two threads would find other last digits
            return self.data.smoothness

    @property
    def step_unit(self) -> float:
        """`1/L`, found when it is asked for: it takes the data of all devices."""
        rate = self._local.learning_rate if self._local.trains else 1.0
        return rate * (self.devices if self._mean else 1) / self._smoothness

    def initial_weights(self) -> Tensor:
        """Start at a standard Gaussian point, so that there is something to learn."""
        return torch.from_numpy(generator(self._seed, "weights").standard_normal(self.size, dtype=np.float32))

    def local_updates(
        self, weights: Tensor, devices: Devices, round: int, control: Tensor | None = None
    ) -> LocalGradients:
        """Return `2 X_k^T (X_k w - z_k)`, estimated from a mini-batch if one is set, or the local steps' sum.

        Local learning rates are in units of `K/L`.
        """
        gradients = torch.empty(len(devices), self.size)
        losses = torch.empty(len(devices))
        block = self._block
        if self._local.trains:
            self._smoothness  # noqa: B018 - found here, on one thread

        def work(first: int, last: int) -> None:
            with one_thread():
                for start in range(block * first, block * last, block):
                    rows = slice(start, start + block)
                    if self._local.trains:
                        own = None if control is None else control[rows]
                        gradients[rows], losses[rows] = self._train(weights, devices[rows], round, own)
                    else:
                        gradients[rows], losses[rows] = self._gradients(weights, devices[rows], round)

        run_ranges(work, -(-len(devices) // block), self._workers)
        return LocalGradients(gradients, losses)

    def _gradients(self, weights: Tensor, devices: Devices, round: int) -> tuple[Tensor, Tensor]:
        x, z = self.data.chunk(devices, threads=1)
        if self._batch is not None:
            draws = (generator(self._seed, "batch", round, int(k)) for k in devices)
            rows = np.stack([draw.choice(x.shape[1], size=self._batch, replace=False) for draw in draws])
            chosen = torch.from_numpy(rows).unsqueeze(2)
            x = torch.gather(x, 1, chosen.expand(-1, -1, self.size))
            z = torch.gather(z, 1, chosen.squeeze(2))
        residual = torch.matmul(x, weights) - z
        factor = 2 * self.data.samples / residual.shape[1]
        return factor * torch.bmm(residual.unsqueeze(1), x).squeeze(1), residual.square().mean(dim=1)

    def _train(
        self, weights: Tensor, devices: Devices, round: int, control: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        x, z = self.data.chunk(devices, threads=1)
        rate = self._local.learning_rate * self.devices / self._smoothness
        local = self._local.model_copy(update={"learning_rate": rate})
        held, own = np.arange(x.shape[1]), weights.expand(len(devices), -1).clone()
        draws = [generator(self._seed, "batch", round, int(k)) for k in devices]
        rows = (torch.stack(step) for step in zip(*(batches(held, self._batch, local, one) for one in draws)))

        def gradient(chosen: Tensor) -> tuple[Tensor, list[Tensor]]:
            some = torch.gather(x, 1, chosen.unsqueeze(2).expand(-1, -1, self.size))
            residual = torch.bmm(some, own.unsqueeze(2)).squeeze(2) - torch.gather(z, 1, chosen)
            factor = 2 * self.data.samples / residual.shape[1]
            found = factor * torch.bmm(residual.unsqueeze(1), some).squeeze(1)
            return residual.square().mean(dim=1), [found]

        loss, total = sum_of_steps([own], gradient, rows, local, None if control is None else [control])
        return total[0], loss

    def evaluate(self, weights: Tensor) -> Evaluation:
        """Return the excess of the mean squared residual over its minimum, per sample as the train loss."""
        return Evaluation(self.data.excess_loss(weights) / (self.devices * self.data.samples), None)

    def training_loss(self, weights: Tensor) -> float:
        """Return the mean squared residual over all samples."""
        all_alike = np.zeros(self.devices, dtype=np.int64)
        return float(self.evaluate_devices(weights.unsqueeze(0), all_alike, 0).loss.mean())

    def evaluate_devices(self, models: Tensor, of: NDArray[np.int64], round: int) -> DeviceEvaluation:
        """Return each device's mean squared residual with its own model."""
        losses = np.empty(self.devices)
        for start in range(0, self.devices, self._block):
            rows = np.arange(start, min(start + self._block, self.devices))
            x, z = self.data.chunk(rows, threads=1)
            residual = torch.bmm(x, models[of[rows]].unsqueeze(2)).squeeze(2) - z
            losses[rows] = residual.square().mean(dim=1).double().numpy()
        return DeviceEvaluation(losses, None)


class GaussianTask(_Stateless):
    """No data at all: device k's gradient is iid Gaussian, the prior of the theory made true.

    Standard deviations differ from device to device, `2^(k mod 5 - 2)`. There is nothing to learn; the task
    exists to compare measured with predicted errors.
    """

    step_unit = 1.0

    def __init__(self, devices: int, size: int, seed: int) -> None:
        self.devices = devices
        self.size = size
        self.segments: tuple[int, ...] = (size,)
        self.shares = np.full(devices, 1 / devices)
        self._seed = seed

    def initial_weights(self) -> Tensor:
        """Return zeros."""
        return torch.zeros(self.size)

    def local_updates(
        self, weights: Tensor, devices: Devices, round: int, control: Tensor | None = None
    ) -> LocalGradients:
        """Draw the gradients; losses are not a number."""
        keys = stream_keys(self._seed, "gradient", round, devices)
        noise = torch.from_numpy(standard_normal(keys, self.size))
        std = torch.from_numpy(2.0 ** (devices % 5 - 2)).float()
        return LocalGradients(std.unsqueeze(1) * noise, torch.full((len(devices),), torch.nan))

    def evaluate(self, weights: Tensor) -> Evaluation:
        """Nothing to evaluate."""
        return Evaluation(None, None)

    def training_loss(self, weights: Tensor) -> None:
        """Nothing to evaluate."""

    def evaluate_devices(self, models: Tensor, of: NDArray[np.int64], round: int) -> DeviceEvaluation:
        """Nothing to evaluate."""
        raise ValueError("server.tasks must be one, and eval.per_device false, with data gaussian")
