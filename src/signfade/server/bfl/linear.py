"""The best linear rule when devices are correlated: one K x K solve, then a weighted sum.

Signal model: `y_k = h_k * sign(g_k - mean_k) + n_k`, real noise `n_k ~ N(0, sigma2_k)`, signs of unit power,
and the centred gradients of all devices jointly Gaussian with the same correlation matrix r for every
coordinate (after `signfade.device.rotate` they are). By Bussgang and the arcsine law
`Cov(g_k, y_j) = scale_k * r_kj * h_j`, `Cov(y) = h h^T * (2/pi) * arcsin(r) + diag(sigma2)`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from signfade.server.bfl._inputs import (
    check_correlation,
    check_devices,
    check_gains,
    check_link,
    check_result,
    check_scale,
    mean_term,
    weighted_rows,
)
from signfade.server.bfl.lowrank import LowRank, solve_low_rank

__all__ = ["joint_blmmse", "joint_gain", "joint_weights"]

# Added to the diagonal of Cov(y), scaled to ones: noiseless devices with equal gradients make it singular.
_RIDGE = 1e-9


def joint_blmmse(
    y: Tensor,
    h: Tensor,
    sigma2: Tensor,
    mean: Tensor,
    scale: Tensor,
    correlation: Tensor | LowRank,
    weights: Tensor | None = None,
) -> Tensor:
    """Linear minimum-MSE estimate of the summed gradient from all devices' symbols together.

    `ghat = sum_k alpha_k * mean_k + sum_k w_k * y_k`,
    `w = Cov(y)^-1 c`, `c_j = sum_k alpha_k * Cov(g_k, y_j)`

    Args:
        y: Received signals, `[K, M]`.
        h: Channel gains, `[K]`. A gain of zero gives the device no say beyond its mean.
        sigma2: Variance of the real noise per symbol, `[K]`. Zero is a noiseless link.
        mean: Mean of each device's gradient, `[K]` or `[K, M]`.
        scale: `E|g - mean|` of each device, `[K]`.
        correlation: Correlation between the devices' gradients, `[K, K]`, or a `LowRank` one.
        weights: `alpha_k`, `[K]`; ones if None.

    Returns:
        The estimate of `sum_k alpha_k * g_k`, `[M]`. With the identity as correlation it is `blmmse`.

    Raises:
        ValueError: Shapes that do not match, or a correlation matrix that is not one.

    Example:
        >>> one = torch.ones(2)
        >>> y = torch.tensor([[0.8, -0.4], [0.6, 0.2]])
        >>> joint_blmmse(y, one, one, 0 * one, one, torch.tensor([[1.0, 0.9], [0.9, 1.0]]))
        tensor([ 0.9805, -0.1401])

    Reference:
        Section IV-B.1, jointly over devices; docs/bfl.md.
    """
    check_link(y, h, sigma2)
    check_devices(mean, weights, *y.shape)
    combine = joint_weights(h, sigma2, scale, correlation, weights)
    return check_result("y", weighted_rows(y, combine) + mean_term(mean, weights, y))


def joint_weights(
    h: Tensor,
    sigma2: Tensor,
    scale: Tensor,
    correlation: Tensor | LowRank,
    weights: Tensor | None = None,
) -> Tensor:
    """The K numbers of `joint_blmmse`: the estimate of the centred sum is `sum_k w_k * y_k`.

    Arguments as in `joint_blmmse`.

    Returns:
        `w = Cov(y)^-1 c`, float64 `[K]`.

    Example:
        >>> one = torch.ones(2)
        >>> joint_weights(one, one, one, torch.eye(2))  # independent devices: h/(h**2 + sigma2)
        tensor([0.5000, 0.5000], dtype=torch.float64)

    Reference:
        Section IV-B.1, jointly over devices; docs/bfl.md.
    """
    power, shared, target = _normal_equations(h, sigma2, scale, correlation, weights)
    if isinstance(correlation, LowRank):
        solution = solve_low_rank(correlation, shared, target, _RIDGE)
    else:
        bits = (2 / math.pi) * torch.asin(check_correlation(correlation, len(h)))
        matrix = bits * shared[:, None] * shared[None, :]
        matrix.fill_diagonal_(1 + _RIDGE)
        solution = torch.linalg.solve(matrix, target)
    return torch.where(power == 0, torch.zeros_like(power), solution / power.clamp_min(1e-300).sqrt())


def joint_gain(
    h: Tensor,
    sigma2: Tensor,
    scale: Tensor,
    correlation: Tensor | LowRank,
    weights: Tensor | None = None,
) -> float:
    """By how much `joint_blmmse` shrinks the sum on average; one minus it is its normalised error.

    `eta = E[ghat * gsum] / E[gsum**2] = c^T Cov(y)^-1 c / (alpha^T C alpha)`, `C_kj = std_k * std_j * r_kj`,
    `std = sqrt(pi/2) * scale` (Gaussian). Divide the estimate by it, bounded below, and a step size carries
    over between rules and SNRs.

    Arguments as in `joint_weights`.

    Returns:
        A number from 0 to 1; 0 where the sum has no variance.

    Example:
        >>> one = torch.ones(2)
        >>> round(joint_gain(one, one, one, torch.eye(2)), 4)  # (2/pi) * gamma/(1 + gamma)
        0.3183

    Reference:
        docs/bfl.md, "Undoing the shrinkage".
    """
    combine = joint_weights(h, sigma2, scale, correlation, weights)
    power, _, target = _normal_equations(h, sigma2, scale, correlation, weights)
    std = math.sqrt(math.pi / 2) * _alpha(weights, len(h)) * scale.detach().double().cpu()
    variance = float(std @ _times(correlation, std))
    explained = float(combine @ (target * power.sqrt()))
    return min(1.0, max(0.0, explained / variance)) if variance > 0 else 0.0


def _alpha(weights: Tensor | None, devices: int) -> Tensor:
    return torch.ones(devices, dtype=torch.float64) if weights is None else weights.detach().double().cpu()


def _times(correlation: Tensor | LowRank, vector: Tensor) -> Tensor:
    if isinstance(correlation, LowRank):
        return correlation.times(vector)
    return check_correlation(correlation, len(vector)) @ vector


def _normal_equations(
    h: Tensor, sigma2: Tensor, scale: Tensor, correlation: Tensor | LowRank, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return `E[y**2]`, `h/sqrt(E[y**2])`, `c/sqrt(E[y**2])`: scaled so, 60 and -60 dB are not special."""
    devices = len(h)
    check_gains(h, sigma2, devices)
    check_scale(scale, devices)
    check_devices(None, weights, devices, 0)
    gain, noise = h.detach().double().cpu(), sigma2.detach().double().cpu()
    power = gain.square() + noise
    shared = torch.where(power == 0, torch.zeros_like(power), gain / power.clamp_min(1e-300).sqrt())
    sums = _times(correlation, _alpha(weights, devices) * scale.detach().double().cpu())
    return power, shared, shared * sums
