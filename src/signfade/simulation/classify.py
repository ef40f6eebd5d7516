"""Classification with any torch module.

A device is always computed with one intra-op thread, and devices are shared out over threads, so its gradient
is the same bytes however many workers there are.
"""

from __future__ import annotations

import copy
import queue
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from signfade.data import Dataset, Split
from signfade.keys import generator, stream_key
from signfade.registry import user_code
from signfade.settings import DeviceSettings
from signfade.simulation.local_training import ONE_GRADIENT, batches, sum_of_steps
from signfade.simulation.task import Devices, Evaluation, LocalGradients, merge_buffers

__all__ = ["ClassificationTask"]

_EVALUATION_BATCH = 250
_NO_LABEL = -100  # torch's own label of positions that do not count, such as padding


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _loss(scores: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy over all labels, one per sample or one per position."""
    return functional.cross_entropy(scores.flatten(0, -2), labels.flatten(), reduction=reduction)


class _Replica:
    """A worker's own copy of the model."""

    def __init__(self, model: nn.Module, layout: torch.memory_format) -> None:
        frozen = {id(p): p for p in model.parameters() if not p.requires_grad}  # shared by all replicas
        self.model = copy.deepcopy(model, frozen).to(memory_format=layout)  # type: ignore[call-overload]
        self.parameters = _trained(self.model)
        self.buffers = list(self.model.buffers())
        self._layout = layout
        self._turn: object = None

    @torch.no_grad()
    def load(self, weights: Tensor, buffers: list[Tensor], turn: object) -> None:
        """Take the server's weights, flat, unless this turn's are there already; and its buffers, always."""
        if turn is not self._turn:
            parts = weights.split_with_sizes([parameter.numel() for parameter in self.parameters])
            for parameter, part in zip(self.parameters, parts, strict=True):
                parameter.copy_(part.view(parameter.shape))
            self._turn = turn
        for buffer, value in zip(self.buffers, buffers, strict=True):
            buffer.copy_(value)

    def forget(self) -> None:
        """Have the weights loaded again before the next use: they are about to change."""
        self._turn = None

    def scores(self, x: Tensor) -> Tensor:
        """Apply the model to a batch of samples."""
        result: Tensor = self.model(x.contiguous(memory_format=self._layout) if x.ndim == 4 else x)
        return result


def _layout(model: nn.Module, sample: Tensor) -> torch.memory_format:
    """Choose channels last, up to twice as fast, where the model convolves images and `view` permits it."""
    last, plain = torch.channels_last, torch.contiguous_format
    if sample.ndim != 4 or not any(isinstance(part, nn.Conv2d) for part in model.modules()):
        return plain
    try:
        with torch.no_grad():
            _Replica(model, last).scores(sample)
    except RuntimeError:
        return plain
    return last


class ClassificationTask:
    """Cross-entropy over a data set that is split over devices; `batch` None takes all samples of a device.

    Samples are numbers or int64 tokens. A sample has one label and a model gives it `[classes]` scores; or it
    has a label per position, `[T]` (-100 where none counts), and the model gives `[T, classes]`. Weights are
    those of the parameters with `requires_grad`; the others are never sent or changed.

    A model's buffers (running statistics of batch normalisation) start each device's pass at the server's
    values and are merged (`merge_buffers`) after the round, at full precision and at 32 bits per number on
    the uplink. Dropout draws from the stream of its device and round. `workers` never changes a result.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: Split,
        model: nn.Module,
        batch: int | None,
        seed: int,
        workers: int = 1,
        local: DeviceSettings = ONE_GRADIENT,
    ) -> None:
        sizes = [parameter.numel() for parameter in _trained(model)]
        if not sizes:
            raise ValueError("model has no parameters to train")
        self.devices = len(split.counts)
        self.size = sum(sizes)
        self.segments = tuple(sizes)
        self.shares = split.counts / split.counts.sum()
        self._dataset, self._split, self._batch, self._seed = dataset, split, batch, seed
        self._local = local
        self.step_unit = local.learning_rate if local.trains else 1.0
        self._initial = torch.cat([part.detach().reshape(-1).float() for part in _trained(model)])
        self._buffers = [buffer.detach().clone() for buffer in model.buffers()]
        self._reported: list[tuple[int, list[Tensor]]] = []
        self.extra_bits = 32 * sum(buffer.numel() for buffer in self._buffers)
        self._draws = any(isinstance(part, nn.modules.dropout._DropoutNd) for part in model.modules())
        workers = 1 if self._draws else workers  # dropout draws from torch's one global generator
        layout = _layout(model, dataset.train_x[:2])
        with torch.no_grad(), torch.random.fork_rng(devices=[]), user_code("model"):
            scores = _Replica(model, layout).scores(dataset.train_x[:2])
        if scores.shape != (*dataset.train_y[:2].shape, dataset.classes):
            each = "sample" if dataset.train_y.ndim == 1 else "position"
            raise ValueError(
                f"model must give {dataset.classes} scores a {each}; got shape {list(scores.shape)}"
            )
        self._replicas: queue.SimpleQueue[_Replica] = queue.SimpleQueue()
        for _ in range(workers):
            self._replicas.put(_Replica(model, layout))
        self._pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))

    def initial_weights(self) -> Tensor:
        """Return the model's own initial weights, flat."""
        return self._initial.clone()

    def module(self, weights: Tensor) -> nn.Module:
        """Return a copy of the model with these weights `[M]` and the merged buffers, ready to predict."""
        replica = self._replicas.get()
        try:
            replica.load(weights, self._buffers, object())
            module: nn.Module = copy.deepcopy(replica.model).eval()
            return module
        finally:
            self._replicas.put(replica)

    def local_updates(
        self, weights: Tensor, devices: Devices, round: int, control: Tensor | None = None
    ) -> LocalGradients:
        """Return each device's gradient of the mean cross-entropy, or the sum of its local steps."""
        gradients = torch.empty(len(devices), self.size)
        losses = torch.empty(len(devices))

        def compute(replica: _Replica, row: int) -> None:
            device = int(devices[row])
            correction = None if control is None else self._parts(control[row], replica)
            losses[row], parts = self._train(replica, device, round, correction)
            for target, part in zip(gradients[row].split_with_sizes(self.segments), parts, strict=True):
                target.view(part.shape).copy_(part)
            if replica.buffers:
                self._reported.append((device, [buffer.clone() for buffer in replica.buffers]))

        self._share_out(compute, range(len(devices)), weights, training=True)
        return LocalGradients(gradients, losses)

    def _parts(self, flat: Tensor, replica: _Replica) -> list[Tensor]:
        parts = flat.split_with_sizes(self.segments)
        return [part.view(parameter.shape) for part, parameter in zip(parts, replica.parameters)]

    def _train(
        self, replica: _Replica, device: int, round: int, control: list[Tensor] | None
    ) -> tuple[Tensor, Sequence[Tensor]]:
        draw = generator(self._seed, "batch", round, device)
        rows = batches(self._split.of(device), self._batch, self._local, draw)

        def gradient(chosen: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
            scores = replica.scores(self._dataset.train_x[chosen])
            loss = _loss(scores, self._dataset.train_y[chosen])
            return loss.detach(), torch.autograd.grad(loss, replica.parameters)

        with torch.random.fork_rng(devices=[], enabled=self._draws):
            if self._draws:
                torch.manual_seed(stream_key(self._seed, "dropout", round, device) >> 1)
            if not self._local.trains:
                return gradient(next(rows))
            replica.forget()
            return sum_of_steps(replica.parameters, gradient, rows, self._local, control)

    def _share_out(
        self, work: Callable[[_Replica, int], None], items: Iterable[int], weights: Tensor, *, training: bool
    ) -> None:
        """Do `work` on every item, each with a replica of its own for the time."""
        turn = object()

        def with_replica(item: int) -> None:
            replica = self._replicas.get()
            try:
                replica.model.train(training)
                replica.load(weights, self._buffers, turn)
                work(replica, item)
            finally:
                self._replicas.put(replica)

        for done in [self._pool.submit(with_replica, item) for item in items]:
            done.result()

    def end_round(self) -> None:
        """Merge the buffers that the devices reported."""
        if not self._reported:
            return
        reported = [buffers for _, buffers in sorted(self._reported, key=lambda report: report[0])]
        self._buffers = merge_buffers(reported)
        self._reported.clear()

    def evaluate(self, weights: Tensor) -> Evaluation:
        """Return mean cross-entropy and accuracy over the labels of the test samples."""
        x, y = self._dataset.test_x, self._dataset.test_y
        starts = range(0, len(y), _EVALUATION_BATCH)
        loss = np.zeros(len(starts))
        hits = np.zeros(len(starts))

        @torch.no_grad()
        def score(replica: _Replica, part: int) -> None:
            rows = slice(starts[part], starts[part] + _EVALUATION_BATCH)
            scores = replica.scores(x[rows])
            loss[part] = _loss(scores, y[rows], reduction="sum").item()
            hits[part] = (scores.argmax(dim=-1) == y[rows]).sum().item()

        self._share_out(score, range(len(starts)), weights, training=False)
        labels = int((y != _NO_LABEL).sum())
        mean = float(loss.sum() / labels)
        return Evaluation(mean, float(hits.sum() / labels), None if y.ndim == 1 else float(np.exp(mean)))

    def state(self) -> dict[str, Tensor]:
        """Return the model's buffers."""
        return {f"buffer_{i}": buffer for i, buffer in enumerate(self._buffers)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take the buffers back."""
        self._buffers = [state[f"buffer_{i}"] for i in range(len(self._buffers))]
