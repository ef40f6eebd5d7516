"""BFL: the joint posterior mean of all devices' gradients, Section III of the paper, without its
factorisation.

Signal model: the centred gradients `g_1 ... g_K` of one coordinate are jointly Gaussian with a covariance C
that is the same for every coordinate (after `signfade.device.rotation` it is); `y_k = h_k * sign(g_k) + n_k`,
real noise `n_k ~ N(0, sigma2_k)`, half-LLR `l_k = h_k * y_k / sigma2_k`. Then
`p(g | y) ~ N(g; 0, C) * prod_k exp(sign(g_k) * l_k)`.

The paper factorises `P(y_1 ... y_K | g_k)` into a product over devices, which needs g_i and g_j to be
independent given g_k: for K > 2 that is no longer the posterior of a jointly Gaussian prior, and it is not
used here.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from signfade._check import check_choice, check_finite, check_shape, check_tensor
from signfade.server.joint._copies import merge_copies
from signfade.server.joint._inputs import (
    check_devices,
    check_link,
    independent_groups,
    mean_term,
    split_covariance,
)
from signfade.server.joint.ep import ep_means
from signfade.server.joint.exact import exact_means
from signfade.server.joint.factor import factor_bfl, fit_factor
from signfade.server.joint.gibbs import gibbs_means
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
    *,
    threads: int | None = None,
) -> Tensor:
    """Posterior mean of the summed gradient under a joint Gaussian prior across devices.

    `ghat = sum_k alpha_k * (mean_k + E[g_k - mean_k | y_1 ... y_K])`

    | method | what it does | reach | error |
    |---|---|---|---|
    | `exact` | enumerates sign patterns | 12 dependent devices | 1e-9; 1e-3 for 11 and 12; `exact_means` |
    | `gibbs` | samples; `gibbs_bfl` also returns the error | hundreds | 1/sqrt(sweeps) |
    | `ep` | expectation propagation | hundreds, fast | about 1 % of the signal, see `ep_means` |

    The covariance may be singular. Devices with correlation 1 or -1 are one device whose half-LLRs add up.

    Args:
        y: Received signals, `[K, M]`.
        h: Channel gains, `[K]`. A device with gain zero is estimated from the others.
        sigma2: Variance of the real noise per symbol, `[K]`. Zero is a noiseless link.
        mean: Mean of each device's gradient, `[K]` or `[K, M]`.
        covariance: Between the devices' gradients, `[K, K]`; a variance of zero is a silent device.
        weights: `alpha_k`, `[K]`; ones if None.
        method: `"exact"`, `"gibbs"` or `"ep"`.
        threads: At most so many threads, by default as many as there are cores.

    Returns:
        The estimate of `sum_k alpha_k * g_k`, `[M]`. With a diagonal covariance it is `sbfl` with a Gaussian
        prior.

    Raises:
        ValueError: Shapes that do not match, a covariance that is not symmetric or not positive
            semidefinite, or too many devices for the method; the error says which method fits.

    Example:
        >>> one = torch.ones(2)
        >>> y = torch.tensor([[0.8, -0.4], [0.6, 0.2]])
        >>> bfl(y, one, one, 0 * one, covariance=torch.tensor([[1.0, 0.8], [0.8, 1.0]]))
        tensor([ 1.4250, -0.2744])

    Reference:
        Section III, eqs. for the conditional mean; docs/bfl.md.
    """
    check_choice("method", method, METHODS)
    llr, correlation, combine = _problem(y, h, sigma2, mean, covariance, weights)
    if method == "exact":
        centred = exact_means(llr, correlation, combine)
    elif method == "gibbs":
        centred = gibbs_means(llr, correlation, combine, threads=threads)[0]
    else:
        centred = _by_ep(llr, _snr(h, sigma2), correlation, combine, threads)
    return centred[0].to(y) + mean_term(mean, weights, y)


def _by_ep(llr: Tensor, snr: Tensor, correlation: Tensor, combine: Tensor, threads: int | None) -> Tensor:
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
            total += factor_bfl(llr[group].double().cpu(), one, one, *prior, threads=threads)
            left[group] = False
    if bool(left.any()):
        rest = slice(None) if bool(left.all()) else left  # a slice copies no signals
        problem = (llr[rest], correlation[rest][:, rest], combine[:, rest])
        total += ep_means(*problem, None if joined is None else joined[rest], threads=threads)[0]
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
    threads: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`bfl` by Gibbs sampling, with its standard error.

    Args:
        y: As in `bfl`, like h, sigma2, mean, covariance and weights.
        h: `[K]`.
        sigma2: `[K]`.
        mean: `[K]` or `[K, M]`.
        covariance: `[K, K]`.
        weights: `[K]` or None.
        sweeps: Visits to every variable; a fifth is discarded.
        seed: Of the chains.
        threads: As in `bfl`.

    Returns:
        `(estimate, standard_error)`, `[M]` each.

    Example:
        >>> one = torch.ones(2)
        >>> y = torch.tensor([[0.8, -0.4], [0.6, 0.2]])
        >>> found, error = gibbs_bfl(y, one, one, 0 * one, torch.tensor([[1.0, 0.8], [0.8, 1.0]]))
        >>> bool(((found - torch.tensor([1.4250, -0.2744])).abs() < 4 * error).all())
        True

    Reference:
        docs/bfl.md.
    """
    llr, correlation, combine = _problem(y, h, sigma2, mean, covariance, weights)
    centred, error = gibbs_means(llr, correlation, combine, sweeps=sweeps, seed=seed, threads=threads)
    return centred[0].to(y) + mean_term(mean, weights, y), error[0].to(y)


