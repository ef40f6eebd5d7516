"""One round, as Algorithm 1 has it: train, encode, transmit, aggregate, step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from signfade.device.encoder import join
from signfade.device.scale_range import SaturationState
from signfade.server import Server, ServerMemory, Truth
from signfade.settings import RunSettings
from signfade.simulation.attacks import Attackers
from signfade.simulation.clients import Clients, ClientsState
from signfade.simulation.metrics import LossState, Observer, limit_record, round_record, silent_record

if TYPE_CHECKING:
    from signfade.simulation.task import Task

__all__ = ["Simulation", "State", "run_round"]


@dataclass(frozen=True)
class Simulation:
    """What stays the same from round to round."""

    settings: RunSettings
    task: Task
    clients: Clients
    attackers: Attackers
    server: Server


@dataclass(frozen=True)
class State:
    """Everything that changes from round to round; a checkpoint holds it."""

    server: ServerMemory  # the model and what the server remembers
    clients: ClientsState
    task: dict[str, Tensor]  # the model's buffers
    loss: LossState = field(default_factory=LossState)
    saturation: SaturationState = field(default_factory=SaturationState)  # of the scalars' quantisers


def run_round(simulation: Simulation, state: State) -> tuple[State, dict[str, Any]]:
    """Run one round and return the new state and the round's record for metrics.jsonl.

    Raises Diverged if a gradient is not finite, ValueError if a rule returned nonsense.
    """
    settings, clients, server = simulation.settings, simulation.clients, simulation.server
    memory, asked = server.choose(state.server)
    t = memory.round
    available, present = clients.availability.apply(state.clients.availability, asked, memory.weights, t)
    state = replace(state, server=memory, clients=replace(state.clients, availability=available))
    if len(present.devices) == 0:
        state = replace(state, server=server.end_round(memory))
        return silent_record(simulation, state, present)

    shares = simulation.task.shares[present.devices] / simulation.task.shares[present.devices].sum()
    by_share = settings.method.weights == "share"
    alpha = torch.from_numpy(shares).float() if by_share else torch.ones(len(shares))
    models = server.broadcast(memory, present.devices)
    mix = server.tasks.mix(memory.tasks, present.devices, alpha)  # a row for each of several models
    encoder, observer = server.encoder(memory), Observer(simulation, mix, shares)
    rotation = server.rotation_keys(memory, present.devices)
    encoded, digital, sent_bits = [], torch.zeros_like(observer.total), 0
    for update in clients.train(state.clients, present, models, t, memory.control):
        true_sum = observer.add(update)
        if server.sends_bits:
            encoded.append(clients.encode(state.clients, update, encoder, rotation[observer.rows], t))
        else:
            decoded = clients.compress(state.clients, update, t)
            exact = decoded.values is update.gradients
            digital += true_sum if exact else observer.weighted(decoded.values)
            sent_bits += int(decoded.bits.sum())
    if not server.sends_bits:
        after = server.step(memory, digital, len(shares), memory, sent_bits)
        return round_record(simulation, state, after, present, observer, digital)

    honest, priors = join(encoded)
    correlation = observer.correlation(honest.mean, priors.mean, encoder.coordinates)
    truth = Truth(observer.total, correlation, honest, priors)
    message = simulation.attackers.change(honest, encoder, present.devices, t)
    link = clients.availability.limit(server.radio.link(present.devices, t), present.devices, t)
    known = {"link": link, "fresh": present.began == t, "rotation_keys": rotation}
    received = server.transmit(memory, message, present.devices, alpha, **known)
    after, estimate, metrics = server.aggregate(memory, received, truth.correlation)
    after = server.step(after, estimate.value, len(shares), memory)
    metrics = {**metrics, **limit_record(simulation, received, truth)}
    return round_record(simulation, state, after, present, observer, estimate.value, estimate, truth, metrics)
