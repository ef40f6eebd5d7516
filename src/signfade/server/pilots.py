"""Gains from pilots and noise from the signals: what the server has to find out about its links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from signfade.keys import generator, stream_keys
from signfade.server.received import Received
from signfade.uplink import Link, Radio, fit_levels, refine_gain, sound

__all__ = ["NoiseState", "PilotEstimation"]

_CHUNK_NUMBERS = 1 << 22
_FITTED_SYMBOLS = 8192  # give the noise to 2 %; the mean over rounds gives it better


@dataclass(frozen=True)
class NoiseState:
    """Each device's noise averaged over the rounds it was received in, and their number, `[N]`."""

    noise: Tensor
    rounds: Tensor


class PilotEstimation:
    """Stage: replaces the true links by what pilots and signals tell of them.

    Args:
        radio: The cell.
    """

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
            generator(radio.seed, "fading", t),
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
