"""The server's half of a run, for simulations and deployments alike: receive, aggregate, step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.device import Encoder, Message
from signfade.keys import stream_key, stream_keys
from signfade.server.aggregators import AGGREGATORS
from signfade.server.optimizer import ModelState, make_optimizer
from signfade.server.received import Context, Devices, Estimate, Received, Truth
from signfade.server.scheduling import Schedule, Scheduler
from signfade.server.soft_rule import better_rotation, measure_updates, soft_estimate
from signfade.server.stages import BoundScalars, CodedScalars, FollowScales, PilotEstimation
from signfade.server.superposition import AirRule
from signfade.server.tasks import Broadcast, Tasks, TaskState
from signfade.server.turning import Reliability
from signfade.server.update import FULL_PRECISION_BITS
from signfade.settings import MethodSettings, RunSettings
from signfade.theory.rate import Rotated, harmonics
from signfade.uplink import Link, make_radio, transmit
from signfade.uplink.cost import UplinkBits, channel_uses, uplink_bits

__all__ = ["Server", "ServerMemory", "Stage"]

# Dividing by a smaller gain than this would amplify noise more than it restores the step.
SMALLEST_GAIN = 0.15


class Stage(Protocol):
    """A step between reception and aggregation, with a memory of its own."""

    name: str

    def init(self) -> Any:
        """Return the state before the first round."""

    def apply(self, state: Any, received: Received) -> tuple[Any, Received, dict[str, Any]]:
        """Return the new state, what is passed on, and what the metrics say."""


@dataclass(frozen=True)
class ServerMemory:
    """Everything the server remembers between rounds."""

    round: int  # number of rounds done
    model: ModelState  # the weights and the optimiser's state
    rule: Any  # what the aggregator remembers
    stages: dict[str, Any]  # the stages' states by name
    sent: UplinkBits = field(default_factory=UplinkBits)  # bits on the uplink so far
    downlink_bits: int = 0  # so far
    channel_uses: int = 0  # symbols on the uplink so far
    control: Tensor = field(default_factory=lambda: torch.zeros(0))  # SCAFFOLD's, [M]; empty if not used
    schedule: Schedule | None = None  # what the choice of devices remembers, if anything
    missed: Tensor | None = None  # rounds of signs that each device has missed, [N], where it can miss any
    others: tuple[ModelState, ...] | None = None  # the models after the first, if there may be any
    tasks: TaskState | None = None  # who has which of them
    average: Tensor | None = None  # running average of the model, [M], if one is kept

    @property
    def weights(self) -> Tensor:
        """The current model, `[M]`; the first of several."""
        return self.model.weights

    @property
    def averaged(self) -> ServerMemory:
        """The same with the model that is evaluated and handed out: the running average, if one is kept."""
        return (
            self if self.average is None else replace(self, model=replace(self.model, weights=self.average))
        )

    @property
    def models(self) -> tuple[ModelState, ...]:
        """All models."""
        return (self.model, *(self.others or ()))


class Server:
    """What a base station does in a round: transmit (in a simulation), aggregate, step.

    `layers` are the lengths of the model's layers, `population` is the number of devices in the cell, `unit`
    what the learning rate is measured in. `buffer_bits` is what the model's buffers need, which devices send
    in full.
    """

    def __init__(
        self,
        settings: RunSettings,
        layers: tuple[int, ...],
        population: int,
        unit: float = 1.0,
        buffer_bits: int = 0,
    ) -> None:
        method, cell, seed = settings.method, settings.cell, settings.seed
        self.settings = settings
        self.aggregator = AGGREGATORS.find(method.aggregator)
        self.radio = make_radio(cell, population, seed)
        self._scheduler = Scheduler(settings, self.radio)
        self._encoder = Encoder(method, layers, self.aggregator.sends_scalars, papr_db=cell.papr_db)
        self._optimizer = make_optimizer(settings.server, unit)
        self._buffer_bits, self._population = buffer_bits, population
        snr_db = self.radio.mean_snr_db
        mean_snr = np.full(population, 1e8) if snr_db is None else 10 ** (np.asarray(snr_db) / 10)
        self._mean_snr = cell.antennas * mean_snr
        self._chosen: tuple[Any, MethodSettings] | None = None
        self._stages = self._make_stages(population)
        self.tasks = Tasks(settings, population)
        self._air = None
        if cell.access == "over_the_air" and self.sends_bits:
            self._air = AirRule(self.aggregator.over_the_air or "posterior", cell, method, seed)

    def _make_stages(self, population: int) -> list[Stage]:
        if not self.sends_bits:
            return []
        settings, encoder, seed = self.settings, self._encoder, self.settings.seed
        wanted: list[tuple[bool, Any]] = [
            (settings.cell.csi == "pilot", lambda: PilotEstimation(self.radio)),
            (
                settings.cell.side_info == "coded" and encoder.sends_scalars,
                lambda: CodedScalars(settings.cell, encoder, population, seed),
            ),
            (encoder.quantised, FollowScales),
            (settings.defence.bound_scales, lambda: BoundScalars(encoder, population)),
            (settings.defence.reliability, lambda: Reliability(encoder, population, seed)),
        ]
        return [make() for asked, make in wanted if asked]

    @property
    def sends_bits(self) -> bool:
        """Whether devices send bits over the air; `ideal` is given the gradients."""
        return self.aggregator.sends != "values"

    def init(self, weights: Tensor) -> ServerMemory:
        """Start from these weights, `[M]`."""
        memory = self.aggregator.memory
        rule = None if memory is None else memory(self._population)
        stages = {stage.name: stage.init() for stage in self._stages}
        control = torch.zeros_like(weights) if self.settings.device.control_variates else torch.zeros(0)
        keeps_up = self.settings.cell.downlink == "coded" and self.settings.server.downlink == "sign"
        missed = torch.zeros(self._population, dtype=torch.int64) if keeps_up else None
        first, *others = (self._optimizer.init(weights) for _ in range(self.tasks.count))
        schedule, tasks = self._scheduler.init(), self.tasks.init()
        start = ServerMemory(0, first, rule, stages, control=control, schedule=schedule, missed=missed)
        average = weights.clone() if self.settings.server.averaging > 0 else None
        return replace(start, others=tuple(others) if self.tasks.many else None, tasks=tasks, average=average)

    def choose(self, memory: ServerMemory) -> tuple[ServerMemory, Devices]:
        """Return who is to send in this round, ascending: those that are scheduled and decode the broadcast.

        Where it carries the signs of one step, a device that missed some is sent those as well, or the model
        if that takes fewer bits.
        """
        schedule, asked = self._scheduler.choose(memory.schedule, memory.round)
        memory = replace(memory, schedule=schedule)
        if self.settings.cell.downlink == "error_free":
            return memory, asked
        heard = self.radio.hears(memory.round)
        if memory.missed is not None:
            hears = torch.from_numpy(heard)
            again = int(memory.missed[hears].clamp(max=FULL_PRECISION_BITS).sum()) * len(memory.weights)
            missed = torch.where(hears, torch.zeros_like(memory.missed), memory.missed + 1)
            memory = replace(memory, missed=missed, downlink_bits=memory.downlink_bits + again)
        return memory, asked[heard[asked]]

    def downlink_record(self, memory: ServerMemory) -> dict[str, float]:
        """Return the time that the downlink has taken so far, if its rate is known."""
        cell = self.settings.cell
        if cell.downlink == "error_free":
            return {}
        return {"downlink_s": memory.downlink_bits / (self.radio.downlink_hz * cell.downlink_rate)}

    def broadcast(self, memory: ServerMemory, devices: Devices) -> Broadcast:
        """Return the models that are sent down in this round, and which of them each device has."""
        if memory.tasks is None:
            return Broadcast(memory.weights[None], np.zeros(len(devices), np.int64))
        models = torch.stack([model.weights for model in memory.models])
        return Broadcast(models, memory.tasks.model_of[devices])

    def encoder(self, memory: ServerMemory) -> Encoder:
        """Return the device's half of the method, with the range that this round's broadcast names."""
        encoder, scale_range = self._encoder, memory.stages.get(FollowScales.name)
        if encoder.method.rotation == "auto":
            encoder = replace(encoder, method=self._this_round(memory))
        return encoder if scale_range is None else replace(encoder, exponents=tuple(scale_range.exponents))

    def _this_round(self, memory: ServerMemory) -> MethodSettings:
        """Return the method with the rotation whose predicted error is smaller in this round."""
        if self._chosen is not None and self._chosen[0] is memory.rule:  # asked several times in a round
            return self._chosen[1]
        encoder, snr = self._encoder, self._mean_snr
        if memory.rule is None:  # nothing is known of the devices
            return encoder.method.model_copy(update={"rotation": "private"})
        found = harmonics(snr, encoder.method.level_bits, encoder.papr_db)
        model = Rotated(found, np.ones(len(snr)), np.eye(len(snr)), encoder.part, encoder.kept)
        method = encoder.method.model_copy(update={"rotation": better_rotation(memory.rule, model)})
        self._chosen = (memory.rule, method)
        return method

    def rotation_keys(self, memory: ServerMemory, devices: Devices) -> NDArray[np.uint64]:
        """Return the keys of the devices' rotations in this round, `[K]`: all alike unless private."""
        t, seed = memory.round, self.settings.seed
        if self.encoder(memory).method.rotation == "private":
            return stream_keys(seed, "rotation", t, devices)
        return np.full(len(devices), stream_key(seed, "rotation", t), dtype=np.uint64)

    def transmit(
        self,
        memory: ServerMemory,
        message: Message,
        devices: Devices,
        weights: Tensor,
        *,
        link: Link | None = None,
        fresh: NDArray[np.bool_] | None = None,
        rotation_keys: NDArray[np.uint64] | None = None,
    ) -> Received:
        """Let a message pass through the air.

        `devices` are those that send, ascending, and `weights` their `alpha_k`, `[K]` each. The links are
        drawn from the cell if `link` is None; `fresh` tells whose gradient is at the round's weights;
        `rotation_keys` spare drawing them again.
        """
        t, seed = memory.round, self.settings.seed
        link = self.radio.link(devices, t) if link is None else link
        signals = transmit(message.bits, link.h, link.sigma2, stream_keys(seed, "noise", t, devices))
        return Received(
            signals,
            signals.link,
            message.mean,
            message.scale,
            weights,
            self.encoder(memory),
            devices,
            t,
            memory.weights,
            np.ones(len(devices), dtype=bool) if fresh is None else fresh,
            self.rotation_keys(memory, devices) if rotation_keys is None else rotation_keys,
            stream_key(seed, "ties", t),
        )

    def aggregate(
        self, memory: ServerMemory, received: Received, genie: Tensor | None = None
    ) -> tuple[ServerMemory, Estimate, dict[str, Any]]:
        """Estimate the weighted sum of the gradients.

        Returns the new memory, the estimate `[M]` with the error to expect (`[G, M]` for G models), and what
        the metrics say. Only `method.correlation = "genie"` uses `genie`, the true correlation.
        """
        method, stages = self.settings.method, dict(memory.stages)
        metrics: dict[str, Any] = {"snr_db": self._snr_quantiles(received)}
        for stage in self._stages:
            stages[stage.name], received, said = stage.apply(stages[stage.name], received)
            metrics |= said
        schedule = self._scheduler.learn(memory.schedule, received)
        asked = genie if method.correlation == "genie" else None
        context = Context(method, self.settings.defence, memory.rule, asked)
        if memory.tasks is None:
            final = self._finished(received, context)
        else:
            rows = self.tasks.mix(memory.tasks, received.devices, received.weights)
            models = self.broadcast(memory, received.devices).weights
            final = _stacked(
                [
                    self._finished(received.but(weights=row), context)
                    if bool(row.any())
                    else Estimate(torch.zeros_like(models[0]), predict=lambda truth, factor: 0.0)
                    for row in rows
                ]
            )
            memory = replace(
                memory, tasks=self.tasks.observe(memory.tasks, received, models, measure_updates)
            )
        rule = memory.rule if final.memory is None else final.memory
        return replace(memory, rule=rule, stages=stages, schedule=schedule), final, metrics

    def _finished(self, received: Received, context: Context) -> Estimate:
        """Return the estimate of one weighted sum, debiased if asked for and turned back."""
        estimate = self._estimate(received, context)
        part = received.encoder.part
        gain = estimate.gain if estimate.turned_back else part * estimate.gain
        factor = 1 / max(gain, part * SMALLEST_GAIN) if context.method.debias else 1.0
        value = estimate.value
        if factor != 1:  # the means are known: only what was estimated about them is shrunk
            known = (received.weights @ received.mean).to(value)
            value = known + factor * (value - known)
        predict = estimate.predict
        return Estimate(
            (value if estimate.turned_back else received.turned_back(value)).cpu(),
            memory=estimate.memory,
            predict=lambda truth, _: None if received.altered else predict(truth, factor),
        )

    def _estimate(self, received: Received, context: Context) -> Estimate:
        if self._air is not None:
            return self._air.estimate(received)
        if self.settings.method.soft:
            return soft_estimate(received, context, joint=self.aggregator.soft == "joint")
        return self.aggregator.estimate(received, context)

    def step(
        self,
        memory: ServerMemory,
        estimate: Tensor,
        devices: int,
        before: ServerMemory,
        digital_bits: int | None = None,
    ) -> ServerMemory:
        """Step along the estimate, end the round, and count what so many devices sent.

        `before` is the memory that the round began with, which says how the scalars were sent. `digital_bits`
        is what all devices sent as digital messages, where the rule is given numbers; None is 32 bits each.
        """
        encoder, cell, method = self.encoder(before), self.settings.cell, self.settings.method
        if method.weights == "mean" and self.aggregator.scaled and memory.tasks is None:
            estimate = estimate / devices
        tasks, rows = memory.tasks, estimate.reshape(len(memory.models), -1)
        models = tuple(
            # no device of a model of several was received: it stays
            model
            if tasks is not None and not bool(row.any())
            else self._optimizer.apply(model, row, memory.round)
            for model, row in zip(memory.models, rows)
        )
        in_use = 1 if tasks is None else len(np.unique(tasks.model_of))
        moved = self.settings.server.downlink == "full" or bool(estimate.any())
        down = in_use * self._optimizer.downlink_bits(rows.shape[1]) if moved else 0
        if tasks is not None:
            models = self.tasks.couple(tasks, models, self._optimizer.learning_rate(memory.round))
            tasks, models = self.tasks.regroup(tasks, models)
        used = channel_uses(encoder, cell, devices) if self.sends_bits else 0
        bits = uplink_bits(encoder, cell, self._buffer_bits, values=not self.sends_bits).times(devices)
        if digital_bits is not None:
            bits = replace(bits, signs=digital_bits)
        control, local = memory.control, self.settings.device
        if local.control_variates:  # those of the devices that took part move by d_k/E - c (E: local.summed)
            mean = estimate / devices if method.weights == "sum" else estimate
            control = control + devices / self._population * (mean / local.summed - control)
            down += FULL_PRECISION_BITS * len(control)
        memory = replace(memory, model=models[0], others=None if tasks is None else models[1:], tasks=tasks)
        return replace(
            self.end_round(memory),
            sent=memory.sent + bits,
            downlink_bits=memory.downlink_bits + down + encoder.range_bits,
            channel_uses=memory.channel_uses + used,
            control=control,
        )

    def end_round(self, memory: ServerMemory) -> ServerMemory:
        """Count the round and average its model, which may be that of the round before."""
        average, past = memory.average, self.settings.server.averaging
        if average is not None:  # models of rounds s up to t count as past**(t - s), divided by the sum
            average = average.lerp(memory.weights, (1 - past) / (1 - past ** (memory.round + 1)))
        return replace(memory, round=memory.round + 1, average=average)

    def _snr_quantiles(self, received: Received) -> list[float] | None:
        """Return the smallest, median and largest SNR of a round in dB; None for perfect links."""
        if self.radio.mean_snr_db is None:
            return None
        with np.errstate(divide="ignore"):
            snr_db = 10 * np.log10(received.link.snr.double().numpy())
        ordered = np.sort(snr_db)  # many times faster than np.quantile
        return [round(float(ordered[place]), 4) for place in (0, round((len(ordered) - 1) / 2), -1)]


def _stacked(rows: list[Estimate]) -> Estimate:
    """Return the estimates for several models as one, `[G, M]`, with the error of all together."""

    def predict(truth: Truth, factor: float) -> float | None:
        energies = truth.total.double().square().sum(dim=1).tolist()
        errors = [row.predict(truth, factor) for row in rows]
        known = [energy * error for energy, error in zip(energies, errors) if error is not None]
        return sum(known) / sum(energies) if len(known) == len(rows) and sum(energies) > 0 else None

    remembered = next((row.memory for row in rows if row.memory is not None), None)
    return Estimate(torch.stack([row.value for row in rows]), memory=remembered, predict=predict)
