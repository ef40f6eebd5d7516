"""What the server and its devices send each other, as Flower's records.

An order is the record "signfade" (round, seed, method, range of the scales) beside the model: the record
"arrays" with all of it or, where the downlink is by signs and the device kept up, packed signs for each round
since. An answer is the record "signfade" with the bytes of a `Packet`, a loss and a number of samples.
"""

from __future__ import annotations

import copy
import io
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor, nn

from signfade.device import Packet
from signfade.device.scale_range import check_exponents
from signfade.settings import DeviceSettings, MethodSettings, ServerSettings
from signfade.simulation.task import Task

__all__ = [
    "ARRAYS",
    "RECORD",
    "STEP",
    "Answer",
    "Buffers",
    "CatchUp",
    "Layout",
    "Order",
    "Start",
    "digest",
    "read_tensor",
    "to_record",
]

RECORD, ARRAYS, STEP = "signfade", "arrays", "step"
Buffers = dict[str, Tensor]
Shape = tuple[int, ...]
_VERSION = 5  # of orders, which fix what a packet looks like
_MOST_HEADER = 4096  # bytes before the numbers of an array, as NumPy writes it


@dataclass(frozen=True)
class Layout:
    """Names and shapes of what is trained, in the order of the flat vector, and of what goes with it.

    `buffers` are shapes and NumPy types of the model's other state, such as running statistics.

    Example:
        >>> layout = Layout.of_model(nn.Linear(2, 1))
        >>> layout.segments, layout.size
        ((2, 1), 3)
        >>> layout.weights(layout.record(torch.tensor([1.0, 2.0, 3.0]), {})).tolist()
        [1.0, 2.0, 3.0]
    """

    parameters: Mapping[str, Shape]
    buffers: Mapping[str, tuple[Shape, str]] = field(default_factory=dict)

    @classmethod
    def of_model(cls, model: nn.Module) -> Layout:
        """Return the layout of a model; parameters that are not trained are taken to be alike everywhere."""
        trained = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
        if not trained:
            raise ValueError("model has no parameters to train")
        return cls(trained, {name: _kind(buffer) for name, buffer in model.named_buffers()})

    @classmethod
    def of_task(cls, task: Task) -> Layout:
        """Return the layout of a task of the simulator: its layers, and whatever state it has."""
        layers = {f"layer.{i}": (length,) for i, length in enumerate(task.segments)}
        return cls(layers, {name: _kind(value) for name, value in task.state().items()})

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
        return to_record(self._named(weights) | buffers)

    def weights(self, record: ArrayRecord) -> Tensor:
        """Return the weights in a record, `[M]`, float32; raises as `read_tensor` does."""
        parts = [read_tensor(record, name, shape) for name, shape in self.parameters.items()]
        return torch.cat([part.reshape(-1).float() for part in parts])

    def read_buffers(self, record: ArrayRecord) -> Buffers:
        """Return the buffers in a record; raises as `read_tensor` does."""
        return {name: read_tensor(record, name, *kind) for name, kind in self.buffers.items()}

    def load(self, model: nn.Module, weights: Tensor, buffers: Buffers) -> None:
        """Write weights `[M]` and buffers into a model of this layout."""
        own = dict(model.named_parameters()) | dict(model.named_buffers())
        with torch.no_grad():
            for name, value in (self._named(weights) | buffers).items():
                own[name].copy_(value)

    def _named(self, weights: Tensor) -> dict[str, Tensor]:
        parts = weights.split_with_sizes(list(self.segments))
        return {name: part.view(shape) for (name, shape), part in zip(self.parameters.items(), parts)}


def _kind(value: Tensor) -> tuple[Shape, str]:
    return tuple(value.shape), str(torch.empty(0, dtype=value.dtype).numpy().dtype)


def to_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Return tensors as Flower's record of arrays."""
    return ArrayRecord({name: Array(value.detach().cpu().numpy()) for name, value in tensors.items()})


def read_tensor(record: ArrayRecord, name: str, shape: Shape, dtype: str | None = None) -> Tensor:
    """Return an array of a record, trusting nothing; `dtype` None takes all that torch can hold.

    Raises:
        ValueError: It is not there, is damaged, has another shape or type, or is not finite.
    """
    if name not in record:
        raise ValueError(f"the array {name!r} is missing")
    value = None
    try:
        found, kind = _declared(record[name].data)
        if found == shape and (dtype is None or kind == np.dtype(dtype)):
            value = torch.from_numpy(np.asarray(record[name].numpy()).copy())
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
    """What a run begins with; `model` is None for a task of the simulator."""

    layout: Layout
    weights: Tensor  # [M]
    buffers: Buffers
    # Of `server.learning_rate`: 1/L where the smoothness L is known; None for what local training makes it.
    step_unit: float | None = None
    model: nn.Module | None = None

    @classmethod
    def of_model(cls, model: nn.Module) -> Start:
        """Begin with a copy of a model and its own weights."""
        trained = [p.detach().reshape(-1).float().cpu() for p in model.parameters() if p.requires_grad]
        buffers = {name: buffer.detach().cpu().clone() for name, buffer in model.named_buffers()}
        return cls(Layout.of_model(model), torch.cat(trained), buffers, model=copy.deepcopy(model))

    @classmethod
    def of_task(cls, task: Task) -> Start:
        """Begin as the simulator does."""
        return cls(Layout.of_task(task), task.initial_weights(), dict(task.state()), task.step_unit)

    def at(self, arrays: ArrayRecord) -> Start:
        """Begin with these arrays instead, a whole state dict where there is a model."""
        if self.model is None:
            weights, buffers = self.layout.weights(arrays), self.layout.read_buffers(arrays)
            return replace(self, weights=weights, buffers=buffers)
        self.model.load_state_dict(arrays.to_torch_state_dict())
        return Start.of_model(self.model)

    def arrays(self, weights: Tensor, buffers: Buffers) -> ArrayRecord:
        """Return later weights `[M]` and buffers as the whole state dict that Flower's strategies have."""
        if self.model is None:
            return self.layout.record(weights, buffers)
        self.layout.load(self.model, weights, buffers)
        return ArrayRecord(self.model.state_dict())


