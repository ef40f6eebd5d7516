"""BFL: the joint posterior mean of all devices' gradients, Section III without its factorisation.

Signal model: the centred gradients `g_1 ... g_K` of one coordinate are jointly Gaussian with a covariance C
that is the same for every coordinate (after `signfade.device.rotation` it is). With half-LLRs
`l_k = h_k * y_k / sigma2_k`, `p(g | y) ~ N(g; 0, C) * prod_k exp(sign(g_k) * l_k)`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from signfade._check import check_choice, check_finite, check_shape, check_tensor
from signfade.server._sum import check_devices, check_symbols
from signfade.server.joint._inputs import (
    independent_groups,
    mean_term,
    merge_copies,
    snr_of,
    split_covariance,
    weights_or_ones,
)
from signfade.server.joint.approximate import ep_means, gibbs_means
from signfade.server.joint.exact import exact_means
from signfade.server.joint.factor import factor_bfl, fit_factor
from signfade.uplink.channel import half_llr

__all__ = ["Method", "bfl", "device_bfl", "gibbs_bfl"]

Method = Literal["exact", "gibbs", "ep"]
METHODS: tuple[Method, ...] = ("exact", "gibbs", "ep")


def bfl(
    y: Tensor,
    h: Tensor,
    sigma2: Tensor,
    mean: Tensor,
    covariance: Tensor,
    weights: Tensor | None = None,
    method: Method = "exact",
) -> Tensor:
    """Posterior mean of the summed gradient under a joint Gaussian prior across devices.

    `ghat = sum_k alpha_k * (mean_k + E[g_k - mean_k | y_1 ... y_K])`

    | method | what it does | reach | error |
    |---|---|---|---|
    | `exact` | enumerates sign patterns | 12 dependent devices | 1e-9; 1e-3 for 11 and 12; `exact_means` |
    | `gibbs` | samples; `gibbs_bfl` also returns the error | hundreds | 1/sqrt(sweeps) |
    | `ep` | expectation propagation | hundreds, fast | about 1 % of the signal, see `ep_means` |

    `covariance` `[K, K]` is the one between the devices' gradients and may be singular: a variance of zero is
    a silent device, and devices with correlation 1 or -1 are one device whose half-LLRs add up. With a
    diagonal one the rule is `sbfl` with a Gaussian prior. A device with gain zero is estimated from the
    others. Other arguments as in `sbfl`, y as symbols `[K, M]`.

    Example:
        >>> one = torch.ones(2)
        >>> y = torch.tensor([[0.8, -0.4], [0.6, 0.2]])
        >>> bfl(y, one, one, 0 * one, covariance=torch.tensor([[1.0, 0.8], [0.8, 1.0]]))
        tensor([ 1.4250, -0.2744])

    Reference: Section III, eqs. for the conditional mean; docs/bfl.md.
    """
    check_choice("method", method, METHODS)
    llr, correlation, combine = _problem(y, h, sigma2, mean, covariance, weights)
    if method == "exact":
        centred = exact_means(llr, correlation, combine)
    elif method == "gibbs":
        centred = gibbs_means(llr, correlation, combine)[0]
    else:
        centred = _by_ep(llr, snr_of(h, sigma2), correlation, combine)
    return centred[0].to(y) + mean_term(mean, weights, y)


def _by_ep(llr: Tensor, snr: Tensor, correlation: Tensor, combine: Tensor) -> Tensor:
    """Expectation propagation, but an integral over the factor for groups of devices that are almost copies.

    There the former is at its worst, and the latter exact. Groups have nothing to do with each other.
    """
    llr, correlation, combine, joined = merge_copies(llr, correlation, combine, snr)
    total = torch.zeros(1, llr.shape[1], dtype=torch.float64)
    left = torch.ones(len(llr), dtype=torch.bool)
    for group in independent_groups(correlation):
        loadings = _one_strong_factor(correlation[group][:, group])
        if loadings is not None:
            one = torch.ones(len(group))  # half-LLRs are signals of a link with unit gain and noise
            prior = (0 * one, loadings, (1 - loadings.square()).sqrt(), combine[0, group])
            total += factor_bfl(llr[group].double().cpu(), one, one, *prior)
            left[group] = False
    if bool(left.any()):
        rest = slice(None) if bool(left.all()) else left  # a slice copies no signals
        problem = (llr[rest], correlation[rest][:, rest], combine[:, rest])
        total += ep_means(*problem, None if joined is None else joined[rest])[0]
    return total


def _one_strong_factor(correlation: Tensor) -> Tensor | None:
    """Return the loadings if the devices are almost copies of each other: one factor, above 0.95."""
    if float(correlation.abs().min()) < 0.95 or len(correlation) < 2:
        return None
    loadings = fit_factor(correlation)
    rest = correlation - loadings[:, None] * loadings[None, :]
    rest.fill_diagonal_(0.0)
    return loadings if float(rest.abs().max()) < 5e-3 else None


def gibbs_bfl(
    y: Tensor,
    h: Tensor,
    sigma2: Tensor,
    mean: Tensor,
    covariance: Tensor,
    weights: Tensor | None = None,
    *,
    sweeps: int = 2000,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """`bfl` by Gibbs sampling, `[M]`, with its standard error, `[M]`.

    `sweeps` are visits to every variable, of which a fifth is discarded; `seed` is that of the chains.
    """
    llr, correlation, combine = _problem(y, h, sigma2, mean, covariance, weights)
    centred, error = gibbs_means(llr, correlation, combine, sweeps=sweeps, seed=seed)
    return centred[0].to(y) + mean_term(mean, weights, y), error[0].to(y)


def device_bfl(
    y: Tensor, h: float, sigma2: float, mean: Tensor, covariance: Tensor, method: Method = "exact"
) -> Tensor:
    """Posterior mean of one device's gradient when its *coordinates* are correlated.

    The same posterior with the roles changed: the M coordinates of one device, y `[M]`, are the dependent
    variables, all seen through the same link: twelve with `exact`, hundreds with `gibbs` or `ep`.

    Example:
        >>> covariance = torch.tensor([[1.0, 0.9], [0.9, 1.0]])
        >>> device_bfl(torch.tensor([0.8, 0.0]), 1.0, 1.0, torch.zeros(()), covariance)  # the second follows
        tensor([0.5298, 0.4768])

    Reference: Section III-B, "Computational complexity": the M-dimensional integration it declines.
    """
    check_choice("method", method, METHODS)
    check_tensor("y", y)
    if y.ndim != 1:
        raise ValueError(f"y must have shape [M]; got {list(y.shape)}")
    size = len(y)
    check_shape("mean", mean, (), (1,), (size,))
    check_finite("mean", mean)
    gain, noise = (torch.tensor([float(value)], dtype=torch.float64) for value in (h, sigma2))
    check_symbols(y[None])
    check_devices(1, h=gain, sigma2=noise)
    if size == 0:
        check_shape("covariance", covariance, (0, 0))
        return torch.zeros_like(y)
    llr = half_llr(y[None], gain, noise).T
    std, correlation = split_covariance(covariance, size)
    combine = torch.diag(std)
    if method == "exact":
        centred = exact_means(llr, correlation, combine)
    elif method == "gibbs":
        centred = gibbs_means(llr, correlation, combine)[0]
    else:
        centred = ep_means(llr, correlation, combine, snr_of(gain, noise).expand(size))[0]
    return centred[:, 0].to(y) + mean.to(y)


def _problem(
    y: Tensor, h: Tensor, sigma2: Tensor, mean: Tensor, covariance: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Check all; return half-LLRs `[K, M]`, correlation `[K, K]` and weighted deviations `[1, K]`."""
    check_symbols(y)
    check_devices(*y.shape, h=h, sigma2=sigma2, mean=mean, weights=weights)
    std, correlation = split_covariance(covariance, len(y))
    return half_llr(y.detach(), h, sigma2), correlation, (weights_or_ones(weights, len(y)) * std)[None]
