"""The posterior mean by Gibbs sampling: slow, unbiased in the long run, with an error bar; a reference.

`g = L z`, `L L^T = C`, `z ~ N(0, I)` with as many entries as C has rank. Along any line in z the prior is
normal and the likelihood constant between the places where a sign changes: the place is drawn from its
conditional distribution in closed form, and no step is rejected. The lines are those that move one variable
alone, where C leaves it room, and eigenvectors of C, along which variables that are nearly copies move
together. The signs depend on the direction of z alone, so its length is drawn anew in every sweep; and `-z`
is as likely as z but for the bits, so the side is drawn too.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.kernels import gibbs as gibbs_kernel
from signfade.kernels.threads import available_threads, run_ranges
from signfade.server.joint._copies import SAME, merge_copies

__all__ = ["GIBBS_LIMIT", "gibbs_means"]

Array = NDArray[np.float64]

GIBBS_LIMIT = 1000
_CHAINS, _BATCHES = 8, 4
_LEAST = _CHAINS * (_BATCHES + 1)
_ROOM = 0.02  # variance of a variable given the others, from which it is worth moving by itself
_LONG = 8.0  # eigenvalues above this many times the least room get a line of their own


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

    Eight chains a coordinate from different starts, a fifth of their sweeps discarded, the rest in 32 batches
    whose spread gives the standard error; the chains' spread where that is significantly larger. Any
    correlation matrix will do, singular ones included: copies are merged.

    Args:
        llr: Half-LLRs of the signs, `[d, N]`; coordinates are independent problems.
        correlation: Of the centred, unit-variance variables, `[d, d]`.
        combine: The combinations wanted, `[R, d]`: `R = 1` for a weighted sum, the identity for all
            variables.
        sweeps: Visits to every variable, over all chains, at least 40.
        seed: Of the chains; a coordinate's chains depend on the seed and its place alone.
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
    llr, correlation, combine, _ = merge_copies(llr, correlation, combine)
    devices, size = llr.shape
    if devices > GIBBS_LIMIT:
        raise ValueError(
            f"covariance has {devices} variables; method 'gibbs' can do {GIBBS_LIMIT}: use joint_blmmse "
            "(any number) or factor_bfl (any number, one factor)"
        )
    if sweeps < _LEAST:
        raise ValueError(f"sweeps must be at least {_LEAST}; got {sweeps}")
    burn = max(1, sweeps // (5 * _CHAINS))
    plan = (_CHAINS, _BATCHES, (sweeps // _CHAINS - burn) // _BATCHES, burn)
    root, along, only = _lines(correlation.detach().double().cpu().numpy())
    steps = np.ascontiguousarray(along @ root.T)
    values = llr.detach().double().cpu().contiguous().numpy()
    wanted = np.ascontiguousarray(combine.detach().double().cpu().numpy())
    mean, error = np.empty((2, len(wanted), size))
    key = np.uint64((seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64)

    def work(first: int, last: int) -> None:
        gibbs_kernel.gibbs_range(
            values, root, along, steps, only, wanted, plan, key, first, last, mean, error
        )

    if size > 0:
        run_ranges(work, size, threads or available_threads())
    return torch.from_numpy(mean), torch.from_numpy(error)


def _lines(correlation: Array) -> tuple[Array, Array, NDArray[np.int64]]:
    """Return L `[d, r]`, unit vectors of z along which to move `[J, r]`, and the variable that each moves.

    The last is `[J]`, and -1 for a line that moves more than one.
    """
    values, vectors = np.linalg.eigh(correlation)
    kept = values > SAME
    values, vectors = values[kept], np.ascontiguousarray(vectors[:, kept])
    root = vectors * np.sqrt(values)
    inverse = vectors / np.sqrt(values)
    free = (vectors**2).sum(axis=1) > 1 - 1e-9  # not bound by an eigenvalue that is zero
    room = np.where(free, 1 / (inverse**2).sum(axis=1), 0.0)
    single = np.flatnonzero(room > _ROOM)
    long = values > _LONG * room.min() if len(single) == len(room) else values > 0
    along = np.concatenate((inverse[single] * np.sqrt(room[single, None]), np.eye(len(values))[long]))
    only = np.concatenate((single, np.full(int(long.sum()), -1)))
    return np.ascontiguousarray(root), np.ascontiguousarray(along), only
