"""What a device does to its gradient, in as few passes as it takes: sums, deviations, packed signs.

Sums are taken in a fixed order, 16 lanes at a time, and one thread works on a device's row, so no result
depends on the number of threads.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from signfade._check import check_shape
from signfade.kernels.jit import is_compiled, njit
from signfade.kernels.threads import run_ranges

__all__ = ["layer_deviations", "layer_sums", "pack_above"]

LANES = 16


@njit(nogil=True, cache=True)
def _join(lanes):
    step = 1
    while step < LANES:
        for j in range(0, LANES, 2 * step):
            lanes[j] += lanes[j + step]
        step *= 2
    return lanes[0]


@njit(nogil=True, cache=True)
def _sum(x, lanes):
    lanes[:] = 0.0
    whole = x.shape[0] // LANES
    for i in range(whole):
        part = x[i * LANES : (i + 1) * LANES]
        for j in range(LANES):
            lanes[j] += np.float64(part[j])
    for j in range(x.shape[0] - whole * LANES):
        lanes[j] += np.float64(x[whole * LANES + j])
    return _join(lanes)


@njit(nogil=True, cache=True)
def _deviations(x, centre, absolute, square):
    absolute[:] = 0.0
    square[:] = 0.0
    whole = x.shape[0] // LANES
    for i in range(whole):
        part = x[i * LANES : (i + 1) * LANES]
        for j in range(LANES):
            d = np.float64(part[j]) - centre
            absolute[j] += abs(d)
            square[j] += d * d
    for j in range(x.shape[0] - whole * LANES):
        d = np.float64(x[whole * LANES + j]) - centre
        absolute[j] += abs(d)
        square[j] += d * d
    return _join(absolute), _join(square)


@njit(nogil=True, cache=True)
def _layer_sums(g, bounds, total, first, last):
    """Fill rows first ... last - 1 of `total` [K, S] with the sums over the layers of `g` [K, M]."""
    lanes = np.empty(LANES)
    for k in range(first, last):
        for s in range(bounds.shape[0] - 1):
            total[k, s] = _sum(g[k, bounds[s] : bounds[s + 1]], lanes)


@njit(nogil=True, cache=True)
def _layer_deviations(g, bounds, centre, absolute, square, first, last):
    """Fill rows of `absolute` and `square` [K, S] with the sums of |d| and d^2, d = g - centre."""
    lanes, other = np.empty(LANES), np.empty(LANES)
    for k in range(first, last):
        for s in range(bounds.shape[0] - 1):
            part = g[k, bounds[s] : bounds[s + 1]]
            absolute[k, s], square[k, s] = _deviations(part, centre[k, s], lanes, other)


@njit(nogil=True, cache=True)
def _compare(x, threshold, flags):
    for j in range(x.shape[0]):
        flags[j] = not (x[j] < threshold)


@njit(nogil=True, cache=True)
def _pack(flags, packed):
    for i in range(packed.shape[0]):
        part = flags[8 * i : 8 * i + 8]
        byte = 0
        for j in range(8):
            byte |= part[j] << (7 - j)
        packed[i] = byte


@njit(nogil=True, cache=True)
def _pack_rows(g, bounds, threshold, packed, first, last):
    """Fill rows of `packed` [K, ceil(M/8)]: bit 1 where g >= threshold [K, S], the first bit on top."""
    flags = np.zeros(8 * packed.shape[1], np.uint8)
    for k in range(first, last):
        for s in range(bounds.shape[0] - 1):
            _compare(g[k, bounds[s] : bounds[s + 1]], threshold[k, s], flags[bounds[s] : bounds[s + 1]])
        _pack(flags, packed[k])


def _run(kernel: Callable[..., None], g: Tensor, lengths: list[int], threads: int | None, *more: Any) -> None:
    """Let a kernel fill the rows of the last of the tensors in `more`."""
    rows, bounds = g.detach().contiguous().numpy(), np.cumsum([0, *lengths])
    arrays = [tensor.detach().contiguous().numpy() for tensor in more]
    run_ranges(lambda first, last: kernel(rows, bounds, *arrays, first, last), len(g), threads)


def layer_sums(g: Tensor, segments: Sequence[int] | None = None, *, threads: int | None = None) -> Tensor:
    """Sum every device's gradient `g` `[K, M]` over every layer in a fixed order, float64 `[K, S]`.

    `segments` are the lengths of the S layers, one layer if None. NaN or infinity anywhere in a layer shows
    in its sum. Reference: Sec. IV-A, the local gradient prior.

    Example:
        >>> layer_sums(torch.tensor([[1.0, 2.0, 6.0]]), segments=[2, 1])
        tensor([[3., 6.]], dtype=torch.float64)
    """
    lengths = _layers(g, segments)
    total = torch.empty(len(g), len(lengths), dtype=torch.float64, device=g.device)
    if is_compiled(g):
        _run(_layer_sums, g, lengths, threads, total)
        return total
    for s, part in enumerate(torch.split(g, lengths, dim=1)):
        total[:, s] = part.sum(1, dtype=torch.float64)
    return total.cpu()


def layer_deviations(
    g: Tensor, centre: Tensor, segments: Sequence[int] | None = None, *, threads: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the sums of `|g - centre|` and of `(g - centre)^2` over every layer, float64 `[K, S]` each.

    `centre` is `[K, S]`; other arguments as in `layer_sums`.

    Example:
        >>> absolute, square = layer_deviations(torch.tensor([[1.0, 2.0, 6.0]]), torch.tensor([[3.0]]))
        >>> absolute.item(), square.item()
        (6.0, 14.0)
    """
    lengths = _layers(g, segments)
    check_shape("centre", centre, (len(g), len(lengths)))
    middle = centre.double().to(g.device)
    absolute = torch.empty(len(g), len(lengths), dtype=torch.float64, device=g.device)
    square = torch.empty_like(absolute)
    if is_compiled(g):
        _run(_layer_deviations, g, lengths, threads, middle, absolute, square)
        return absolute, square
    for s, part in enumerate(torch.split(g, lengths, dim=1)):
        for k, row in enumerate(part):  # row by row: bounds the memory
            d = row.double() - middle[k, s]
            absolute[k, s], square[k, s] = d.abs().sum(), d.square().sum()
    return absolute.cpu(), square.cpu()


