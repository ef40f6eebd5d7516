"""More than one bit per weight: the labels of Lloyd-Max levels, or the amplitude itself.

A rotated coordinate in units of its deviation is `x ~ N(0, 1)`. With B bits it goes as a sign and the Gray
label of its magnitude's level, one symbol per bit; as an amplitude it goes clipped at the peak allowed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, special
from torch import Tensor

from signfade.device.bits import Bits, pack_signs
from signfade.device.lloyd_max import LloydMaxQuantizer

__all__ = [
    "Amplitudes",
    "Levels",
    "clip_level",
    "clipped_amplitudes",
    "clipped_power",
    "level_bits",
    "levels",
]

Array = NDArray[np.float64]


class Levels(NamedTuple):
    """A Lloyd-Max quantiser of N(0, 1) whose labels are a sign and a Gray-coded magnitude.

    Attributes:
        edges: Where the magnitudes' cells begin, `[n]`, the first at 0.
        values: The magnitudes' centroids, `[n]`.
        masses: Their probabilities, `[n]`; they add up to one.
        labels: +1 or -1, `[n, B - 1]`, of the bits behind the sign.
    """

    edges: Array
    values: Array
    masses: Array
    labels: Array


@cache
def levels(bits: int) -> Levels:
    """Return the levels of B bits per weight, 1 to 4.

    Example:
        >>> levels(2).values.round(4), levels(2).labels[:, 0]
        (array([0.4528, 1.5104]), array([-1.,  1.]))
    """
    if bits not in (1, 2, 3, 4):
        raise ValueError(f"bits must be 1, 2, 3 or 4; got {bits}")
    values = LloydMaxQuantizer(bits).levels.numpy()[2 ** (bits - 1) :]
    edges = np.append(0.0, (values[1:] + values[:-1]) / 2)
    above = 2 * special.ndtr(-edges)
    number = np.arange(len(values))
    gray = (number ^ (number >> 1))[:, None] >> np.arange(bits - 2, -1, -1) & 1
    return Levels(edges, values, above - np.append(above[1:], 0.0), np.asarray(2 * gray - 1, np.float64))


def level_bits(x: Tensor, bits: int) -> Bits:
    """Label standardised coordinates `[k, n]`: n signs, then n of each further bit, `[k, B*n]`.

    Example:
        >>> level_bits(torch.tensor([[0.3, -2.0]]), 2).signs()
        tensor([[ 1., -1., -1.,  1.]])
    """
    cells = levels(bits)
    magnitude = torch.bucketize(x.abs(), torch.from_numpy(cells.edges[1:]).to(x))
    labels = torch.from_numpy(cells.labels).to(torch.int8)[magnitude]
    planes = [torch.where(x < 0, -1, 1).to(torch.int8), *labels.unbind(dim=-1)]
    signs = torch.cat(planes, dim=-1)
    return Bits(pack_signs(signs), signs.shape[1])


@dataclass(frozen=True)
class Amplitudes:
    """What K devices send as amplitudes of unit mean power, float32 `[K, M]`."""

    values: Tensor

    @classmethod
    def join(cls, parts: Sequence[Amplitudes]) -> Amplitudes:
        """Put the amplitudes of several groups of devices into one."""
        return cls(torch.cat([part.values for part in parts]))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def size(self) -> int:
        """Number of symbols M."""
        return self.values.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """`(K, M)`."""
        return len(self), self.size

    def __getitem__(self, rows: slice) -> Amplitudes:
        return Amplitudes(self.values[rows])

    @property
    def packed(self) -> Tensor:
        """Amplitudes have no bits: a rule that wants them must refuse `bits_per_weight = "analog"`."""
        raise TypeError("amplitudes have no bits")

    def signs(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the amplitudes, `[K, M]`: what takes the place of signs on the air."""
        return self.values.to(dtype)


def clipped_amplitudes(x: Tensor, papr_db: float | None) -> Amplitudes:
    """Turn standardised coordinates into amplitudes, `clip(x, -A, A)/sqrt(P)`, `P = E[min(x**2, A**2)]`."""
    level = clip_level(papr_db)
    return Amplitudes(x.clamp(-level, level).float() / math.sqrt(clipped_power(level)))


@cache
def clip_level(papr_db: float | None) -> float:
    """Return where an amplitude is clipped, in deviations, for this peak-to-average power ratio.

    `A**2 / E[min(x**2, A**2)] = 10**(papr_db/10)`; infinity for None.

    Example:
        >>> round(clip_level(8.0), 3), clip_level(None)
        (2.482, inf)
    """
    if papr_db is None:
        return math.inf
    if not papr_db >= 0.1:
        raise ValueError(f"papr_db must be at least 0.1; got {papr_db}")
    ratio = 10 ** (papr_db / 10)
    return float(optimize.brentq(lambda a: a * a / clipped_power(a) - ratio, 1e-3, 50.0, xtol=1e-12))


def clipped_power(level: float) -> float:
    """Return `E[min(x**2, A**2)]` of `x ~ N(0, 1)`."""
    if level == math.inf:
        return 1.0
    tail, density = special.ndtr(-level), math.exp(-(level**2) / 2) / math.sqrt(2 * math.pi)
    return float(1 - 2 * tail - 2 * level * density + 2 * level**2 * tail)
