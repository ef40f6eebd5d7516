"""Means and scales as codewords over the fading link, and what the server does when one is lost."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from signfade.keys import stream_keys
from signfade.learn.encode import EXACT_SCALAR_BITS, Encoder
from signfade.learn.received import Received
from signfade.learn.task import Devices
from signfade.settings import CellSettings
from signfade.uplink import Link, PolarCode, half_llr, transmit
from signfade.uplink.code import LONGEST

__all__ = ["CodedScalars", "Scalars", "codeword", "make_code"]

_LEAST_SCALE = 1e-30  # its logarithm stands for that of zero


class Scalars(NamedTuple):
    """Means and scales as the server has them, `[K, S]` each, and which devices' words arrived, `[K]`.

    `turned` tells which words arrived only after all their symbols were turned: the gain has the other sign.
    """

    mean: Tensor
    scale: Tensor
    passed: Tensor
    turned: Tensor


def make_code(cell: CellSettings, payload: int) -> PolarCode:
    """Return the code that carries a device's scalars, `payload` bits.

    Raises:
        ValueError: It cannot carry so many.
    """
    shape = (cell.code_check, cell.code_list)
    try:
        if cell.code_length is None:
            return PolarCode.of_rate(payload, cell.code_rate, *shape)
        return PolarCode(payload, cell.code_length, *shape)
    except ValueError as error:
        raise ValueError(f"cell.code_rate or cell.code_length does not fit the scalars: {error}") from None


def codeword(encoder: Encoder, cell: CellSettings) -> PolarCode:
    """Return the code that carries a device's scalars in this round.

    The longer payload of a first round, whose scales are on the wide grid, goes at the rate of all others, or
    as near to it as the longest code comes.

    Args:
        encoder: The device's half of the method, with the range of the round.
        cell: Section `cell` of the configuration.

    Raises:
        ValueError: It cannot carry so many bits.

    Example:
        >>> from signfade.settings import MethodSettings
        >>> encoder = Encoder(MethodSettings(side_bits=4), (30,))
        >>> first = codeword(encoder, CellSettings(code_rate=0.5))
        >>> encoder.range.follow(torch.ones(3, 1))
        >>> later = codeword(encoder, CellSettings(code_rate=0.5))
        >>> (first.payload, first.length), (later.payload, later.length)
        ((20, 88), (8, 64))
    """
    layers = len(encoder.segments)
    payload = layers * sum(bits or EXACT_SCALAR_BITS for bits in encoder.scalar_bits)
    usual = make_code(cell, 2 * layers * (encoder.method.side_bits or EXACT_SCALAR_BITS))
    if payload == usual.payload:
        return usual
    length = -(-(payload + usual.check) * usual.length // (usual.payload + usual.check))
    return PolarCode(payload, min(LONGEST, length), usual.check, usual.paths)


class CodedScalars:
    """One polar codeword a device and round.

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

    def __init__(self, cell: CellSettings, encoder: Encoder, population: int, seed: int) -> None:
        self._cell, self._encoder, self._seed = cell, encoder, seed
        layers = len(encoder.segments)
        self._codes: dict[tuple[int, int], PolarCode] = {}
        _ = self.code  # scalars that do not fit are refused at once
        self._mean = torch.zeros(population, layers)
        self._scale = torch.zeros(population, layers)
        self._decoded_at = torch.full((population,), -1, dtype=torch.int64)

    @property
    def code(self) -> PolarCode:
        """The code of this round."""
        bits = self._encoder.scalar_bits
        if bits not in self._codes:
            self._codes[bits] = codeword(self._encoder, self._cell)
        return self._codes[bits]

    def receive(self, received: Received, known: Link, devices: Devices, round: int) -> Scalars:
        """Send the scalars of a round and return what the server has of them.

        Args:
            received: Of the round, with the scalars that the devices send.
            known: Links as the server knows them.
            devices: Who sends, `[K]`.
            round: Round, counted from 0.
        """
        code, bits = self.code, self._to_bits(received.layer_mean, received.layer_scale)
        air = received.true_link
        keys = stream_keys(self._seed, "side noise", round, devices)
        y = transmit(1 - 2 * code.encode(bits).float(), air.h, air.sigma2, keys)
        llr = 2 * half_llr(y, known.h, known.sigma2)
        words, passed = code.decode(llr)
        turned = torch.zeros_like(passed)
        if received.air is not None and not bool(passed.all()):  # the sign of a gain may be wrong
            lost = (~passed).nonzero().squeeze(1)
            again = code.decode(-llr[lost])
            words[lost[again.passed]] = again.bits[again.passed]
            turned[lost[again.passed]] = True
            passed = passed | turned
        mean, scale, sane = self._from_bits(words)
        passed, turned = passed & sane, turned & sane
        return self._fill(Scalars(mean, scale, passed, turned), torch.from_numpy(devices), round)

    def _fill(self, found: Scalars, devices: Tensor, round: int) -> Scalars:
        """Remember what was decoded and stand in for what was not."""
        arrived = found.passed
        self._mean[devices[arrived]] = found.mean[arrived]
        self._scale[devices[arrived]] = found.scale[arrived]
        self._decoded_at[devices[arrived]] = round
        mean, scale = torch.zeros_like(found.mean), torch.zeros_like(found.scale)
        if self._cell.outage == "last":
            age = (round - self._decoded_at[devices]).double()
            weight = torch.where(self._decoded_at[devices] < 0, 0.0, self._cell.outage_decay**age)[:, None]
            last = self._scale[devices].double().clamp_min(_LEAST_SCALE).log()
            common = last[arrived].mean(dim=0) if bool(arrived.any()) else last
            ever = self._decoded_at[devices, None] >= 0
            drawn = (weight * last + (1 - weight) * common).exp()
            scale = torch.where(ever | bool(arrived.any()), drawn, torch.zeros_like(drawn)).to(scale)
            mean = (weight * self._mean[devices]).to(mean)
        heard = arrived[:, None]
        return found._replace(
            mean=torch.where(heard, found.mean, mean), scale=torch.where(heard, found.scale, scale)
        )

    @property
    def _widths(self) -> list[int]:
        """Bits of a mean and of a scale in this round."""
        return [bits or EXACT_SCALAR_BITS for bits in self._encoder.scalar_bits]

    def _to_bits(self, mean: Tensor, scale: Tensor) -> Tensor:
        """Return the payloads, uint8: means first, the highest bit of each first."""
        codes: tuple[Tensor, ...]
        if self._encoder.quantised:
            codes = self._encoder.scalar_code.encode(mean, scale)
        else:
            codes = tuple(x.float().contiguous().view(torch.int32).long() for x in (mean, scale))
        shifts = [torch.arange(width - 1, -1, -1) for width in self._widths]
        digits = [((part[:, :, None] >> shift) & 1).flatten(1) for part, shift in zip(codes, shifts)]
        return torch.cat(digits, dim=1).to(torch.uint8)

    def _from_bits(self, bits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return means and scales, `[K, S]`, and which devices' make sense, `[K]`."""
        layers = len(self._encoder.segments)
        parts = bits.long().split_with_sizes([layers * width for width in self._widths], dim=1)
        first, second = (
            (part.reshape(len(bits), layers, width) << torch.arange(width - 1, -1, -1)).sum(dim=2)
            for part, width in zip(parts, self._widths)
        )
        if not self._encoder.quantised:
            mean, scale = (
                torch.from_numpy(part.numpy().astype(np.uint32).view(np.float32)) for part in (first, second)
            )
            sane = (mean.isfinite() & scale.isfinite() & (scale >= 0)).all(dim=1)
            mean, scale = (torch.where(sane[:, None], part, torch.zeros_like(part)) for part in (mean, scale))
            return mean, scale, sane
        code = self._encoder.scalar_code
        last = len(code.means.levels) - 1
        sane = (first <= last).all(dim=1)  # one code of the mean stands for nothing
        return *code.decode(first.clamp(max=last), second), sane

    def state(self) -> dict[str, Tensor]:
        """Return what must be saved."""
        return {"mean": self._mean, "scale": self._scale, "decoded_at": self._decoded_at}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        self._mean, self._scale = state["mean"].clone(), state["scale"].clone()
        self._decoded_at = state["decoded_at"].clone()
