"""The device's half of a deployment: take the model from the server, train, encode, answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message
from torch import Tensor, nn

from signfade.device import Encoder, make_packet, unpack_signs
from signfade.integrations.flower.layout import Buffers, Layout
from signfade.integrations.flower.wire import (
    ARRAYS,
    STEP,
    Answer,
    CatchUp,
    Identity,
    Order,
    digest,
    read_order,
)
from signfade.keys import stream_key
from signfade.server.optimizer import ModelState, make_optimizer
from signfade.simulation.classify import one_thread
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
    batches. torch's generator is seeded by (seed, round, device) meanwhile, so that a loader that shuffles
    and layers that draw do so anew in each round, and alike when a round is repeated.

    Args:
        message: From `OneBitStrategy`.
        context: The node's; its state keeps the weights where the downlink is by signs.
        model: Any module; its weights are overwritten.
        loss: From (model's output, targets) to the mean loss of a batch.
        loader: Batches of (inputs, targets), such as a `torch.utils.data.DataLoader`.
        batches: How many of them make the gradient; None takes all.
        examples: Number of samples the device holds, which weighs its loss and, with `method.weights =
            "share"`, its gradient; by default `len(loader.dataset)`, or 1 where the loader does not say.
        device: Number of the device, 0 to K - 1; by default `partition-id` of the node's configuration.

    Returns:
        The reply: a packet of one bit per weight.

    Raises:
        ValueError: The message is not the strategy's, the model is another than the server's, the loader is
            empty, or a gradient is not finite.
    """
    number = device_number(context) if device is None else device
    layout = Layout.of_model(model)

    def compute(weights: Tensor, buffers: Buffers, order: Order) -> Local:
        layout.load(model, weights, buffers)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_key(order.seed, "batch", order.round, number) >> 1)
            gradient, mean_loss = _gradient(model, loss, islice(loader, batches))
        state = {name: buffer.detach().cpu().clone() for name, buffer in model.named_buffers()}
        return Local(gradient, mean_loss, state)

    held = _held(loader) if examples is None else examples
    return answer(message, context, layout, compute, device=number, examples=held)


def device_number(context: Context) -> int:
    """Return the node's number in the cell, `partition-id` in its configuration.

    Raises:
        ValueError: It is not there, or not a whole number.
    """
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

    Args:
        message: From `OneBitStrategy`.
        context: The node's.
        layout: Of the model.
        compute: From weights `[M]`, buffers and the order to a gradient; it may also be a difference of
            weights after local steps, or anything else of the size of the model that should be summed.
        device: Number of the device.
        examples: Number of samples it holds.
    """
    order = read_order(message.content)
    if order.identify:
        return Message(Identity(device, examples).record(), reply_to=message)
    weights, buffers = _take_model(message, context, layout, order)
    local = compute(weights, buffers, order)
    if local.gradient.shape != (layout.size,):
        raise ValueError(f"gradient must have shape [{layout.size}]; got {list(local.gradient.shape)}")
    with one_thread():
        result = _encode(local, layout, order, device, examples)
    return Message(result.record(layout), reply_to=message)


def _encode(local: Local, layout: Layout, order: Order, device: int, examples: int) -> Answer:
    gradient = local.gradient.detach().float().cpu()
    if not bool(gradient.isfinite().all()):
        raise ValueError("a gradient is not finite")
    if order.sends == "values":
        return Answer(device, local.loss, examples, None, gradient, local.buffers)
    encoder = Encoder(order.method, layout.segments, order.sends == "signs and scalars", order.exponents)
    own = device if order.method.rotation == "private" else 0
    key = np.array([stream_key(order.seed, "rotation", order.round, own)], dtype=np.uint64)
    message, _ = encoder.encode(encoder.rotate(gradient.unsqueeze(0), key), key)
    packet = make_packet(encoder, message, 0, device=device, round=order.round)
    means, scales = message.saturated[0].tolist()
    return Answer(device, local.loss, examples, packet, None, local.buffers, (means, scales))


def _take_model(message: Message, context: Context, layout: Layout, order: Order) -> tuple[Tensor, Buffers]:
    """Return the weights and buffers of the round, and keep the weights if the next ones come as signs."""
    arrays = message.content.array_records.get(ARRAYS, ArrayRecord())
    buffers = layout.read_buffers(arrays)
    missed = order.catch_up
    if missed is None:
        return layout.weights(arrays), buffers
    if STEP in message.content.array_records:  # the whole model, and what its next steps need
        kept = {"weights": layout.weights(arrays)} | _tensors(message.content.array_records[STEP])
    else:
        kept = _kept(context, missed.since)
    model = _catch_up(kept, missed)
    if digest(model.weights) != missed.digest:
        context.state.pop(_KEPT, None)
        raise ValueError("the weights kept here are not the server's; they are needed in full")
    saved = to_tensors(model) | {"round": torch.tensor(order.round)}
    context.state[_KEPT] = ArrayRecord({name: Array(value.numpy()) for name, value in saved.items()})
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


def _held(loader: Iterable[Any]) -> int:
    """Return the number of samples behind a loader, 1 where it does not say."""
    dataset = getattr(loader, "dataset", None)
    return len(dataset) if isinstance(dataset, Sized) else 1


def _gradient(
    model: nn.Module, loss: Callable[[Any, Any], Tensor], batches: Iterable[tuple[Any, Any]]
) -> tuple[Tensor, float]:
    """Return the gradient `[M]` of the mean loss over all samples of some batches, and that loss."""
    trained = [p for p in model.parameters() if p.requires_grad]
    mean, mean_loss, seen = torch.zeros(0), 0.0, 0
    model.train()
    for batch in batches:
        inputs, targets = (_move(part, trained[0].device) for part in batch)
        value = loss(model(inputs), targets)
        parts = torch.autograd.grad(value, trained, allow_unused=True)
        filled = [torch.zeros_like(p) if g is None else g for p, g in zip(trained, parts, strict=True)]
        gradient = torch.cat([g.reshape(-1).float().cpu() for g in filled])
        share = len(targets) / (seen + len(targets))
        mean = torch.lerp(mean, gradient, share) if seen else gradient
        mean_loss += share * (float(value.detach()) - mean_loss)
        seen += len(targets)
    if not seen:
        raise ValueError("loader gave no batch")
    return mean, mean_loss


def _move(value: Any, place: torch.device) -> Any:
    return value.to(place) if isinstance(value, Tensor) else value
