"""The best sums of one number per device when devices are correlated: one K x K solve, then a weighted sum.

The centred gradients of all devices are jointly Gaussian with the same correlation matrix r for every
coordinate (after `signfade.device.rotation` they are). `joint_blmmse` adds up the symbols, `joint_sbfl` the
soft bits `tanh(h*y/sigma2)`: almost the joint posterior, at the price of `sbfl`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade._check import check_finite, check_rows, check_shape
from signfade.kernels import fused
from signfade.kernels.fused import TILE
from signfade.kernels.jit import is_compiled
from signfade.kernels.threads import available_threads, run_ranges
from signfade.server._sum import check_devices, check_symbols
from signfade.server.joint._inputs import check_correlation, mean_term, snr_of, weighted_rows, weights_or_ones
from signfade.server.joint.lowrank import LowRank, solve_low_rank
from signfade.uplink import Signals, half_llr, symbols

__all__ = ["JointFit", "combine_bits", "fit_joint_blmmse", "fit_joint_sbfl", "joint_blmmse", "joint_sbfl"]

Array = NDArray[np.float64]
# Added to the diagonal, scaled to ones: noiseless devices with equal gradients make the matrix singular.
_RIDGE = 1e-9
_Z = 0.05 * torch.arange(-180, 181, dtype=torch.float64)
_BELL = torch.softmax(-_Z.square() / 2, dim=0)
_DEVICES = 4096  # at a time: bounds the memory to a few tens of megabytes


class JointFit(NamedTuple):
    """Weights `[K]` on one number per device, float64, and the gain of their sum."""

    combine: Tensor
    gain: float


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

    `ghat = sum_k (alpha_k * mean_k + w_k * y_k)`, `w = Cov(y)^-1 c`, `c_j = sum_k alpha_k * Cov(g_k, y_j)`

    `correlation` `[K, K]` is the one between the devices' gradients; with the identity the rule is `blmmse`.
    `fit` is the result of `fit_joint_blmmse`, where it has been called already. Other arguments as in `sbfl`,
    the scale `[K]`.

    Example:
        >>> one = torch.ones(2)
        >>> y = torch.tensor([[0.8, -0.4], [0.6, 0.2]])
        >>> joint_blmmse(y, one, one, 0 * one, one, torch.tensor([[1.0, 0.9], [0.9, 1.0]]))
        tensor([ 0.9805, -0.1401])

    Reference: Section IV-B.1, jointly over devices; docs/bfl.md.
    """
    y = symbols(y)
    check_symbols(y)
    check_devices(*y.shape, h=h, sigma2=sigma2, mean=mean, weights=weights)
    combine, _ = fit or fit_joint_blmmse(h, sigma2, scale, correlation, weights)
    total = weighted_rows(y, combine).add_(mean_term(mean, weights, y))
    check_finite("y", total)  # one pass over [M] instead of one over [K, M]
    return total


def fit_joint_blmmse(
    h: Tensor, sigma2: Tensor, scale: Tensor, correlation: Tensor | LowRank, weights: Tensor | None = None
) -> JointFit:
    """The K numbers of `joint_blmmse`, and by how much it shrinks the sum on average.

    `gain = E[ghat * gsum] / E[gsum**2] = c^T Cov(y)^-1 c / (alpha^T C alpha)`, `C_kj = std_k * std_j * r_kj`,
    `std = sqrt(pi/2) * scale` (Gaussian), from 0 to 1; one minus it is the normalised error. Divide the
    estimate by the gain, bounded below, and a learning rate carries over between rules and SNRs.

    Example:
        >>> one = torch.ones(2)
        >>> combine, gain = fit_joint_blmmse(one, one, one, torch.eye(2))
        >>> combine, round(gain, 4)  # independent devices: h/(h**2 + sigma2), (2/pi)*gamma/(1 + gamma)
        (tensor([0.5000, 0.5000], dtype=torch.float64), 0.3183)

    Reference: Section IV-B.1, jointly over devices; docs/bfl.md, "Undoing the shrinkage".
    """
    check_rows("h", h, "[K]")
    check_devices(len(h), h=h, sigma2=sigma2)
    gain = h.detach().double().cpu()
    return _solve(gain, gain.square() + sigma2.detach().double().cpu(), scale, correlation, weights)


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

    `ghat = sum_k (alpha_k * mean_k + w_k * tanh(h_k * y_k / sigma2_k))`

    `agreement` `[K]` is `c_k = E[s_k * b_k]` of the sign and the bit that is sent for it, from -1 to 1; ones
    if None. Other arguments as in `joint_blmmse`; with the identity as correlation the rule is `sbfl`.

    Example:
        >>> one = torch.ones(2)
        >>> y = torch.tensor([[0.8, -0.4], [0.6, 0.2]])
        >>> joint_sbfl(y, one, one, 0 * one, one, torch.tensor([[1.0, 0.9], [0.9, 1.0]]))
        tensor([ 1.6390, -0.2491])

    Reference: Propositions 1 and 2 together, jointly over devices; docs/bfl.md.
    """
    y = symbols(y)
    check_symbols(y)
    check_devices(*y.shape, h=h, sigma2=sigma2, mean=mean, weights=weights)
    combine, _ = fit or fit_joint_sbfl(h, sigma2, scale, correlation, weights, agreement)
    total = _add_soft_bits(y.detach(), h, sigma2, combine)
    check_finite("y", total)
    return total.add_(mean_term(mean, weights, y))


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

    Reference: docs/bfl.md, "Undoing the shrinkage".
    """
    rho = _rho(h, sigma2)
    kept = rho  # E[s * tanh(l)] = c * rho, where tanh(l) is the soft bit of what was sent for s
    if agreement is not None:
        check_shape("agreement", agreement, (len(rho),))
        kept = agreement.detach().double().cpu() * rho
    return _solve(kept, rho, scale, correlation, weights)


