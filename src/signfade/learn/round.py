"""One round: the walk from the devices through the air to the server's estimate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.device import unrotate
from signfade.keys import generator, stream_key, stream_keys
from signfade.learn.cell import CellPlan
from signfade.learn.conduct import Conduct
from signfade.learn.encode import Encoder, Sent, join
from signfade.learn.received import Received
from signfade.learn.task import Devices, Task
from signfade.server.bfl import pair_sums

__all__ = [
    "PAIRED_DEVICES",
    "Diverged",
    "Uplink",
    "choose_devices",
    "collect",
    "correlation_of",
    "rotate_back",
]

# Gradients held at once: 2^24 float32 numbers, 64 MB, however many devices there are.
_CHUNK_NUMBERS = 1 << 24
# Pairs of devices are looked at up to so many, and remembered in cells of up to so many: beyond, they would
# cost more than gradients.
PAIRED_DEVICES = 1000


class Diverged(RuntimeError):
    """A gradient is not finite."""


@dataclass(frozen=True)
class Uplink:
    """Everything that happened before the server reads its signals.

    Attributes:
        devices: Who was heard, `[K]`.
        received: What the server has; None for `ideal`, where nothing is sent over the air.
        sent: What the devices sent; None for `ideal`.
        truth: The true weighted sum, `[M]`: what the server would like to know.
        correlation: Between the devices' centred gradients, `[K, K]`; None where it was not asked for, there
            are more than 1000, or their gradients were not all held at once.
        loss: The devices' mean training loss, weighted by their shares.
        weights: The model that was broadcast, `[M]`; None where nobody asks.
        fresh: Whose gradient is at these weights, `[K]`; None if all are.
    """

    devices: Devices
    received: Received | None
    sent: Sent | None
    truth: Tensor
    correlation: Tensor | None
    loss: float
    weights: Tensor | None = None
    fresh: NDArray[np.bool_] | None = None


def choose_devices(count: int, participation: float, seed: int, round: int) -> Devices:
    """Draw who takes part in a round, at least one, in ascending order.

    Example:
        >>> len(choose_devices(1000, participation=0.01, seed=0, round=3))
        10
    """
    if participation >= 1:
        return np.arange(count)
    asked = max(1, int(np.floor(count * participation + 0.5)))
    return np.sort(generator(seed, "participation", round).choice(count, size=asked, replace=False))


def collect(
    task: Task,
    encoder: Encoder,
    cell: CellPlan,
    weights: Tensor,
    *,
    devices: Devices,
    round: int,
    seed: int,
    gram: bool = False,
    conduct: Conduct | None = None,
) -> Uplink:
    """Let the devices compute, encode and send.

    Devices go in chunks of a size that depends only on the model, and sums are taken chunk by chunk in order,
    so that memory stays flat and results do not depend on the number of workers.

    Args:
        task: Model and data.
        encoder: The device's half of the method.
        cell: The radio.
        weights: The broadcast model, `[M]`.
        devices: Who takes part, ascending, `[K]`.
        round: Round, counted from 0.
        seed: Seed of the run.
        gram: Whether to work out the correlation between devices, if there are at most 1000 and their
            gradients are all held at once.
        conduct: What devices do besides: come late, feed back, lie; None where all do as they should.
    """
    method = encoder.method
    ideal = method.aggregator == "ideal"
    shares = task.shares[devices] / task.shares[devices].sum()
    alpha = torch.from_numpy(shares).float() if method.weights == "share" else torch.ones(len(devices))
    rotation_key = stream_key(seed, "rotation", round)
    truth = torch.zeros(task.size)
    losses, parts = [], []
    inner = None
    chunk = max(1, _CHUNK_NUMBERS // task.size)
    compute = task if conduct is None else conduct
    for start in range(0, len(devices), chunk):
        rows = slice(start, start + chunk)
        local = compute.local_gradients(weights, devices[rows], round)
        losses.append(local.losses.double())
        truth += torch.mv(local.gradients.T, alpha[rows])
        if not math.isfinite(truth.sum().item()) and not bool(truth.isfinite().all()):
            raise Diverged("a gradient is not finite")
        if not ideal:
            if conduct is None:
                parts.append(encoder.encode(encoder.rotate(local.gradients, rotation_key)))
            else:
                parts.append(conduct.send(local.gradients, devices[rows], round, rotation_key))
        if gram and len(devices) <= min(chunk, PAIRED_DEVICES):
            inner = pair_sums(local.gradients)
            if not bool(inner.isfinite().all()):
                raise Diverged("gradients are too large to be multiplied")
    task.end_round()
    loss = float(torch.cat(losses) @ torch.from_numpy(shares))
    if ideal:
        return Uplink(devices, None, None, truth, None, loss)
    sent = join(parts)
    link = cell.link(devices, round)
    if conduct is not None:
        sent = conduct.lie(sent, devices, round)
        link = conduct.link(link, devices, round)
    correlation = None
    if inner is not None:
        correlation = correlation_of(inner, sent.mean[:, 0], sent.true_mean[:, 0], encoder.size)
    received = Received(
        sent.packed,
        encoder.size,
        link,
        sent.mean,
        sent.scale,
        encoder.segments,
        alpha,
        stream_keys(seed, "noise", round, devices),
    )
    fresh = None if conduct is None else conduct.fresh(devices, round)
    return Uplink(devices, received, sent, truth, correlation, loss, weights, fresh)


def rotate_back(estimate: Tensor, encoder: Encoder, seed: int, round: int) -> Tensor:
    """Undo the round's rotation of an estimate, `[size]` to `[M]`; nothing where there was none."""
    if encoder.method.rotation == "none":
        return estimate
    key = stream_key(seed, "rotation", round)
    return unrotate(estimate.unsqueeze(0), key, sum(encoder.layers)).squeeze(0)


def correlation_of(gram: Tensor, mean: Tensor, true_mean: Tensor, size: int) -> Tensor:
    """Return the correlation between the devices' gradients about the means they sent.

    With `n` coordinates, sent means `m` and true ones `a` the centred inner products are
    `<g_k, g_j> - n (m_j a_k + m_k a_j - m_k m_j)`.

    Args:
        gram: `<g_k, g_j>`, `[K, K]`, which a rotation leaves as they are.
        mean: Means that were sent, `[K]`.
        true_mean: Means of the coordinates, `[K]`.
        size: Number of those coordinates.

    Returns:
        Correlation, float64 `[K, K]`; a device without a gradient is uncorrelated with all.

    Example:
        >>> zero = torch.zeros(2)
        >>> correlation_of(torch.tensor([[2.0, 1.0], [1.0, 2.0]]), zero, zero, size=10)
        tensor([[1.0000, 0.5000],
                [0.5000, 1.0000]], dtype=torch.float64)
    """
    sent, true = mean.double().numpy(), true_mean.double().numpy()  # NumPy: cheaper on matrices this small
    cross = np.outer(sent, true)
    centred = gram.double().numpy() - size * (cross + cross.T - np.outer(sent, sent))
    power = np.maximum(centred.diagonal(), 0)
    inverse = np.where(power > 0, 1 / np.sqrt(np.maximum(power, 1e-300)), 0.0)
    correlation = np.clip(centred * np.outer(inverse, inverse), -1, 1)
    np.fill_diagonal(correlation, 1.0)
    return torch.from_numpy(correlation)