def digest(weights: Tensor) -> int:
    """Return the CRC-32 of the weights' bytes."""
    return zlib.crc32(weights.detach().float().contiguous().numpy().tobytes())


@dataclass(frozen=True)
class CatchUp:
    """The part of an order with which a device that kept up makes the server's steps itself."""

    server: ServerSettings
    step_unit: float
    since: int  # the round whose weights the device has, counted from 0
    moves: tuple[bytes, ...]  # packed signs of the rounds since; empty bytes where the server made no step
    digest: int  # of the weights after them


@dataclass(frozen=True)
class Order:
    """What the server asks of a device; `sends` is as in the registry of aggregators, which devices lack."""

    round: int  # counted from 0
    seed: int
    method: MethodSettings
    sends: str = "signs and scalars"
    identify: bool = False  # the device only says who it is
    catch_up: CatchUp | None = None  # None where the downlink is in full
    exponents: tuple[int, ...] = ()  # of the range of quantised scales, one per layer; empty at first
    local: DeviceSettings = field(default_factory=DeviceSettings)  # how long devices train

    def record(self) -> ConfigRecord:
        """Return it as the record "signfade"."""
        fields: dict[str, Any] = {
            "version": _VERSION,
            "round": self.round,
            "seed": self.seed,
            "identify": self.identify,
            "sends": self.sends,
            "method": self.method.model_dump_json(),
            "local": self.local.model_dump_json(),
        }
        if self.exponents:
            fields["exponents"] = list(self.exponents)
        if (missed := self.catch_up) is not None:
            fields |= {
                "server": missed.server.model_dump_json(),
                "unit": missed.step_unit,
                "since": missed.since,
                "moves": list(missed.moves),
                "digest": missed.digest,
            }
        return ConfigRecord(fields)

    @classmethod
    def read(cls, content: RecordDict) -> Order:
        """Read the order in a message; raises a ValueError if there is none of this version."""
        if RECORD not in content.config_records:
            raise ValueError(
                f"the message has no record {RECORD!r}; is OneBitStrategy running on the server?"
            )
        fields: dict[str, Any] = dict(content.config_records[RECORD])
        if fields.get("version") != _VERSION:
            raise ValueError(f"this device reads orders of version {_VERSION}; got {fields.get('version')!r}")
        catch_up = None
        if "since" in fields:
            server = ServerSettings.model_validate_json(fields["server"])
            moves = tuple(fields["moves"])
            catch_up = CatchUp(server, fields["unit"], fields["since"], moves, fields["digest"])
        return cls(
            fields["round"],
            fields["seed"],
            MethodSettings.model_validate_json(fields["method"]),
            fields["sends"],
            fields["identify"],
            catch_up,
            check_exponents(tuple(fields.get("exponents", ()))),
            DeviceSettings.model_validate_json(fields["local"]),
        )


@dataclass(frozen=True)
class Answer:
    """What one device sends in a round; of a device that only says who it is, the first two fields."""

    device: int
    examples: int
    loss: float = 0.0
    packet: Packet | None = None  # None for `ideal`
    gradient: Tensor | None = None  # in full, `[M]`, for `ideal`
    buffers: Buffers = field(default_factory=dict)  # the model's other state after its pass
    saturated: tuple[int, int] = (0, 0)  # how many means and scales were beyond their quantiser's range

    def record(self) -> RecordDict:
        """Return it as the content of a reply."""
        fields: dict[str, Any] = {"loss": self.loss, "examples": self.examples}
        if self.packet is not None:
            fields["packet"] = self.packet.to_bytes()
        if any(self.saturated):
            fields["saturated"] = list(self.saturated)
        if self.gradient is not None:
            numbers = self.gradient.float().numpy().astype("<f4")
            fields |= {"device": self.device, "gradient": numbers.tobytes()}
        content = RecordDict({RECORD: ConfigRecord(fields)})
        if self.buffers:
            content[ARRAYS] = to_record(self.buffers)
        return content