def _rho(h: Tensor, sigma2: Tensor) -> Tensor:
    """`E[tanh(l)**2]`, float64 `[K]`; a trapezoidal sum over the noise, right to 1e-9."""
    check_rows("h", h, "[K]")
    check_devices(len(h), h=h, sigma2=sigma2)
    gamma = snr_of(h, sigma2).clamp_max(1e3)[:, None]  # where one minus it is below exp(-500)
    parts = [torch.tanh(part + part.sqrt() * _Z).square() @ _BELL for part in torch.split(gamma, _DEVICES)]
    return torch.cat(parts)


def _add_soft_bits(y: Tensor, h: Tensor, sigma2: Tensor, combine: Tensor) -> Tensor:
    """Return `sum_k w_k*tanh(h_k*y_k/sigma2_k)`.

    In float32 and with noise on every link one compiled pass does it, tanh within 1.2e-7, sums in float64;
    the number of threads changes no bit.
    """
    slope = (h.detach().double() / sigma2.detach().double()).cpu().numpy()
    plain = y.dtype == torch.float32 and is_compiled(y)
    if not plain or np.abs(slope).max() > 1e30 or np.isnan(slope).any():  # no noise, or next to none
        return weighted_rows(torch.tanh(half_llr(y, h, sigma2)), combine)
    signals, factors, size = y.contiguous().numpy(), slope.astype(np.float32), y.shape[1]
    shares = combine.detach().double().cpu().numpy()
    total: NDArray[np.float32] = np.empty(size, dtype=np.float32)

    def work(first: int, last: int) -> None:
        fused.add_soft_bits(signals, factors, shares, total, first, last)

    run_ranges(work, -(-size // TILE), available_threads())
    return torch.from_numpy(total)


def combine_bits(shared: Array, seen: Array, correlation: Array) -> Array:
    """Return the best weights `[K]` on numbers of unit power, one from each device's link.

    `shared_k = E[s_k * f_k]` and `seen_k * shared_k = Cov(sum of gradients, f_k)`; off the diagonal
    `Cov(f_k, f_j) = (2/pi) * arcsin(r_kj) * shared_k * shared_j`, r being the correlation of what has the
    signs s.
    """
    both = (2 / math.pi) * np.arcsin(correlation) * np.outer(shared, shared)
    np.fill_diagonal(both, 1 + _RIDGE)
    return np.asarray(np.linalg.solve(both, shared * seen))


def _solve(
    signal: Tensor, power: Tensor, scale: Tensor, correlation: Tensor | LowRank, weights: Tensor | None
) -> JointFit:
    """Return the best weights on numbers `f_k`, one from each device's link, and the gain of their sum.

    With `signal_k = E[s_k * f_k]` and `power_k = E[f_k**2]`, f_k depending on device k's sign and noise
    alone, `Cov(g_k, f_j) = scale_k * r_kj * signal_j` by Bussgang and, off the diagonal, by the arcsine law
    `Cov(f_k, f_j) = (2/pi) * arcsin(r_kj) * signal_k * signal_j`; `w = Cov(f)^-1 c`,
    `c_j = sum_k alpha_k Cov(g_k, f_j)`, `gain = w^T c / (alpha^T C alpha)`.
    """
    devices = len(signal)
    check_devices(devices, scale=scale, weights=weights)
    # Scaled to unit power, so that neither 60 nor -60 dB is special.
    root = power.clamp_min(1e-300).sqrt()
    shared = torch.where(power == 0, torch.zeros_like(power), signal / root)
    target = weights_or_ones(weights, devices) * scale.detach().double().cpu()
    if isinstance(correlation, LowRank):
        seen = correlation.times(target)
        solution = solve_low_rank(correlation, shared, shared * seen, _RIDGE)
    else:
        r = check_correlation(correlation, devices)
        seen = r @ target
        # NumPy: on matrices this small a call of torch costs several times one of NumPy.
        solution = torch.from_numpy(combine_bits(shared.numpy(), seen.numpy(), r.numpy()))
    found = torch.where(power == 0, torch.zeros_like(power), solution / root)
    variance = (math.pi / 2) * float(target @ seen)
    gain = float(solution @ (shared * seen)) / variance if variance > 0 else 0.0
    return JointFit(found, min(1.0, max(0.0, gain)))
