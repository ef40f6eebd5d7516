"""A pytest plugin that moves the last bit of matrix products, sums and factorisations, as another CPU might.

`PYTHONPATH=tests NUDGE=1 pytest -p nudge tests/server`. Every result goes up one step, down one, or stays;
which, depends on its bits and on NUDGE alone, so that equal results stay equal and symmetric matrices
symmetric. Multiples of 1/4096 stay: they were summed without rounding, as on any CPU. So do NumPy's `@` and
compiled code.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

SALT = int(os.environ.get("NUDGE", "1"))
INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}


def nudge(value: Any) -> Any:
    """Move the entries of a tensor or an array by at most one step, and those of tuples one by one."""
    if isinstance(value, tuple):
        moved = [nudge(part) for part in value]
        return type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)
    if isinstance(value, np.ndarray) and value.dtype in (np.float32, np.float64) and value.size:
        return nudge(torch.from_numpy(np.ascontiguousarray(value))).numpy()
    if not isinstance(value, torch.Tensor) or value.dtype not in INTEGERS or value.requires_grad:
        return value
    bits = value.contiguous().view(INTEGERS[value.dtype])
    mixed = (bits.long() ^ SALT) * 0x5851F42D4C957F2D
    step = ((mixed >> 33) & 0xFFFF) % 3 - 1
    still = (4096 * value == (4096 * value).round()) | ~value.isfinite()
    return torch.where(still, bits, bits + step.to(bits.dtype)).view(value.dtype)


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        return function(*arguments, **options) if "out" in options else nudge(function(*arguments, **options))

    return call


def pytest_configure() -> None:
    """Replace the functions for the whole run."""
    for owner, names in {
        torch.Tensor: ("__matmul__", "__rmatmul__", "matmul", "mm", "sum", "mean"),
        torch: ("matmul", "mv", "mm"),
        torch.linalg: ("eigh", "eigvalsh", "cholesky", "solve", "inv", "pinv", "qr", "lstsq"),
        np.linalg: ("eigh", "eigvalsh", "cholesky", "solve", "inv"),
    }.items():
        for name in names:
            setattr(owner, name, wrapped(getattr(owner, name)))
