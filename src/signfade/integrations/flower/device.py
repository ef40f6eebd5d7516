"""The device's half of a deployment: take the model from the server, train, encode, answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from torch import Tensor, nn

from signfade.device import Encoder, make_packet, unpack_signs
from signfade.integrations.flower.messages import (
    ARRAYS,
    RECORD,
    STEP,
    Answer,
    Buffers,
    CatchUp,
    Layout,
    Order,
    digest,
    to_record,
)
from signfade.keys import stream_key
from signfade.server.optimizer import ModelState, make_optimizer
from signfade.settings import DeviceSettings
from signfade.simulation.local_training import sum_of_steps
from signfade.simulation.task import one_thread
from signfade.state import from_tensors, to_tensors

__all__ = ["Local", "answer", "device_number", "reply_with_bits"]

_KEPT = "signfade.kept"


@dataclass(frozen=True)
class Local:
    """What a device computed: its gradient `[M]`, its mean loss, and the model's other state afterwards."""

    gradient: Tensor
    loss: float
    buffers: Buffers


Compute = Callable[[Tensor, Buffers, Order], Local]


def reply_with_bits(
    message: Message,
    context: Context,
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    loader: Iterable[tuple[Any, Any]],
    *,
    batches: int | None = 1,
    examples: int | None = None,
    device: int | None = None,
) -> Message:
    """Answer the server's train message with the signs of a gradient: all that a `ClientApp` needs.

    The model takes the server's weights; its gradient is that of the mean loss over the first `batches`
    batches. Where the server's settings ask for local training (`device.local_steps`, `device.epochs`) each
    step takes the next batch, and the sum of the steps is sent in place of a gradient. torch's generator is
    seeded by (seed, round, device) meanwhile, so that a loader that shuffles and layers that draw do so anew
    in each round, and alike when a round is repeated.

    Args:
        message: From `OneBitStrategy`.
        context: The node's; its state keeps the weights where the downlink is by signs.
        model: Any module; its weights are overwritten.
        loss: From (model's output, targets) to the mean loss of a batch.
        loader: Batches of (inputs, targets), such as a `torch.utils.data.DataLoader`.
        batches: How many of them make the gradient; None takes all. Unused in local training.
        examples: Number of samples the device holds, which weighs its loss and, with `method.weights =
            "share"`, its gradient; by default `len(loader.dataset)`, or 1 where the loader does not say.
        device: Number of the device, 0 to K - 1; by default `partition-id` of the node's configuration.
    """
    number = device_number(context) if device is None else device
    layout = Layout.of_model(model)

    def compute(weights: Tensor, buffers: Buffers, order: Order) -> Local:
        layout.load(model, weights, buffers)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_key(order.seed, "batch", order.round, number) >> 1)
            if order.local.trains:
                gradient, mean_loss = _local_steps(model, loss, loader, order.local)
            else:
                gradient, mean_loss = _gradient(model, loss, islice(loader, batches))
        state = {name: buffer.detach().cpu().clone() for name, buffer in model.named_buffers()}
        return Local(gradient, mean_loss, state)

    if examples is None:
        dataset = getattr(loader, "dataset", None)
        examples = len(dataset) if isinstance(dataset, Sized) else 1
    return answer(message, context, layout, compute, device=number, examples=examples)


def device_number(context: Context) -> int:
    """Return the node's number in the cell, `partition-id` in its configuration."""
    number = context.node_config.get("partition-id")
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(
            f"the SuperNode needs --node-config 'partition-id=K', its own number from 0; got {number!r}"
        )
    return number


def answer(
    message: Message, context: Context, layout: Layout, compute: Compute, *, device: int, examples: int
) -> Message:
    """Answer the server's train message with what `compute` says of the server's weights.

    `compute` is given weights `[M]`, buffers and the order. What it returns as a gradient may also be a
    difference of weights after local steps, or anything else of the size of the model that should be summed.
    `device` and `examples` are as in `reply_with_bits`.
    """
    order = Order.read(message.content)
    if order.identify:
        who = RecordDict({RECORD: ConfigRecord({"device": device, "examples": examples})})
        return Message(who, reply_to=message)
    local = compute(*_take_model(message, context, layout, order), order)
    if local.gradient.shape != (layout.size,):
        raise ValueError(f"gradient must have shape [{layout.size}]; got {list(local.gradient.shape)}")
    with one_thread():
        content = _encode(local, layout, order, device, examples).record()
    return Message(content, reply_to=message)


