"""What a device makes of its gradient before it is sent: one bit per weight, numbers in full, or your own.

By default the aggregator decides: one bit per weight goes over the simulated radio, and `ideal` is given the
numbers in full. With `ideal`, `method.compressor` may name another: its digital messages arrive as they were
sent, the server adds what it decodes, and error and bits are measured as for every method. Your own is
`package.module:function` or `file.py:function`: a function of the gradients `[k, M]` and one NumPy generator
per device that returns what the server decodes, `[k, M]`, and the bits that each device sent, one number or
`[k]`; with a parameter `rate` it is given `method.bits_per_weight` too. `rivals` has the built-in ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from signfade.registry import Registry, user_code

__all__ = ["COMPRESSORS", "Compress", "Compressed", "Compressor"]


@dataclass(frozen=True)
class Compressed:
    """What the server decodes of k devices' gradients, `[k, M]`, and the bits they sent, int64 `[k]`."""

    values: Tensor
    bits: Tensor


Compress = Callable[[Tensor, Sequence[np.random.Generator], float], Compressed]


@dataclass(frozen=True)
class Compressor:
    """One compressor.

    Attributes:
        help: One line for people.
        compress: From gradients, streams and bits per weight to what the server decodes.
        feedback: Whether a device adds what its messages lost to its next gradient.
    """

    help: str
    compress: Compress
    feedback: bool = False


def _in_full(gradients: Tensor, streams: Sequence[np.random.Generator], rate: float) -> Compressed:
    return Compressed(gradients, torch.full((len(gradients),), 32 * gradients.shape[1]))


def _adopt(path: str, function: Callable[..., Any]) -> Compressor:
    def compress(gradients: Tensor, streams: Sequence[np.random.Generator], rate: float) -> Compressed:
        with user_code(path):
            asked = {"rate": rate} if "rate" in inspect.signature(function).parameters else {}
            values, bits = function(gradients, streams, **asked)
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
