"""What the server does with scalars that arrive as codewords, and with those that are lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from signfade.device import Encoder
from signfade.keys import stream_keys
from signfade.server.received import Received
from signfade.settings import CellSettings
from signfade.uplink import Link, Refined, send_coded
from signfade.uplink.code import bits_to_scalars, codeword, scalars_to_bits

__all__ = ["CodedScalars", "ScalarMemory"]

_LEAST_SCALE = 1e-30  # its logarithm stands for that of zero


@dataclass(frozen=True)
class ScalarMemory:
    """The scalars of every device decoded last, `[N, S]`, and in which round, `[N]`; -1 is never."""

    mean: Tensor
    scale: Tensor
    decoded_at: Tensor


class CodedScalars:
    """Stage: one polar codeword per device and round carries means and scales.

    A lost word leaves the server with the device's last scalars of age t. Their weight is `decay**t`: the
    scale is drawn, in its logarithm, towards the mean of those decoded in this round, the mean towards
    zero. A device that was never decoded has the others' scale. With `outage = "drop"` scalars that are
    lost are zero.

    Args:
        cell: Section `cell` of the configuration.
        encoder: The device's half of the method.
        population: Number of devices in the cell.
        seed: Seed of the run.

    Raises:
        ValueError: The code cannot carry so many bits.
    """

    name = "coded_scalars"

    def __init__(self, cell: CellSettings, encoder: Encoder, population: int, seed: int) -> None:
        self._cell, self._layers, self._population, self._seed = cell, len(encoder.segments), population, seed
        self._codes = {encoder.scalar_bits: codeword(encoder, cell)}  # refuses scalars that do not fit

    def init(self) -> ScalarMemory:
        """Return the memory that has decoded nothing."""
        never = torch.full((self._population,), -1, dtype=torch.int64)
        zero = torch.zeros(self._population, self._layers)
        return ScalarMemory(zero, zero.clone(), never)

    def apply(self, state: ScalarMemory, received: Received) -> tuple[ScalarMemory, Received, dict[str, Any]]:
        """Send the scalars of a round over the air and return what the server has of them."""
        encoder, known, air = received.encoder, received.device_link, received.signals.link
        keys = stream_keys(self._seed, "side noise", received.round, received.devices)
        if encoder.scalar_bits not in self._codes:
            self._codes[encoder.scalar_bits] = codeword(encoder, self._cell)
        code = self._codes[encoder.scalar_bits]
        bits = scalars_to_bits(encoder, received.layer_mean, received.layer_scale)
        words, passed = send_coded(bits, code, air.h, air.sigma2, keys, (known.h, known.sigma2))
        turned = torch.zeros_like(passed)
        if received.link is not air and not bool(passed.all()):  # the sign of a gain may be wrong
            lost = (~passed).nonzero().squeeze(1)
            link, opposite = (air.h[lost], air.sigma2[lost]), (-known.h[lost], known.sigma2[lost])
            again = send_coded(bits[lost], code, *link, keys[lost.numpy()], opposite)
            words[lost[again.passed]] = again.bits[again.passed]
            turned[lost[again.passed]] = True
            passed = passed | turned
        mean, scale, sane = bits_to_scalars(encoder, words)
        passed, turned = passed & sane, turned & sane
        state = _remember(state, mean, scale, passed, received)
        mean, scale = self._fill(state, mean, scale, passed, received)
        received = received.but(layer_mean=mean, layer_scale=scale, decoded=passed)
        if received.refined is not None:
            received = _resolved(received, received.refined, passed, turned)
        return state, received, {"decoded": int(passed.sum())}

    def _fill(
        self, state: ScalarMemory, mean: Tensor, scale: Tensor, arrived: Tensor, received: Received
    ) -> tuple[Tensor, Tensor]:
        """Stand in for what was not decoded."""
        devices, some = torch.from_numpy(received.devices), bool(arrived.any())
        last_mean, last_scale = torch.zeros_like(mean), torch.zeros_like(scale)
        if self._cell.outage == "last":
            decoded_at = state.decoded_at[devices]
            age = (received.round - decoded_at).double()
            weight = torch.where(decoded_at < 0, 0.0, self._cell.outage_decay**age)[:, None]
            logs = state.scale[devices].double().clamp_min(_LEAST_SCALE).log()
            common = logs[arrived].mean(dim=0) if some else logs
            drawn = (weight * logs + (1 - weight) * common).exp()
            ever = decoded_at[:, None] >= 0
            last_scale = torch.where(ever | some, drawn, torch.zeros_like(drawn)).to(scale)
            last_mean = (weight * state.mean[devices]).to(mean)
        here = arrived[:, None]
        return torch.where(here, mean, last_mean), torch.where(here, scale, last_scale)


def _remember(
    state: ScalarMemory, mean: Tensor, scale: Tensor, arrived: Tensor, received: Received
) -> ScalarMemory:
    who = torch.from_numpy(received.devices)[arrived]
    means, scales, decoded_at = state.mean.clone(), state.scale.clone(), state.decoded_at.clone()
    means[who], scales[who], decoded_at[who] = mean[arrived], scale[arrived], received.round
    return ScalarMemory(means, scales, decoded_at)


def _resolved(received: Received, refined: Refined, passed: Tensor, turned: Tensor) -> Received:
    """Return the round after codewords have settled the signs of gains: a decoded word leaves no doubt."""
    h = torch.where(turned, -refined.link.h, refined.link.h)
    trust = torch.where(passed, torch.ones_like(refined.trust), refined.trust)
    known = Refined(Link(h, refined.link.sigma2), trust)
    return received.but(link=known.effective(), refined=known)
