"""The best linear aggregator, through Bussgang's decomposition of the one-bit quantiser.

Signal model as in `signfade.server.sbfl`. Linear in y, so it is cheaper than `sbfl` in hardware and a little
worse: it cannot saturate when the noise is small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from signfade._check import check_finite, check_shape
from signfade.server._sum import (
    LARGEST_RATIO,
    by_layer,
    check_received,
    column,
    fused,
    weighted_sum,
)
from signfade.server.aggregators import AGGREGATORS, Aggregator, one_device_at_a_time
from signfade.server.received import Received
from signfade.settings import Form, MethodSettings
from signfade.uplink import Signals, symbols

__all__ = ["blmmse", "blmmse_covariance"]


def blmmse(
    y: Tensor | Signals,
    h: Tensor,
    sigma2: Tensor,
    mean: Tensor,
    scale: Tensor,
    weights: Tensor | None = None,
    form: Form = "corrected",
    segments: Sequence[int] | None = None,
) -> Tensor:
    """Bussgang-based linear minimum-MSE aggregation for iid coordinates.

    `ghat = sum_k alpha_k * (mean_k + scale_k * h_k * y_k / (h_k**2 + sigma2_k))`

    Args:
        y: Received signals from `uplink.transmit`, or symbols `[K, M]`.
        h: Channel gains as the server knows them, `[K]`.
        sigma2: Variance of the real noise per symbol, `[K]`.
        mean: Mean of each device's gradient, `[K]` or `[K, M]`; with segments `[K, S]`.
        scale: `E|g - mean|` of each device, in the shape of the mean.
        weights: `alpha_k`, `[K]`; ones if None.
        form: `"corrected"`, or `"published"`: the paper prints `(2/pi) * h**2 + sigma2` in the denominator,
            against its own proof, where the bits have autocorrelation I.
        segments: Lengths of the S layers where mean and scale differ by layer.

    Returns:
        The estimate of `sum_k alpha_k * g_k`, `[M]`.

    Example:
        >>> one = torch.ones(1)
        >>> blmmse(torch.tensor([[0.8, -0.4]]), h=one, sigma2=one, mean=0 * one, scale=one)
        tensor([ 0.4000, -0.2000])

    Reference:
        Section IV-B.1, Proposition 2; docs/errata.md.
    """
    total = fused("blmmse", y, h, sigma2, mean, scale, weights, form, segments)
    if total is not None:
        return total
    y, mean, scale = symbols(y), by_layer(mean, segments), by_layer(scale, segments)
    check_received(y, h, sigma2=sigma2, mean=mean, scale=scale, weights=weights, form=form)
    bits_power = 2 / math.pi if form == "published" else 1.0
    gain, noise = h.double(), sigma2.double()
    power = bits_power * gain**2 + noise
    slope = torch.where(power == 0, torch.zeros_like(power), gain / power)
    largest = torch.finfo(y.dtype).max  # a vanishing gain without noise has a slope beyond float32
    ratio = (column(slope.clamp(-largest, largest), y) * y).clamp_(-LARGEST_RATIO, LARGEST_RATIO)
    return weighted_sum(mean, column(scale, y) * ratio, weights)


def blmmse_covariance(
    y: Tensor,
    h: Tensor,
    sigma2: Tensor,
    mean: Tensor,
    covariance: Tensor,
    weights: Tensor | None = None,
) -> Tensor:
    """Linear minimum-MSE aggregation when the coordinates of a device are correlated.

    `ghat_k = mean_k + h_k * S_k B_k^T (h_k**2 * T_k + sigma2_k * I)^-1 y_k`, with the Bussgang gain
    `B_k = sqrt(2/pi) * diag(S_k)^-1/2` and, by the arcsine law, the autocorrelation of the bits
    `T_k = (2/pi) * arcsin(diag(S_k)^-1/2 S_k diag(S_k)^-1/2)`.

    Args:
        y: Received signals, `[K, M]`.
        h: Channel gains, `[K]`.
        sigma2: Variance of the real noise per symbol, `[K]`.
        mean: Mean of each device's gradient, `[K]` or `[K, M]`.
        covariance: Covariance `S_k` of each device's Gaussian gradient, `[K, M, M]`: for small M only.
        weights: `alpha_k`, `[K]`; ones if None.

    Returns:
        The estimate of `sum_k alpha_k * g_k`, `[M]`.

    Example:
        >>> one = torch.ones(1)
        >>> covariance = torch.tensor([[[1.0, 0.9], [0.9, 1.0]]])
        >>> blmmse_covariance(torch.tensor([[0.8, 0.0]]), one, one, 0 * one, covariance)
        tensor([0.2483, 0.1987])

    Reference:
        Section IV-B.1, the general BLMMSE estimator.
    """
    check_received(y, h, sigma2=sigma2, mean=mean, weights=weights)
    devices, size = y.shape
    check_shape("covariance", covariance, (devices, size, size))
    check_finite("covariance", covariance)
    if size == 0:
        return weighted_sum(mean, y, weights)
    if not torch.allclose(covariance, covariance.mT, rtol=1e-4, atol=0):
        raise ValueError("covariance must be symmetric for every device")
    s = covariance.double()
    std = s.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
    if bool((std == 0).any()):
        raise ValueError("covariance must have a positive diagonal")
    if bool((torch.linalg.eigvalsh(s)[:, 0] < -1e-6 * std.square().amax(dim=1)).any()):
        raise ValueError("covariance must be positive semidefinite for every device")
    correlation = (s / std.unsqueeze(2) / std.unsqueeze(1)).clamp(-1, 1)
    bits = (2 / math.pi) * torch.asin(correlation)
    gain, noise = h.double().reshape(-1, 1, 1), sigma2.double().reshape(-1, 1, 1)
    power = gain**2 + noise
    unit = torch.where(power == 0, torch.ones_like(power), power)  # a vanishing gain would underflow
    received = gain**2 / unit * bits + noise / unit * torch.eye(size, dtype=torch.float64)
    # Least squares rather than inverse: a noiseless or silent link makes the matrix singular.
    whitened = torch.linalg.pinv(received, hermitian=True) @ y.double().unsqueeze(2)
    cross = gain / unit * math.sqrt(2 / math.pi) * s / std.unsqueeze(1)
    return weighted_sum(mean, (cross @ whitened).squeeze(2).to(y), weights)


def _blmmse(r: Received, method: MethodSettings) -> Tensor:
    h, sigma2 = r.device_link.h, r.device_link.sigma2
    prior = (r.layer_mean, r.device_scale, r.weights)
    return blmmse(r.signals, h, sigma2, *prior, method.form, r.segments)


AGGREGATORS.add(
    "blmmse",
    Aggregator(
        help="the best linear rule, device by device: cheaper than sbfl and a little worse",
        estimate=one_device_at_a_time("blmmse", _blmmse),
        law="blmmse",
        over_the_air="linear",
    ),
)
