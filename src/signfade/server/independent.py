"""Rules that read every device by itself: the posterior mean, the best linear rule, and their limits.

Signal model: device k sends `s_k = sign(g_k - mean_k)`, the server receives `y_k = h_k * s_k + n_k` with real
noise `n_k ~ N(0, sigma2_k)` and knows `h_k` and `sigma2_k`. For any prior symmetric about its mean,
`E[g_k | y_k] = mean_k + scale_k * tanh(h_k * y_k / sigma2_k)` with `scale_k = E|g_k - mean_k|`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from signfade._check import check_choice, check_finite, check_rows, check_shape
from signfade.server._sum import (
    LARGEST_RATIO,
    add_up,
    check_devices,
    check_received,
    check_symbols,
    column,
    detect,
    weighted_sum,
)
from signfade.server.aggregators import AGGREGATORS, Aggregator
from signfade.server.predict import one_device_at_a_time
from signfade.server.received import Context, Estimate, Received
from signfade.settings import Form, MethodSettings
from signfade.uplink import Signals, half_llr

__all__ = ["SBFLNetwork", "blmmse", "blmmse_covariance", "high_snr", "ideal", "sbfl", "zero_forcing"]


def sbfl(
    y: Tensor | Signals,
    h: Tensor,
    sigma2: Tensor,
    mean: Tensor,
    scale: Tensor,
    weights: Tensor | None = None,
    form: Form = "corrected",
    segments: Sequence[int] | None = None,
) -> Tensor:
    """Scalable Bayesian aggregation: the minimum-MSE estimate of the summed gradient.

    `ghat = sum_k alpha_k * (mean_k + scale_k * tanh(h_k * y_k / sigma2_k))`

    Args:
        y: Received signals from `uplink.transmit`, or symbols `[K, M]`.
        h: Channel gains as the server knows them, `[K]`. A device with gain zero adds only its mean.
        sigma2: Variance of the real noise per symbol, `[K]`. Zero is a noiseless link.
        mean: Mean of each device's gradient, `[K]` or `[K, M]`; with segments `[K, S]`.
        scale: `E|g - mean|` of each device, in the shape of the mean.
        weights: `alpha_k`, `[K]`; ones if None.
        form: `"corrected"`, or `"published"`: the paper prints `tanh(2*h*y/sigma2)`, which would be right if
            sigma2 were the variance of complex noise.
        segments: Lengths of the S layers where mean and scale differ by layer.

    Returns:
        The estimate of `sum_k alpha_k * g_k`, `[M]`.

    Example:
        >>> y = torch.tensor([[0.9, -1.2], [0.3, 0.1]])
        >>> one = torch.ones(2)
        >>> sbfl(y, h=one, sigma2=one, mean=0 * one, scale=one)
        tensor([ 1.0076, -0.7340])

    Reference: Propositions 1 and 3; docs/errata.md for the factor two.
    """

    def soft_bits(y: Tensor) -> Tensor:
        llr = half_llr(y, h, sigma2)
        return torch.tanh(2 * llr if form == "published" else llr)

    return add_up("sbfl", soft_bits, y, h, sigma2, mean, scale, weights, form, segments)


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

    Linear in y, so it is cheaper than `sbfl` in hardware and a little worse: it cannot saturate when the
    noise is small. Arguments and shapes as in `sbfl`; the `"published"` form has `(2/pi) * h**2 + sigma2` in
    the denominator, against the paper's own proof, where the bits have autocorrelation I.

    Example:
        >>> one = torch.ones(1)
        >>> blmmse(torch.tensor([[0.8, -0.4]]), h=one, sigma2=one, mean=0 * one, scale=one)
        tensor([ 0.4000, -0.2000])

    Reference: Section IV-B.1, Proposition 2; docs/errata.md.
    """

    def linear(y: Tensor) -> Tensor:
        bits_power = 2 / math.pi if form == "published" else 1.0
        gain, noise = h.double(), sigma2.double()
        power = bits_power * gain**2 + noise
        slope = torch.where(power == 0, torch.zeros_like(power), gain / power)
        largest = torch.finfo(y.dtype).max  # a vanishing gain without noise has a slope beyond float32
        return (column(slope.clamp(-largest, largest), y) * y).clamp_(-LARGEST_RATIO, LARGEST_RATIO)

    return add_up("blmmse", linear, y, h, sigma2, mean, scale, weights, form, segments)


