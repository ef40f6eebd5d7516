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
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from signfade.data import NO_LABEL, Dataset, Split
from signfade.keys import generator, stream_key
from signfade.registry import user_code
from signfade.settings import DeviceSettings
from signfade.simulation.local_training import ONE_GRADIENT, batches, sum_of_steps
from signfade.simulation.personal import LabelGroups, personal_parameters
from signfade.simulation.task import DeviceEvaluation, Devices, Evaluation, LocalGradients, merge_buffers

__all__ = ["ClassificationTask"]

# Samples at a time, measured: more leave a core's cache.
_EVALUATION_BATCH = 64
_CPU = torch.device("cpu")
_LARGEST_PERSONAL = 2 << 30


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _loss(scores: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy over all labels, one per sample or one per position."""
    labels = labels.flatten().to(scores.device)
    return functional.cross_entropy(scores.flatten(0, -2), labels, reduction=reduction)


def _fill(parameters: Sequence[Tensor], flat: Tensor) -> None:
    """Copy flat numbers into parameters, one after the other."""
    parts = flat.split_with_sizes([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.copy_(part.view(parameter.shape))


def _flat(parameters: Iterable[Tensor]) -> Tensor:
    return torch.cat([torch.zeros(0), *(part.detach().cpu().reshape(-1).float() for part in parameters)])


class _Replica:
    """A worker's own copy of the model, on the CPU or an accelerator."""

    def __init__(
        self,
        model: nn.Module,
        layout: torch.memory_format,
        own: Sequence[bool] = (),
        place: torch.device = _CPU,
    ) -> None:
        frozen = {id(p): p for p in model.parameters() if not p.requires_grad}  # shared by all replicas
        copied = copy.deepcopy(model, frozen)
        self.model = copied.to(place, memory_format=layout)  # type: ignore[call-overload]
        self.place = place
        trained = _trained(self.model)
        own = own or [False] * len(trained)
        self.parameters = [part for part, mine in zip(trained, own) if not mine]
        self.personal = [part for part, mine in zip(trained, own) if mine]
        self.buffers = list(self.model.buffers())
        self._layout = layout
        self._turn: object = None

    @torch.no_grad()
    def load(self, weights: Tensor, buffers: list[Tensor], turn: object) -> None:
        """Take the server's weights, flat, unless this turn's are there already; and its buffers, always."""
        if turn is not self._turn:
            _fill(self.parameters, weights)
            self._turn = turn
        for buffer, value in zip(self.buffers, buffers, strict=True):
            buffer.copy_(value)

    def forget(self) -> None:
        """Have the weights loaded again before the next use: they are about to change."""
        self._turn = None

    def scores(self, x: Tensor) -> Tensor:
        """Apply the model to a batch of samples."""
        x = x.to(self.place)
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
    Models and batches are moved to `place`, an accelerator or the CPU; updates come back to the CPU.

    `personal` parameters (`personal_parameters`) are no part of the weights: every device has its own, trains
    them together with the others and never sends them. `groups` of devices have labels of their own.
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
        personal: Sequence[str] = (),
        groups: LabelGroups | None = None,
        place: torch.device = _CPU,
    ) -> None:
        own = personal_parameters(model, personal)
        shared = [parameter for parameter, mine in zip(_trained(model), own) if not mine]
        sizes = [parameter.numel() for parameter in shared]
        if not sizes:
            raise ValueError("model has no parameters to train")
        self.devices = len(split.counts)
        self._groups = groups
        self._personal = self._own_layers([p for p, mine in zip(_trained(model), own) if mine])
        self.size = sum(sizes)
        self.segments = tuple(sizes)
        self.shares = split.counts / split.counts.sum()
        self._dataset, self._split, self._batch, self._seed = dataset, split, batch, seed
        self._local = local
        self.step_unit = local.learning_rate if local.trains else 1.0
        self._initial = _flat(shared)
        self._buffers = [buffer.detach().clone() for buffer in model.buffers()]
        self._reported: list[tuple[int, list[Tensor]]] = []
        self.extra_bits = 32 * sum(buffer.numel() for buffer in self._buffers)
        self._draws = any(isinstance(part, nn.modules.dropout._DropoutNd) for part in model.modules())
        # Dropout draws from torch's one global generator, and an accelerator is shared out by itself.
        workers = 1 if self._draws or place != _CPU else workers
        layout = _layout(model, dataset.train_x[:2])
        with torch.no_grad(), torch.random.fork_rng(devices=[]), user_code("model"):
            scores = _Replica(model, layout).scores(dataset.train_x[:2])
        if scores.shape != (*dataset.train_y[:2].shape, dataset.classes):
            each = "sample" if dataset.train_y.ndim == 1 else "position"
            raise ValueError(
                f"model must give {dataset.classes} scores a {each}; got shape {list(scores.shape)}"
            )
        # Where updates are handed over: mps has no float64, which radio and server need.
        self._place = _CPU if place.type == "mps" else place
        self._replicas: queue.SimpleQueue[_Replica] = queue.SimpleQueue()
        for _ in range(workers):
            self._replicas.put(_Replica(model, layout, own, place))
        self._pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))

    def _own_layers(self, personal: Sequence[Tensor]) -> Tensor:
        """Return every device's personal parameters before the first round, `[K, P]`: all alike."""
        needed = 4 * self.devices * sum(part.numel() for part in personal)
        if needed > _LARGEST_PERSONAL:
            raise ValueError(
                f"model.personal keeps {needed / 1e9:.1f} GB of layers for {self.devices} devices; at most "
                f"{_LARGEST_PERSONAL / 1e9:.1f} GB are given to it"
            )
        return _flat(personal).repeat(self.devices, 1)

    def initial_weights(self) -> Tensor:
        """Return the model's own initial weights, flat."""
        return self._initial.clone()

    def module(self, weights: Tensor) -> nn.Module:
        """Return a copy of the model with these weights `[M]` and the merged buffers, ready to predict."""
        replica = self._replicas.get()
        try:
            replica.load(weights, self._buffers, object())
            module: nn.Module = copy.deepcopy(replica.model).to(_CPU).eval()
            return module
        finally:
            self._replicas.put(replica)

    def local_updates(
        self, weights: Tensor, devices: Devices, round: int, control: Tensor | None = None
    ) -> LocalGradients:
        """Return each device's gradient of the mean cross-entropy, or the sum of its local steps."""
        gradients = torch.empty(len(devices), self.size, device=self._place)
        losses = torch.empty(len(devices))

        def compute(replica: _Replica, row: int) -> None:
            device = int(devices[row])
            correction = None if control is None else self._parts(control[row], replica)
            losses[row], parts = self._train(replica, device, round, correction)
            for target, part in zip(gradients[row].split_with_sizes(self.segments), parts, strict=True):
                target.view(part.shape).copy_(part)
            if replica.buffers:
                self._reported.append((device, [buffer.to(_CPU, copy=True) for buffer in replica.buffers]))

        self._share_out(compute, range(len(devices)), weights, training=True)
        return LocalGradients(gradients, losses)

    def _parts(self, flat: Tensor, replica: _Replica) -> list[Tensor]:
        parts = flat.to(replica.place).split_with_sizes(self.segments)
        return [part.view(parameter.shape) for part, parameter in zip(parts, replica.parameters)]

    def _train(
        self, replica: _Replica, device: int, round: int, control: list[Tensor] | None
    ) -> tuple[Tensor, Sequence[Tensor]]:
        draw = generator(self._seed, "batch", round, device)
        rows = batches(self._split.of(device), self._batch, self._local, draw)
        labels = self._labels(device, round)
        trained = [*replica.parameters, *replica.personal]
        with torch.no_grad():
            _fill(replica.personal, self._personal[device])

        def gradient(chosen: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
            scores = replica.scores(self._dataset.train_x[chosen])
            loss = _loss(scores, labels(self._dataset.train_y[chosen]))
            return loss.detach(), torch.autograd.grad(loss, trained)

        with torch.random.fork_rng(devices=[], enabled=self._draws):
            if self._draws:
                torch.manual_seed(stream_key(self._seed, "dropout", round, device) >> 1)
            if self._local.trains:
                replica.forget()
                loss, parts = sum_of_steps(trained, gradient, rows, self._local, control)
            else:
                loss, parts = gradient(next(rows))
                with torch.no_grad():
                    for own, part in zip(replica.personal, parts[len(replica.parameters) :]):
                        own.sub_(part, alpha=self._local.learning_rate)
        if replica.personal:
            self._personal[device] = _flat(replica.personal)
        return loss, parts[: len(replica.parameters)]

    def _labels(self, device: int, round: int) -> Callable[[Tensor], Tensor]:
        """Return what a device calls the classes in a round."""
        if self._groups is None:
            return lambda labels: labels
        own = self._groups.maps[int(self._groups.of(np.array([device]), round)[0])]
        return lambda labels: own[labels]

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
        loss, accuracy = self._score(weights, x, y)
        return Evaluation(loss, accuracy, None if y.ndim == 1 else float(np.exp(loss)))

    def training_loss(self, weights: Tensor) -> float:
        """Return mean cross-entropy over the labels of all samples of all devices."""
        held = torch.from_numpy(np.sort(self._split.indices))
        return self._score(weights, self._dataset.train_x[held], self._dataset.train_y[held])[0]

    def _score(self, weights: Tensor, x: Tensor, y: Tensor) -> tuple[float, float]:
        """Return mean cross-entropy and accuracy over the labels of samples."""
        starts = range(0, len(y), _EVALUATION_BATCH)
        loss, hits = np.zeros((2, len(starts)))

        @torch.no_grad()
        def score(replica: _Replica, part: int) -> None:
            rows = slice(starts[part], starts[part] + _EVALUATION_BATCH)
            scores = replica.scores(x[rows]).cpu()
            loss[part] = _loss(scores, y[rows], reduction="sum").item()
            hits[part] = (scores.argmax(dim=-1) == y[rows]).sum().item()

        self._share_out(score, range(len(starts)), weights, training=False)
        labels = int((y != NO_LABEL).sum())
        return float(loss.sum() / labels), float(hits.sum() / labels)

    def evaluate_devices(self, models: Tensor, of: NDArray[np.int64], round: int) -> DeviceEvaluation:
        """Return each device's cross-entropy and accuracy on the test samples of its classes and labels.

        Test samples count by how often their class is among the device's own training samples.
        """
        x, y = self._dataset.test_x, self._dataset.test_y
        everybody, classes = np.arange(self.devices), self._dataset.classes
        groups = self.groups_of(round)
        own = everybody if self._personal.shape[1] else np.zeros_like(everybody)
        kinds, kind_of = np.unique(np.stack([of, groups, own]), axis=1, return_inverse=True)
        kind_of = kind_of.reshape(-1)
        sums = np.zeros((2, kinds.shape[1], classes))  # loss and hits
        shares = self._class_shares()

        @torch.no_grad()
        def score(replica: _Replica, kind: int) -> None:
            mine = np.flatnonzero(kind_of == kind)
            _fill(replica.personal, self._personal[mine[0]])
            wanted = torch.from_numpy(shares[mine].any(axis=0))
            for rows in torch.split(wanted[y].nonzero()[:, 0], _EVALUATION_BATCH):
                scores, labels = replica.scores(x[rows]).cpu(), self._labels(int(mine[0]), round)(y[rows])
                losses = functional.cross_entropy(scores, labels, reduction="none")
                for total, part in zip(sums, (losses, scores.argmax(dim=1) == labels)):
                    total[kind] += np.bincount(y[rows], part.double(), classes)

        for model in np.unique(kinds[0]):
            self._share_out(score, np.flatnonzero(kinds[0] == model), models[model], training=False)
        tested = np.bincount(y, minlength=classes)
        weight = shares * (tested > 0)
        weight = weight / np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
        loss, hits = ((weight * (total / np.maximum(tested, 1))[kind_of]).sum(axis=1) for total in sums)
        return DeviceEvaluation(loss, hits)

    def groups_of(self, round: int) -> NDArray[np.int64]:
        """Return the group of labels that each device has in a round, `[K]`."""
        everybody = np.arange(self.devices)
        return np.zeros_like(everybody) if self._groups is None else self._groups.of(everybody, round)

    def _class_shares(self) -> NDArray[np.float64]:
        """Return the share of each class among a device's training samples, `[K, C]`."""
        y, classes = self._dataset.train_y, self._dataset.classes
        counts = [np.bincount(y[self._split.of(k)], minlength=classes) for k in range(self.devices)]
        return np.stack(counts) / self._split.counts[:, None]

    def state(self) -> dict[str, Tensor]:
        """Return the model's buffers and the devices' personal layers."""
        own = {"personal": self._personal} if self._personal.shape[1] else {}
        return {f"buffer_{i}": buffer for i, buffer in enumerate(self._buffers)} | own

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take buffers and personal layers back."""
        self._buffers = [state[f"buffer_{i}"] for i in range(len(self._buffers))]
        if "personal" in state:
            self._personal = state["personal"].clone()
