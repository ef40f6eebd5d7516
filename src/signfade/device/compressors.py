"""What a device makes of its gradient before it is sent: one bit per weight, numbers in full, or your own.

By default the aggregator decides. With `ideal`, `method.compressor` may name your own function,
`package.module:function` or `file.py:function`, of the gradients `[k, M]` and one NumPy generator per device.
It returns what the server decodes, `[k, M]`, and the bits that each device sent, one number or `[k]`; its
digital messages arrive as they were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from signfade.registry import Registry, user_code

__all__ = ["COMPRESSORS", "Compressed", "Compressor"]


@dataclass(frozen=True)
class Compressed:
    """What the server decodes of k devices' gradients, `[k, M]`, and the bits they sent, int64 `[k]`."""

    values: Tensor
    bits: Tensor


Compress = Callable[[Tensor, Sequence[np.random.Generator]], Compressed]


@dataclass(frozen=True)
class Compressor:
    """One compressor, and one line about it for people."""

    help: str
    compress: Compress


def _in_full(gradients: Tensor, streams: Sequence[np.random.Generator]) -> Compressed:
    return Compressed(gradients, torch.full((len(gradients),), 32 * gradients.shape[1]))


def _adopt(path: str, function: Callable[..., Any]) -> Compressor:
    def compress(gradients: Tensor, streams: Sequence[np.random.Generator]) -> Compressed:
        with user_code(path):
            values, bits = function(gradients, streams)
            values, bits = torch.as_tensor(values), torch.as_tensor(bits).to(torch.int64)
        if values.shape != gradients.shape:
            raise ValueError(
                f"{path} must return values of shape {list(gradients.shape)}; got {list(values.shape)}"
            )
        if not bool(values.isfinite().all()):
            raise ValueError(f"{path} returned NaN or infinity")
        return Compressed(values.to(gradients), bits.expand(len(gradients)))

    return Compressor(f"your own compressor {path}", compress)


COMPRESSORS: Registry[Compressor] = Registry("method.compressor", _adopt)
COMPRESSORS.add(
    "auto", Compressor("32 bits per weight, or one bit where the aggregator reads bits", _in_full)
)
