"""Posterior means by expectation propagation (fast) and by Gibbs sampling (a reference with an error bar).

Expectation propagation approximates `N(g; 0, C) * prod_k (exp(l_k) * 1(g_k > 0) + exp(-l_k) * 1(g_k < 0))` by
a Gaussian, in which every likelihood is replaced by a Gaussian site. A site is set so that its Gaussian has
the mean and variance of the true product in that one variable, given all other sites (the cavity, `N(m, v)`):
with `z = m/sqrt(v)`, `p = 1/(1 + exp(-2*l))`, `G = phi(z) * (2*p - 1) / (p * Phi(z) + (1-p) * Phi(-z))`,
`mean = m + sqrt(v) * G`, `variance = v * (1 - z*G - G**2)`.

Sites start at the linear (Bussgang) solution and are visited one after the other. A bit that contradicts the
others widens the posterior, and its site has a negative precision: with many weak, strongly correlated bits
this is what keeps the answer right. It can also make the sites run away from each other; so updates are
damped from the fourth sweep on, and a coordinate that does not settle is repeated with precisions held above
zero.
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

    Within 1 % of the signal's standard deviation of the exact ones for random covariances at any SNR; 2 to
    5 % when all pairs have correlation 0.9, and 10 % at 0.99, where `factor_bfl` is exact. With two or three
    factors and hardly anything of the devices' own (a least eigenvalue below 0.001) 1 to 5 %, but where
    strong bits contradict each other it can be off by the signal itself: use `exact` or `gibbs`. Cost per
    coordinate: d**3 / 6 multiplications for the last sweep and d**3 / 2 for each before; two or three sweeps.

    Arguments as in `exact_means`. `snr` `[d]` is `h**2/sigma2`, infinity if None: where the sites start. At
    most `sweeps` passes over the sites end when no mean moves by more than `tolerance` standard deviations.

    Example:
        >>> r = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
        >>> means, info = ep_means(torch.tensor([[50.0], [50.0]]), r, torch.eye(2), tolerance=1e-6)
        >>> [round(float(x), 2) for x in means]  # the exact value is 0.8976
        [0.9, 0.9]

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
    llr: Tensor,
    correlation: Tensor,
    combine: Tensor,
    *,
    sweeps: int = 2000,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Sampled posterior means of combinations of jointly Gaussian variables seen through noisy signs.

    Slow, unbiased in the long run, with its standard error: a reference. Eight chains per coordinate from
    different starts, a fifth of their sweeps discarded, the rest in 32 batches whose spread gives the
    standard error; the chains' spread where that is significantly larger. A coordinate's chains depend on the
    seed and its place alone. `sweeps` are visits to every variable, over all chains, at least 40.

    `g = L z`, `L L^T = C`, `z ~ N(0, I)` with as many entries as C has rank. Along any line in z the prior is
    normal and the likelihood constant between the places where a sign changes: the place is drawn from its
    conditional distribution in closed form, and no step is rejected. The lines are those that move one
    variable alone, where C leaves it room, and eigenvectors of C, along which near copies move together. The
    signs depend on the direction of z alone, so its length is drawn anew in every sweep; and `-z` is as
    likely as z but for the bits, so the side is drawn too.

    Example:
        >>> r = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
        >>> mean, error = gibbs_means(torch.tensor([[50.0], [50.0]]), r, torch.eye(2), sweeps=5000)
        >>> bool(((mean - 0.8976).abs() < 4 * error).all()), bool((error < 0.02).all())
        (True, True)
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
