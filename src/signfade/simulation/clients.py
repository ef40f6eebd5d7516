"""The devices' side of a simulation: who takes part, training, encoding, feeding back what bits lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.device import Encoder, Message, Priors, bit_epsilon, composed_epsilon, lost_by_bits
from signfade.device.compressors import COMPRESSORS, Compressed
from signfade.device.encoder import RotationKeys
from signfade.keys import generator, stream_keys
from signfade.registry import is_import_path
from signfade.server import Broadcast, Devices
from signfade.settings import AvailabilitySettings, RunSettings
from signfade.uplink import Link

if TYPE_CHECKING:
    from signfade.simulation.task import Task

__all__ = [
    "Availability",
    "AvailabilityState",
    "Clients",
    "ClientsState",
    "Present",
    "Update",
]

DELTA = 1e-5  # at which composed epsilons are given
# Gradients held at once: 2^24 float32 numbers, 64 MB, however many devices there are.
_CHUNK_NUMBERS = 1 << 24
_LARGEST_MEMORY = 2 << 30
_FREE = -1


@dataclass(frozen=True)
class AvailabilityState:
    """Since when each device has been computing, `[N]`, -1 if it is free; and the models of those rounds."""

    started: NDArray[np.int64]
    models: dict[str, Tensor]


class Present(NamedTuple):
    """Who is received in a round, ascending, and in which round each began its gradient, `[K]` each."""

    devices: Devices
    began: NDArray[np.int64]


class Availability:
    """Stage: which of the devices that were asked are received.

    A late device begins in one round and is received `staleness` rounds later, with the gradient of the model
    it began with. It is not asked again in between.

    Example:
        >>> late = Availability(AvailabilitySettings(late=1.0, staleness=2), population=3, seed=0)
        >>> state, received = late.init(), []
        >>> for t in range(5):
        ...     state, present = late.apply(state, np.arange(3), torch.full((1,), float(t)), t)
        ...     received.append(present.devices.tolist())
        >>> received
        [[], [], [0, 1, 2], [], []]
    """

    def __init__(self, settings: AvailabilitySettings, population: int, seed: int) -> None:
        self._settings, self._population, self._seed = settings, population, seed

    def init(self) -> AvailabilityState:
        """Return the state in which every device is free."""
        return AvailabilityState(np.full(self._population, _FREE, dtype=np.int64), {})

    def apply(
        self, state: AvailabilityState, asked: Devices, model: Tensor, round: int
    ) -> tuple[AvailabilityState, Present]:
        """Return who of those asked (ascending) is received, maybe nobody; rounds must come in order.

        `model` are the weights that are broadcast, `[M]`; `state` is not modified.
        """
        settings = self._settings
        if max(settings.dropout, settings.late) == 0:
            return state, Present(asked, np.full(len(asked), round))
        started, models = state.started.copy(), state.models
        if settings.late > 0:
            oldest = round - settings.staleness
            models = {t: kept for t, kept in models.items() if int(t) >= oldest} | {str(round): model.clone()}
        arriving = (started != _FREE) & (started + settings.staleness == round)
        fresh = np.zeros(self._population, dtype=bool)
        fresh[asked] = True
        fresh &= started == _FREE
        began = np.where(arriving, started, round)
        started[arriving] = _FREE
        if settings.late > 0:
            late = fresh & (self._draw("late", round) < settings.late)
            started[late] = round
            fresh &= ~late
        there = fresh | arriving
        if settings.dropout > 0:
            there &= self._draw("dropout", round) >= settings.dropout
        devices = np.flatnonzero(there)
        return AvailabilityState(started, models), Present(devices, began[devices])

    def limit(self, link: Link, devices: Devices, round: int) -> Link:
        """Return the links with the gains of those short of power lowered: `h * 10^(-backoff_db/20)`."""
        settings = self._settings
        if settings.limited == 0:
            return link
        short = torch.from_numpy(self._draw("power", round)[devices] < settings.limited)
        factor = 10 ** (-settings.backoff_db / 20)
        return Link(torch.where(short, factor * link.h, link.h), link.sigma2)

    def _draw(self, purpose: str, round: int) -> NDArray[np.float64]:
        return generator(self._seed, purpose, round).random(self._population)


class Update(NamedTuple):
    """What some devices have computed: gradients `[k, M]` and losses `[k]`."""

    devices: Devices
    gradients: Tensor
    losses: Tensor


@dataclass(frozen=True)
class ClientsState:
    """What devices remember between rounds."""

    availability: AvailabilityState
    feedback: Tensor  # what each device's messages have lost so far, [N, M]; empty without error feedback
    control: Tensor  # each device's control variate (SCAFFOLD), [N, M]; empty where they are not used


class Clients:
    """All devices of a run."""

    def __init__(self, settings: RunSettings, task: Task) -> None:
        self._settings, self._task = settings, task
        self.availability = Availability(settings.availability, task.devices, settings.seed)
        self._compressor = COMPRESSORS.find(settings.method.compressor)
        if settings.server.tasks != "one" and task.extra_bits:
            raise ValueError(
                'server.tasks must be "one" with a model that has buffers, such as those of batch '
                "normalisation: they are merged over all devices"
            )
        needed = 4 * task.size * task.devices
        key = "compressor" if self._compressor.feedback else "error_feedback"
        for asked, name in (
            (self._feeds_back, f"method.{key}"),
            (settings.device.control_variates, "device.control_variates"),
            (settings.server.tasks == "related", 'server.tasks = "related"'),
        ):
            if asked and needed > _LARGEST_MEMORY:
                raise ValueError(
                    f"{name} keeps {task.size} numbers for each of {task.devices} devices, "
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
        self,
        state: ClientsState,
        present: Present,
        models: Broadcast,
        round: int,
        control: Tensor | None = None,
    ) -> Iterator[Update]:
        """Let the devices train, each from its model, a chunk at a time: memory stays flat.

        `control` is SCAFFOLD's control variate that is broadcast, `[M]`; empty where it is not used.
        """
        for start in range(0, len(present.devices), self.chunk):
            rows = slice(start, start + self.chunk)
            some = Present(present.devices[rows], present.began[rows])
            mine = Broadcast(models.weights, models.of[rows])
            if control is None or not len(control):
                yield self._train(state, some, mine, round)
                continue
            who = torch.from_numpy(some.devices)
            update = self._train(state, some, mine, round, control - state.control[who])
            state.control[who] += update.gradients / self._settings.device.summed - control
            yield update
        self._task.end_round()

    def _train(
        self,
        state: ClientsState,
        present: Present,
        models: Broadcast,
        round: int,
        control: Tensor | None = None,
    ) -> Update:
        devices, began = present
        kinds = np.unique(np.stack([began, models.of]), axis=1).T  # rounds in which they began, and models
        if len(kinds) == 1 and kinds[0, 0] == round:
            extra = () if control is None else (control,)
            model = models.weights[kinds[0, 1]]
            return self._update(model, devices, round, *extra)
        # A model's buffers are those of the present: only weights are kept.
        gradients, losses = torch.empty(len(devices), self._task.size), torch.empty(len(devices))
        for t, which in kinds:
            rows = np.flatnonzero((began == t) & (models.of == which))
            at = models.weights[which] if t == round else state.availability.models[str(t)]
            extra = () if control is None else (control[rows],)
            part = self._update(at, devices[rows], int(t), *extra)
            gradients[rows], losses[rows] = part.gradients, part.losses.to(losses)
        return Update(devices, gradients, losses)

    def _update(self, weights: Tensor, devices: Devices, round: int, *control: Tensor) -> Update:
        gradients, losses = self._task.local_updates(weights, devices, round, *control)
        return Update(devices, gradients if self._may_stay else gradients.cpu(), losses)

    @property
    def _may_stay(self) -> bool:
        """Whether gradients stay where they were computed: anything out of the ordinary is for the CPU."""
        settings, method = self._settings, self._settings.method
        special = (
            self._feeds_back or method.compressor != "auto" or method.flip > 0 or method.sign_noise > 0,
            method.level_bits != 1 or method.joint in ("ep", "factor"),
            settings.device.control_variates or settings.availability.late > 0,
            settings.attack.kind != "none" or settings.defence.reliability,
            settings.server.tasks != "one" or settings.cell.access == "over_the_air",
            settings.cell.csi == "pilot" or is_import_path(method.aggregator),
        )
        return not any(special)

    def encode(
        self, state: ClientsState, update: Update, encoder: Encoder, rotation: RotationKeys, round: int
    ) -> tuple[Message, Priors]:
        """Turn gradients into what honest devices send. Error feedback writes into `state.feedback`."""
        method, seed = self._settings.method, self._settings.seed
        devices, gradients = update.devices, update.gradients
        rows = torch.from_numpy(devices)
        if method.error_feedback > 0:
            gradients = gradients + state.feedback[rows]
        rotated = encoder.rotate(gradients, rotation)
        message, priors = encoder.encode(
            rotated, lambda purpose: stream_keys(seed, purpose, round, devices), rotation
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
        method = self._settings.method
        about_mean = method.center or method.rotation != "none"  # a rotation leaves next to no mean
        return method.error_feedback == 0 and about_mean and self._settings.attack.kind == "none"

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
