"""The normal equations behind every rule that adds up one number per device with fixed weights."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from signfade.server.joint._inputs import check_correlation, check_devices, check_scale
from signfade.server.joint.lowrank import LowRank, solve_low_rank

# Added to the diagonal, scaled to ones: noiseless devices with equal gradients make the matrix singular.
_RIDGE = 1e-9


class JointFit(NamedTuple):
    """Weights `[K]` on one number per device, float64, and the gain of their sum."""

    combine: Tensor
    gain: float


def solve_joint(
    signal: Tensor, power: Tensor, scale: Tensor, correlation: Tensor | LowRank, weights: Tensor | None
) -> JointFit:
    """Return the best weights on numbers `f_k`, one from each device's link, and the gain of their sum.

    With `signal_k = E[s_k * f_k]` and `power_k = E[f_k**2]`, f_k depending on device k's sign and noise
    alone, `Cov(g_k, f_j) = scale_k * r_kj * signal_j` and, off the diagonal,
    `Cov(f_k, f_j) = (2/pi) * arcsin(r_kj) * signal_k * signal_j`; `w = Cov(f)^-1 c`,
    `c_j = sum_k alpha_k Cov(g_k, f_j)`, `gain = w^T c / (alpha^T C alpha)`.
    """
    devices = len(signal)
    check_scale(scale, devices)
    check_devices(None, weights, devices, 0)
    alpha = torch.ones(devices, dtype=torch.float64) if weights is None else weights.detach().double().cpu()
    # Scaled to unit power, so that neither 60 nor -60 dB is special.
    root = power.clamp_min(1e-300).sqrt()
    shared = torch.where(power == 0, torch.zeros_like(power), signal / root)
    target = alpha * scale.detach().double().cpu()
    if isinstance(correlation, LowRank):
        seen = correlation.times(target)
        solution = solve_low_rank(correlation, shared, shared * seen, _RIDGE)
    else:
        r = check_correlation(correlation, devices)
        seen = r @ target
        # NumPy: on matrices this small a call of torch costs several times one of NumPy.
        bits = (2 / math.pi) * np.arcsin(r.numpy()) * np.outer(shared.numpy(), shared.numpy())
        np.fill_diagonal(bits, 1 + _RIDGE)
        solution = torch.from_numpy(np.linalg.solve(bits, (shared * seen).numpy()))
    found = torch.where(power == 0, torch.zeros_like(power), solution / root)
    variance = (math.pi / 2) * float(target @ seen)
    gain = float(solution @ (shared * seen)) / variance if variance > 0 else 0.0
    return JointFit(found, min(1.0, max(0.0, gain)))
