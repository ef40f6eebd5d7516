"""The exact posterior mean when devices share one factor: one integral per coordinate, for any K and M.

`g_k = mean_k + shared_k * z + private_k * e_k` with z and all e_k independent N(0, 1). Given z everything is
closed form: with `alpha_k = shared_k * z / private_k`, half-LLR l_k, `p_k = 1/(1 + exp(-2*l_k))` and
`Z_k = p_k * Phi(alpha_k) + (1 - p_k) * Phi(-alpha_k)`, the posterior of z is `phi(z) * prod_k Z_k(z)` and
`E[g_k | z, y] = mean_k + shared_k * z + private_k * phi(alpha_k) * (2*p_k - 1) / Z_k`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr
from torch import Tensor

from signfade._check import check_positive, check_shape
from signfade.kernels.integrals import factor_range
from signfade.kernels.jit import is_compiled
from signfade.kernels.threads import available_threads, run_ranges
from signfade.server._sum import check_devices, check_symbols
from signfade.server.joint._inputs import check_correlation, mean_term, weights_or_ones
from signfade.uplink.channel import half_llr

__all__ = ["factor_bfl", "factor_nodes", "fit_factor", "private_part"]

Float64 = NDArray[np.float64]

_REACH = 9.0  # |z| beyond this has a prior mass of 2e-19
# The bell and the steps are analytic in a strip of half-width pi/4: exp(-pi**2/2/0.24) = 1e-9.
_SPACING = 0.24
_SHARPEST = 1e4  # largest shared/private: a correlation of 1 - 1e-8


def factor_bfl(
    y: Tensor,
    h: Tensor,
    sigma2: Tensor,
    mean: Tensor,
    shared: Tensor,
    private: Tensor,
    weights: Tensor | None = None,
) -> Tensor:
    """Posterior mean of the summed gradient when the devices' correlation has one factor.

    `ghat = sum_k alpha_k * mean_k + int p(z|y) * sum_k alpha_k * E[g_k - mean_k | z, y] dz`

    Exact up to 1e-7 of the sum's standard deviation, from -60 to 60 dB and for correlations from 0 to
    1 - 1e-8. `shared` `[K]` is the loading on the shared factor, of either sign, `private` `[K]` the standard
    deviation of what is the device's own. With `shared = 0` the rule is `sbfl` with a Gaussian prior. Other
    arguments as in `sbfl`, y as symbols `[K, M]`.

    Example:
        >>> one = torch.ones(2)
        >>> y = torch.tensor([[0.8, -0.4], [0.6, 0.2]])
        >>> factor_bfl(y, one, one, 0 * one, shared=0.9 * one, private=0.4 * one)
        tensor([ 1.4146, -0.2763])

    Reference: Section III for a one-factor prior; docs/bfl.md.
    """
    check_symbols(y)
    devices, size = y.shape
    check_devices(devices, size, h=h, sigma2=sigma2, mean=mean, weights=weights)
    load, own = _loadings(shared, private, devices)
    alpha = weights_or_ones(weights, devices).numpy()
    llr = half_llr(y.detach(), h, sigma2)
    node, log_weight = factor_nodes(shared, private)
    steep = np.divide(load, own, out=np.zeros_like(load), where=own > 0)
    turn = steep[:, None] * node[None, :]
    slope = (alpha * own)[:, None] * np.exp(-(turn**2) / 2) / math.sqrt(2 * math.pi)
    tables = np.asarray(ndtr(turn)), np.asarray(ndtr(-turn)), slope
    shared_sum = float(alpha @ load)
    if is_compiled(y):
        out = np.empty(size)
        values = llr.contiguous().numpy()

        def work(first: int, last: int) -> None:
            factor_range(values, *tables, node, log_weight, shared_sum, first, last, out)

        run_ranges(work, size, available_threads())
        centred = torch.from_numpy(out)
    else:
        centred = _portable(llr, tables, node, log_weight, shared_sum)
    return centred.to(y) + mean_term(mean, weights, y)


def factor_nodes(shared: Tensor, private: Tensor) -> tuple[Float64, Float64]:
    """Nodes z and log-weights of the integral over the shared factor, chosen for an error below 1e-7.

    `z = c * sinh(u)`, u equally spaced, `c` the narrowest step `private/shared` (at most 1), log-weights
    `log(phi(z) * dz/du)` up to a constant; float64 `[Q]` each. The spacing resolves the posterior wherever it
    can be narrow: K devices with steps of width w make one of width `w/sqrt(K)` near zero.
    """
    load, own = _loadings(shared, private, len(shared))
    steep = np.abs(load[own > 0] / own[own > 0])
    width = min(1.0, 1 / max(float(steep.max(initial=0.0)), 1e-9))
    where = np.linspace(0.0, 3.0, 61)
    # Fisher information about z at z: at most (2/pi) * steep**2 per device, and 0.54/z**2 whatever the step.
    limit = 0.54 / np.maximum(where, 1e-9) ** 2
    information = np.minimum((2 / math.pi) * steep[:, None] ** 2, limit[None, :]).sum(axis=0)
    narrow = math.sqrt(float(((width**2 + where**2) * (1 + information)).max()))
    spacing = min(_SPACING, 0.85 / narrow)
    half = math.ceil(math.asinh(_REACH / width) / spacing)
    u = spacing * np.arange(-half, half + 1)
    z = width * np.sinh(u)
    return z, np.log(np.cosh(u)) - z**2 / 2


def fit_factor(correlation: Tensor) -> Tensor:
    """Loadings of the one-factor correlation closest to a given one, `[K, K]`, off the diagonal.

    Minimises `sum_{k != j} (r_kj - a_k * a_j)**2` by filling the diagonal with `a_k**2` and taking the
    leading eigenvector, in turn. The loadings a are float64 `[K]`, between -0.9999 and 0.9999, with a
    non-negative sum. For devices of standard deviation std, `shared = a * std` and
    `private = private_part(std, shared)`.

    Example:
        >>> fit_factor(torch.tensor([[1.0, 0.4, 0.2], [0.4, 1.0, 0.2], [0.2, 0.2, 1.0]])).round(decimals=3)
        tensor([0.6320, 0.6320, 0.3160], dtype=torch.float64)
    """
    devices = len(correlation)
    matrix = check_correlation(correlation, devices)
    # The largest correlation of each device is a first guess of what it shares.
    filled = (matrix - torch.eye(devices, dtype=torch.float64)).abs().amax(dim=1)
    loadings = torch.zeros(devices, dtype=torch.float64)
    for _ in range(200 if devices > 1 else 0):
        values, vectors = torch.linalg.eigh(matrix + torch.diag(filled - 1))
        new = (vectors[:, -1] * values[-1].clamp_min(0.0).sqrt()).clamp(-0.9999, 0.9999)
        new = new if float(new @ loadings) >= 0 else -new
        settled = float((new - loadings).abs().max()) < 1e-9
        loadings, filled = new, new.square()
        if settled:
            break
    return loadings if float(loadings.sum()) >= 0 else -loadings


def private_part(std: Tensor, shared: Tensor) -> Tensor:
    """What a loading leaves: `sqrt(std**2 - shared**2)`, `[K]`.

    Example:
        >>> private_part(torch.tensor([5.0, 1.0]), torch.tensor([3.0, -1.0]))
        tensor([4., 0.])
    """
    check_shape("shared", shared, tuple(std.shape))
    excess = shared.abs() - std
    if bool((excess > 1e-6 * std).any()) or not bool(excess.isfinite().all()):
        raise ValueError(
            "shared must not exceed the standard deviation of its device; "
            f"the largest excess is {float(excess.max()):g}"
        )
    return (std.square() - shared.square()).clamp_min(0.0).sqrt()


def _loadings(shared: Tensor, private: Tensor, devices: int) -> tuple[Float64, Float64]:
    check_devices(devices, shared=shared, private=private)
    check_positive("private", private, zero=True)
    load, own = shared.detach().double().cpu().numpy(), private.detach().double().cpu().numpy()
    return load, np.maximum(own, np.abs(load) / _SHARPEST)


def _portable(
    llr: Tensor, tables: tuple[Float64, ...], node: Float64, log_weight: Float64, shared_sum: float
) -> Tensor:
    """The same sum in torch, for other devices."""
    z, level, above, below, slope = (torch.from_numpy(x).to(llr.device) for x in (node, log_weight, *tables))
    out = torch.empty(llr.shape[1], dtype=torch.float64, device=llr.device)
    block = max(1, 4_000_000 // above.numel())
    for first in range(0, llr.shape[1], block):
        plus = torch.sigmoid(2 * llr[:, first : first + block].double())[:, :, None]
        minus = torch.sigmoid(-2 * llr[:, first : first + block].double())[:, :, None]
        likelihood = plus * above[:, None] + minus * below[:, None]
        posterior = torch.softmax((2 * likelihood).log().sum(dim=0) + level, dim=1)
        centred = ((plus - minus) * slope[:, None] / (likelihood + 1e-300)).sum(dim=0) + shared_sum * z
        out[first : first + block] = (posterior * centred).sum(dim=1)
    return out
