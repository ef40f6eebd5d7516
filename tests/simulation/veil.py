"""Garbage in place of everything that only a simulation knows.

A simulated server holds objects that also carry the truth: the sent bits, the links, the scalars before they
were coded, the sum it is to estimate. `Veil` replaces all of these by garbage as soon as the devices have
sent. Only the physics may look through it: what makes the received signals out of bits, links and noise.
Whatever else reads a veiled number gets the garbage, and its results change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from signfade.kernels import fused_sum
from signfade.simulation import Experiment, air, predict, radio, received, rules, run, side
from signfade.uplink.radio import Radio
from signfade.device.encoder import Sent
from signfade.server.received import Received
from signfade.simulation.availability import Uplink
from signfade.uplink import Link

__all__ = ["Veil"]


class Veil:
    """Veils the truth of one experiment from the moment its devices have sent.

    Args:
        experiment: A run before its first round.
        patch: To put the veil in place.
    """

    def __init__(self, experiment: Experiment, patch: pytest.MonkeyPatch) -> None:
        self._random = np.random.default_rng(99)
        self._numbers: dict[float, float] = {}
        self._rows: dict[bytes, Tensor] = {}
        self._experiment, self._open = experiment, False
        cell = experiment.settings.cell
        self._gains = cell.csi == "pilot"
        self._noise = self._gains and cell.noise == "estimated"
        self._scalars = cell.side_info == "coded"
        patch.setattr(run, "collect", self._after(run.collect))
        for module, name in (
            (received, "received"),
            (radio, "received_symbols"),
            (radio, "_amplitude"),
            (side, "transmit"),
            (side.CodedScalars, "_to_bits"),
        ):
            patch.setattr(module, name, self._seeing(getattr(module, name)))
        bits, h, sigma2, keys = 1, 3, 4, 8  # the physics of `fused_sum`; its other arguments are the rule's
        for module in (rules, air, predict):
            patch.setattr(module, "fused_sum", self._seeing(fused_sum, {bits, h, sigma2, keys}))
        patch.setattr(radio, "sound", self._sounding(radio.sound))
        patch.setattr(Received, "trial_stream", self._trials(Received.trial_stream))
        patch.setattr(Radio, "link", self._link(Radio.link))

    def hide(self, truth: Tensor) -> Tensor:
        """Return garbage of the same shape: positive numbers, each of which stands for one of the truth."""
        garbage = self._random.uniform(0.5, 2.0, tuple(truth.shape)).astype(np.float32).astype(np.float64)
        for veiled, true in zip(garbage.ravel().tolist(), truth.double().reshape(-1).tolist()):
            self._numbers[veiled] = true
            self._numbers[veiled / 2] = true / 2  # a bit has half a symbol's power
        return torch.from_numpy(garbage).to(truth.dtype)

    def see(self, value: Any) -> Any:
        """Return the truth behind garbage, and everything else as it is."""
        if isinstance(value, np.ndarray) and value.dtype == np.uint64:
            return np.array([int(self._numbers.get(float(key), key)) for key in value], dtype=np.uint64)
        if not isinstance(value, Tensor):
            return value
        if value.dtype == torch.uint8:
            return torch.stack([self._rows.get(row.numpy().tobytes(), row) for row in value])
        seen = [self._numbers.get(number, number) for number in value.double().reshape(-1).tolist()]
        return torch.tensor(seen, dtype=torch.float64).reshape(value.shape).to(value.dtype)

    def _after(self, collect: Callable[..., Uplink]) -> Callable[..., Uplink]:
        def veiled(*given: Any, **named: Any) -> Uplink:
            with self._lifted():
                uplink = collect(*given, **named)
            conduct = self._experiment._conduct
            if conduct is not None and conduct.attack is not None:
                self._attackers = conduct.attack.attackers
                conduct.attack.attackers = 1 - self._attackers[:1] % 2  # somebody else
            garbage = torch.from_numpy(self._random.normal(size=len(uplink.truth))).float()
            return replace(
                uplink,
                truth=1e3 * garbage,
                correlation=self._correlation(uplink.correlation),
                sent=self._sent(uplink.sent),
                received=self._received(uplink.received),
            )

        return veiled

    @contextmanager
    def _lifted(self) -> Iterator[None]:
        """Let the devices do their part of a round: they know what they do."""
        conduct = self._experiment._conduct
        if conduct is not None and conduct.attack is not None and hasattr(self, "_attackers"):
            conduct.attack.attackers = self._attackers
        self._open = True
        yield
        self._open = False

    def _correlation(self, truth: Tensor | None) -> Tensor | None:
        if truth is None:
            return None
        mixed = torch.from_numpy(self._random.normal(size=(len(truth), 3 * len(truth))))
        return torch.corrcoef(mixed).reshape(truth.shape).to(truth)

    def _sent(self, sent: Sent | None) -> Sent | None:
        if sent is None:
            return None
        other = {field.name: self.hide(getattr(sent, field.name)) for field in fields(Sent)[1:]}
        return Sent(self._bits(sent.packed), **other)

    def _bits(self, packed: Tensor) -> Tensor:
        garbage = torch.from_numpy(self._random.integers(0, 256, tuple(packed.shape), dtype=np.uint8))
        for veiled, row in zip(garbage, packed):
            self._rows[veiled.numpy().tobytes()] = row
        return garbage

    def _received(self, got: Received | None) -> Received | None:
        if got is None:
            return None
        link = self._veiled_link(got.link)
        keys = self._random.integers(0, 2**53, len(got), dtype=np.uint64)
        self._numbers |= {float(veiled): int(key) for veiled, key in zip(keys, got.keys)}  # type: ignore[misc]
        hidden = replace(got, packed=self._bits(got.packed), keys=keys, link=link)
        if self._scalars:
            mean, scale = self.hide(got.layer_mean), self.hide(got.layer_scale)
            hidden = replace(hidden, layer_mean=mean, layer_scale=scale)
        return hidden

    def _veiled_link(self, link: Link) -> Link:
        h = self.hide(link.h) if self._gains else link.h
        return Link(h, self.hide(link.sigma2) if self._noise else link.sigma2)

    def _link(self, link: Callable[..., Link]) -> Callable[..., Link]:
        def veiled(plan: Radio, *given: Any) -> Link:
            found = link(plan, *given)
            return found if self._open else self._veiled_link(found)

        return veiled

    def _seeing(self, physics: Callable[..., Any], places: set[int] | None = None) -> Callable[..., Any]:
        """Let a function see the truth behind its arguments, or behind those at some places."""

        def seeing(*given: Any, **named: Any) -> Any:
            seen = (self.see(x) if places is None or i in places else x for i, x in enumerate(given))
            return physics(*seen, **named)

        return seeing

    def _sounding(self, sound: Callable[..., Any]) -> Callable[..., Any]:
        def veiled(*given: Any, **named: Any) -> Any:
            sounding = sound(*map(self.see, given), **named)
            return replace(sounding, h=self.hide(sounding.h))

        return veiled

    def _trials(self, trial_stream: Callable[..., Any]) -> Callable[..., Any]:
        def seeing(got: Received, purpose: str) -> Any:  # a seed for trials, which tells nothing
            return trial_stream(replace(got, keys=self.see(got.keys)), purpose)

        return seeing
