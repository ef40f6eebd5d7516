"""The slow, exact noise: 64 random bits a number through the float64 quantile function."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from signfade.kernels.portable import threefry

__all__ = ["normal"]

_OWN_STREAM = -(1 << 31)  # the counter's top bit is never set by the table's stream


def normal(key: int, size: int, start: int = 0) -> NDArray[np.float32]:
    """Return coordinates start ... start + size - 1 of the exact stream `key`, float32 `[size]`.

    `z = +-Phi^-1(1 - p/2)`, `p = (v + 1/2) / 2^63` with 63 bits v and one sign bit.
    """
    from scipy.special import ndtri

    counter = torch.arange(start, start + size, dtype=torch.int64)
    low = ((counter & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
    x0, x1 = threefry(key, low.to(torch.int32), (counter >> 32).to(torch.int32) | _OWN_STREAM)
    low_word = x0.numpy().view(np.uint32).astype(np.uint64)
    high_word = x1.numpy().view(np.uint32).astype(np.uint64)
    v = ((high_word & np.uint64(0x7FFFFFFF)) << np.uint64(32)) | low_word
    tail = (v.astype(np.float64) + 0.5) / 2.0**64
    z: NDArray[np.float32] = np.where(high_word >> np.uint64(31), ndtri(tail), -ndtri(tail)).astype(
        np.float32
    )
    return z
