"""The best linear rule when devices are correlated: one K x K solve, then a weighted sum.

Signal model: `y_k = h_k * sign(g_k - mean_k) + n_k`, real noise `n_k ~ N(0, sigma2_k)`, signs of unit power,
and the centred gradients of all devices jointly Gaussian with the same correlation matrix r for every
coordinate (after `signfade.device.rotate` they are). By Bussgang and the arcsine law
`Cov(g_k, y_j) = scale_k * r_kj * h_j`, `Cov(y) = h h^T * (2/pi) * arcsin(r) + diag(sigma2)`.
"""

from __future__ import annotations

from torch import Tensor

from signfade.server.bfl._inputs import (
    check_devices,
    check_gains,
    check_link,
    check_result,
    mean_term,
    weighted_rows,
)
from signfade.server.bfl._normal import solve_joint
from signfade.server.bfl.lowrank import LowRank

__all__ = ["add_signals", "joint_blmmse", "joint_fit", "joint_gain", "joint_weights"]


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
        >>> import torch
        >>> one = torch.ones(2)
        >>> y = torch.tensor([[0.8, -0.4], [0.6, 0.2]])
        >>> joint_blmmse(y, one, one, 0 * one, one, torch.tensor([[1.0, 0.9], [0.9, 1.0]]))
        tensor([ 0.9805, -0.1401])

    Reference:
        Section IV-B.1, jointly over devices; docs/bfl.md.
    """
    check_link(y, h, sigma2)
    check_devices(mean, weights, *y.shape)
    return add_signals(y, joint_weights(h, sigma2, scale, correlation, weights), mean, weights)


def add_signals(y: Tensor, combine: Tensor, mean: Tensor, weights: Tensor | None = None) -> Tensor:
    """`joint_blmmse` with the weights `w` that `joint_fit` has found: `sum_k alpha_k*mean_k + w_k*y_k`.

    Args:
        y: Received signals, `[K, M]`.
        combine: `w`, `[K]`.
        mean: Means, `[K]` or `[K, M]`.
        weights: `alpha_k` of the means, `[K]`; ones if None.

    Example:
        >>> import torch
        >>> one = torch.ones(2)
        >>> add_signals(torch.tensor([[0.8, -0.4], [0.6, 0.2]]), 0.5 * one, 0 * one)
        tensor([ 0.7000, -0.1000])
    """
    return check_result("y", weighted_rows(y, combine).add_(mean_term(mean, weights, y)))


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
        >>> import torch
        >>> one = torch.ones(2)
        >>> joint_weights(one, one, one, torch.eye(2))  # independent devices: h/(h**2 + sigma2)
        tensor([0.5000, 0.5000], dtype=torch.float64)

    Reference:
        Section IV-B.1, jointly over devices; docs/bfl.md.
    """
    return joint_fit(h, sigma2, scale, correlation, weights)[0]


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
        >>> import torch
        >>> one = torch.ones(2)
        >>> round(joint_gain(one, one, one, torch.eye(2)), 4)  # (2/pi) * gamma/(1 + gamma)
        0.3183

    Reference:
        docs/bfl.md, "Undoing the shrinkage".
    """
    return joint_fit(h, sigma2, scale, correlation, weights)[1]


def joint_fit(
    h: Tensor,
    sigma2: Tensor,
    scale: Tensor,
    correlation: Tensor | LowRank,
    weights: Tensor | None = None,
) -> tuple[Tensor, float]:
    """`joint_weights` and `joint_gain`, which come from one solve.

    Example:
        >>> import torch
        >>> one = torch.ones(2)
        >>> combine, gain = joint_fit(one, one, one, torch.eye(2))
        >>> combine, round(gain, 4)
        (tensor([0.5000, 0.5000], dtype=torch.float64), 0.3183)
    """
    return solve_joint(*_moments(h, sigma2), scale, correlation, weights)


def _moments(h: Tensor, sigma2: Tensor) -> tuple[Tensor, Tensor]:
    """Return `E[s*y]` and `E[y**2]`, `[K]`."""
    check_gains(h, sigma2, len(h))
    gain = h.detach().double().cpu()
    return gain, gain.square() + sigma2.detach().double().cpu()
