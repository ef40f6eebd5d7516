"""Devices that are copies of each other, up to a sign and a scale, are one variable."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

# Correlations closer to one than this are one. The signs of such a pair differ with probability
# arccos(r)/pi < 5e-5.
SAME = 1e-8


def merge_copies(
    llr: Tensor, correlation: Tensor, combine: Tensor, snr: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Replace variables whose correlation is 1 or -1 by one: half-LLRs and weights add, with the sign.

    Arguments as in `exact_means` and `ep_means`; returns them for the variables that are left.
    """
    r = correlation.detach().double().cpu()
    count, group = connected_components(r.abs().numpy() > 1 - SAME, directed=False)
    if count == len(r):
        return llr, r, combine, snr
    first = torch.from_numpy(np.unique(group, return_index=True)[1])
    sign = torch.where(r[first[group], torch.arange(len(r))] < 0, -1.0, 1.0).double()
    join = torch.zeros(count, len(r), dtype=torch.float64)
    join[group, torch.arange(len(r))] = sign
    joined = None if snr is None else join.square() @ snr.detach().double().cpu()
    return join @ llr.detach().double().cpu(), r[first][:, first], combine.double() @ join.T, joined
