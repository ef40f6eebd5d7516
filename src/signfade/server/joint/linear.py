"""The best linear rule when devices are correlated: one K x K solve, then a weighted sum.

Signal model: `y_k = h_k * sign(g_k - mean_k) + n_k`, real noise `n_k ~ N(0, sigma2_k)`, signs of unit power,
and the centred gradients of all devices jointly Gaussian with the same correlation matrix r for every
coordinate (after `signfade.device.rotation` they are). By Bussgang and the arcsine law
`Cov(g_k, y_j) = scale_k * r_kj * h_j`, `Cov(y) = h h^T * (2/pi) * arcsin(r) + diag(sigma2)`.
"""

from __future__ import annotations

from torch import Tensor

from signfade.server.joint._inputs import (
    check_devices,
    check_gains,
    check_link,
    check_result,
    mean_term,
    weighted_rows,
)
from signfade.server.joint._normal import JointFit, solve_joint
from signfade.server.joint.lowrank import LowRank
from signfade.uplink import Signals, symbols

__all__ = ["fit_joint_blmmse", "joint_blmmse"]


def joint_blmmse(
    y: Tensor | Signals,
    h: Tensor,
    sigma2: Tensor,
    mean: Tensor,
    scale: Tensor,
    correlation: Tensor | LowRank,
    weights: Tensor | None = None,
    fit: JointFit | None = None,
) -> Tensor:
    """Linear minimum-MSE estimate of the summed gradient from all devices' symbols together.

    `ghat = sum_k alpha_k * mean_k + sum_k w_k * y_k`,
    `w = Cov(y)^-1 c`, `c_j = sum_k alpha_k * Cov(g_k, y_j)`

    Args:
        y: Received signals from `uplink.transmit`, or symbols `[K, M]`.
        h: Channel gains, `[K]`. A gain of zero gives the device no say beyond its mean.
        sigma2: Variance of the real noise per symbol, `[K]`. Zero is a noiseless link.
        mean: Mean of each device's gradient, `[K]` or `[K, M]`.
        scale: `E|g - mean|` of each device, `[K]`.
        correlation: Correlation between the devices' gradients, `[K, K]`, or a `LowRank` one.
        weights: `alpha_k`, `[K]`; ones if None.
        fit: From `fit_joint_blmmse`, where it has been called already.

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
    y = symbols(y)
    check_link(y, h, sigma2)
    check_devices(mean, weights, *y.shape)
    combine, _ = fit or fit_joint_blmmse(h, sigma2, scale, correlation, weights)
    return check_result("y", weighted_rows(y, combine).add_(mean_term(mean, weights, y)))


def fit_joint_blmmse(
    h: Tensor,
    sigma2: Tensor,
    scale: Tensor,
    correlation: Tensor | LowRank,
    weights: Tensor | None = None,
) -> JointFit:
    """The K numbers of `joint_blmmse`, and by how much it shrinks the sum on average.

    `w = Cov(y)^-1 c`, `eta = E[ghat * gsum] / E[gsum**2] = c^T Cov(y)^-1 c / (alpha^T C alpha)`,
    `C_kj = std_k * std_j * r_kj`, `std = sqrt(pi/2) * scale` (Gaussian). Divide the estimate by the gain,
    bounded below, and a learning rate carries over between rules and SNRs.

    Arguments as in `joint_blmmse`.

    Returns:
        `JointFit(combine, gain)`: `w`, float64 `[K]`, and `eta` from 0 to 1; one minus it is the normalised
        error. It is 0 where the sum has no variance.

    Example:
        >>> import torch
        >>> one = torch.ones(2)
        >>> combine, gain = fit_joint_blmmse(one, one, one, torch.eye(2))
        >>> combine, round(gain, 4)  # independent devices: h/(h**2 + sigma2), (2/pi)*gamma/(1 + gamma)
        (tensor([0.5000, 0.5000], dtype=torch.float64), 0.3183)

    Reference:
        Section IV-B.1, jointly over devices; docs/bfl.md, "Undoing the shrinkage".
    """
    return solve_joint(*_moments(h, sigma2), scale, correlation, weights)


def _moments(h: Tensor, sigma2: Tensor) -> tuple[Tensor, Tensor]:
    """Return `E[s*y]` and `E[y**2]`, `[K]`."""
    check_gains(h, sigma2, len(h))
    gain = h.detach().double().cpu()
    return gain, gain.square() + sigma2.detach().double().cpu()
