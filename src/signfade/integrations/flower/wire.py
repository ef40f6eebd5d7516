"""What the server asks of a device and what the device answers, as Flower's records.

An order is the record "signfade" (round, seed, method, range of the scales) beside the model: the record
"arrays" with all of it or, where the downlink is by signs and the device kept up, packed signs for each round
since. An answer is the record "signfade" with the bytes of a `Packet`, a loss and a number of samples.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ConfigRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import InflatableObject, get_all_nested_objects
from torch import Tensor

from signfade.device import Packet
from signfade.device.scale_range import check_exponents
from signfade.integrations.flower.layout import Buffers, Layout
from signfade.settings import MethodSettings, ServerSettings

__all__ = [
    "ARRAYS",
    "RECORD",
    "STEP",
    "Answer",
    "CatchUp",
    "Identity",
    "Order",
    "digest",
    "message_bytes",
    "read_order",
    "write_order",
]

RECORD, ARRAYS, STEP = "signfade", "arrays", "step"
_VERSION = 3


@dataclass(frozen=True)
class CatchUp:
    """The part of an order with which a device that kept up makes the server's steps itself.

    Attributes:
        server: Section `server` of the configuration.
        step_unit: What its learning rate is measured in.
        since: The round whose weights the device has, counted from 0.
        moves: Packed signs of the rounds since then; empty bytes where the server made no step.
        digest: Of the weights after them.
    """

    server: ServerSettings
    step_unit: float
    since: int
    moves: tuple[bytes, ...]
    digest: int


@dataclass(frozen=True)
class Order:
    """What the server asks of a device.

    Attributes:
        round: Round, counted from 0.
        seed: Seed of the run.
        method: Section `method` of the configuration.
        sends: What devices send, as in the registry of aggregators: a user's own rule is on the server only.
        identify: Whether the device only says who it is.
        catch_up: How to get from the weights the device has to those of the round; None where the downlink
            is in full.
        exponents: Of the range of the scales where they are quantised, one per layer; empty before there
            are any.
    """

    round: int
    seed: int
    method: MethodSettings
    sends: str = "signs and scalars"
    identify: bool = False
    catch_up: CatchUp | None = None
    exponents: tuple[int, ...] = ()


def digest(weights: Tensor) -> int:
    """Return the CRC-32 of the weights' bytes."""
    return zlib.crc32(weights.detach().float().contiguous().numpy().tobytes())


def write_order(order: Order) -> ConfigRecord:
    """Return an order as the record "signfade"."""
    fields: dict[str, Any] = {
        "version": _VERSION,
        "round": order.round,
        "seed": order.seed,
        "identify": order.identify,
        "sends": order.sends,
        "method": order.method.model_dump_json(),
    }
    if order.exponents:
        fields["exponents"] = list(order.exponents)
    if (missed := order.catch_up) is not None:
        fields |= {
            "server": missed.server.model_dump_json(),
            "unit": missed.step_unit,
            "since": missed.since,
            "moves": list(missed.moves),
            "digest": missed.digest,
        }
    return ConfigRecord(fields)


def read_order(content: RecordDict) -> Order:
    """Read the order in a message.

    Raises:
        ValueError: There is none, or this version cannot read it.
    """
    if RECORD not in content.config_records:
        raise ValueError(f"the message has no record {RECORD!r}; is OneBitStrategy running on the server?")
    fields: dict[str, Any] = dict(content.config_records[RECORD])
    if fields.get("version") != _VERSION:
        raise ValueError(f"this device reads orders of version {_VERSION}; got {fields.get('version')!r}")
    catch_up = None
    if "since" in fields:
        catch_up = CatchUp(
            server=ServerSettings.model_validate_json(fields["server"]),
            step_unit=float(fields["unit"]),
            since=int(fields["since"]),
            moves=tuple(fields["moves"]),
            digest=int(fields["digest"]),
        )
    return Order(
        round=int(fields["round"]),
        seed=int(fields["seed"]),
        method=MethodSettings.model_validate(json.loads(fields["method"])),
        sends=str(fields["sends"]),
        identify=bool(fields["identify"]),
        catch_up=catch_up,
        exponents=check_exponents(tuple(int(exponent) for exponent in fields.get("exponents", ()))),
    )


@dataclass(frozen=True)
class Identity:
    """Who a device is: its number and its number of samples."""

    device: int
    examples: int

    def record(self) -> RecordDict:
        """Return it as the content of a reply."""
        return RecordDict({RECORD: ConfigRecord({"device": self.device, "examples": self.examples})})


@dataclass(frozen=True)
class Answer:
    """What one device sends in a round.

    Attributes:
        device: Its number.
        loss: Its mean training loss.
        examples: Its number of samples.
        packet: Its bits; None for `ideal`.
        gradient: Its gradient in full, `[M]`, for `ideal`; None for all others.
        buffers: The model's other state after its pass.
        saturated: How many of its means and of its scales were beyond their quantiser's range.
    """

    device: int
    loss: float
    examples: int
    packet: Packet | None
    gradient: Tensor | None
    buffers: Buffers
    saturated: tuple[int, int] = (0, 0)

    def record(self, layout: Layout) -> RecordDict:
        """Return it as the content of a reply."""
        fields: dict[str, Any] = {"loss": self.loss, "examples": self.examples}
        if self.packet is not None:
            fields["packet"] = self.packet.to_bytes()
        if any(self.saturated):
            fields["saturated"] = list(self.saturated)
        if self.gradient is not None:
            fields |= {
                "device": self.device,
                "gradient": self.gradient.float().numpy().astype("<f4").tobytes(),
            }
        content = RecordDict({RECORD: ConfigRecord(fields)})
        if layout.buffers:
            content[ARRAYS] = Layout({}, layout.buffers).record(torch.zeros(0), self.buffers)
        return content


def message_bytes(message: InflatableObject) -> int:
    """Return the bytes of a message as Flower serialises it: every object of its tree.

    Requests, their headers and encryption come on top (docs/flower.md has them measured on the socket).

    Example:
        >>> few, many = (RecordDict({"a": ConfigRecord({"b": bytes(n)})}) for n in (0, 1000))
        >>> 1000 <= message_bytes(many) - message_bytes(few) <= 1010
        True
    """
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())
