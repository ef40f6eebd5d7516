"""Input checks and small conversions shared by the joint rules."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from signfade._check import check_finite, check_positive, check_rows, check_shape

# How far rounding may push a covariance, relative to its diagonal, before it is refused. Single precision
# products of a thousand terms stay well inside.
SLACK = 1e-4


def check_link(y: Tensor, h: Tensor, sigma2: Tensor) -> None:
    """Raise unless y is `[K, M]`, floating point, and h and sigma2 are sane and `[K]`.

    Whether y is finite is left to `check_result`: one pass over `[M]` instead of one over `[K, M]`.
    """
    check_rows("y", y)
    if y.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"y must be float32 or float64; got {y.dtype}")
    check_gains(h, sigma2, y.shape[0])


def check_gains(h: Tensor, sigma2: Tensor, devices: int) -> None:
    """Raise unless h and sigma2 are finite, `[K]`, K at least 1, and no variance is negative."""
    check_rows("h", h, "[K]")
    for name, value in (("h", h), ("sigma2", sigma2)):
        check_shape(name, value, (devices,))
        check_finite(name, value)
    check_positive("sigma2", sigma2, zero=True)


def check_devices(mean: Tensor | None, weights: Tensor | None, devices: int, size: int) -> None:
    """Raise unless mean is `[K]` or `[K, M]` and weights `[K]` or None, all finite."""
    if mean is not None:
        check_shape("mean", mean, (devices,), (devices, size))
        check_finite("mean", mean)
    if weights is not None:
        check_shape("weights", weights, (devices,))
        check_finite("weights", weights)


def check_scale(scale: Tensor, devices: int) -> None:
    """Raise unless scale is `[K]`, finite and not negative."""
    check_shape("scale", scale, (devices,))
    check_finite("scale", scale)
    check_positive("scale", scale, zero=True)


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
    shifted = torch.from_numpy(result)
    failed = int(torch.linalg.cholesky_ex(shifted).info) != 0  # cheaper than the eigenvalues
    np.fill_diagonal(result, 1.0)
    if failed:
        least = float(torch.linalg.eigvalsh(torch.from_numpy(result))[0])
        raise ValueError(
            f"{name} must be positive semidefinite; with a unit diagonal its least eigenvalue is {least:g}"
        )
    return torch.from_numpy(result)


def check_result(name: str, result: Tensor) -> Tensor:
    """Return a result that every input has entered, or say that `name` was not finite."""
    check_finite(name, result)
    return result


def mean_term(mean: Tensor, weights: Tensor | None, like: Tensor) -> Tensor:
    """Return `sum_k alpha_k * mean_k`, a scalar for mean `[K]` and `[M]` for mean `[K, M]`."""
    alpha = torch.ones(len(mean), dtype=torch.float64) if weights is None else weights.detach().double().cpu()
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
