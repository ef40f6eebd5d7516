"""The best sum of soft bits when devices are correlated: almost the joint posterior, at the price of `sbfl`.

Signal model as in `signfade.server.joint.linear`. A link is best summed up by its soft bit `tanh(l)`,
`l = h*y/sigma2`, and devices are best combined by weights that know their correlation: do both. With
`rho_k = E[tanh(l_k)**2]`, which is also `E[s_k * tanh(l_k)]`, `Cov(g_k, tanh(l_j)) = scale_k * r_kj * rho_j`
and off the diagonal `Cov(tanh(l_k), tanh(l_j)) = (2/pi) * arcsin(r_kj) * rho_k * rho_j`. For independent
devices the weights are the scales, and the rule is `sbfl`. Given the true correlation it is never worse than
`sbfl` or `joint_blmmse`.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade._check import check_shape
from signfade.kernels import fused
from signfade.kernels.fused import TILE
from signfade.kernels.jit import is_compiled
from signfade.kernels.threads import available_threads, run_ranges
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
from signfade.uplink import Signals, half_llr, symbols

__all__ = ["fit_joint_sbfl", "joint_sbfl"]

_Z = 0.05 * torch.arange(-180, 181, dtype=torch.float64)
_DEVICES = 4096  # at a time: bounds the memory to a few tens of megabytes
_BELL = torch.softmax(-_Z.square() / 2, dim=0)


def joint_sbfl(
    y: Tensor | Signals,
    h: Tensor,
    sigma2: Tensor,
    mean: Tensor,
    scale: Tensor,
    correlation: Tensor | LowRank,
    weights: Tensor | None = None,
    agreement: Tensor | None = None,
    fit: JointFit | None = None,
) -> Tensor:
    """The best weighted sum of all devices' soft bits.

    `ghat = sum_k alpha_k * mean_k + sum_k w_k * tanh(h_k * y_k / sigma2_k)`

    Args:
        y: Received signals from `uplink.transmit`, or symbols `[K, M]`.
        h: Channel gains, `[K]`. A device with gain zero is estimated from the others.
        sigma2: Variance of the real noise per symbol, `[K]`. Zero is a noiseless link.
        mean: Mean of each device's gradient, `[K]` or `[K, M]`.
        scale: `E|g - mean|` of each device, `[K]`.
        correlation: Correlation between the devices' gradients, `[K, K]`, or a `LowRank` one.
        weights: `alpha_k`, `[K]`; ones if None.
        agreement: `c_k = E[s_k * b_k]` of the sign and the bit that is sent for it, `[K]`, from -1 to 1; ones
            if None.
        fit: From `fit_joint_sbfl`, where it has been called already.

    Returns:
        The estimate of `sum_k alpha_k * g_k`, `[M]`. With the identity as correlation it is `sbfl`.

    Raises:
        ValueError: Shapes that do not match, or a correlation matrix that is not one.

    Example:
        >>> one = torch.ones(2)
        >>> y = torch.tensor([[0.8, -0.4], [0.6, 0.2]])
        >>> joint_sbfl(y, one, one, 0 * one, one, torch.tensor([[1.0, 0.9], [0.9, 1.0]]))
        tensor([ 1.6390, -0.2491])

    Reference:
        Propositions 1 and 2 together, jointly over devices; docs/bfl.md.
    """
    y = symbols(y)
    check_link(y, h, sigma2)
    check_devices(mean, weights, *y.shape)
    combine, _ = fit or fit_joint_sbfl(h, sigma2, scale, correlation, weights, agreement)
    return _add_soft_bits(y, h, sigma2, combine, mean, weights)


def _add_soft_bits(
    y: Tensor,
    h: Tensor,
    sigma2: Tensor,
    combine: Tensor,
    mean: Tensor,
    weights: Tensor | None = None,
    threads: int | None = None,
) -> Tensor:
    """Return `sum_k alpha_k*mean_k + w_k*tanh(h_k*y_k/sigma2_k)`.

    In float32 and with noise on every link one compiled pass does it, tanh within 1.2e-7, sums in float64;
    the number of threads changes no bit.
    """
    y = y.detach()
    slope = (h.detach().double() / sigma2.detach().double()).cpu().numpy()
    plain = y.dtype == torch.float32 and is_compiled(y)
    if not plain or np.abs(slope).max() > 1e30 or np.isnan(slope).any():  # no noise, or next to none
        soft = torch.tanh(half_llr(y, h, sigma2))
        return weighted_rows(soft, combine).add_(mean_term(mean, weights, y))
    signals, factors, size = y.contiguous().numpy(), slope.astype(np.float32), y.shape[1]
    shares = combine.detach().double().cpu().numpy()
    total: NDArray[np.float32] = np.empty(size, dtype=np.float32)

    def work(first: int, last: int) -> None:
        fused.add_soft_bits(signals, factors, shares, total, first, last)

    run_ranges(work, -(-size // TILE), threads or available_threads())
    return check_result("y", torch.from_numpy(total)).add_(mean_term(mean, weights, y))


def fit_joint_sbfl(
    h: Tensor,
    sigma2: Tensor,
    scale: Tensor,
    correlation: Tensor | LowRank,
    weights: Tensor | None = None,
    agreement: Tensor | None = None,
) -> JointFit:
    """The K numbers of `joint_sbfl`, and by how much it shrinks the sum on average.

    The numbers take the place of the scales in `sbfl`; some may be negative. Arguments as in `joint_sbfl`.

    Returns:
        `JointFit(combine, gain)` as in `fit_joint_blmmse`.

    Example:
        >>> one = torch.ones(2)
        >>> combine, gain = fit_joint_sbfl(one, one, one, torch.eye(2))
        >>> combine, round(gain, 4)  # independent devices: the scales, (2/pi)*rho(1)
        (tensor([1.0000, 1.0000], dtype=torch.float64), 0.3504)

    Reference:
        docs/bfl.md, "Undoing the shrinkage".
    """
    rho = _rho(h, sigma2)
    return solve_joint(_kept(rho, agreement), rho, scale, correlation, weights)


def _rho(h: Tensor, sigma2: Tensor) -> Tensor:
    """`E[tanh(l)**2]`, float64 `[K]`; a trapezoidal sum over the noise, right to 1e-9."""
    check_gains(h, sigma2, len(h))
    power = h.detach().double().cpu().square()
    gamma = torch.where(power == 0, torch.zeros_like(power), power / sigma2.detach().double().cpu())
    gamma = gamma.clamp_max(1e3)[:, None]  # where one minus it is below exp(-500)
    parts = [torch.tanh(part + part.sqrt() * _Z).square() @ _BELL for part in torch.split(gamma, _DEVICES)]
    return torch.cat(parts)


def _kept(rho: Tensor, agreement: Tensor | None) -> Tensor:
    """`E[s * tanh(l)] = c * rho`, where tanh(l) is the soft bit of what was sent for s."""
    if agreement is None:
        return rho
    check_shape("agreement", agreement, (len(rho),))
    return agreement.detach().double().cpu() * rho
