"""Stages between reception and aggregation: pilots, coded scalars, the quantiser's range, bounds on scalars.

Each has a memory of its own: `init` makes it, `apply` returns it renewed, with what is passed on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from signfade.device import Encoder
from signfade.device.scale_range import RangeState, follow_scales
from signfade.keys import stream_keys
from signfade.server.received import Received
from signfade.server.robust import ScalarState, bound_scalars, initial_scalars
from signfade.settings import CellSettings
from signfade.uplink import Link, Radio, Refined, fit_levels, refine_gain, send_coded, sound
from signfade.uplink.code import bits_to_scalars, codeword, scalars_to_bits

__all__ = ["BoundScalars", "CodedScalars", "FollowScales", "PilotEstimation"]

_CHUNK_NUMBERS = 1 << 22
_FITTED_SYMBOLS = 8192  # give the noise to 2 %; the mean over rounds gives it better
_LEAST_SCALE = 1e-30  # its logarithm stands for that of zero


@dataclass(frozen=True)
class NoiseState:
    """Each device's noise averaged over the rounds it was received in, and their number, `[N]`."""

    noise: Tensor
    rounds: Tensor


class PilotEstimation:
    """Replaces the true links by what pilots and signals tell of them."""

    name = "pilots"

    def __init__(self, radio: Radio) -> None:
        self._radio = radio

    def init(self) -> NoiseState:
        """Return the state that has received nothing."""
        devices = self._radio.devices
        return NoiseState(torch.zeros(devices, dtype=torch.float64), torch.zeros(devices, dtype=torch.int64))

    def apply(self, state: NoiseState, received: Received) -> tuple[NoiseState, Received, dict[str, Any]]:
        """Return the round with links as the server knows them."""
        cell, radio = self._radio.settings, self._radio
        air, devices, t = received.signals.link, received.devices, received.round
        # A pilot has the power of a symbol, a bit its share of it: in units of a bit's, less noise.
        share = 0.5 if cell.modulation == "qpsk" else 1.0
        drawn = radio.link(devices, t).h
        # What devices multiply their symbols by: a gain as it is over the one that the cell has drawn.
        amplitude = torch.where(drawn == 0, torch.ones_like(drawn), air.h / drawn)
        sounding = sound(
            cell.fading,
            radio.devices,
            share * air.sigma2,
            cell.pilots,
            radio.normals(t),
            stream_keys(radio.seed, "pilots", t, devices),
            cell.rician_k,
            devices,
            amplitude,
        )
        # The phase that the receiver misses is part of the gain over which the signs arrive.
        received = received.but(signals=replace(received.signals, link=Link(sounding.h, air.sigma2)))
        sigma2, power = air.sigma2, None
        if cell.noise == "estimated" or cell.csi_error == "refined":
            power, noise = _measure(received, fit=cell.noise == "estimated")
            if noise is not None:
                state = _averaged(state, noise, torch.from_numpy(devices))
                sigma2 = state.noise[devices]
        estimate = sounding.estimate(share * sigma2)
        if cell.csi_error == "naive":
            return state, received.but(link=Link(estimate.h, sigma2)), {}
        if cell.csi_error == "aware" or power is None:
            return state, received.but(link=estimate.aware(sigma2)), {}
        refined = refine_gain(estimate, power, sigma2, received.size)
        return state, received.but(link=refined.effective(), refined=refined), {}


def _measure(received: Received, fit: bool) -> tuple[Tensor, Tensor | None]:
    """Return each device's mean power and, fitted to its first symbols, its noise, `[K]` each."""
    chunk = max(1, _CHUNK_NUMBERS // received.size)
    powers, noises = [], []
    for start in range(0, len(received), chunk):
        y = received.signals.rows(slice(start, start + chunk))
        powers.append(y.square().mean(dim=1, dtype=torch.float64))
        if fit:
            noises.append(fit_levels(y[:, :_FITTED_SYMBOLS])[1])
    return torch.cat(powers), torch.cat(noises) if fit else None


def _averaged(state: NoiseState, noise: Tensor, devices: Tensor) -> NoiseState:
    rounds, mean = state.rounds.clone(), state.noise.clone()
    rounds[devices] += 1
    mean[devices] += (noise - mean[devices]) / rounds[devices]
    return NoiseState(mean, rounds)


@dataclass(frozen=True)
class ScalarMemory:
    """The scalars of every device decoded last, `[N, S]`, and in which round, `[N]`; -1 is never."""

    mean: Tensor
    scale: Tensor
    decoded_at: Tensor


class CodedScalars:
    """One polar codeword per device and round carries means and scales.

    A lost word leaves the server with the device's last scalars of age t. Their weight is `decay**t`: the
    scale is drawn, in its logarithm, towards the mean of those decoded in this round, the mean towards
    zero. A device that was never decoded has the others' scale. With `outage = "drop"` scalars that are
    lost are zero.
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


class FollowScales:
    """Moves the range of the scale quantiser for the next round to the scales decoded in this one."""

    name = "scale_range"

    def init(self) -> RangeState:
        """Return the range before anything was decoded."""
        return RangeState()

    def apply(self, state: RangeState, received: Received) -> tuple[RangeState, Received, dict[str, Any]]:
        """Take the scales of a round into account; those of lost codewords do not count."""
        scale = received.layer_scale
        seen = scale if received.decoded is None else scale[received.decoded]
        return follow_scales(state, seen), received, {}


class BoundScalars:
    """Replaces means and scales that the other devices do not make plausible."""

    name = "bounds"

    def __init__(self, encoder: Encoder, population: int) -> None:
        self._layers, self._population = len(encoder.segments), population

    def init(self) -> ScalarState:
        """Return the state that has received nothing."""
        return initial_scalars(self._population, self._layers)

    def apply(self, state: ScalarState, received: Received) -> tuple[ScalarState, Received, dict[str, Any]]:
        """Bound the scalars of a round."""
        steps: dict[str, Any] = {}
        if received.encoder.quantised:
            code = received.encoder.scalar_code
            steps = {"mean_step": code.mean_step, "scale_step": code.scales.bound**2}
        sent, who = (received.layer_mean, received.layer_scale), torch.from_numpy(received.devices)
        mean, scale, state = bound_scalars(state, *sent, who, **steps)
        altered = not (torch.equal(mean, sent[0]) and torch.equal(scale, sent[1]))
        received = received.but(layer_mean=mean, layer_scale=scale, altered=received.altered or altered)
        return state, received, {}
