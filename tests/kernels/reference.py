"""A second implementation of the noise and the fused sum, in plain torch, to compare the kernels with.

Integer words live in int32 tensors (torch adds and multiplies them modulo 2^32). Every float operation is one
IEEE multiplication or addition, in the order of the compiled kernels: the bits are the same.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from signfade.kernels.fused import CELL_BITS, EXP2, FIRST_CELL, TANH_LIMIT, TILE, quantile_table

__all__ = ["argument", "normal", "tanh", "threefry", "words"]

_HALF = TILE // 2
_COLUMNS = 1 << 18  # columns worked on at a time: bounds the memory
_ROUND = 1.5 * 2**23  # adding it rounds to an integer, which then stands in the low bits
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)


def _rotate(x: Tensor, r: int) -> Tensor:
    return (x << r) | ((x >> (32 - r)) & ((1 << r) - 1))


def _int32(word: int) -> int:
    """The signed reading of a 32-bit word."""
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word


def threefry(key: int, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Threefry2x32 with 20 rounds of the counters (low, high), int32 `[N]`, under a 64-bit key."""
    schedule = [key & 0xFFFFFFFF, key >> 32]
    schedule.append(schedule[0] ^ schedule[1] ^ 0x1BD11BDA)
    x0, x1 = low + _int32(schedule[0]), high + _int32(schedule[1])
    for block in range(5):
        for r in _ROTATIONS[:4] if block % 2 == 0 else _ROTATIONS[4:]:
            x0 = x0 + x1
            x1 = _rotate(x1, r) ^ x0
        x0 = x0 + _int32(schedule[(block + 1) % 3])
        x1 = x1 + _int32(schedule[(block + 2) % 3] + block + 1)
    return x0, x1


def words(key: int, size: int, start: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """Return the random words of coordinates start ... start + size - 1 of stream `key`, int32 `[size]`."""
    first, last = start // (2 * _HALF), -(-(start + size) // (2 * _HALF))
    counter = torch.arange(first * _HALF, last * _HALF, dtype=torch.int64, device=device)
    low = (
        (counter & 0xFFFFFFFF) ^ 0x80000000
    ) - 0x80000000  # two's complement: int64 to int32 without overflow
    x0, x1 = threefry(key, low.to(torch.int32), (counter >> 32).to(torch.int32))
    tiles = torch.stack([x0.view(-1, _HALF), x1.view(-1, _HALF)], dim=1).flatten()
    offset = start - first * 2 * _HALF
    return tiles[offset : offset + size]


def normal(word: Tensor) -> Tensor:
    """Return the normal numbers of random words, float32."""
    table = torch.from_numpy(quantile_table().copy()).to(word.device)
    bits = ((word & 0x7FFFFFFF).to(torch.float32) + 0.5).view(torch.int32)
    cell = (bits >> CELL_BITS) - FIRST_CELL
    t = ((bits & ((1 << CELL_BITS) - 1)) - (1 << (CELL_BITS - 1))).to(torch.float32)
    magnitude = table[0][cell] + t * (table[1][cell] + t * table[2][cell])
    return (magnitude.view(torch.int32) ^ (word & -(1 << 31))).view(torch.float32)


def tanh(x: Tensor) -> Tensor:
    """Return tanh through exp(-2|x|), within 1.2e-7, float32."""
    power = x.abs().clamp(max=TANH_LIMIT) * float(np.float32(-2 / math.log(2)))
    shifted = power + _ROUND
    f = power - (shifted - _ROUND)
    p = torch.full_like(f, EXP2[-1])
    for coefficient in EXP2[-2::-1]:
        p = float(np.float32(coefficient)) + f * p
    e = (p.view(torch.int32) + (shifted.view(torch.int32) << 23)).view(torch.float32)
    return torch.copysign((1 - e) / (1 + e), x)


def argument(packed: Tensor, signal: float, noise: float, key: int, start: int, stop: int) -> Tensor:
    """Return `signal*s + noise*z` for coordinates start ... stop - 1 of one device, float32."""
    place = torch.arange(start, stop, device=packed.device)
    plus = (packed[place // 8] >> (7 - place % 8).to(torch.uint8)) & 1
    sent = torch.where(plus.bool(), signal, -signal).to(torch.float32)
    if noise == 0:
        return sent
    return sent + noise * normal(words(key, stop - start, start, packed.device))
