"""Which devices to trust, learned from the received bits: an honest gradient turns with the model.

When the model moves by v, the gradient of a loss that curves upward moves along, `<g(w + v) - g(w), v> >= 0`,
and one with its signs flipped moves against, whatever data the device holds and whatever the others do. The
server compares what a device sends now with what it sent three rounds ago, along the way that the model has
gone since the round after: that way knows nothing of the noise in either. Agreement with the sum of the
others would be simpler, but where devices hold different classes, honest gradients disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.device import Bits, Encoder, one_bit
from signfade.keys import stream_key
from signfade.server.received import Received
from signfade.server.reliability import ReliabilityState, gather_evidence, initial_reliability, update_trust
from signfade.uplink import error_probability

__all__ = ["Reliability", "ReliabilityMemory"]

_LAG = 3  # rounds between the two gradients that are compared
_LEAST_GAIN = 1e-2  # of detection, 1 - 2*Pe: below it a device says nothing
_CHUNK_NUMBERS = 1 << 22  # signs unpacked at a time


@dataclass(frozen=True)
class _Past:
    """One round as the server keeps it: the weights it began with and the bits it detected."""

    round: int
    weights: Tensor  # `[M]`
    devices: Tensor  # `[k]`
    packed: Tensor  # detected bits, `[k, bytes]`
    scale: Tensor  # what a detected bit stands for, `[k, S]`
    gain: Tensor  # how often it is right less how often it is wrong, `[k]`


@dataclass(frozen=True)
class ReliabilityMemory:
    """What has been learned of the devices, and the last rounds by number."""

    known: ReliabilityState
    past: dict[str, Tensor]


class Reliability:
    """Stage: learns from round to round whom to trust, and weighs the devices by it."""

    name = "reliability"

    def __init__(self, encoder: Encoder, population: int, seed: int) -> None:
        self._encoder, self._population, self._seed = encoder, population, seed

    def init(self) -> ReliabilityMemory:
        """Return the memory that trusts everybody."""
        return ReliabilityMemory(initial_reliability(self._population), {})

    def apply(
        self, state: ReliabilityMemory, received: Received
    ) -> tuple[ReliabilityMemory, Received, dict[str, Any]]:
        """Learn from a round, and weigh its devices; only gradients at the round's own weights compare."""
        past = _unflatten(state.past)
        now = self._detect(received)
        known = state.known
        if len(past) == _LAG and past[0].round == received.round - _LAG:
            known = self._turn(known, past[0], past[1].weights, now, received.fresh)
        known = update_trust(known)
        kept = torch.from_numpy(np.flatnonzero(received.fresh))
        bare = (now.devices[kept], now.packed[kept], now.scale[kept], now.gain[kept])
        past = [*past, _Past(received.round, received.model.clone(), *bare)][-_LAG:]
        trust = known.trust[now.devices]
        weights = (received.weights.double() * trust).to(received.weights)
        places = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
        spread = [round(float(x), 4) for x in torch.quantile(known.trust, places)]
        received = received.but(trust=trust, weights=weights, altered=True)
        return ReliabilityMemory(known, _flatten(past)), received, {"reliability": spread}

    def _detect(self, received: Received) -> _Past:
        """Decide every bit, a few devices at a time."""
        packed = torch.empty_like(received.signals.bits.packed)
        side = torch.where(received.h < 0, -1.0, 1.0)
        step = max(1, _CHUNK_NUMBERS // received.size)
        zero = torch.zeros(step)
        for start in range(0, len(received), step):
            rows = slice(start, start + step)
            y = received.signals.rows(rows) * side[rows, None].to(torch.float32)
            packed[rows] = one_bit(y, zero[: len(y)]).packed
        gain = (1 - 2 * error_probability(received.link.snr.double())).clamp_min(_LEAST_GAIN)
        scale = received.layer_scale
        if not self._encoder.sends_scalars:  # all bits stand for the same
            scale = torch.ones_like(scale)
        who = torch.from_numpy(received.devices)
        return _Past(received.round, received.model, who, packed, scale.double(), gain)

    def _turn(
        self, known: ReliabilityState, then: _Past, left: Tensor, now: _Past, fresh: NDArray[np.bool_]
    ) -> ReliabilityState:
        """`z = (<g_now, v> - <g_then, v>)/noise` with the gradients as their bits tell them."""
        way = now.weights - left
        both, rows_then, rows_now = np.intersect1d(
            then.devices.numpy(), now.devices.numpy()[fresh], return_indices=True
        )
        rows_now = np.flatnonzero(fresh)[rows_now]
        product = torch.zeros(len(both), dtype=torch.float64)
        power = torch.zeros_like(product)
        variance = torch.zeros_like(product)
        for sign, past, rows in ((1.0, now, rows_now), (-1.0, then, rows_then)):
            turned = self._turned(way, past.round)
            sizes = torch.stack([turned[part].double().square().sum() for part in self._parts])
            chosen = torch.from_numpy(rows)
            energy = past.scale[chosen].square() @ sizes
            seen = (past.scale * self._products(past, turned)).sum(dim=1)[chosen]
            product += sign * seen / past.gain[chosen]
            power += energy
            variance += energy / past.gain[chosen].square()
        moved = power > 0
        z = product[moved] / power[moved].sqrt()
        who = torch.from_numpy(both)[moved]
        return gather_evidence(known, z, variance[moved] / power[moved], who)

    @property
    def _parts(self) -> list[slice]:
        ends = np.cumsum(self._encoder.segments)
        return [slice(int(end) - length, int(end)) for end, length in zip(ends, self._encoder.segments)]

    def _turned(self, way: Tensor, round: int) -> Tensor:
        """Return a way of the model as that round's devices see it: rotated as they were."""
        key = np.array([stream_key(self._seed, "rotation", round)], dtype=np.uint64)
        return self._encoder.select(self._encoder.rotate(way.unsqueeze(0), key), key).squeeze(0)

    def _products(self, past: _Past, direction: Tensor) -> Tensor:
        """Return the inner products of the detected bits with a direction, layer by layer, `[k, S]`."""
        size, parts, wanted = self._encoder.size, self._parts, direction.float()
        result = torch.zeros(len(past.packed), len(parts), dtype=torch.float64)
        step = max(1, _CHUNK_NUMBERS // size)
        for start in range(0, len(past.packed), step):
            rows = slice(start, start + step)
            bits = Bits(past.packed[rows], size).signs()
            for layer, part in enumerate(parts):
                result[rows, layer] = torch.mv(bits[:, part], wanted[part]).double()
        return result


def _flatten(past: list[_Past]) -> dict[str, Tensor]:
    """Turn the rounds that are kept into named tensors; how many there are changes in the first rounds."""
    named = {f"{i}_{key}": value for i, one in enumerate(past) for key, value in vars(one).items()}
    return {name: torch.as_tensor(value) for name, value in named.items()}


def _unflatten(named: dict[str, Tensor]) -> list[_Past]:
    count = sum(name.endswith("_round") for name in named)
    keys = ("weights", "devices", "packed", "scale", "gain")
    return [_Past(int(named[f"{i}_round"]), *(named[f"{i}_{key}"] for key in keys)) for i in range(count)]
