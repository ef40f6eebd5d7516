"""The server's half of a deployment: `signfade.server.Server`, fed with the replies of real devices.

Answers come in, the model steps, and what devices need for the next round goes out.
What one device reports is bounded by what the others report.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from numpy.typing import NDArray
from torch import Tensor

from signfade.device import EXACT_BITS, Encoder, decode_packets, pack_signs, sign
from signfade.device.scale_range import SaturationState, count_saturation
from signfade.experiments.config import resolve
from signfade.integrations.flower.messages import (
    ARRAYS,
    RECORD,
    STEP,
    Answer,
    Buffers,
    CatchUp,
    Order,
    Start,
    digest,
    to_record,
)
from signfade.server import AGGREGATORS, Devices, Server, ServerMemory
from signfade.server.update import FULL_PRECISION_BITS
from signfade.settings import RunSettings
from signfade.simulation.metrics import LossState, watch_loss
from signfade.simulation.run import RunFailed
from signfade.simulation.task import merge_buffers, one_thread
from signfade.state import to_tensors

__all__ = ["DeployedServer", "DeployedState", "RoundSummary", "settings_from", "with_bounds"]

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
_MOST_LOSS = 10.0  # times the median loss
_MOST_NORM = 10.0  # times the median norm
_PREFIX = "signfade."
_SIMULATED = {
    "method": ("flip", "sign_noise", "error_feedback"),
    "availability": ("dropout", "late", "limited"),
}


def settings_from(run_config: Mapping[str, Any]) -> RunSettings:
    """Return the settings in a Flower app's configuration: its keys `signfade.*`, named as in a TOML file.

    The data and the model are the app's own, links are perfect unless `signfade.cell.*` says otherwise, and
    means and scales are bounded unless `signfade.defence.bound_scales` says otherwise.

    Example:
        >>> settings = settings_from({"lr": 0.1, "signfade.rounds": 9, "signfade.method.preset": "best"})
        >>> settings.rounds, settings.method.aggregator, settings.cell.perfect, settings.defence.bound_scales
        (9, 'bfl', True, True)
    """
    own = {key.removeprefix(_PREFIX): value for key, value in run_config.items() if key.startswith(_PREFIX)}
    if not any(key.partition(".")[0] == "cell" for key in own):
        own["cell.perfect"] = True
    return with_bounds(resolve({"data.name": "own", "model.name": "own"} | own))


def with_bounds(settings: RunSettings) -> RunSettings:
    """Turn `defence.bound_scales` on, unless the settings name it or their devices send no scales.

    One device can end any run without it: a scale of 3.4e38 is a float32 number like others.

    Example:
        >>> with_bounds(resolve({"defence.bound_scales": False})).defence.bound_scales
        False
    """
    named = "defence" in settings.model_fields_set and "bound_scales" in settings.defence.model_fields_set
    if named or not AGGREGATORS.find(settings.method.aggregator).sends_scalars:
        return settings
    defence = settings.defence.model_copy(update={"bound_scales": True})
    return settings.model_copy(update={"defence": defence})


def _refuse_simulated(settings: RunSettings) -> None:
    """Raise a ValueError for settings that only a simulation can follow."""
    if settings.method.correlation == "genie":
        raise ValueError('method.correlation must be "learned" on real devices: no genie is there')
    for section, keys in _SIMULATED.items():
        for key in keys:
            if (value := getattr(getattr(settings, section), key)) > 0:
                why = "must be 0 on real devices: it is simulated only"
                raise ValueError(f"{section}.{key} {why}; got {value:g}")
    for wrong, must in (
        (settings.method.compressor != "auto", 'method.compressor must be "auto"'),
        (settings.server.tasks != "one", 'server.tasks must be "one"'),
        (bool(settings.model.personal), "model.personal must be empty"),
        (settings.data.groups > 1, "data.groups must be 1"),
        (settings.method.bits_per_weight == "analog", "method.bits_per_weight must be a number"),
        (settings.device.control_variates, "device.control_variates must be false"),
        (settings.cell.scheduling != "random", 'cell.scheduling must be "random"'),
        (settings.cell.downlink != "error_free", 'cell.downlink must be "error_free"'),
    ):
        if wrong:
            raise ValueError(f"{must} on real devices: others are simulated only")
    if settings.attack.kind != "none":
        raise ValueError(f'attack.kind must be "none" on real devices; got "{settings.attack.kind}"')


def _median(values: Floats) -> float:
    """Return the median, of an even number the lower one: then one of two cannot lift it."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def bounded_samples(first: Counts, devices: Devices, reported: Counts, most: float) -> tuple[Counts, Floats]:
    """Return the first numbers of samples that devices reported, and what they count for in this round.

    `first` `[N]` has the first number of each device of the cell, 0 where there is none yet; `devices` `[K]`
    report `reported` `[K]`. A device counts for its first number, at most `most` medians of all of them.

    Example:
        >>> first = np.zeros(3, dtype=np.int64)
        >>> first, weights = bounded_samples(first, np.arange(3), np.array([100, 120, 2**53]), most=4.0)
        >>> weights.tolist(), bounded_samples(first, np.array([0]), np.array([2**53]), most=4.0)[1].tolist()
        ([100.0, 120.0, 480.0], [100.0])
    """
    first = first.copy()
    new = first[devices] == 0
    first[devices[new]] = reported[new]
    known = first.astype(np.float64)
    return first, np.minimum(known[devices], most * _median(known[known > 0]))