def device_bfl(
    y: Tensor, h: float, sigma2: float, mean: Tensor, covariance: Tensor, method: Method = "exact"
) -> Tensor:
    """Posterior mean of one device's gradient when its *coordinates* are correlated.

    The same posterior with the roles changed: the M coordinates of one device are the dependent variables,
    all seen through the same link. For small M only: twelve with `exact`, hundreds with `gibbs` or `ep`.

    Args:
        y: Received signals of the device, `[M]`.
        h: Its gain.
        sigma2: Variance of the real noise per symbol.
        mean: Mean of its gradient, `[M]`, or `[]` or `[1]` for one number.
        covariance: Between its coordinates, `[M, M]`.
        method: As in `bfl`.

    Returns:
        `E[g | y]`, `[M]`.

    Raises:
        ValueError: As `bfl`.

    Example:
        >>> covariance = torch.tensor([[1.0, 0.9], [0.9, 1.0]])
        >>> device_bfl(torch.tensor([0.8, 0.0]), 1.0, 1.0, torch.zeros(()), covariance)  # the second follows
        tensor([0.5298, 0.4768])

    Reference:
        Section III-B, "Computational complexity": the M-dimensional integration it declines; docs/bfl.md.
    """
    check_choice("method", method, METHODS)
    check_tensor("y", y)
    if y.ndim != 1:
        raise ValueError(f"y must have shape [M]; got {list(y.shape)}")
    size = len(y)
    check_shape("mean", mean, (), (1,), (size,))
    check_finite("mean", mean)
    gain, noise = (torch.tensor([float(value)], dtype=torch.float64) for value in (h, sigma2))
    check_link(y[None], gain, noise)
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
        centred = ep_means(llr, correlation, combine, _snr(gain, noise).expand(size))[0]
    return centred[:, 0].to(y) + mean.to(y)


def _snr(h: Tensor, sigma2: Tensor) -> Tensor:
    power = h.detach().double().square()
    return torch.where(power == 0, torch.zeros_like(power), power / sigma2.detach().double())


def _problem(
    y: Tensor, h: Tensor, sigma2: Tensor, mean: Tensor, covariance: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Check all; return half-LLRs `[K, M]`, correlation `[K, K]` and weighted deviations `[1, K]`."""
    check_link(y, h, sigma2)
    check_devices(mean, weights, *y.shape)
    std, correlation = split_covariance(covariance, len(y))
    alpha = torch.ones_like(std) if weights is None else weights.detach().double().cpu()
    return half_llr(y.detach(), h, sigma2), correlation, (alpha * std)[None]
