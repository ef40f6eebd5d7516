"""The posterior mean of the summed gradient, coordinate by coordinate, and its two limits.

Signal model: device k sends `s_k = sign(g_k - mean_k)`, the server receives `y_k = h_k * s_k + n_k` with real
noise `n_k ~ N(0, sigma2_k)` and knows `h_k` and `sigma2_k`. For any prior symmetric about its mean,
`E[g_k | y_k] = mean_k + scale_k * tanh(h_k * y_k / sigma2_k)` with `scale_k = E|g_k - mean_k|`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from signfade._check import check_rows, check_shape
from signfade.server._sum import (
    LARGEST_RATIO,
    by_layer,
    check_received,
    column,
    fused,
    weighted_sum,
)
from signfade.server.aggregators import AGGREGATORS, Aggregator, Context, one_device_at_a_time
from signfade.server.received import Estimate, Received
from signfade.server.vote import detect
from signfade.settings import Form, MethodSettings
from signfade.uplink import Signals, half_llr, symbols

__all__ = ["SBFLNetwork", "high_snr", "ideal", "sbfl", "zero_forcing"]


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
        h: Channel gains as the server knows them, `[K]`. A gain of zero gives the device no say beyond its
            mean.
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

    Reference:
        Propositions 1 and 3; docs/errata.md for the factor two.
    """
    total = fused("sbfl", y, h, sigma2, mean, scale, weights, form, segments)
    if total is not None:
        return total
    y, mean, scale = symbols(y), by_layer(mean, segments), by_layer(scale, segments)
    check_received(y, h, sigma2=sigma2, mean=mean, scale=scale, weights=weights, form=form)
    llr = half_llr(y, h, sigma2)
    if form == "published":
        llr = 2 * llr
    return weighted_sum(mean, column(scale, y) * torch.tanh(llr), weights)


def high_snr(
    y: Tensor | Signals,
    h: Tensor,
    mean: Tensor,
    scale: Tensor,
    weights: Tensor | None = None,
    segments: Sequence[int] | None = None,
) -> Tensor:
    """The limit of `sbfl` for vanishing noise: a weighted sum of the detected signs.

    `ghat = sum_k alpha_k * (mean_k + scale_k * sign(y_k / h_k))`

    Arguments and shapes as in `sbfl`.

    Example:
        >>> high_snr(torch.tensor([[0.9, -1.2]]), torch.tensor([-1.0]), torch.zeros(1), torch.ones(1))
        tensor([-1.,  1.])

    Reference:
        Corollary 1, first limit.
    """
    total = fused("high_snr", y, h, None, mean, scale, weights, segments=segments)
    if total is not None:
        return total
    y, mean, scale = symbols(y), by_layer(mean, segments), by_layer(scale, segments)
    check_received(y, h, mean=mean, scale=scale, weights=weights)
    return weighted_sum(mean, column(scale, y) * detect(y, h), weights)


def zero_forcing(
    y: Tensor | Signals,
    h: Tensor,
    mean: Tensor,
    scale: Tensor,
    weights: Tensor | None = None,
    segments: Sequence[int] | None = None,
) -> Tensor:
    """Divide the channel out: the limit of `blmmse` for vanishing noise, used whatever the noise is.

    `ghat = sum_k alpha_k * (mean_k + scale_k * y_k / h_k)`

    Its error over Gaussian fading has no finite mean: a device in a deep fade drowns the others.
    Arguments and shapes as in `sbfl`; a gain of exactly zero gives the device no say beyond its mean.

    Example:
        >>> zero_forcing(torch.tensor([[0.5, -1.0]]), torch.tensor([0.5]), torch.zeros(1), torch.ones(1))
        tensor([ 1., -2.])

    Reference:
        Corollary 1, second limit.
    """
    total = fused("zero_forcing", y, h, None, mean, scale, weights, segments=segments)
    if total is not None:
        return total
    y, mean, scale = symbols(y), by_layer(mean, segments), by_layer(scale, segments)
    check_received(y, h, mean=mean, scale=scale, weights=weights)
    gain = column(h, y)
    ratio = torch.where(gain == 0, torch.zeros_like(y), y / gain).clamp(-LARGEST_RATIO, LARGEST_RATIO)
    return weighted_sum(mean, column(scale, y) * ratio, weights)


def ideal(g: Tensor, weights: Tensor | None = None) -> Tensor:
    """The true weighted sum of the gradients: what no radio gives, and the bound for every rule.

    Args:
        g: Gradients, `[K, M]`.
        weights: `alpha_k`, `[K]`; ones if None.

    Returns:
        `sum_k alpha_k * g_k`, `[M]`.

    Example:
        >>> ideal(torch.tensor([[1.0, 2.0], [3.0, -2.0]]), weights=torch.tensor([0.5, 0.5]))
        tensor([2., 0.])
    """
    check_rows("g", g)
    devices = torch.zeros(g.shape[:1], dtype=g.dtype, device=g.device)
    check_received(g, devices, weights=weights, name="g")
    return weighted_sum(devices, g, weights)


class SBFLNetwork(nn.Module):
    """`sbfl` as the two-layer network of the paper's Fig. 1.

    The first layer scales each device's signal by `h_k / sigma2_k` and applies tanh; the second is linear,
    with weights `alpha_k * scale_k` and bias `sum_k alpha_k * mean_k`. The parameters are ordinary
    `nn.Parameter`s, so the network can be fine-tuned from its Bayesian initial values.

    Args:
        h: Channel gains, `[K]`.
        sigma2: Positive variances of the real noise, `[K]`.
        mean: Means, `[K]`.
        scale: `E|g - mean|`, `[K]`.
        weights: `alpha_k`, `[K]`; ones if None.
        form: `"corrected"` or `"published"` as in `sbfl`.

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
        check_rows("h", h, "[K]")
        check_shape("mean", mean, (len(h),))
        check_shape("scale", scale, (len(h),))
        like = torch.zeros(len(h), 0, dtype=h.dtype)
        check_received(like, h, sigma2=sigma2, mean=mean, scale=scale, weights=weights, form=form, name="h")
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


def _sbfl(r: Received, method: MethodSettings) -> Tensor:
    h, sigma2 = r.device_link.h, r.device_link.sigma2
    prior = (r.layer_mean, r.device_scale, r.weights)
    return sbfl(r.signals, h, sigma2, *prior, method.form, r.segments)


def _high_snr(r: Received, method: MethodSettings) -> Tensor:
    return high_snr(r.signals, r.device_link.h, r.layer_mean, r.device_scale, r.weights, r.segments)


def _zero_forcing(r: Received, method: MethodSettings) -> Tensor:
    return zero_forcing(r.signals, r.device_link.h, r.layer_mean, r.device_scale, r.weights, r.segments)


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
        estimate=one_device_at_a_time("sbfl", _sbfl),
        law="sbfl",
        over_the_air="posterior",
        soft="independent",
    ),
)
AGGREGATORS.add(
    "high_snr",
    Aggregator(
        help="sbfl's limit for vanishing noise: hard decisions, weighted by the scales",
        estimate=one_device_at_a_time("high_snr", _high_snr),
        law="high_snr",
    ),
)
AGGREGATORS.add(
    "zero_forcing",
    Aggregator(
        help="blmmse's limit for vanishing noise: divide the channel out",
        estimate=one_device_at_a_time("zero_forcing", _zero_forcing),
        law="zero_forcing",
    ),
)
