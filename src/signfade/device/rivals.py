"""The compressors that signfade is compared with, each as its paper has it: docs/rivals.md has one table.

All send digital messages over a clean channel: what is sent arrives, and its bits are counted, the 32 bits of
a float included. Whatever both ends can draw from a common key (rotations, subsets) costs nothing. M is the
number of weights, g one device's gradient, `rate` the setting `method.bits_per_weight`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache, wraps

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from signfade.device.bits import sign
from signfade.device.compressors import COMPRESSORS, Compress, Compressed, Compressor
from signfade.device.lloyd_max import LloydMaxQuantizer
from signfade.device.rotation import rotate, rotated_size, unrotate

__all__ = ["drive", "eden", "elias_bits", "qsgd", "qsgd_bits", "qsgd_levels", "scaled_sign", "top_k"]

FLOAT_BITS = 32
Streams = Sequence[np.random.Generator]


def elias_bits(numbers: Tensor) -> Tensor:
    """Return the lengths of Elias' recursive (omega) codes of whole numbers from 1 on, int64.

    `L(1) = 1`, `L(k) = floor(log2 k) + 1 + L(floor(log2 k))`.

    Example:
        >>> elias_bits(torch.tensor([1, 2, 4, 8, 16, 100]))
        tensor([ 1,  3,  6,  7, 11, 13])
    """
    return _ELIAS[torch.frexp(numbers.double()).exponent.long() - 1]


def _elias_table() -> Tensor:
    table = [1]
    for log in range(1, 63):
        table.append(log + 1 + table[log.bit_length() - 1])
    return torch.tensor(table)


_ELIAS = _elias_table()  # by floor(log2 k)


def qsgd_bits(levels: int, size: int) -> float:
    """Return the expected bits of QSGD's message for a Gaussian gradient of `size` weights.

    A weight's level is not 0 with probability q; distances between such weights are geometric.

    Example:
        >>> round(qsgd_bits(1, 62_346)), round(qsgd_bits(250, 62_346))
        (3272, 171986)
    """
    exact = levels * ndtri(0.5 + (np.arange(4096) + 0.5) / 8192) / math.sqrt(size)
    low = torch.from_numpy(np.floor(exact))
    up = torch.from_numpy(exact) - low
    q = float(torch.where(low > 0, 1.0, up).mean())
    below = torch.where(low > 0, elias_bits(low.clamp_min(1)), 0)
    level = float(((1 - up) * below + up * elias_bits(low + 1)).mean())
    reached = (1 - q) ** (2.0 ** np.arange(41) - 1)  # probability of a distance of 2^b or more
    distance = float((reached[:-1] - reached[1:]) @ _ELIAS[:40].numpy())
    return FLOAT_BITS + size * (q * (1 + distance) + level)


@cache
def qsgd_levels(rate: float, size: int) -> int:
    """Return the largest s whose message takes at most `rate*M` bits for a Gaussian gradient, at least 1.

    Example:
        >>> [qsgd_levels(rate, 62_346) for rate in (0.01, 0.1, 1.0, 4.0)]
        [1, 2, 41, 520]
    """
    steps = range(1, 64 * math.isqrt(size) + 64)
    return max(1, bisect_right(steps, rate * size, key=lambda s: qsgd_bits(s, size)))


def _at_unit_peak(compress: Compress) -> Compress:
    """Give a compressor gradients whose largest weight is near 1, so that no square or sum overflows.

    Powers of two change no digit.
    """

    @wraps(compress)
    def scaled(gradients: Tensor, streams: Streams, rate: float) -> Compressed:
        peak = gradients.abs().amax(dim=1, keepdim=True)
        exponent = torch.frexp(peak).exponent.clamp(-100, 100)  # 2**128 is no float
        sent = compress(torch.ldexp(gradients, -exponent), streams, rate)
        return Compressed(torch.ldexp(sent.values, exponent), sent.bits)

    return scaled


@_at_unit_peak
def qsgd(gradients: Tensor, streams: Streams, rate: float) -> Compressed:
    """QSGD: s levels with random rounding, unbiased, gradients `[k, M]`.

    `Q(g_i) = |g|*sign(g_i)*l_i/s`, `l_i` being `s*|g_i|/|g|` rounded up with the probability of its fraction.
    Bits: the norm's 32 and, for every weight that is not zero, the Elias codes of the distance from the last
    one and of `l_i`, and a sign. s is the largest whose message takes `rate*M` bits for a Gaussian gradient;
    sparser ones take fewer.

    Example:
        >>> sent = qsgd(torch.tensor([[0.0, -2.0, 0.0]]), [np.random.default_rng(0)], 1.0)
        >>> sent.values, sent.bits  # 32 + 3 for the distance 2, 1 for the level 1, 1 for the sign
        (tensor([[ 0., -2.,  0.]]), tensor([37]))

    Reference: D. Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and encoding",
        2017.
    """
    s = qsgd_levels(rate, gradients.shape[1])
    norm = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
    exact = s * gradients.abs() / torch.where(norm > 0, norm, 1)
    draws = np.stack([stream.random(gradients.shape[1], dtype=np.float32) for stream in streams])
    levels = torch.floor(exact)
    levels += torch.from_numpy(draws).to(exact) < exact - levels
    rows, places = levels.nonzero(as_tuple=True)
    last = torch.cat([places.new_full((1,), -1), places[:-1]])[: len(places)]
    last[torch.cat([rows.new_full((1,), -1), rows[:-1]])[: len(rows)] != rows] = -1  # a device's first
    lengths = 1 + elias_bits(places - last) + elias_bits(levels[rows, places])
    bits = torch.full((len(gradients),), FLOAT_BITS).index_add(0, rows, lengths)
    return Compressed(norm / s * levels * sign(gradients), bits)


def top_k(gradients: Tensor, streams: Streams, rate: float) -> Compressed:
    """Send the k largest weights and their places, `k*(32 + ceil(log2 M))` bits, gradients `[k, M]`.

    `k = rate*M/(32 + ceil(log2 M))`, at least 1; error feedback keeps the others.

    Example:
        >>> top_k(torch.tensor([[1.0, -3.0, 2.0, 0.0]]), [], 1.0).values
        tensor([[ 0., -3.,  0.,  0.]])

    Reference: S. U. Stich et al., "Sparsified SGD with memory", 2018.
    """
    size = gradients.shape[1]
    each = FLOAT_BITS + (size - 1).bit_length()
    k = max(1, int(rate * size / each))
    places = gradients.abs().topk(k, dim=1).indices
    values = torch.zeros_like(gradients).scatter(1, places, gradients.gather(1, places))
    return Compressed(values, torch.full((len(gradients),), k * each))


def scaled_sign(gradients: Tensor, streams: Streams, rate: float) -> Compressed:
    """EF-signSGD: `|p|_1/M * sign(p)` of gradient and memory p, `[k, M]`; M + 32 bits at any rate.

    Example:
        >>> scaled_sign(torch.tensor([[1.0, -3.0, 2.0]]), [], 1.0).values
        tensor([[ 2., -2.,  2.]])

    Reference: S. P. Karimireddy et al., "Error feedback fixes signSGD and other gradient compression
        schemes", 2019.
    """
    scale = gradients.abs().mean(dim=1, keepdim=True)
    return Compressed(scale * sign(gradients), torch.full((len(gradients),), gradients.shape[1] + FLOAT_BITS))


@_at_unit_peak
def eden(gradients: Tensor, streams: Streams, rate: float) -> Compressed:
    """EDEN: each device its own rotation R, Lloyd-Max levels of N(0, 1), an unbiased scale; `[k, M]`.

    `S*R^T Q(R x)`, `S = |x|^2/<R x, Q(R x)>`, Q rounding `sqrt(n)*R x/|x|` to `2^rate` levels. Below one bit
    per weight x is `g/f` on a random part `f = rate` of the weights, as in the authors' code, and Q is one
    bit. `B*n + 32` bits, n being the rotated size of x. With a uniformly random R the mean is g itself; with
    a randomised Hadamard transform, theirs and ours, nearly so unless g has only a few weights.

    Example:
        >>> g = torch.randn(1, 4096, generator=torch.Generator().manual_seed(0))
        >>> sent = eden(g, [np.random.default_rng(0)], 2.0)
        >>> round(float((sent.values - g).square().sum() / g.square().sum()), 2), int(sent.bits)
        (0.13, 8224)

    Reference: S. Vargaftik et al., "EDEN: communication-efficient and robust distributed mean estimation for
        federated learning", 2022.
    """
    size = gradients.shape[1]
    kept, quantizer = max(1, round(min(rate, 1) * size)), _quantizer(max(1, rate))
    values = torch.zeros_like(gradients)
    for g, value, stream in zip(gradients, values, streams):  # a device at a time: each has its own rotation
        key = int(stream.integers(1 << 63))
        part = torch.arange(size) if kept == size else torch.from_numpy(stream.choice(size, kept, False))
        x = g[part] * (size / kept)
        rotated = rotate(x, key)
        norm = torch.linalg.vector_norm(rotated)
        if norm > 0:
            unit = rotated / norm
            levels = quantizer.decode(quantizer.encode(unit * math.sqrt(len(unit))), unit.dtype)
            value[part] = unrotate(norm / (unit @ levels) * levels, key, kept)
    return Compressed(values, torch.full((len(gradients),), quantizer.bits * rotated_size(kept) + FLOAT_BITS))


@cache
def _quantizer(bits: float) -> LloydMaxQuantizer:
    if bits != int(bits):
        raise ValueError(f"method.bits_per_weight must be at most 1, or 2, 3 or 4; got {bits:g}")
    return LloydMaxQuantizer(int(bits))


def drive(gradients: Tensor, streams: Streams, rate: float) -> Compressed:
    """DRIVE: `S*R^T sign(R g)`, `S = |R g|_2^2/|R g|_1`, which is EDEN at one bit; n + 32 bits at any rate.

    Example:
        >>> sent = drive(torch.tensor([[0.0, 8.0, 0.0, 0.0]]), [np.random.default_rng(0)], 1.0)
        >>> sent.values.abs(), sent.bits
        (tensor([[0., 8., 0., 0.]]), tensor([36]))

    Reference: S. Vargaftik et al., "DRIVE: one-bit distributed mean estimation", 2021.
    """
    return eden(gradients, streams, 1.0)


COMPRESSORS.add("qsgd", Compressor("QSGD (Alistarh et al. 2017), Elias codes, on a clean channel", qsgd))
COMPRESSORS.add(
    "topk",
    Compressor("top-k with error feedback (Stich et al. 2018), on a clean channel", top_k, feedback=True),
)
COMPRESSORS.add(
    "ef-sign",
    Compressor("EF-signSGD (Karimireddy et al. 2019), on a clean channel", scaled_sign, feedback=True),
)
COMPRESSORS.add("drive", Compressor("DRIVE (Vargaftik et al. 2021), on a clean channel", drive))
COMPRESSORS.add("eden", Compressor("EDEN (Vargaftik et al. 2022), on a clean channel", eden))