def pack_above(
    g: Tensor, threshold: Tensor, segments: Sequence[int] | None = None, *, threads: int | None = None
) -> Tensor:
    """Take the signs of `g - threshold` and pack them, uint8 `[K, ceil(M/8)]`.

    Bit 1 is +1 (also for NaN), the first coordinate is the top bit, unused bits are 0. `threshold` `[K, S]`
    is the mean the server will decode; the rest is as in `layer_sums`. Reference: Sec. III-A and IV-A.

    Example:
        >>> pack_above(torch.tensor([[0.5, 1.0, 2.0]]), torch.tensor([[1.0]]))
        tensor([[96]], dtype=torch.uint8)
    """
    lengths = _layers(g, segments)
    check_shape("threshold", threshold, (len(g), len(lengths)))
    width = -(-g.shape[1] // 8)
    if is_compiled(g):
        packed = torch.empty(len(g), width, dtype=torch.uint8)
        exact = g.dtype if threshold.dtype == g.dtype else torch.float64  # comparing must not round
        _run(_pack_rows, g, lengths, threads, threshold.to(exact), packed)
        return packed
    limits = torch.repeat_interleave(threshold.to(g.device), torch.tensor(lengths, device=g.device), dim=1)
    plus = g.new_zeros(len(g), 8 * width, dtype=torch.uint8)
    plus[:, : g.shape[1]] = ~(g < limits)
    shifts = torch.arange(7, -1, -1, dtype=torch.uint8, device=g.device)
    return (plus.view(len(g), width, 8) << shifts).sum(dim=2, dtype=torch.uint8)


def _layers(g: Tensor, segments: Sequence[int] | None) -> list[int]:
    """Return the layers' lengths, or raise."""
    if g.ndim != 2 or g.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"g must be float32 or float64 [K, M]; got {g.dtype} {list(g.shape)}")
    lengths = [g.shape[1]] if segments is None else [int(n) for n in segments]
    if sum(lengths) != g.shape[1] or min(lengths, default=0) < 1:
        raise ValueError(f"segments must be positive and add up to M = {g.shape[1]}; got {lengths}")
    return lengths