def _encode(local: Local, layout: Layout, order: Order, device: int, examples: int) -> Answer:
    gradient = local.gradient.detach().float().cpu()
    if not bool(gradient.isfinite().all()):
        raise ValueError("a gradient is not finite")
    if order.sends == "values":
        return Answer(device, examples, local.loss, gradient=gradient, buffers=local.buffers)
    encoder = Encoder(order.method, layout.segments, order.sends == "signs and scalars", order.exponents)
    own = device if order.method.rotation == "private" else 0
    key = np.array([stream_key(order.seed, "rotation", order.round, own)], dtype=np.uint64)
    message, _ = encoder.encode(encoder.rotate(gradient.unsqueeze(0), key), rotation_keys=key)
    packet = make_packet(encoder, message, 0, device=device, round=order.round)
    means, scales = message.saturated[0].tolist()
    return Answer(device, examples, local.loss, packet, buffers=local.buffers, saturated=(means, scales))


def _take_model(message: Message, context: Context, layout: Layout, order: Order) -> tuple[Tensor, Buffers]:
    """Return the weights and buffers of the round, and keep the weights if the next ones come as signs."""
    records = message.content.array_records
    arrays = records.get(ARRAYS, ArrayRecord())
    buffers = layout.read_buffers(arrays)
    missed = order.catch_up
    if missed is None:
        return layout.weights(arrays), buffers
    if STEP in records:  # the whole model, and what its next steps need
        kept = {"weights": layout.weights(arrays)} | _tensors(records[STEP])
    else:
        kept = _kept(context, missed.since)
    model = _catch_up(kept, missed)
    if digest(model.weights) != missed.digest:
        context.state.pop(_KEPT, None)
        raise ValueError("the weights kept here are not the server's; they are needed in full")
    context.state[_KEPT] = to_record(to_tensors(model) | {"round": torch.tensor(order.round)})
    return model.weights, buffers


def _catch_up(kept: dict[str, Tensor], missed: CatchUp) -> ModelState:
    """Make the steps that the server has made since."""
    optimizer = make_optimizer(missed.server, missed.step_unit)
    state = from_tensors(optimizer.init(kept["weights"]), kept)
    for round, move in enumerate(missed.moves, start=missed.since):
        if move:
            packed = torch.from_numpy(np.frombuffer(move, dtype=np.uint8).copy())
            state = optimizer.apply(state, unpack_signs(packed, len(state.weights)), round)
    return state


def _kept(context: Context, round: int) -> dict[str, Tensor]:
    """Return what the node kept of an earlier round."""
    if _KEPT not in context.state.array_records:
        raise ValueError("no weights are kept here; they are needed in full")
    kept = _tensors(context.state.array_records[_KEPT])
    if int(kept.pop("round")) != round:
        raise ValueError("the weights kept here are of another round; they are needed in full")
    return kept


def _tensors(record: ArrayRecord) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.asarray(array.numpy()).copy()) for name, array in record.items()}


def _local_steps(
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    loader: Iterable[tuple[Any, Any]],
    local: DeviceSettings,
) -> tuple[Tensor, float]:
    """Train as the server asks; return the sum of the steps `[M]` and the loss of the first."""
    trained = [p for p in model.parameters() if p.requires_grad]
    model.train()

    def gradient(batch: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        inputs, targets = (part.to(trained[0].device) if isinstance(part, Tensor) else part for part in batch)
        value = loss(model(inputs), targets)
        found = torch.autograd.grad(value, trained, allow_unused=True, materialize_grads=True)
        return value.detach(), found

    passes = chain.from_iterable(repeat(loader, local.epochs or local.local_steps))
    steps = passes if local.epochs else islice(passes, local.local_steps)
    first, total = sum_of_steps(trained, gradient, steps, local)
    return torch.cat([part.reshape(-1).float().cpu() for part in total]), float(first)


def _gradient(
    model: nn.Module, loss: Callable[[Any, Any], Tensor], batches: Iterable[tuple[Any, Any]]
) -> tuple[Tensor, float]:
    """Return the gradient `[M]` of the mean loss over all samples of some batches, and that loss."""
    trained = [p for p in model.parameters() if p.requires_grad]
    place = trained[0].device
    mean, mean_loss, seen = torch.zeros(0), 0.0, 0
    model.train()
    for batch in batches:
        inputs, targets = (part.to(place) if isinstance(part, Tensor) else part for part in batch)
        value = loss(model(inputs), targets)
        parts = torch.autograd.grad(value, trained, allow_unused=True, materialize_grads=True)
        gradient = torch.cat([g.reshape(-1).float().cpu() for g in parts])
        share = len(targets) / (seen + len(targets))
        mean = torch.lerp(mean, gradient, share) if seen else gradient
        mean_loss += share * (float(value.detach()) - mean_loss)
        seen += len(targets)
    if not seen:
        raise ValueError("loader gave no batch")
    return mean, mean_loss