def high_snr(
    y: Tensor | Signals,
    h: Tensor,
    mean: Tensor,
    scale: Tensor,
    weights: Tensor | None = None,
    segments: Sequence[int] | None = None,
) -> Tensor:
    """The limit of `sbfl` for vanishing noise: a weighted sum of the detected signs.

    `ghat = sum_k alpha_k * (mean_k + scale_k * sign(y_k / h_k))`. Arguments and shapes as in `sbfl`.

    Example:
        >>> high_snr(torch.tensor([[0.9, -1.2]]), torch.tensor([-1.0]), torch.zeros(1), torch.ones(1))
        tensor([-1.,  1.])

    Reference: Corollary 1, first limit.
    """
    signs = partial(detect, h=h)
    return add_up("high_snr", signs, y, h, None, mean, scale, weights, segments=segments)


def zero_forcing(
    y: Tensor | Signals,
    h: Tensor,
    mean: Tensor,
    scale: Tensor,
    weights: Tensor | None = None,
    segments: Sequence[int] | None = None,
) -> Tensor:
    """Divide the channel out: the limit of `blmmse` for vanishing noise, used whatever the noise is.

    `ghat = sum_k alpha_k * (mean_k + scale_k * y_k / h_k)`. Arguments and shapes as in `sbfl`. Its error over
    Gaussian fading has no finite mean: a device in a deep fade drowns the others.

    Example:
        >>> zero_forcing(torch.tensor([[0.5, -1.0]]), torch.tensor([0.5]), torch.zeros(1), torch.ones(1))
        tensor([ 1., -2.])

    Reference: Corollary 1, second limit.
    """

    def divided(y: Tensor) -> Tensor:
        gain = column(h, y)
        ratio = torch.where(gain == 0, torch.zeros_like(y), y / gain)
        return ratio.clamp(-LARGEST_RATIO, LARGEST_RATIO)

    return add_up("zero_forcing", divided, y, h, None, mean, scale, weights, segments=segments)


def ideal(g: Tensor, weights: Tensor | None = None) -> Tensor:
    """The true weighted sum `sum_k alpha_k * g_k` of gradients `[K, M]`: the bound for every rule.

    Example:
        >>> ideal(torch.tensor([[1.0, 2.0], [3.0, -2.0]]), weights=torch.tensor([0.5, 0.5]))
        tensor([2., 0.])
    """
    check_symbols(g, "g")
    check_finite("g", g)
    check_devices(len(g), weights=weights)
    return weighted_sum(g.new_zeros(len(g)), g, weights)


