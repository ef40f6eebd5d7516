"""Evidence of who lies, from a round's received bits: turning with the model.

When the model moves by v, the gradient of a loss that curves upward moves along, `<g(w + v) - g(w), v> >= 0`,
and one with its signs flipped moves against, whatever data the device holds and whatever the others do. The
server compares what a device sends now with what it sent three rounds ago, along the way that the model has
gone since the round after: that way knows nothing of the noise in either.

Agreement with the sum of the others would be the simpler evidence. But where devices hold different classes,
honest gradients disagree, above all in the first rounds, and whole groups of honest devices look like liars.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.device import rotate, unpack_signs
from signfade.kernels import pack_above
from signfade.keys import stream_key
from signfade.learn.encode import Encoder
from signfade.learn.received import Received
from signfade.learn.task import Devices
from signfade.server import ReliabilityState, gather_evidence, initial_reliability, judge
from signfade.settings import VOTES
from signfade.uplink import error_probability

__all__ = ["Reliability"]

_LAG = 3  # rounds between the two gradients that are compared
_LEAST_GAIN = 1e-2  # of detection, 1 - 2*Pe: below it a device says nothing
_CHUNK_NUMBERS = 1 << 22  # signs unpacked at a time
_SAVED = ("weights", "devices", "packed", "scale", "gain")  # of a round that is kept


@dataclass(frozen=True)
class _Heard:
    """One round as the server keeps it: the weights it began with and the bits it detected.

    `scale` `[k, S]` is what a detected bit stands for, `gain` `[k]` how often it is right less how often
    wrong.
    """

    round: int
    weights: Tensor
    devices: Tensor
    packed: Tensor
    scale: Tensor
    gain: Tensor


class Reliability:
    """Learns from round to round whom to believe.

    Args:
        encoder: The device's half of the method.
        population: Number of devices N.
        seed: Seed of the run.

    Attributes:
        known: What has been learned; `known.trust` `[N]` are the reliabilities.
    """

    def __init__(self, encoder: Encoder, population: int, seed: int) -> None:
        self._encoder, self._seed = encoder, seed
        self.known: ReliabilityState = initial_reliability(population)
        self._past: list[_Heard] = []

    def observe(
        self, received: Received, devices: Devices, fresh: NDArray[np.bool_], weights: Tensor, round: int
    ) -> Tensor:
        """Learn from a round, and return the reliabilities of those heard, float64 `[K]`.

        Args:
            received: Signals, links and (bounded) scalars.
            devices: Who was heard, `[K]`.
            fresh: Whose gradient is at this round's weights, `[K]`; only theirs can be compared.
            weights: This round's weights, `[M]`.
            round: Round, counted from 0.
        """
        now = self._detect(received, devices, weights, round)
        if len(self._past) == _LAG and self._past[0].round == round - _LAG:
            self.known = self._turn(self._past[0], self._past[1].weights, now, fresh)
        self.known = judge(self.known)
        kept = torch.from_numpy(np.flatnonzero(fresh))
        bare = (now.devices[kept], now.packed[kept], now.scale[kept], now.gain[kept])
        self._past = [*self._past, _Heard(round, weights.clone(), *bare)][-_LAG:]
        return self.known.trust[now.devices]

    def _detect(self, received: Received, devices: Devices, weights: Tensor, round: int) -> _Heard:
        """Decide every bit, a few devices at a time."""
        packed = torch.empty_like(received.packed)
        side = torch.where(received.h < 0, -1.0, 1.0)
        step = max(1, _CHUNK_NUMBERS // received.size)
        zero = torch.zeros(step, 1)
        for start in range(0, len(received), step):
            rows = slice(start, start + step)
            y = received.signals(rows) * side[rows, None].to(torch.float32)
            packed[rows] = pack_above(y, zero[: len(y)])
        gain = 1 - 2 * error_probability(received.link.snr.double())
        votes = self._encoder.method.aggregator in VOTES  # votes send no scales: all bits stand for the same
        scale = torch.ones_like(received.layer_scale) if votes else received.layer_scale
        known = torch.from_numpy(devices)
        return _Heard(round, weights, known, packed, scale.double(), gain.clamp_min(_LEAST_GAIN))

    def _turn(self, then: _Heard, left: Tensor, now: _Heard, fresh: NDArray[np.bool_]) -> ReliabilityState:
        """`z = (<g_now, v> - <g_then, v>)/noise` with the gradients as their bits tell them."""
        way = now.weights - left
        both, rows_then, rows_now = np.intersect1d(
            then.devices.numpy(), now.devices.numpy()[fresh], return_indices=True
        )
        rows_now = np.flatnonzero(fresh)[rows_now]
        product = torch.zeros(len(both), dtype=torch.float64)
        power = torch.zeros_like(product)
        variance = torch.zeros_like(product)
        for sign, heard, rows in ((1.0, now, rows_now), (-1.0, then, rows_then)):
            turned = self._turned(way, heard.round)
            sizes = torch.stack([turned[part].double().square().sum() for part in self._parts])
            chosen = torch.from_numpy(rows)
            energy = heard.scale[chosen].square() @ sizes
            told = (heard.scale * self._products(heard, turned)).sum(dim=1)[chosen]
            product += sign * told / heard.gain[chosen]
            power += energy
            variance += energy / heard.gain[chosen].square()
        moved = power > 0
        z = product[moved] / power[moved].sqrt()
        who = torch.from_numpy(both)[moved]
        return gather_evidence(self.known, z, variance[moved] / power[moved], who)

    @property
    def _parts(self) -> list[slice]:
        ends = np.cumsum(self._encoder.segments)
        return [slice(int(end) - length, int(end)) for end, length in zip(ends, self._encoder.segments)]

    def _turned(self, way: Tensor, round: int) -> Tensor:
        """Return a way of the model as that round's devices see it: rotated as they were."""
        if self._encoder.method.rotation == "none":
            return way
        return rotate(way.unsqueeze(0), stream_key(self._seed, "rotation", round)).squeeze(0)

    def _products(self, heard: _Heard, direction: Tensor) -> Tensor:
        """Return the inner products of the detected bits with a direction, layer by layer, `[k, S]`."""
        result = torch.zeros(len(heard.packed), len(self._parts), dtype=torch.float64)
        wanted = direction.float()
        for rows, bits in _unpacked(heard, self._encoder.size):
            for layer, part in enumerate(self._parts):
                result[rows, layer] = torch.mv(bits[:, part], wanted[part]).double()
        return result

    def state(self) -> dict[str, Tensor]:
        """Return what must be saved."""
        known = {name: getattr(self.known, name) for name in ("trust", "total", "weight", "square")}
        saved = {"rounds": torch.tensor([heard.round for heard in self._past]), **known}
        for i, heard in enumerate(self._past):
            saved |= {f"{i}.{name}": getattr(heard, name) for name in _SAVED}
        return saved

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        self.known = ReliabilityState(
            **{name: state[name] for name in ("trust", "total", "weight", "square")}
        )
        self._past = [
            _Heard(int(t), *(state[f"{i}.{name}"] for name in _SAVED)) for i, t in enumerate(state["rounds"])
        ]


def _unpacked(heard: _Heard, size: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield (rows, bits `[k, size]`) of a bounded number of devices at a time."""
    step = max(1, _CHUNK_NUMBERS // size)
    for start in range(0, len(heard.packed), step):
        rows = slice(start, start + step)
        yield rows, unpack_signs(heard.packed[rows], size)
