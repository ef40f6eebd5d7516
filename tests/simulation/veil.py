"""Noise in place of everything that only a simulation knows.

A simulated server is handed objects that also carry the truth: `Truth` itself, and in the signals the bits
that were sent, the links they passed and the keys of the noise. `Veil` replaces all of these by noise. Only
the physics works with the true values: what makes symbols, pilots and codewords out of bits, links and noise.
Whatever else reads a veiled value gets noise, and its results change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from signfade.device import Amplitudes, Bits, Message, Priors
from signfade.kernels import fused_sum
from signfade.server import Received, Server, Truth, _sum, stages, superposition
from signfade.simulation import round as round_module
from signfade.uplink import Link, Radio, Signals, send_coded, sound
from signfade.uplink.code import scalars_to_bits

__all__ = ["Veil", "use_symbols"]


def use_symbols(patch: pytest.MonkeyPatch) -> None:
    """Let rules work on symbols: the fused kernel is given bits and links, which only physics may see."""
    patch.setattr(_sum, "is_compiled", lambda *tensors: False)


@dataclass(frozen=True)
class _Veiled(Signals):
    """Signals with noise for bits, link and keys, and the symbols as they are received."""

    symbols: Callable[[slice], Tensor] = lambda rows: torch.zeros(0)

    def rows(self, rows: slice) -> Tensor:
        return self.symbols(rows)


class Veil:
    """Hides the truth of a run from its server, from the moment its devices have sent.

    Args:
        patch: To put the veil in place.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._random = np.random.default_rng(99)
        self._sent: Received
        self._open = True
        patch.setattr(round_module, "Truth", self._truth)
        patch.setattr(Server, "transmit", self._transmitting(Server.transmit))
        patch.setattr(Server, "step", self._stepping(Server.step))
        patch.setattr(Radio, "link", self._linking(Radio.link))
        patch.setattr(Received, "trial_stream", self._trying(Received.trial_stream))
        patch.setattr(stages, "sound", self._sound)
        patch.setattr(stages, "send_coded", self._send_coded)
        patch.setattr(superposition, "fused_sum", self._add_in_the_air)

    def _noise(self, like: Tensor) -> Tensor:
        return torch.from_numpy(self._random.uniform(0.5, 2.0, tuple(like.shape))).to(like.dtype)

    def _bits(self, bits: Bits | Amplitudes) -> Bits | Amplitudes:
        if isinstance(bits, Amplitudes):
            return Amplitudes(self._noise(bits.values))
        noise = self._random.integers(0, 256, tuple(bits.packed.shape), dtype=np.uint8)
        return Bits(torch.from_numpy(noise), bits.size)

    def _truth(self, total: Tensor, correlation: Tensor | None, message: Message, priors: Priors) -> Truth:
        if correlation is not None:
            mixed = torch.from_numpy(self._random.normal(size=(len(correlation), 3 * len(correlation))))
            correlation = torch.corrcoef(mixed).reshape(correlation.shape)
        scalars = (message.mean, message.scale, message.saturated)
        return Truth(
            1e3 * self._noise(total),
            correlation,
            Message(self._bits(message.bits), *map(self._noise, scalars)),
            Priors(*map(self._noise, (priors.mean, priors.std, priors.scale))),
        )

    def _transmitting(self, transmit: Callable[..., Received]) -> Callable[..., Received]:
        def veiled(server: Server, *given: Any, **named: Any) -> Received:
            self._sent, self._open = transmit(server, *given, **named), False
            sent, cell = self._sent, server.settings.cell
            self._cell, self._true = cell, sent.signals
            link = sent.signals.link
            if cell.csi == "pilot":
                sigma2 = self._noise(link.sigma2) if cell.noise == "estimated" else link.sigma2
                link = Link(self._noise(link.h), sigma2)
            keys = self._random.integers(0, 2**63, len(sent), dtype=np.uint64)
            signals = _Veiled(self._bits(sent.signals.bits), link, keys, symbols=lambda r: self._true.rows(r))
            received = sent.but(signals=signals, link=link)
            if cell.side_info == "coded" and sent.encoder.sends_scalars:
                mean, scale = self._noise(sent.layer_mean), self._noise(sent.layer_scale)
                received = received.but(layer_mean=mean, layer_scale=scale)
            return received

        return veiled

    def _stepping(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def veiled(*given: Any) -> Any:
            self._open = True
            return step(*given)

        return veiled

    def _linking(self, link: Callable[..., Link]) -> Callable[..., Link]:
        def veiled(radio: Radio, *given: Any) -> Link:
            self._drawn = link(radio, *given)
            return self._drawn if self._open else Link(*map(self._noise, (self._drawn.h, self._drawn.sigma2)))

        return veiled

    def _trying(self, trial_stream: Callable[..., Any]) -> Callable[..., Any]:
        def seeing(received: Received, purpose: str) -> Any:  # the key is a seed for trials and tells nothing
            return trial_stream(received.but(signals=self._true), purpose)

        return seeing

    def _sound(self, *given: Any) -> Any:
        """The physics of pilots: arguments 2 and 8 are the noise and the amplitude at which devices send."""
        air, drawn = self._true.link, self._drawn.h
        share = 0.5 if self._cell.modulation == "qpsk" else 1.0
        amplitude = torch.where(drawn == 0, torch.ones_like(drawn), air.h / drawn)
        sounding = sound(*given[:2], share * air.sigma2, *given[3:8], amplitude)
        self._true = replace(self._true, link=Link(sounding.h, air.sigma2))
        return replace(sounding, h=self._noise(sounding.h))

    def _send_coded(self, _bits: Tensor, code: Any, h: Any, sigma2: Any, keys: Any, known: Any) -> Any:
        """The physics of codewords: true scalars over true links."""
        sent, air = self._sent, self._true.link
        bits = scalars_to_bits(sent.encoder, sent.layer_mean, sent.layer_scale)
        if len(keys) == len(sent):
            self._coded_keys = keys
        rows = torch.from_numpy(np.flatnonzero(np.isin(self._coded_keys, keys)))
        return send_coded(bits[rows], code, air.h[rows], air.sigma2[rows], keys, known)

    def _add_in_the_air(self, rule: str, _bits: Tensor, *given: Any) -> Tensor:
        """The physics of signs that the air adds up."""
        return fused_sum(rule, self._true.bits.packed, *given)  # type: ignore[arg-type]