def blmmse_covariance(
    y: Tensor, h: Tensor, sigma2: Tensor, mean: Tensor, covariance: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Linear minimum-MSE aggregation when the coordinates of a device are correlated.

    `ghat_k = mean_k + h_k * S_k B_k^T (h_k**2 * T_k + sigma2_k * I)^-1 y_k`, with the Bussgang gain
    `B_k = sqrt(2/pi) * diag(S_k)^-1/2` and, by the arcsine law, the autocorrelation of the bits
    `T_k = (2/pi) * arcsin(diag(S_k)^-1/2 S_k diag(S_k)^-1/2)`. `covariance` `[K, M, M]` holds the `S_k` of
    Gaussian gradients: for small M only. Other arguments as in `sbfl`.

    Example:
        >>> one = torch.ones(1)
        >>> covariance = torch.tensor([[[1.0, 0.9], [0.9, 1.0]]])
        >>> blmmse_covariance(torch.tensor([[0.8, 0.0]]), one, one, 0 * one, covariance)
        tensor([0.2483, 0.1987])

    Reference: Section IV-B.1, the general BLMMSE estimator.
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


class SBFLNetwork(nn.Module):
    """`sbfl` as the two-layer network of the paper's Fig. 1.

    The first layer scales each device's signal by `h_k / sigma2_k` and applies tanh; the second is linear,
    with weights `alpha_k * scale_k` and bias `sum_k alpha_k * mean_k`. The parameters are ordinary
    `nn.Parameter`s, so the network can be fine-tuned from its Bayesian initial values. Arguments as in
    `sbfl`, `[K]` each; the noise must be positive.

    Example:
        >>> one = torch.ones(2)
        >>> network = SBFLNetwork(h=one, sigma2=one, mean=0 * one, scale=one)
        >>> network(torch.tensor([[0.9, -1.2], [0.3, 0.1]]))
        tensor([ 1.0076, -0.7340], grad_fn=...)
    """

    def __init__(
        self,
        h: Tensor,
        sigma2: Tensor,
        mean: Tensor,
        scale: Tensor,
        weights: Tensor | None = None,
        form: Form = "corrected",
    ) -> None:
        super().__init__()
        check_choice("form", form, ("corrected", "published"))
        check_rows("h", h, "[K]")
        check_symbols(h.unsqueeze(1), "h")
        check_devices(len(h), h=h, sigma2=sigma2, mean=mean, scale=scale, weights=weights)
        if bool((sigma2 == 0).any()):
            raise ValueError("sigma2 must be positive for a network: a noiseless link has an infinite weight")
        alpha = torch.ones_like(h) if weights is None else weights.to(h)
        largest = torch.finfo(h.dtype).max
        slope = (2 if form == "published" else 1) * h.double() / sigma2.double()
        self.slope = nn.Parameter(slope.clamp(-largest, largest).to(h))
        self.combine = nn.Linear(len(h), 1, dtype=h.dtype)
        with torch.no_grad():
            self.combine.weight.copy_((alpha * scale).unsqueeze(0))
            self.combine.bias.copy_((alpha * mean).sum().unsqueeze(0))

    def forward(self, y: Tensor) -> Tensor:
        """Aggregate the received signals `[K, M]`, of the dtype of h, to an estimate `[M]`."""
        if y.ndim != 2 or len(y) != len(self.slope) or y.dtype != self.slope.dtype:
            wanted = f"{self.slope.dtype} of shape [{len(self.slope)}, M]"
            raise ValueError(f"y must be {wanted}; got {y.dtype} of shape {list(y.shape)}")
        hidden = torch.tanh(self.slope * y.T)
        estimate: Tensor = self.combine(hidden).squeeze(1)
        return estimate


def _given_noise(rule: Callable[..., Tensor]) -> Callable[[Received, MethodSettings], Tensor]:
    def combine(r: Received, method: MethodSettings) -> Tensor:
        prior = (r.layer_mean, r.device_scale, r.weights)
        return rule(r.signals, r.device_link.h, r.device_link.sigma2, *prior, method.form, r.segments)

    return combine


def _without_noise(rule: Callable[..., Tensor]) -> Callable[[Received, MethodSettings], Tensor]:
    def combine(r: Received, method: MethodSettings) -> Tensor:
        return rule(r.signals, r.device_link.h, r.layer_mean, r.device_scale, r.weights, r.segments)

    return combine


def _not_received(received: Received, context: Context) -> Estimate:
    raise ValueError("ideal is given the gradients themselves, not signals")


AGGREGATORS.add(
    "ideal",
    Aggregator(
        help="the true sum of the gradients, which no radio gives: the bound for every rule",
        estimate=_not_received,
        sends="values",
        law="ideal",
        over_the_air="values",
    ),
)
AGGREGATORS.add(
    "sbfl",
    Aggregator(
        help="posterior mean, device by device: the paper's scalable rule",
        estimate=one_device_at_a_time("sbfl", _given_noise(sbfl)),
        law="sbfl",
        over_the_air="posterior",
        soft="independent",
    ),
)
AGGREGATORS.add(
    "blmmse",
    Aggregator(
        help="the best linear rule, device by device: cheaper than sbfl and a little worse",
        estimate=one_device_at_a_time("blmmse", _given_noise(blmmse)),
        law="blmmse",
        over_the_air="linear",
    ),
)
AGGREGATORS.add(
    "high_snr",
    Aggregator(
        help="sbfl's limit for vanishing noise: hard decisions, weighted by the scales",
        estimate=one_device_at_a_time("high_snr", _without_noise(high_snr)),
        law="high_snr",
    ),
)
AGGREGATORS.add(
    "zero_forcing",
    Aggregator(
        help="blmmse's limit for vanishing noise: divide the channel out",
        estimate=one_device_at_a_time("zero_forcing", _without_noise(zero_forcing)),
        law="zero_forcing",
    ),
)
