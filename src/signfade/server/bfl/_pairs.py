"""Sums of products between all pairs of devices' signals."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from signfade.kernels.threads import available_threads, run_ranges

_CHUNK = 4096


def pair_sums(y: Tensor, threads: int | None = None) -> Tensor:
    """Return `y @ y.T` in float64, `[K, K]`; the same bits for any number of threads.

    Example:
        >>> pair_sums(torch.tensor([[1.0, 2.0], [3.0, -1.0]]))
        tensor([[ 5.,  1.],
                [ 1., 10.]], dtype=torch.float64)
    """
    y = y.detach()
    devices = len(y)
    if y.device.type != "cpu" or find_spec("numba") is None:
        total = torch.zeros(devices, devices, dtype=torch.float64, device=y.device)
        for first in range(0, y.shape[1], _CHUNK):
            part = y[:, first : first + _CHUNK]
            total += (part @ part.T).double()
        return total.cpu()
    # Imported late: compiled code takes a while to load.
    from signfade.server.bfl import _gram

    padded = -(-devices // 4) * 4
    rows = y.contiguous().numpy()
    if padded != devices:
        rows = np.concatenate((rows, np.zeros((padded - devices, rows.shape[1]), rows.dtype)))
    out = np.empty((padded, padded), np.float64)
    side = padded // 4

    def work(first: int, last: int) -> None:
        _gram.gram_tiles(rows, first, last, out)

    run_ranges(work, side * (side + 1) // 2, threads or available_threads())
    return torch.from_numpy(out[:devices, :devices].copy())
