"""One round, as Algorithm 1 has it: train, encode, transmit, aggregate, step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from signfade.device.encoder import join
from signfade.device.scale_range import SaturationState
from signfade.kernels.gram import pair_sums
from signfade.server import Server, ServerMemory, Truth
from signfade.server.joint_rule import PAIRED_DEVICES
from signfade.settings import RunSettings
from signfade.simulation.availability import choose_devices
from signfade.simulation.clients import Clients, ClientsState, Diverged, Update
from signfade.simulation.loss_monitor import LossState
from signfade.simulation.metrics import round_record, silent_record
from signfade.simulation.task import Task

__all__ = ["Simulation", "State", "run_round"]


@dataclass(frozen=True)
class Simulation:
    """What stays the same from round to round."""

    settings: RunSettings
    task: Task
    clients: Clients
    server: Server


@dataclass(frozen=True)
class State:
    """Everything that changes from round to round; a checkpoint holds it.

    Attributes:
        server: The model and what the server remembers.
        clients: What the devices remember.
        task: The model's buffers.
        loss: What the loss monitor remembers.
        saturation: How often the scalars' quantisers saturated.
    """

    server: ServerMemory
    clients: ClientsState
    task: dict[str, Tensor]
    loss: LossState = field(default_factory=LossState)
    saturation: SaturationState = field(default_factory=SaturationState)


def run_round(simulation: Simulation, state: State) -> tuple[State, dict[str, Any]]:
    """Run one round and return the new state and the round's record for metrics.jsonl.

    Raises:
        Diverged: A gradient is not finite.
        ValueError: A rule returned nonsense.
    """
    settings, clients, server = simulation.settings, simulation.clients, simulation.server
    memory, t = state.server, state.server.round
    asked = choose_devices(simulation.task.devices, settings.data.participation, settings.seed, t)
    available, present = clients.availability.apply(state.clients.availability, asked, memory.weights, t)
    state = replace(state, clients=replace(state.clients, availability=available))
    if len(present.devices) == 0:
        state = replace(state, server=replace(memory, round=t + 1))
        return silent_record(simulation, state, present)

    shares = simulation.task.shares[present.devices] / simulation.task.shares[present.devices].sum()
    alpha = (
        torch.from_numpy(shares).float() if settings.method.weights == "share" else torch.ones(len(shares))
    )
    encoder, observer = server.encoder(memory), _Observer(simulation, alpha)
    rotation = server.rotation_keys(memory, present.devices)
    encoded, digital, sent_bits = [], torch.zeros(simulation.task.size), 0
    for update in clients.train(state.clients, present, memory.weights, t, memory.control):
        observer.add(update)
        if server.sends_bits:
            encoded.append(clients.encode(state.clients, update, encoder, rotation[observer.rows], t))
        else:
            decoded = clients.compress(state.clients, update, t)
            digital += observer.weighted(decoded.values)
            sent_bits += int(decoded.bits.sum())
    if not server.sends_bits:
        after = server.step(memory, digital, len(shares), memory, sent_bits)
        loss = observer.loss(shares)
        return round_record(simulation, state, after, present, loss, digital, total=observer.total)

    honest, priors = join(encoded)
    truth = Truth(
        observer.total, observer.correlation(honest.mean, priors.mean, encoder.coordinates), honest, priors
    )
    message = clients.attackers.change(honest, encoder, present.devices, t)
    link = clients.availability.limit(server.radio.link(present.devices, t), present.devices, t)
    received = server.transmit(memory, message, present.devices, alpha, link=link, fresh=present.began == t)
    after, estimate, metrics = server.aggregate(memory, received, truth.correlation)
    after = server.step(after, estimate.value, len(shares), memory)
    return round_record(
        simulation, state, after, present, observer.loss(shares), estimate.value, estimate, truth, metrics
    )


class _Observer:
    """Gathers what only a simulation can know while the devices' gradients pass by."""

    def __init__(self, simulation: Simulation, alpha: Tensor) -> None:
        self._alpha = alpha
        self.total = torch.zeros(simulation.task.size)
        self._losses: list[Tensor] = []
        self.rows = slice(0, 0)
        self._gram: Tensor | None = None
        rotated = simulation.settings.method.rotation != "none"
        wanted = simulation.server.sends_bits and (rotated or simulation.server.aggregator.needs_correlation)
        self._paired = wanted and len(alpha) <= min(simulation.clients.chunk, PAIRED_DEVICES)

    def add(self, update: Update) -> None:
        """Take a chunk of gradients into the true sum."""
        self.rows = slice(self.rows.stop, self.rows.stop + len(update.devices))
        self.total += self.weighted(update.gradients)
        if not bool(self.total.isfinite().all()):
            raise Diverged("a gradient is not finite")
        self._losses.append(update.losses.double())
        if self._paired:
            self._gram = pair_sums(update.gradients)
            if not bool(self._gram.isfinite().all()):
                raise Diverged("gradients are too large to be multiplied")

    def weighted(self, values: Tensor) -> Tensor:
        """Return the weighted sum of the last chunk's rows, `[k, M]` to `[M]`."""
        return torch.mv(values.T, self._alpha[self.rows])

    def loss(self, shares: np.ndarray) -> float:
        """Return the devices' mean training loss, weighted by their shares."""
        return float(torch.cat(self._losses) @ torch.from_numpy(shares))

    def correlation(self, mean: Tensor, true_mean: Tensor, size: int) -> Tensor | None:
        """Return the correlation between the devices' gradients about the means they sent."""
        if self._gram is None:
            return None
        return correlation_of(self._gram, mean[:, 0], true_mean[:, 0], size)


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
