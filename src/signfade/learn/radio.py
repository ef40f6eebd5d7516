"""What the server has to find out itself: gains from pilots, noise from signals, scalars from codewords.

With every switch of the cell at its default there is nothing to find out, and no `Radio`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from signfade.kernels import received as received_symbols
from signfade.keys import generator, stream_keys
from signfade.learn.cell import CellPlan
from signfade.learn.cost import channel_uses
from signfade.learn.encode import Encoder
from signfade.learn.received import Received
from signfade.learn.round import Uplink
from signfade.learn.side import CodedScalars
from signfade.learn.task import Devices
from signfade.uplink import Link, Refined, fit_levels, refine_gain, sound

__all__ = ["Radio", "make_radio"]

_CHUNK_NUMBERS = 1 << 22
_FITTED_SYMBOLS = 8192  # tell the noise to 2 %; the mean over rounds tells it better


def make_radio(plan: CellPlan, encoder: Encoder) -> Radio | None:
    """Return the radio of a run, or None where the server knows all and counts as the paper does."""
    cell = plan.settings
    switches = (cell.csi, cell.side_info, cell.access, cell.modulation)
    if encoder.method.aggregator == "ideal" or switches == ("perfect", "error_free", "orthogonal", "bpsk"):
        return None
    return Radio(plan, encoder)


class Radio:
    """Turns what arrives into what the server knows, round by round.

    Args:
        plan: The cell.
        encoder: The device's half of the method.

    Attributes:
        decoded: Whose scalars were decoded in the last round, `[K]`; None where they cannot be lost.
        record: What the last round adds to the metrics.
    """

    def __init__(self, plan: CellPlan, encoder: Encoder) -> None:
        self._plan, self._encoder = plan, encoder
        cell = plan.settings
        self._side: CodedScalars | None = None
        self.decoded: Tensor | None = None
        if cell.side_info == "coded" and encoder.sends_scalars:
            self._side = CodedScalars(cell, encoder, plan.devices, plan.seed)
        self._noise = torch.zeros(plan.devices, dtype=torch.float64)
        self._fits = torch.zeros(plan.devices, dtype=torch.int64)
        self._uses = 0
        self.record: dict[str, Any] = {}

    def hear(self, uplink: Uplink, round: int) -> Uplink:
        """Return the round as the server knows it.

        Args:
            uplink: With the true links and the scalars as sent.
            round: Round, counted from 0.
        """
        received, devices = uplink.received, uplink.devices
        if received is None:
            return uplink
        self._uses += channel_uses(self._encoder, self._plan.settings, len(devices))
        self.record = {"channel_uses": self._uses}
        if self._plan.settings.csi == "pilot":
            received = self._estimate_links(received, devices, round)
        if self._side is not None:
            known = received.link if received.refined is None else received.refined.link
            scalars = self._side.receive(received, known, devices, round)
            self.decoded = scalars.passed
            self.record["decoded"] = int(scalars.passed.sum())
            received = replace(received, layer_mean=scalars.mean, layer_scale=scalars.scale)
            if received.refined is not None:
                received = _resolved(received, received.refined, scalars.passed, scalars.turned)
            elif received.air is None:
                received = replace(received, air=received.link)
        return replace(uplink, received=received)

    def _estimate_links(self, received: Received, devices: Devices, round: int) -> Received:
        cell, plan = self._plan.settings, self._plan
        sigma2 = received.link.sigma2
        # A pilot has the power of a symbol, a bit its share of it: in units of a bit's, less noise.
        share = 0.5 if cell.modulation == "qpsk" else 1.0
        sounding = sound(
            cell.fading,
            plan.devices,
            share * sigma2,
            cell.pilots,
            generator(plan.seed, "fading", round),
            stream_keys(plan.seed, "pilots", round, devices),
            cell.rician_k,
            devices,
            _amplitude(received.link.h, plan.link(devices, round).h),
        )
        received = replace(received, air=Link(sounding.h, sigma2))
        power = None
        if cell.noise == "estimated" or cell.csi_error == "refined":
            power, noise = self._look(received, fit=cell.noise == "estimated")
            if noise is not None:
                sigma2 = self._smoothed(noise, torch.from_numpy(devices))
        estimate = sounding.estimate(share * sigma2)
        if cell.csi_error == "naive":
            return replace(received, link=Link(estimate.h, sigma2))
        if cell.csi_error == "aware" or power is None:
            return replace(received, link=estimate.aware(sigma2))
        refined = refine_gain(estimate, power, sigma2, received.size)
        return replace(received, link=refined.effective(), refined=refined)

    def _look(self, received: Received, fit: bool) -> tuple[Tensor, Tensor | None]:
        """Return each device's mean power and, fitted to its first symbols, its noise, `[K]` each."""
        air, size = received.true_link, received.size
        chunk = max(1, _CHUNK_NUMBERS // size)
        powers, noises = [], []
        for start in range(0, len(received), chunk):
            rows = slice(start, start + chunk)
            packed, keys = received.packed[rows], received.keys[rows]
            y = received_symbols(packed, size, air.h[rows], air.sigma2[rows], keys)
            powers.append(y.square().mean(dim=1, dtype=torch.float64))
            if fit:
                noises.append(fit_levels(y[:, :_FITTED_SYMBOLS])[1])
        return torch.cat(powers), torch.cat(noises) if fit else None

    def _smoothed(self, noise: Tensor, devices: Tensor) -> Tensor:
        """Return each device's noise averaged over the rounds it was heard in, this one included."""
        self._fits[devices] += 1
        self._noise[devices] += (noise - self._noise[devices]) / self._fits[devices]
        return self._noise[devices]

    def state(self) -> dict[str, Tensor]:
        """Return what must be saved."""
        side = {} if self._side is None else {f"side_{k}": v for k, v in self._side.state().items()}
        return {"noise": self._noise, "fits": self._fits, "uses": torch.tensor([self._uses]), **side}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        self._noise, self._fits = state["noise"].clone(), state["fits"].clone()
        self._uses = int(state["uses"][0])
        if self._side is not None:
            named = {k.removeprefix("side_"): v for k, v in state.items() if k.startswith("side_")}
            self._side.restore(named)


def _amplitude(heard: Tensor, drawn: Tensor) -> Tensor:
    """Return what devices multiply their symbols by: a gain as it is over the one that the cell has drawn."""
    return torch.where(drawn == 0, torch.ones_like(drawn), heard / drawn)


def _resolved(received: Received, refined: Refined, passed: Tensor, turned: Tensor) -> Received:
    """Return the round after words have told the signs of gains: a word that checks leaves no doubt."""
    h = torch.where(turned, -refined.link.h, refined.link.h)
    trust = torch.where(passed, torch.ones_like(refined.trust), refined.trust)
    known = Refined(Link(h, refined.link.sigma2), trust)
    return replace(received, link=known.effective(), refined=known)