def bounded_losses(losses: Floats) -> Floats:
    """Clip losses to ten times their median in absolute value.

    Example:
        >>> bounded_losses(np.array([1.0, 2.0, 1e308])).tolist()
        [1.0, 2.0, 20.0]
    """
    most = _MOST_LOSS * _median(np.abs(losses))
    return np.clip(losses, -most, most)


def bounded_gradients(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Shorten gradients `[M]` to ten times their median norm.

    Example:
        >>> bounded_gradients([torch.tensor([3.0, 4.0]), torch.tensor([0.0, 3e38])])[1].tolist()
        [0.0, 50.0]
    """
    norms = np.array([float(torch.linalg.vector_norm(g, dtype=torch.float64)) for g in gradients])
    most = _MOST_NORM * _median(norms)
    return [
        (gradient.double() * (most / norm)).float() if norm > most else gradient
        for gradient, norm in zip(gradients, norms, strict=True)
    ]


@dataclass(frozen=True)
class DeployedState:
    """Everything that the server of a deployment remembers between rounds, by the simulator's names."""

    server: ServerMemory
    task: tuple[Tensor, ...]  # the model's buffers, in the order of the layout
    samples: Counts  # the number that each device reported first, `[N]`; 0 before it did
    loss: LossState = field(default_factory=LossState)
    saturation: SaturationState = field(default_factory=SaturationState)


@dataclass(frozen=True)
class RoundSummary:
    """The devices' mean loss, the metrics of the server core, and warnings for people."""

    loss: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


class DeployedServer:
    """The server's half of a run over real devices.

    With a cell in the settings the devices' bits pass through its simulated radio, with the simulator's keys;
    with `cell.perfect` they arrive as they were sent. Either way a round gives the simulator's numbers. A
    device's number of samples counts for at most `most_samples` medians of the devices'.

    Raises:
        ValueError: Settings that only a simulation can follow.
    """

    def __init__(self, settings: RunSettings, start: Start, most_samples: float = 4.0) -> None:
        _refuse_simulated(settings)
        if not most_samples >= 1:
            raise ValueError(f"most_samples must be 1 or more, times the median; got {most_samples}")
        self.settings, self.layout = settings, start.layout
        local = settings.device.learning_rate if settings.device.trains else 1.0
        self._unit = local if start.step_unit is None else start.step_unit
        self._most_samples = most_samples
        population = settings.data.devices
        buffer_bits = EXACT_BITS * sum(buffer.numel() for buffer in start.buffers.values())
        self.core = Server(settings, start.layout.segments, population, self._unit, buffer_bits)
        memory = self.core.init(start.weights)
        self.state = DeployedState(
            memory, tuple(start.buffers.values()), np.zeros(population, dtype=np.int64)
        )
        # As many rounds of signs as are still cheaper than the weights themselves.
        self._moves: deque[bytes] = deque(maxlen=FULL_PRECISION_BITS - 1)

    @property
    def round(self) -> int:
        """Number of rounds done."""
        return self.state.server.round

    @property
    def weights(self) -> Tensor:
        """The current model, `[M]`."""
        return self.state.server.weights

    @property
    def buffers(self) -> Buffers:
        """The model's other state by name."""
        return dict(zip(self.layout.buffers, self.state.task, strict=True))

    @property
    def encoder(self) -> Encoder:
        """The device's half of the method in this round."""
        return self.core.encoder(self.state.server)

    def aggregate(self, answers: Sequence[Answer]) -> RoundSummary:
        """Step along what the devices sent, and end the round; without answers there is no step.

        The answers are in ascending order of the devices, each at most once.

        Raises:
            RunFailed: The model has diverged, or a user's rule returned nonsense.
        """
        memory = self.state.server
        devices = np.array([answer.device for answer in answers], dtype=np.int64)
        if (np.diff(devices) <= 0).any():
            raise ValueError(f"answers must be sorted by device, one each; got devices {devices.tolist()}")
        if not answers:
            self._moves.append(b"")
            self.state = replace(self.state, server=self.core.end_round(memory))
            return RoundSummary()
        with one_thread():
            try:
                return self._aggregate(answers, devices)
            except ValueError as error:
                raise RunFailed(f"round {memory.round + 1}: {error}") from error

    def _aggregate(self, answers: Sequence[Answer], devices: Devices) -> RoundSummary:
        state, settings, before = self.state, self.settings, self.state.server
        reported = np.array([answer.examples for answer in answers], dtype=np.int64)
        samples, counts = bounded_samples(state.samples, devices, reported, self._most_samples)
        shares = counts / counts.sum()
        shares /= shares.sum()  # as the simulator does
        by_share = settings.method.weights == "share"
        alpha = torch.from_numpy(shares).float() if by_share else torch.ones(len(shares))
        after, estimate, metrics = self._estimate(answers, devices, alpha)
        after = self.core.step(after, estimate, len(answers), before)
        reported_buffers = [[answer.buffers[name] for name in self.layout.buffers] for answer in answers]
        buffers = tuple(merge_buffers(reported_buffers))
        losses = bounded_losses(np.array([answer.loss for answer in answers]))
        loss = float(torch.from_numpy(losses) @ torch.from_numpy(shares))
        monitor, warning = watch_loss(state.loss, loss, after.round)
        saturation, warnings = self._saturation(answers, last=after.round >= settings.rounds)
        by_sign = settings.server.downlink == "sign" and bool(estimate.any())
        self._moves.append(pack_signs(sign(estimate)).numpy().tobytes() if by_sign else b"")
        self.state = DeployedState(after, buffers, samples, monitor, saturation)
        return RoundSummary(loss, metrics, ([] if warning is None else [warning]) + warnings)

    def _estimate(
        self, answers: Sequence[Answer], devices: Devices, alpha: Tensor
    ) -> tuple[ServerMemory, Tensor, dict[str, Any]]:
        """Estimate the weighted sum of the gradients, from packets or from gradients in full."""
        memory = self.state.server
        if not self.core.sends_bits:
            gradients = [answer.gradient for answer in answers if answer.gradient is not None]
            return memory, torch.mv(torch.stack(bounded_gradients(gradients)).T, alpha), {}
        packets = [answer.packet for answer in answers if answer.packet is not None]
        message = decode_packets(self.encoder, packets)
        received = self.core.transmit(memory, message, devices, alpha)
        memory, estimate, metrics = self.core.aggregate(memory, received)
        return memory, estimate.value, metrics

    def _saturation(self, answers: Sequence[Answer], *, last: bool) -> tuple[SaturationState, list[str]]:
        """Count quantisers that saturated; return the counts and warnings."""
        encoder, state = self.encoder, self.state.saturation
        if not encoder.quantised:
            return state, []
        saturated = torch.tensor([answer.saturated for answer in answers])
        uses, bits = len(answers) * len(encoder.segments), self.settings.method.side_bits or 0
        return count_saturation(state, saturated, uses, bits, last)

    def catch_up(self, since: int | None) -> CatchUp | None:
        """Return what a device that has the weights of round `since` needs; None if it needs them all."""
        if self.settings.server.downlink == "full" or since is None:
            return None
        missed = self.round - since
        if not 0 <= missed <= len(self._moves):
            return None
        moves = list(self._moves)[len(self._moves) - missed :]
        return CatchUp(self.settings.server, self._unit, since, tuple(moves), digest(self.weights))

    def order(self, missed: CatchUp | None) -> RecordDict:
        """Return the order of a round with the steps that were `missed`, or else with the whole model."""
        settings, content = self.settings, RecordDict()
        if missed is None:
            content[ARRAYS] = self.layout.record(self.weights, self.buffers)
            if settings.server.downlink == "sign":  # devices make the next steps themselves
                missed = self.catch_up(self.round)
                optimizer = to_tensors(self.state.server.model)
                del optimizer["weights"]
                content[STEP] = to_record(optimizer)
        elif self.buffers:
            content[ARRAYS] = to_record(self.buffers)
        sends, exponents = self.core.aggregator.sends, self.encoder.exponents
        method, local = self.encoder.method, settings.device
        order = Order(self.round, settings.seed, method, sends, False, missed, exponents, local)
        content[RECORD] = order.record()
        return content

    def restore(self, state: DeployedState) -> None:
        """Go on from an earlier state; devices then need the whole model."""
        self.state = state
        self._moves.clear()
