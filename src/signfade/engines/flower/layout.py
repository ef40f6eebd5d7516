"""How a model's arrays and one flat vector of weights become each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor, nn

from signfade.learn.task import Task

__all__ = ["Buffers", "Layout", "Start", "read_tensor"]

Buffers = dict[str, Tensor]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Names and shapes of what is trained, in the order of the flat vector, and of what goes with it.

    Attributes:
        parameters: Shapes of the trained arrays by name.
        buffers: Shapes of the model's other state, such as running statistics, by name.

    Example:
        >>> layout = Layout.of_model(nn.Linear(2, 1))
        >>> layout.segments, layout.size
        ((2, 1), 3)
        >>> record = layout.record(torch.tensor([1.0, 2.0, 3.0]), {})
        >>> record["weight"].numpy().tolist(), layout.weights(record).tolist()
        ([[1.0, 2.0]], [1.0, 2.0, 3.0])
    """

    parameters: Mapping[str, Shape]
    buffers: Mapping[str, Shape] = field(default_factory=dict)

    @classmethod
    def of_model(cls, model: nn.Module) -> Layout:
        """Return the layout of a model; parameters that are not trained are taken to be alike everywhere.

        Raises:
            ValueError: The model has nothing to train.
        """
        trained = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
        if not trained:
            raise ValueError("model has no parameters to train")
        return cls(trained, {name: tuple(buffer.shape) for name, buffer in model.named_buffers()})

    @classmethod
    def of_task(cls, task: Task) -> Layout:
        """Return the layout of a task of the simulator: its layers, and whatever state it has."""
        layers = {f"layer.{i}": (length,) for i, length in enumerate(task.segments)}
        return cls(layers, {name: tuple(value.shape) for name, value in task.state().items()})

    @property
    def segments(self) -> tuple[int, ...]:
        """Lengths of the layers in the flat vector."""
        return tuple(math.prod(shape) for shape in self.parameters.values())

    @property
    def size(self) -> int:
        """Number of weights M."""
        return sum(self.segments)

    def record(self, weights: Tensor, buffers: Buffers) -> ArrayRecord:
        """Return weights `[M]` and buffers as Flower's record of arrays."""
        arrays = self._named(weights) | buffers
        return ArrayRecord({name: Array(value.detach().cpu().numpy()) for name, value in arrays.items()})

    def weights(self, record: ArrayRecord) -> Tensor:
        """Return the weights in a record, `[M]`, float32.

        Raises:
            ValueError: An array is missing, damaged, or has another shape.
        """
        parts = [read_tensor(record, name, shape) for name, shape in self.parameters.items()]
        return torch.cat([part.reshape(-1).float() for part in parts])

    def read_buffers(self, record: ArrayRecord) -> Buffers:
        """Return the buffers in a record; raises as `weights` does."""
        return {name: read_tensor(record, name, shape) for name, shape in self.buffers.items()}

    def load(self, model: nn.Module, weights: Tensor, buffers: Buffers) -> None:
        """Write weights `[M]` and buffers into a model of this layout."""
        own = dict(model.named_parameters()) | dict(model.named_buffers())
        with torch.no_grad():
            for name, value in (self._named(weights) | buffers).items():
                own[name].copy_(value)

    def _named(self, weights: Tensor) -> dict[str, Tensor]:
        parts = weights.split_with_sizes(list(self.segments))
        return {name: part.view(shape) for (name, shape), part in zip(self.parameters.items(), parts)}


def read_tensor(record: ArrayRecord, name: str, shape: Shape) -> Tensor:
    """Return an array of a record, trusting nothing.

    Raises:
        ValueError: It is not there, is damaged, has another shape, or is not finite.
    """
    if name not in record:
        raise ValueError(f"the array {name!r} is missing")
    try:
        value = np.asarray(record[name].numpy())
    except Exception as error:  # whatever the bytes of a stranger can make NumPy raise
        raise ValueError(f"the array {name!r} cannot be read: {error}") from error
    if value.shape != shape or value.dtype.kind not in "fiub":
        got = f"{value.dtype} {list(value.shape)}"
        raise ValueError(f"the array {name!r} must be numbers of shape {list(shape)}; got {got}")
    if not np.isfinite(value).all():
        raise ValueError(f"the array {name!r} must be finite; it holds NaN or infinity")
    return torch.from_numpy(value.copy())


@dataclass(frozen=True)
class Start:
    """What a run begins with.

    Attributes:
        layout: Names and shapes.
        weights: Before the first round, `[M]`.
        buffers: Before the first round.
        step_unit: What `server.step` is measured in: 1, or 1/L where the smoothness L is known.
    """

    layout: Layout
    weights: Tensor
    buffers: Buffers
    step_unit: float = 1.0

    @classmethod
    def of_model(cls, model: nn.Module) -> Start:
        """Begin with a model's own weights."""
        layout = Layout.of_model(model)
        trained = [p.detach().reshape(-1).float().cpu() for p in model.parameters() if p.requires_grad]
        buffers = {name: buffer.detach().cpu().clone() for name, buffer in model.named_buffers()}
        return cls(layout, torch.cat(trained), buffers)

    @classmethod
    def of_task(cls, task: Task) -> Start:
        """Begin as the simulator does."""
        return cls(Layout.of_task(task), task.initial_weights(), dict(task.state()), task.step_unit)
