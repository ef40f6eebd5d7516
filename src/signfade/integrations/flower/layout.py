"""How a model's arrays and one flat vector of weights become each other."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor, nn

from signfade.simulation.task import Task

__all__ = ["Buffers", "Kind", "Layout", "Start", "read_tensor"]

Buffers = dict[str, Tensor]
Shape = tuple[int, ...]
_MOST_HEADER = 4096  # bytes before the numbers of an array, as NumPy writes it


@dataclass(frozen=True)
class Kind:
    """What a buffer must look like: its shape and the name of its type, as NumPy has it."""

    shape: Shape
    dtype: str

    @classmethod
    def of(cls, value: Tensor) -> Kind:
        """Return the kind of a tensor."""
        return cls(tuple(value.shape), str(torch.empty(0, dtype=value.dtype).numpy().dtype))

    @property
    def bytes(self) -> int:
        """Size of its numbers."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Layout:
    """Names and shapes of what is trained, in the order of the flat vector, and of what goes with it.

    Attributes:
        parameters: Shapes of the trained arrays by name.
        buffers: Kinds of the model's other state, such as running statistics, by name.

    Example:
        >>> layout = Layout.of_model(nn.Linear(2, 1))
        >>> layout.segments, layout.size
        ((2, 1), 3)
        >>> record = layout.record(torch.tensor([1.0, 2.0, 3.0]), {})
        >>> record["weight"].numpy().tolist(), layout.weights(record).tolist()
        ([[1.0, 2.0]], [1.0, 2.0, 3.0])
    """

    parameters: Mapping[str, Shape]
    buffers: Mapping[str, Kind] = field(default_factory=dict)

    @classmethod
    def of_model(cls, model: nn.Module) -> Layout:
        """Return the layout of a model; parameters that are not trained are taken to be alike everywhere.

        Raises:
            ValueError: The model has nothing to train.
        """
        trained = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
        if not trained:
            raise ValueError("model has no parameters to train")
        return cls(trained, {name: Kind.of(buffer) for name, buffer in model.named_buffers()})

    @classmethod
    def of_task(cls, task: Task) -> Layout:
        """Return the layout of a task of the simulator: its layers, and whatever state it has."""
        layers = {f"layer.{i}": (length,) for i, length in enumerate(task.segments)}
        return cls(layers, {name: Kind.of(value) for name, value in task.state().items()})

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
        """Return the buffers in a record.

        Raises:
            ValueError: An array is missing, damaged, has another shape or type, or is not finite.
        """
        return {
            name: read_tensor(record, name, kind.shape, kind.dtype) for name, kind in self.buffers.items()
        }

    def load(self, model: nn.Module, weights: Tensor, buffers: Buffers) -> None:
        """Write weights `[M]` and buffers into a model of this layout."""
        own = dict(model.named_parameters()) | dict(model.named_buffers())
        with torch.no_grad():
            for name, value in (self._named(weights) | buffers).items():
                own[name].copy_(value)

    def _named(self, weights: Tensor) -> dict[str, Tensor]:
        parts = weights.split_with_sizes(list(self.segments))
        return {name: part.view(shape) for (name, shape), part in zip(self.parameters.items(), parts)}


def read_tensor(record: ArrayRecord, name: str, shape: Shape, dtype: str | None = None) -> Tensor:
    """Return an array of a record, trusting nothing.

    Args:
        record: Where it is.
        name: Its name.
        shape: Its shape.
        dtype: Its type, as NumPy names it; None takes all that torch can hold.

    Raises:
        ValueError: It is not there, is damaged, has another shape or type, or is not finite.
    """
    if name not in record:
        raise ValueError(f"the array {name!r} is missing")
    try:
        found, kind = _declared(record[name].data)
        if found == shape and (dtype is None or kind == np.dtype(dtype)):
            value = torch.from_numpy(np.asarray(record[name].numpy()).copy())
        else:
            value = None
    except Exception as error:  # whatever a device's bytes can make NumPy or torch raise
        raise ValueError(f"the array {name!r} cannot be read: {error}") from error
    if value is None or value.is_complex() or tuple(value.shape) != shape:
        wanted = f"{dtype or 'numbers'} of shape {list(shape)}"
        raise ValueError(f"the array {name!r} must be {wanted}; got {kind} {list(found)}")
    if not bool(value.isfinite().all()):
        raise ValueError(f"the array {name!r} must be finite; it holds NaN or infinity")
    return value


def _declared(data: bytes) -> tuple[Shape, np.dtype[np.generic]]:
    """Return the shape and type that the bytes of a NumPy array declare, before memory is taken for it."""
    head = io.BytesIO(data[:_MOST_HEADER])
    version = np.lib.format.read_magic(head)
    if version != (1, 0):
        raise ValueError(f"the format has version {version}, not (1, 0)")
    shape, _, dtype = np.lib.format.read_array_header_1_0(head)
    if head.tell() + math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"{len(data)} bytes are not {dtype} {list(shape)}")
    return shape, dtype


@dataclass(frozen=True)
class Start:
    """What a run begins with.

    Attributes:
        layout: Names and shapes.
        weights: Before the first round, `[M]`.
        buffers: Before the first round.
        step_unit: What `server.learning_rate` is measured in: 1, or 1/L where the smoothness L is known.
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
