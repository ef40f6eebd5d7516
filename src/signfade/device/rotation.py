"""A random rotation that makes the Gaussian prior true, at no cost in bits but the padding.

A device flips the signs of random coordinates, then applies a Hadamard transform. Each rotated coordinate is
a sum of all coordinates with random signs and weights of one magnitude, so by the central limit theorem those
of one device are Gaussian with variance `|g|**2 / n`, and those of devices that share a rotation are jointly
Gaussian with the *same* covariance `<g_k, g_j> / n` between devices for every coordinate.

Beside powers of two there are Hadamard matrices of orders such as 12, 20, 28, ... (Paley, 1933). With their
products a vector is padded by 3 % on average (9 % at worst, from a thousand coordinates up) and not by 45 %
as with powers of two alone; the transform takes at worst 2.4 times as long.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade._check import check_finite
from signfade.kernels import hadamard
from signfade.kernels.jit import is_compiled
from signfade.kernels.threads import available_threads, run_ranges

__all__ = ["rotate", "rotated_size", "unrotate"]

# Orders q + 1 (q = 3 mod 4) and 2 (q + 1) (q = 1 mod 4) with q prime, one for each odd part up to 31 that has
# one below 128.
_ORDERS = (1, 12, 20, 28, 36, 44, 60, 68, 76, 84, 104, 108, 124)
_SMALL = 1 << 18  # numbers up to which a second thread costs more than it brings
Keys = NDArray[np.uint64]
_BLOCK = 4096  # coordinates transformed at a time in the first pass: fits the smallest cache


def rotated_size(size: int) -> int:
    """Return how many coordinates (and bits) a rotated vector of `size` coordinates has.

    The smallest `n >= size` of the form `p * 2**a` with p one of
    1, 12, 20, 28, 36, 44, 60, 68, 76, 84, 104, 108, 124.

    Example:
        >>> rotated_size(62_346), rotated_size(65_536), rotated_size(3)
        (63488, 65536, 4)
    """
    return _shape(size)[0] * _shape(size)[1]


def rotate(g: Tensor, seed: int | Keys) -> Tensor:
    """Rotate every device's gradient, `[K, M]` or `[M]`, by the random orthonormal matrix that `seed` names.

    `rotated = H D [g, 0] / sqrt(n)`, D a diagonal of random signs drawn from Philox under the key `seed`, the
    same for all devices in a round (see `signfade.keys.stream_key`), H a Hadamard matrix of order
    `n = rotated_size(M)`. Lengths and angles are kept: `<rotated_k, rotated_j> = <g_k, g_j>`.

    Example:
        >>> g = torch.zeros(1, 1000)
        >>> g[0, 17] = 32.0  # one coordinate carries everything; rotated, all carry the same
        >>> rotate(g, seed=5).abs().unique()
        tensor([1.])

    Reference: docs/bfl.md, "Why rotation".
    """
    if g.ndim not in (1, 2) or g.shape[-1] == 0:
        raise ValueError(f"g must have shape [K, M] or [M] with M at least 1; got {list(g.shape)}")
    rotated = _transform("g", g, seed, g.shape[-1], inverse=False)
    return rotated.reshape(*g.shape[:-1], rotated.shape[-1])


def unrotate(rotated: Tensor, seed: int | Keys, size: int) -> Tensor:
    """Undo `rotate`: `g = (D H^T rotated / sqrt(n))[:size]`, exact up to float rounding.

    Estimates of a rotated vector are rotated back once, after the devices have been summed.

    Example:
        >>> g = torch.tensor([[1.0, -2.0, 3.0, 0.5, 0.0]])
        >>> bool(torch.allclose(unrotate(rotate(g, seed=5), seed=5, size=5), g, atol=1e-6))
        True
    """
    n = rotated_size(size)
    if rotated.ndim not in (1, 2) or rotated.shape[-1] != n:
        raise ValueError(
            f"rotated must have shape [K, {n}] or [{n}] for size {size}; got {list(rotated.shape)}"
        )
    g = _transform("rotated", rotated, seed, size, inverse=True)
    return g.reshape(*rotated.shape[:-1], size)


@cache
def _shape(size: int) -> tuple[int, int]:
    """Return (p, 2**a) of the rotated size."""
    if size < 1:
        raise ValueError(f"size must be at least 1; got {size}")
    return min(
        ((p, 1 << (-(-size // p) - 1).bit_length()) for p in _ORDERS), key=lambda pair: pair[0] * pair[1]
    )


@cache
def _factor(order: int) -> NDArray[np.float64]:
    """Return a Hadamard matrix of `order` by Paley's construction; entries +1 and -1."""
    if order == 1:
        return np.ones((1, 1))
    q, twice = (order - 1, False) if order % 8 != 4 or _is_prime(order - 1) else (order // 2 - 1, True)
    residues = {x * x % q for x in range(1, q)}
    character = np.array([0] + [1 if x in residues else -1 for x in range(1, q)], dtype=np.float64)
    index = np.arange(q)
    core = np.zeros((q + 1, q + 1))
    core[1:, 1:] = character[(index[:, None] - index[None, :]) % q]
    core[0, 1:] = 1
    core[1:, 0] = 1 if twice else -1
    if not twice:  # q = 3 mod 4: the core is skew
        return np.asarray(np.eye(q + 1) + core)
    pair = np.array([[1.0, 1.0], [1.0, -1.0]])
    return np.asarray(np.kron(core, pair) + np.kron(np.eye(q + 1), np.array([[1.0, -1.0], [-1.0, -1.0]])))


@cache
def _codes(order: int, inverse: bool) -> NDArray[np.uint16]:
    """Return where each row of the factor finds its sums of four inputs, `[p, p/4]`, see `hadamard._mix`."""
    factor = _factor(order).T if inverse else _factor(order)
    negative = (factor < 0)[:, : order // 4 * 4].reshape(order, -1, 4)
    number = negative @ np.array([1, 2, 4, 8]) + 16 * np.arange(order // 4)
    return np.asarray(8 * number, dtype=np.uint16)


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def _signs(seed: int, size: int) -> NDArray[np.int8]:
    """Return `size` random signs, a prefix of the key's one sequence."""
    if seed < 0:
        raise ValueError(f"seed must be non-negative; got {seed}")
    words = np.random.Philox(key=seed).random_raw(-(-size // 64))
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), count=size, bitorder="little")
    return np.asarray(1 - 2 * bits.view(np.int8))


def _transform(name: str, x: Tensor, seed: int | Keys, size: int, *, inverse: bool) -> Tensor:
    """Return `[K, n]` from `[K, size]`, or back."""
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{name} must be float32 or float64; got {x.dtype}")
    order, power = _shape(size)
    rows = x.detach().reshape(-1, x.shape[-1])
    own: Tensor | None = None  # each device's own signs, where they differ
    if isinstance(seed, np.ndarray):
        if seed.shape != (len(rows),):
            raise ValueError(
                f"seed must be one key, or one for each of {len(rows)} devices; got {seed.shape}"
            )
        if (seed != seed[:1]).any():
            own = torch.from_numpy(np.stack([_signs(int(key), size) for key in seed])).to(rows)
    signs = np.ones(size, np.int8) if own is not None else _signs(int(np.ravel(seed)[0]), size)
    if own is not None and not inverse:
        rows = rows * own
    if is_compiled(rows):
        out = torch.from_numpy(_compiled(rows.contiguous().numpy(), signs, order, power, inverse))
    else:
        out = _portable(rows, torch.from_numpy(signs).to(rows), order, power, inverse)
    # Every output is a signed sum of all inputs, so one of them tells whether an input was NaN or infinite.
    check_finite(name, out[:, 0])
    return out.mul_(own) if own is not None and inverse else out


def _compiled(
    rows: NDArray[Any], signs: NDArray[np.int8], order: int, power: int, inverse: bool
) -> NDArray[Any]:
    devices, n = len(rows), order * power
    block = min(power, _BLOCK)
    factor = _factor(order).astype(rows.dtype)
    factor = np.ascontiguousarray(factor.T if inverse else factor)
    codes = _codes(order, inverse)
    out = np.empty((devices, len(signs) if inverse else n), rows.dtype)
    scale = rows.dtype.type(1 / math.sqrt(n))
    threads = available_threads() if devices * n > _SMALL else 1
    if devices >= threads:

        def whole(first: int, last: int) -> None:
            hadamard.whole_devices(rows, factor, codes, signs, inverse, scale, out, block, first, last)

        run_ranges(whole, devices, threads)
        return out
    middle = np.empty((devices, n), rows.dtype) if inverse else out

    def within(first: int, last: int) -> None:
        hadamard.within_blocks(rows, signs, not inverse, scale, middle, block, first, last)

    def across(first: int, last: int) -> None:
        hadamard.across_blocks(middle, factor, codes, signs, inverse, scale, out, block, first, last)

    run_ranges(within, devices * (n // block), threads)
    run_ranges(across, devices * (block // min(hadamard.STRIP, block)), threads)
    return out


def _portable(x: Tensor, signs: Tensor, order: int, power: int, inverse: bool) -> Tensor:
    """The same transform in plain torch, for tensors on other devices."""
    devices, n = len(x), order * power
    if not inverse:
        x = torch.nn.functional.pad(x * signs, (0, n - x.shape[1]))
    step = 1
    while step < power:
        pairs = x.reshape(devices, -1, 2, step)
        x = torch.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), dim=2)
        step *= 2
    factor = torch.from_numpy(_factor(order)).to(x)
    x = (factor.T if inverse else factor) @ x.reshape(devices, order, power)
    x = x.reshape(devices, n) / math.sqrt(n)
    return x[:, : len(signs)] * signs if inverse else x
