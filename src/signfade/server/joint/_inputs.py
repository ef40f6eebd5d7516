"""Input checks and small conversions shared by the joint rules."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from signfade._check import check_finite, check_shape

# How far rounding may push a covariance, relative to its diagonal, before it is refused. Single precision
# products of a thousand terms stay well inside.
SLACK = 1e-4
# Correlations closer to one than this are one. The signs of such a pair differ with probability
# arccos(r)/pi < 5e-5.
SAME = 1e-8


def check_correlation(correlation: Tensor, devices: int) -> Tensor:
    """Return a correlation matrix in float64, made exactly symmetric with a unit diagonal, or raise."""
    check_shape("correlation", correlation, (devices, devices))
    check_finite("correlation", correlation)
    matrix = correlation.detach().double().cpu()
    if np.abs(matrix.numpy().diagonal() - 1).max() > SLACK:
        raise ValueError("correlation must have ones on its diagonal")
    return _semidefinite("correlation", matrix)


def split_covariance(covariance: Tensor, devices: int) -> tuple[Tensor, Tensor]:
    """Return the standard deviations `[K]` and the correlation matrix `[K, K]` of a covariance, or raise.

    A device without variance is kept, uncorrelated with the others.
    """
    check_shape("covariance", covariance, (devices, devices))
    check_finite("covariance", covariance)
    matrix = covariance.detach().double().cpu()
    diagonal = matrix.diagonal()
    if bool((diagonal < 0).any()):
        raise ValueError(f"covariance must have a non-negative diagonal; got {float(diagonal.min()):g}")
    std = diagonal.sqrt()
    silent = std == 0
    if bool((matrix[silent] != 0).any()):
        raise ValueError(
            "covariance must be positive semidefinite: a variance is zero, its covariances are not"
        )
    inverse = torch.where(silent, torch.zeros_like(std), 1 / std)
    scaled = matrix * inverse[:, None] * inverse[None, :]
    return std, _semidefinite("covariance", scaled + torch.diag(silent.double()))


def _semidefinite(name: str, matrix: Tensor) -> Tensor:
    given = matrix.numpy()  # on matrices this small a call of torch costs several times one of NumPy
    if np.abs(given - given.T).max() > SLACK:
        raise ValueError(f"{name} must be symmetric")
    result = np.clip((given + given.T) / 2, -1, 1)
    np.fill_diagonal(result, 1 + SLACK)
    failed = int(torch.linalg.cholesky_ex(torch.from_numpy(result)).info) != 0  # cheaper than eigenvalues
    np.fill_diagonal(result, 1.0)
    if failed:
        least = float(torch.linalg.eigvalsh(torch.from_numpy(result))[0])
        raise ValueError(
            f"{name} must be positive semidefinite; with a unit diagonal its least eigenvalue is {least:g}"
        )
    return torch.from_numpy(result)


def weights_or_ones(weights: Tensor | None, devices: int) -> Tensor:
    """Return `alpha_k`, float64 `[K]`."""
    return torch.ones(devices).double() if weights is None else weights.detach().double().cpu()


def snr_of(h: Tensor, sigma2: Tensor) -> Tensor:
    """Return `h**2/sigma2`, float64 `[K]`; a gain of zero has 0, whatever the noise."""
    power = h.detach().double().cpu().square()
    return torch.where(power == 0, torch.zeros_like(power), power / sigma2.detach().double().cpu())


def mean_term(mean: Tensor, weights: Tensor | None, like: Tensor) -> Tensor:
    """Return `sum_k alpha_k * mean_k`, a scalar for mean `[K]` and `[M]` for mean `[K, M]`."""
    alpha = weights_or_ones(weights, len(mean))
    if mean.ndim == 1:
        return (alpha.to(like.device) @ mean.to(like.device).double()).to(like.dtype)
    return weighted_rows(mean.to(like), alpha)


def weighted_rows(rows: Tensor, weights: Tensor) -> Tensor:
    """Return `sum_k w_k * rows_k`, device after device, so that no thread count changes a bit."""
    total = torch.zeros(rows.shape[1], dtype=rows.dtype, device=rows.device)
    for row, weight in zip(rows, weights.tolist()):
        total.add_(row, alpha=weight)
    return total


def independent_groups(correlation: Tensor) -> list[NDArray[np.int64]]:
    """Return the variables in groups that do not depend on each other."""
    depend = np.abs(correlation.detach().double().cpu().numpy()) > 1e-12
    count, group = connected_components(depend, directed=False)
    return [np.flatnonzero(group == index) for index in range(count)]


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
