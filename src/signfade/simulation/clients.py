"""The devices' side of a simulation: train, encode; feed back what bits lost, be late, be hostile."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from signfade.device import Encoder, Message, Priors, bit_epsilon, composed_epsilon, lost_by_bits
from signfade.device.compressors import COMPRESSORS, Compressed
from signfade.device.encoder import RotationKeys
from signfade.keys import generator, stream_keys
from signfade.server import Devices
from signfade.settings import RunSettings
from signfade.simulation.attacks import Attackers
from signfade.simulation.availability import Availability, AvailabilityState, Present
from signfade.simulation.task import Task

__all__ = ["Clients", "ClientsState", "Diverged", "Update"]

DELTA = 1e-5  # at which composed epsilons are given
# Gradients held at once: 2^24 float32 numbers, 64 MB, however many devices there are.
_CHUNK_NUMBERS = 1 << 24
_LARGEST_MEMORY = 2 << 30


class Diverged(RuntimeError):
    """A gradient is not finite."""


class Update(NamedTuple):
    """What some devices have computed: gradients `[k, M]` and losses `[k]`."""

    devices: Devices
    gradients: Tensor
    losses: Tensor


@dataclass(frozen=True)
class ClientsState:
    """What devices remember between rounds.

    Attributes:
        availability: Who is busy since when.
        feedback: What each device's messages have lost so far, `[N, M]`; empty without error feedback.
        control: Each device's control variate (SCAFFOLD), `[N, M]`; empty where they are not used.
    """

    availability: AvailabilityState
    feedback: Tensor
    control: Tensor


class Clients:
    """All devices of a run.

    Args:
        settings: All of the run.
        task: Model and data.

    Attributes:
        availability: Which devices are received.
        attackers: Which devices are hostile.

    Raises:
        ValueError: Error feedback would need too much memory.
    """

    def __init__(self, settings: RunSettings, task: Task) -> None:
        self._settings, self._task = settings, task
        self.availability = Availability(settings.availability, task.devices, settings.seed)
        self._compressor = COMPRESSORS.find(settings.method.compressor)
        self.attackers = Attackers(settings.attack, task.devices, settings.seed)
        needed = 4 * task.size * task.devices
        key = "compressor" if self._compressor.feedback else "error_feedback"
        for asked, name in (
            (self._feeds_back, f"method.{key}"),
            (settings.device.control_variates, "device.control_variates"),
        ):
            if asked and needed > _LARGEST_MEMORY:
                raise ValueError(
                    f"{name} keeps a gradient of {task.size} numbers for each of {task.devices} devices, "
                    f"{needed / 1e9:.1f} GB; at most {_LARGEST_MEMORY / 1e9:.1f} GB are given to it"
                )

    def init(self) -> ClientsState:
        """Return the state before the first round."""
        wanted = (self._feeds_back, self._settings.device.control_variates)
        memories = [torch.zeros(self._task.devices if asked else 0, self._task.size) for asked in wanted]
        return ClientsState(self.availability.init(), *memories)

    @property
    def _feeds_back(self) -> bool:
        return self._compressor.feedback or self._settings.method.error_feedback > 0

    @property
    def chunk(self) -> int:
        """How many devices' gradients are held at once; it depends on the model alone."""
        return max(1, _CHUNK_NUMBERS // self._task.size)

    def train(
        self, state: ClientsState, present: Present, model: Tensor, round: int, control: Tensor
    ) -> Iterator[Update]:
        """Let the devices train, a chunk at a time, so that memory stays flat.

        Args:
            state: The devices' memory, with the models that late devices began with.
            present: Who is received.
            model: The weights that are broadcast, `[M]`.
            round: Counted from 0.
            control: The control variate that is broadcast, `[M]`; empty where they are not used.
        """
        for start in range(0, len(present.devices), self.chunk):
            rows = slice(start, start + self.chunk)
            some = Present(present.devices[rows], present.began[rows])
            if not len(control):
                yield self._train(state, some, model, round)
                continue
            who = torch.from_numpy(some.devices)
            update = self._train(state, some, model, round, control - state.control[who])
            state.control[who] += update.gradients / self._settings.device.local_steps - control
            yield update
        self._task.end_round()

    def _train(
        self,
        state: ClientsState,
        present: Present,
        model: Tensor,
        round: int,
        control: Tensor | None = None,
    ) -> Update:
        devices, began = present
        extra = () if control is None else (control,)
        if (began == round).all():
            return Update(devices, *self._task.local_gradients(model, devices, round, *extra))
        # A model's buffers are those of the present: only weights are kept.
        gradients, losses = torch.empty(len(devices), self._task.size), torch.empty(len(devices))
        for t in np.unique(began):
            rows = np.flatnonzero(began == t)
            at = model if t == round else state.availability.models[str(t)]
            extra = () if control is None else (control[rows],)
            part = self._task.local_gradients(at, devices[rows], int(t), *extra)
            gradients[rows], losses[rows] = part.gradients, part.losses.to(losses)
        return Update(devices, gradients, losses)

    def encode(
        self, state: ClientsState, update: Update, encoder: Encoder, rotation: RotationKeys, round: int
    ) -> tuple[Message, Priors]:
        """Turn gradients into what honest devices send. Error feedback writes into `state.feedback`."""
        method, devices = self._settings.method, update.devices
        gradients = update.gradients
        if not math.isfinite(gradients.sum().item()) and not bool(gradients.isfinite().all()):
            raise Diverged("a gradient is not finite")
        rows = torch.from_numpy(devices)
        if method.error_feedback > 0:
            gradients = gradients + state.feedback[rows]
        rotated = encoder.rotate(gradients, rotation)
        seed = self._settings.seed
        message, priors = encoder.encode(
            rotated, rotation, lambda purpose: stream_keys(seed, purpose, round, devices)
        )
        if method.error_feedback > 0:
            lost = lost_by_bits(rotated, message.bits.packed, message.mean, message.scale, encoder.segments)
            state.feedback[rows] = method.error_feedback * encoder.unrotate(lost, rotation)
        return message, priors

    def compress(self, state: ClientsState, update: Update, round: int) -> Compressed:
        """Turn gradients into digital messages, for rules that are given numbers and not bits.

        A compressor with feedback writes into `state.feedback`.
        """
        seed, rows, gradients = self._settings.seed, torch.from_numpy(update.devices), update.gradients
        streams = [generator(seed, "compressor", round, int(device)) for device in update.devices]
        if self._compressor.feedback:
            gradients = gradients + state.feedback[rows]
        sent = self._compressor.compress(gradients, streams, float(self._settings.method.bits_per_weight))
        if self._compressor.feedback:
            state.feedback[rows] = gradients - sent.values
        return sent

    @property
    def predictable(self) -> bool:
        """Whether theory knows what the server's estimate has to do with the devices' gradients."""
        return self._settings.method.error_feedback == 0 and self._settings.attack.kind == "none"

    def metrics(self, present: Present, size: int, round: int) -> dict[str, Any]:
        """Return what a round's record says: how many were late, and the privacy of those in every round.

        `epsilon_bit` is that of one bit in one round, `epsilon` that of all bits of a device in all rounds so
        far, at delta = 1e-5.
        """
        record: dict[str, Any] = {}
        if self._settings.availability.late > 0:
            record["late"] = int((present.began != round).sum())
        if (flip := self._settings.method.flip) > 0:
            record["epsilon_bit"] = bit_epsilon(flip)
            record["epsilon"] = composed_epsilon(flip, size * (round + 1), DELTA)
        return record

    def notes(self, encoder: Encoder) -> list[str]:
        """Return what a person should know before the first round, in sentences."""
        flip, rounds = self._settings.method.flip, self._settings.rounds
        if flip == 0:
            return []
        total = composed_epsilon(flip, encoder.size * rounds, DELTA)
        covered = "the bits, not the means and scales" if encoder.sends_scalars else "all that is sent"
        return [
            f"privacy covers {covered}: epsilon {bit_epsilon(flip):.3g} for one bit, {total:.3g} for "
            f"a device's {encoder.size} bits in {rounds} rounds (delta {DELTA:g})"
        ]
