"""The base station of a deployment: from the answers of a round to the next model.

It knows nothing of Flower: answers come in, the model steps, and what a device must be told goes out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from signfade.device import pack_signs, sign
from signfade.device.encoder import EXACT_BITS, Encoder
from signfade.device.packets import decode_packets
from signfade.device.scale_range import SaturationWatch
from signfade.integrations.flower.bounds import SampleCounts, bounded_gradients, bounded_losses
from signfade.integrations.flower.layout import Buffers, Start
from signfade.integrations.flower.wire import Answer, Known, digest
from signfade.keys import stream_keys
from signfade.server.optimizer import make_step
from signfade.server.received import Received
from signfade.server.update import FULL_PRECISION_BITS
from signfade.settings import RunSettings
from signfade.simulation.availability import Uplink
from signfade.simulation.buffers import merge_buffers
from signfade.simulation.classify import one_thread
from signfade.simulation.conduct import conduct_switches
from signfade.simulation.defence import make_defence
from signfade.simulation.estimate import Estimator, rule_of
from signfade.simulation.loss_monitor import LossWatch
from signfade.simulation.run import RunFailed, snr_quantiles
from signfade.uplink.cost import UplinkBits, uplink_bits
from signfade.uplink.radio import make_radio

__all__ = ["BaseStation", "Heard"]


@dataclass(frozen=True)
class Heard:
    """What a round was like: the mean loss and the SNRs of those heard, and a warning for people."""

    loss: float | None
    snr_db: list[float] | None
    warning: str | None


def _check_possible(settings: RunSettings) -> None:
    """Raise for settings that only a simulation can follow."""
    if settings.method.correlation == "genie":
        raise ValueError('method.correlation must be "learned" on real devices: no genie is there')
    for name, value in conduct_switches(settings).items():
        if value > 0:
            raise ValueError(f"{name} must be 0 on real devices: it is simulated only; got {value:g}")
    if settings.attack.kind != "none":
        raise ValueError(f'attack.kind must be "none" on real devices; got "{settings.attack.kind}"')


class BaseStation:
    """The server's half of a run over real devices.

    With a cell in the settings the devices' bits pass through its simulated radio, keyed as the simulator's;
    with `cell.perfect` they arrive as they were sent. Either way a round gives the simulator's numbers.

    Args:
        settings: All of the run; `data.devices` is the number of devices K in the cell.
        start: The model.
        most_samples: What a device's number of samples counts for at most, in medians of the devices'.

    Attributes:
        round: Number of rounds done.
        encoder: The device's half of the method.
        buffers: The model's other state.
        sent: What the devices' answers so far count for, item by item.

    Raises:
        ValueError: Settings that only a simulation can follow.
    """

    def __init__(self, settings: RunSettings, start: Start, most_samples: float = 4.0) -> None:
        _check_possible(settings)
        self.settings = settings
        self.round = 0
        self.layout = start.layout
        self.encoder = Encoder(settings.method, start.layout.segments)
        self.buffers: Buffers = dict(start.buffers)
        self._unit = start.step_unit
        population = settings.data.devices
        self._cell = make_radio(settings.cell, population, settings.seed)
        rule = rule_of(settings.method, settings.defence.assumed)
        defence = make_defence(settings, self.encoder, population)
        self._estimate = Estimator(rule, self.encoder, population, settings.seed, self._cell, defence)
        self._step = make_step(settings.server, start.weights, start.step_unit)
        self._watch = LossWatch()
        self._saturation = SaturationWatch(settings.method.side_bits or 0)
        self.sent = UplinkBits()
        self._samples = SampleCounts(population, most_samples)
        # Signs a weight that are still cheaper than the weight itself.
        self._moves: deque[bytes] = deque(maxlen=FULL_PRECISION_BITS - 1)

    @property
    def weights(self) -> Tensor:
        """The current model, `[M]`."""
        return self._step.weights

    def take(self, answers: Sequence[Answer]) -> Heard:
        """Step along what the devices say, and end the round; nobody's word makes no step.

        Args:
            answers: Of the round, in ascending order of the devices, each at most once.

        Raises:
            RunFailed: The model has diverged, or a rule of your own returned nonsense.
        """
        devices = np.array([answer.device for answer in answers], dtype=np.int64)
        if (np.diff(devices) <= 0).any():
            raise ValueError(f"answers must be sorted by device, one each; got devices {devices.tolist()}")
        heard = Heard(None, None, None)
        move = b""
        if answers:
            with one_thread():
                heard, move = self._advance(answers, devices)
        self._moves.append(move)
        self.round += 1
        return heard

    def _advance(self, answers: Sequence[Answer], devices: np.ndarray) -> tuple[Heard, bytes]:
        said = np.array([answer.examples for answer in answers], dtype=np.int64)
        counts = self._samples.weights(devices, said)
        shares = counts / counts.sum()
        shares /= shares.sum()  # as the simulator does
        uplink = self._uplink(answers, devices, shares)
        buffers = EXACT_BITS * sum(buffer.numel() for buffer in self.buffers.values())
        self.sent += uplink_bits(self.encoder, self.settings.cell, buffers).times(len(answers))
        try:
            estimate, _ = self._estimate(uplink, self.round)
            self._step.apply(estimate, self.round)
        except ValueError as error:
            raise RunFailed(f"round {self.round + 1}: {error}") from error
        if self.buffers:
            merged = merge_buffers([[answer.buffers[name] for name in self.buffers] for answer in answers])
            self.buffers = dict(zip(self.buffers, merged))
        warnings = [self._watch.look(uplink.loss, self.round + 1), *self._saturated(answers)]
        warning = "; ".join(text for text in warnings if text is not None) or None
        by_sign = self.settings.server.downlink == "sign" and bool(estimate.any())
        move = pack_signs(sign(estimate)).numpy().tobytes() if by_sign else b""
        return Heard(uplink.loss, snr_quantiles(uplink, self._cell), warning), move

    def _saturated(self, answers: Sequence[Answer]) -> list[str]:
        """Return warnings about quantisers that saturate."""
        if not self.encoder.quantised:
            return []
        counts = torch.tensor([answer.saturated for answer in answers])
        uses = len(answers) * len(self.encoder.segments)
        return self._saturation.look(counts, uses, self.round + 1 >= self.settings.rounds)

    def _uplink(self, answers: Sequence[Answer], devices: np.ndarray, shares: np.ndarray) -> Uplink:
        """Let the bits pass through the air."""
        by_share = self.settings.method.weights == "share"
        alpha = torch.from_numpy(shares).float() if by_share else torch.ones(len(devices))
        losses = bounded_losses(np.array([answer.loss for answer in answers]))
        loss = float(torch.from_numpy(losses) @ torch.from_numpy(shares))
        gradients = [answer.gradient for answer in answers if answer.gradient is not None]
        if gradients:
            truth = torch.mv(torch.stack(bounded_gradients(gradients)).T, alpha)
            return Uplink(devices, None, None, truth, None, loss)
        sent = decode_packets(
            self.encoder, [answer.packet for answer in answers if answer.packet is not None]
        )
        received = Received(
            sent.packed,
            self.encoder.size,
            self._cell.link(devices, self.round),
            sent.mean,
            sent.scale,
            self.encoder.segments,
            alpha,
            stream_keys(self.settings.seed, "noise", self.round, devices),
        )
        return Uplink(devices, received, None, torch.zeros(0), None, loss, self.weights)

    def catch_up(self, since: int | None) -> Known | None:
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
        return Known(self.settings.server, self._unit, since, tuple(moves), digest(self.weights))

    def everything(self) -> tuple[Known | None, dict[str, Tensor]]:
        """Return what a device needs besides the model to make the server's steps itself from here on."""
        if self.settings.server.downlink == "full":
            return None, {}
        rest = {name: value for name, value in self._step.state().items() if name != "weights"}
        return Known(self.settings.server, self._unit, self.round, (), digest(self.weights)), rest

    def state(self) -> dict[str, Tensor]:
        """Return everything that a continued run needs, by the simulator's names."""
        parts = {"step": self._step.state(), "task": self.buffers, "watch": self._watch.state()}
        parts |= {name: part.state() for name, part in self._estimate.parts().items()}
        if self.encoder.quantised:
            parts["saturation"] = self._saturation.state()
        parts["samples"] = {"counts": self._samples.state()}
        return {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}

    def restore(self, tensors: dict[str, Tensor], round: int) -> None:
        """Go on from what `state` returned after `round` rounds; devices then need the whole model."""

        def part(prefix: str) -> dict[str, Tensor]:
            found = (name for name in tensors if name.startswith(f"{prefix}."))
            return {name.removeprefix(f"{prefix}."): tensors[name] for name in found}

        self._step.restore(part("step"))
        self.buffers = {name: part("task")[name] for name in self.buffers}
        self._watch.restore(part("watch"))
        self._samples.restore(tensors["samples.counts"])
        for name, keeper in self._estimate.parts().items():
            keeper.restore(part(name))
        if self.encoder.quantised:
            self._saturation.restore(part("saturation"))
        self._moves.clear()
        self.round = round
