"""The server's half of a deployment: `signfade.server.Server`, fed with the replies of real devices.

It does not know Flower: answers come in, the model steps, and what devices need for the next round goes out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.device import EXACT_BITS, Encoder, decode_packets, pack_signs, sign
from signfade.device.scale_range import SaturationState, count_saturation
from signfade.integrations.flower.bounds import bounded_gradients, bounded_losses, bounded_samples
from signfade.integrations.flower.layout import Buffers, Start
from signfade.integrations.flower.options import refuse_simulated
from signfade.integrations.flower.wire import Answer, CatchUp, digest
from signfade.server import Devices, Server, ServerMemory
from signfade.server.update import FULL_PRECISION_BITS
from signfade.settings import RunSettings
from signfade.simulation.metrics import LossState, watch_loss
from signfade.simulation.run import RunFailed
from signfade.simulation.task import merge_buffers, one_thread
from signfade.state import to_tensors

__all__ = ["DeployedServer", "DeployedState", "RoundSummary"]


@dataclass(frozen=True)
class DeployedState:
    """Everything that the server of a deployment remembers between rounds, by the simulator's names.

    Attributes:
        server: The model and what the server core remembers.
        task: The model's buffers, in the order of the layout.
        samples: The number of samples that each device reported first, `[N]`; 0 before it did.
        loss: What the loss monitor remembers.
        saturation: How often the scalars' quantisers saturated.
    """

    server: ServerMemory
    task: tuple[Tensor, ...]
    samples: NDArray[np.int64]
    loss: LossState = field(default_factory=LossState)
    saturation: SaturationState = field(default_factory=SaturationState)


@dataclass(frozen=True)
class RoundSummary:
    """The devices' mean loss, the metrics of the server core, and warnings for people."""

    loss: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class DeployedServer:
    """The server's half of a run over real devices.

    With a cell in the settings the devices' bits pass through its simulated radio, with the simulator's keys;
    with `cell.perfect` they arrive as they were sent. Either way a round gives the simulator's numbers.

    Args:
        settings: All of the run; `data.devices` is the number of devices in the cell.
        start: The model.
        most_samples: What a device's number of samples counts for at most, in medians of the devices'.

    Attributes:
        state: What changes from round to round.

    Raises:
        ValueError: Settings that only a simulation can follow.
    """

    def __init__(self, settings: RunSettings, start: Start, most_samples: float = 4.0) -> None:
        refuse_simulated(settings)
        if not most_samples >= 1:
            raise ValueError(f"most_samples must be 1 or more, times the median; got {most_samples}")
        self.settings, self.layout = settings, start.layout
        self._unit, self._most_samples = start.step_unit, most_samples
        population = settings.data.devices
        buffer_bits = EXACT_BITS * sum(buffer.numel() for buffer in start.buffers.values())
        self._server = Server(settings, start.layout.segments, population, start.step_unit, buffer_bits)
        memory = self._server.init(start.weights)
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
        return self._server.encoder(self.state.server)

    @property
    def sends(self) -> str:
        """What devices send, as in the registry of aggregators."""
        return self._server.aggregator.sends

    def aggregate(self, answers: Sequence[Answer]) -> RoundSummary:
        """Step along what the devices sent, and end the round; without answers there is no step.

        Args:
            answers: Of the round, in ascending order of the devices, each at most once.

        Raises:
            RunFailed: The model has diverged, or a user's rule returned nonsense.
        """
        memory = self.state.server
        devices = np.array([answer.device for answer in answers], dtype=np.int64)
        if (np.diff(devices) <= 0).any():
            raise ValueError(f"answers must be sorted by device, one each; got devices {devices.tolist()}")
        if not answers:
            self._moves.append(b"")
            self.state = replace(self.state, server=replace(memory, round=memory.round + 1))
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
        alpha = torch.from_numpy(shares).float() if by_share else torch.ones(len(devices))
        after, estimate, metrics = self._estimate(answers, devices, alpha)
        after = self._server.step(after, estimate, len(answers), before)
        buffers = state.task
        if buffers:
            names = self.layout.buffers
            buffers = tuple(merge_buffers([[answer.buffers[name] for name in names] for answer in answers]))
        losses = bounded_losses(np.array([answer.loss for answer in answers]))
        loss = float(torch.from_numpy(losses) @ torch.from_numpy(shares))
        monitor, warning = watch_loss(state.loss, loss, after.round)
        saturation, warnings = self._saturation(answers, last=after.round >= settings.rounds)
        by_sign = settings.server.downlink == "sign" and bool(estimate.any())
        self._moves.append(pack_signs(sign(estimate)).numpy().tobytes() if by_sign else b"")
        self.state = DeployedState(after, buffers, samples, monitor, saturation)
        return RoundSummary(loss, metrics, tuple(([] if warning is None else [warning]) + warnings))

    def _estimate(
        self, answers: Sequence[Answer], devices: Devices, alpha: Tensor
    ) -> tuple[ServerMemory, Tensor, dict[str, Any]]:
        """Estimate the weighted sum of the gradients, from packets or from gradients in full."""
        memory = self.state.server
        if not self._server.sends_bits:
            gradients = [answer.gradient for answer in answers if answer.gradient is not None]
            return memory, torch.mv(torch.stack(bounded_gradients(gradients)).T, alpha), {}
        packets = [answer.packet for answer in answers if answer.packet is not None]
        message = decode_packets(self.encoder, packets)
        received = self._server.transmit(memory, message, devices, alpha)
        memory, estimate, metrics = self._server.aggregate(memory, received)
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
        """Return what a device that has the weights of round `since` needs; None if it needs them all.

        Args:
            since: Counted from 0; None for a device that has no weights.
        """
        if self.settings.server.downlink == "full" or since is None:
            return None
        missed = self.round - since
        if not 0 <= missed <= len(self._moves):
            return None
        moves = list(self._moves)[len(self._moves) - missed :]
        return CatchUp(self.settings.server, self._unit, since, tuple(moves), digest(self.weights))

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return what a device needs besides the weights to make the server's steps itself from here on."""
        return {
            name: value for name, value in to_tensors(self.state.server.model).items() if name != "weights"
        }

    def restore(self, state: DeployedState) -> None:
        """Go on from an earlier state; devices then need the whole model."""
        self.state = state
        self._moves.clear()
