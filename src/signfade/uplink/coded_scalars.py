"""Means and scales as the payload of one codeword per device and round."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from signfade.device import EXACT_BITS, Encoder
from signfade.settings import CellSettings
from signfade.uplink.code import LONGEST, PolarCode

__all__ = ["bits_to_scalars", "codeword", "make_code", "scalars_to_bits"]


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
        >>> method, cell = MethodSettings(side_bits=4), CellSettings(code_rate=0.5)
        >>> first = codeword(Encoder(method, (30,)), cell)
        >>> later = codeword(Encoder(method, (30,), exponents=(0,)), cell)
        >>> (first.payload, first.length), (later.payload, later.length)
        ((20, 88), (8, 64))
    """
    layers = len(encoder.segments)
    payload = layers * sum(bits or EXACT_BITS for bits in encoder.scalar_bits)
    usual = make_code(cell, 2 * layers * (encoder.method.side_bits or EXACT_BITS))
    if payload == usual.payload:
        return usual
    length = -(-(payload + usual.check) * usual.length // (usual.payload + usual.check))
    return PolarCode(payload, min(LONGEST, length), usual.check, usual.paths)


def _widths(encoder: Encoder) -> list[int]:
    """Bits of a mean and of a scale in this round."""
    return [bits or EXACT_BITS for bits in encoder.scalar_bits]


def scalars_to_bits(encoder: Encoder, mean: Tensor, scale: Tensor) -> Tensor:
    """Return the payloads, uint8: means first, the highest bit of each first."""
    codes: tuple[Tensor, ...]
    if encoder.quantised:
        codes = encoder.scalar_code.encode(mean, scale)
    else:
        codes = tuple(x.float().contiguous().view(torch.int32).long() for x in (mean, scale))
    shifts = [torch.arange(width - 1, -1, -1) for width in _widths(encoder)]
    digits = [((part[:, :, None] >> shift) & 1).flatten(1) for part, shift in zip(codes, shifts)]
    return torch.cat(digits, dim=1).to(torch.uint8)


def bits_to_scalars(encoder: Encoder, bits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return means and scales, `[K, S]`, and which devices' make sense, `[K]`."""
    layers = len(encoder.segments)
    parts = bits.long().split_with_sizes([layers * width for width in _widths(encoder)], dim=1)
    first, second = (
        (part.reshape(len(bits), layers, width) << torch.arange(width - 1, -1, -1)).sum(dim=2)
        for part, width in zip(parts, _widths(encoder))
    )
    if not encoder.quantised:
        mean, scale = (
            torch.from_numpy(part.numpy().astype(np.uint32).view(np.float32)) for part in (first, second)
        )
        sane = (mean.isfinite() & scale.isfinite() & (scale >= 0)).all(dim=1)
        mean, scale = (torch.where(sane[:, None], part, torch.zeros_like(part)) for part in (mean, scale))
        return mean, scale, sane
    code = encoder.scalar_code
    last = len(code.means.levels) - 1
    sane = (first <= last).all(dim=1)  # one code of the mean stands for nothing
    return *code.decode(first.clamp(max=last), second), sane
