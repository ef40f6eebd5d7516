"""Posterior means by expectation propagation (fast) and by Gibbs sampling (a reference with an error bar).

Both are described in docs/bfl.md, "Expectation propagation" and "Gibbs sampling".
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.kernels import ep, gibbs
from signfade.kernels.threads import available_threads, run_ranges
from signfade.server.joint._inputs import SAME, merge_copies

__all__ = ["EPInfo", "ep_means", "gibbs_means"]

Float64 = NDArray[np.float64]

_LARGEST = 1000  # variables
_CHAINS, _BATCHES = 8, 4
_LEAST_SWEEPS = _CHAINS * (_BATCHES + 1)
_ROOM = 0.02  # variance of a variable given the others, from which it is worth moving by itself
_LONG = 8.0  # eigenvalues above this many times the least room get a line of their own


def _check_count(devices: int, method: str) -> None:
    if devices > _LARGEST:
        raise ValueError(
            f"covariance has {devices} variables; method {method!r} can do {_LARGEST}: use joint_blmmse "
            "(any number) or factor_bfl (any number, one factor)"
        )


class EPInfo(NamedTuple):
    """How EP ended: mean sweeps per coordinate, and the share of coordinates that moved in the last one."""

    sweeps: float
    unsettled: float


def ep_means(
    llr: Tensor,
    correlation: Tensor,
    combine: Tensor,
    snr: Tensor | None = None,
    *,
    sweeps: int = 20,
    tolerance: float = 0.1,
) -> tuple[Tensor, EPInfo]:
    """Approximate posterior means of combinations of jointly Gaussian variables seen through noisy signs.

    Within 1 % of the signal's standard deviation of the exact ones for random covariances at any SNR, and 5 %
    when all pairs have correlation 0.9. Where strong bits of nearly dependent variables contradict each other
    it can be off by the signal itself. Cost: d**3 / 2 multiplications per coordinate and sweep.

    Arguments as in `exact_means`. `snr` `[d]` is `h**2/sigma2`, infinity if None: where the sites start. At
    most `sweeps` passes over the sites end when no mean moves by more than `tolerance` standard deviations.

    Reference: Minka, Expectation propagation for approximate Bayesian inference (2001); docs/bfl.md.
    """
    llr, correlation, combine, snr = merge_copies(llr, correlation, combine, snr)
    devices, size = llr.shape
    _check_count(devices, "ep")
    if sweeps < 1:
        raise ValueError(f"sweeps must be at least 1; got {sweeps}")
    ratio = torch.full((devices,), math.inf) if snr is None else snr.detach().cpu()
    gamma = ratio.double().numpy()
    share = 2 / math.pi
    with np.errstate(divide="ignore"):
        precision = share / (1 - share + 1 / gamma)
    # A device alone starts at its posterior mean, kappa * tanh(l).
    slope = math.sqrt(share) * (1 + precision)
    prior = correlation.detach().double().cpu().numpy()
    root = np.sqrt(precision)
    inner = np.eye(devices) + root[:, None] * prior * root[None, :]
    start = prior - (prior * root) @ np.linalg.solve(inner, root[:, None] * prior)
    start = np.ascontiguousarray((start + start.T) / 2)
    values = llr.detach().cpu().contiguous().numpy()
    wanted = np.ascontiguousarray(combine.detach().double().cpu().numpy())
    out = np.empty((len(wanted), size))
    info = np.empty(size, np.int8)

    def work(first: int, last: int) -> None:
        ep.ep_groups(values, start, precision, slope, wanted, sweeps, tolerance, first, last, out, info)

    if size == 0:
        return torch.from_numpy(out), EPInfo(0.0, 0.0)
    run_ranges(work, -(-size // ep.WIDTH), available_threads())
    return torch.from_numpy(out), EPInfo(float(np.abs(info).mean()), float((info < 0).mean()))


def gibbs_means(
    llr: Tensor, correlation: Tensor, combine: Tensor, *, sweeps: int = 2000, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Sampled posterior means of combinations of jointly Gaussian variables seen through noisy signs.

    Eight chains per coordinate from different starts, a fifth of their sweeps discarded, the rest in 32
    batches whose spread gives the standard error; the chains' spread where that is significantly larger. A
    coordinate's chains depend on the seed and its place alone. `sweeps` are visits to every variable, over
    all chains, at least 40; other arguments as in `exact_means`.
    """
    llr, correlation, combine, _ = merge_copies(llr, correlation, combine)
    devices, size = llr.shape
    _check_count(devices, "gibbs")
    if sweeps < _LEAST_SWEEPS:
        raise ValueError(f"sweeps must be at least {_LEAST_SWEEPS}; got {sweeps}")
    burn = max(1, sweeps // (5 * _CHAINS))
    plan = (_CHAINS, _BATCHES, (sweeps // _CHAINS - burn) // _BATCHES, burn)
    root, along, only = _lines(correlation.detach().double().cpu().numpy())
    steps = np.ascontiguousarray(along @ root.T)
    values = llr.detach().double().cpu().contiguous().numpy()
    wanted = np.ascontiguousarray(combine.detach().double().cpu().numpy())
    mean, error = np.empty((2, len(wanted), size))
    key = np.uint64((seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64)

    def work(first: int, last: int) -> None:
        gibbs.gibbs_range(values, root, along, steps, only, wanted, plan, key, first, last, mean, error)

    if size > 0:
        run_ranges(work, size, available_threads())
    return torch.from_numpy(mean), torch.from_numpy(error)


def _lines(correlation: Float64) -> tuple[Float64, Float64, NDArray[np.int64]]:
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
