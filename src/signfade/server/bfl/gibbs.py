"""The posterior mean by Gibbs sampling: slow, unbiased in the long run, with an error bar; a reference.

Given all other variables, one variable is Gaussian times `exp(l) * 1(g > 0) + exp(-l) * 1(g < 0)`: a
truncated normal on either side of zero. The side is drawn, then the truncated normal by its quantile
function: no step is rejected.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from signfade.kernels import gibbs as gibbs_kernel
from signfade.kernels.threads import available_threads, run_ranges

__all__ = ["GIBBS_LIMIT", "gibbs_means"]

GIBBS_LIMIT = 1000
_BATCHES = 20
_RIDGE = 1e-9


def gibbs_means(
    llr: Tensor,
    correlation: Tensor,
    combine: Tensor,
    *,
    sweeps: int = 2000,
    seed: int = 0,
    threads: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Sampled posterior means of combinations of jointly Gaussian variables seen through noisy signs.

    One chain a coordinate, a fifth of its sweeps discarded, the rest in 20 batches whose spread gives the
    standard error. Chains mix slowly where correlations come close to one: the error bar then is large, and
    optimistic if it is as large as the posterior itself.

    Args:
        llr: Half-LLRs of the signs, `[d, N]`; coordinates are independent problems.
        correlation: Of the centred, unit-variance variables, `[d, d]`.
        combine: The combinations wanted, `[R, d]`: `R = 1` for a weighted sum, the identity for all
            variables.
        sweeps: Visits to every variable, at least 25.
        seed: Of the chains; a coordinate's chain depends on the seed and its place alone.
        threads: At most so many threads, by default as many as there are cores. Never changes a result.

    Returns:
        `(combine @ E[g | y], its standard error)`, float64 `[R, N]` each.

    Raises:
        ValueError: More than a thousand variables, or too few sweeps.

    Example:
        >>> r = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
        >>> mean, error = gibbs_means(torch.tensor([[50.0], [50.0]]), r, torch.eye(2), sweeps=5000)
        >>> bool(((mean - 0.8976).abs() < 4 * error).all()), bool((error < 0.02).all())
        (True, True)

    Reference:
        docs/bfl.md.
    """
    devices, size = llr.shape
    if devices > GIBBS_LIMIT:
        raise ValueError(
            f"covariance has {devices} variables; method 'gibbs' can do {GIBBS_LIMIT}: use joint_blmmse "
            "(any number) or factor_bfl (any number, one factor)"
        )
    if sweeps < _BATCHES + _BATCHES // 4:
        raise ValueError(f"sweeps must be at least {_BATCHES + _BATCHES // 4}; got {sweeps}")
    burn = sweeps // 5
    length = (sweeps - burn) // _BATCHES
    prior = correlation.detach().double().cpu().numpy()
    inverse = np.linalg.inv(prior + _RIDGE * np.eye(devices))
    inverse = np.ascontiguousarray((inverse + inverse.T) / 2)
    values = llr.detach().double().cpu().contiguous().numpy()
    wanted = np.ascontiguousarray(combine.detach().double().cpu().numpy())
    mean, error = np.empty((2, len(wanted), size))
    key = np.uint64((seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64)

    def work(first: int, last: int) -> None:
        gibbs_kernel.gibbs_range(
            values, inverse, wanted, key, burn, _BATCHES, length, first, last, mean, error
        )

    if size > 0:
        run_ranges(work, size, threads or available_threads())
    return torch.from_numpy(mean), torch.from_numpy(error)
