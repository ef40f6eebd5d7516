"""What theory expects of a round: the error of the estimate, and the shrinkage built into it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from signfade import theory
from signfade.device import bit_agreement
from signfade.kernels import fused_sum
from signfade.server.received import VARIANCE_OVER_SCALE2, Context, Estimate, Received, Truth
from signfade.settings import MethodSettings

__all__ = ["known_gain", "one_device_at_a_time", "vote"]


def one_device_at_a_time(
    law: theory.Rule, combine: Callable[[Received, MethodSettings], Tensor]
) -> Callable[[Received, Context], Estimate]:
    """Make the estimate of a rule that reads every device by itself and adds the results up.

    `law` is the rule's name in `signfade.theory`; `combine` makes the sum, `[M]`, of what was received.
    """

    def estimate(received: Received, context: Context) -> Estimate:
        method = context.method
        return Estimate(
            combine(received, method),
            known_gain(law, method, received) if method.debias else 1.0,
            predict=lambda truth, factor: _expected_error(law, method, received, truth, factor),
        )

    return estimate


def vote(combine: Callable[[Received, MethodSettings], Tensor]) -> Callable[[Received, Context], Estimate]:
    """Make the estimate of a majority vote; its error is that of the best multiple of it."""

    def estimate(received: Received, context: Context) -> Estimate:
        method = context.method
        return Estimate(
            combine(received, method),
            predict=lambda truth, factor: _expected_vote_error(method, received, truth),
        )

    return estimate


def known_gain(law: theory.Rule, method: MethodSettings, received: Received) -> float:
    """Return by how much the rule shrinks the sum of independent devices, from what the server itself knows.

    `sum_k alpha_k^2 scale_k^2 E[s f] / sum_k alpha_k^2 var_k`
    """
    gain = theory.gain(law, received.device_link.snr, method.form)
    if received.refined is not None:
        gain = received.refined.trust.numpy() ** 2 * gain
    counts = np.array(received.segments, dtype=np.float64)
    power = received.weights.double().numpy() ** 2 * (received.layer_scale.double().numpy() ** 2 @ counts)
    if power.sum() == 0:
        return 1.0
    known = float((power * gain).sum() / (power.sum() * VARIANCE_OVER_SCALE2[method.prior]))
    return bit_agreement(method) ** 2 * known


def _expected_error(
    law: theory.Rule, method: MethodSettings, received: Received, truth: Truth, factor: float
) -> float | None:
    """Predict `E|factor * estimate - truth|^2 / |truth|^2` of a rule that reads one device at a time.

    Rotated gradients are jointly Gaussian, and the prediction knows their correlation; where there are too
    many devices for that, it is the mean over the noise given the bits they sent. Without a rotation it is
    what the paper's theory says: independent devices with the prior they claim, layer by layer. Where links
    or scalars are not as the server has them, the rule is made from what it has, its moments are taken over
    the links as they are, and a mean that was lost adds its own error.
    """
    air, known = received.signals.link, received.device_link
    alpha = received.weights.double().numpy()
    std, scale = truth.priors.std.double().numpy(), received.layer_scale.double().numpy()
    lost_mean = np.zeros(std.shape[1])
    if received.in_doubt:
        signal, power = theory.mismatched_moments(law, air.h, air.sigma2, known.h, known.sigma2, method.form)
        trust = np.ones(len(received)) if received.refined is None else received.refined.trust.numpy()
        signal, power = trust * np.atleast_1d(signal), trust**2 * np.atleast_1d(power)
        lost_mean = alpha @ (received.layer_mean - truth.message.mean).double().numpy()
    else:
        signal, power = map(np.atleast_1d, theory.moments(law, air.snr, method.form))
    if method.rotation != "none" and truth.correlation is not None:
        moments = theory.given_moments(
            (1 - 2 * method.flip) * signal,
            power,
            std[:, 0],
            truth.correlation,
            weights=alpha,
            scale=scale[:, 0],
            noise=method.sign_noise,
        )
        moments = received.restored(moments)
        return moments.nmse(factor) + lost_mean[0] ** 2 / moments.energy if moments.energy > 0 else None
    energy = float(truth.total.double().square().sum())
    if energy == 0:
        return None
    if method.rotation != "none":
        return _error_given_bits(received, truth, signal, power, factor) / energy
    kappa, used = np.minimum(truth.priors.scale.double().numpy(), std), factor * scale
    error = std**2 - 2 * kappa * used * signal[:, None] + used**2 * power[:, None]
    counts = np.array(received.segments, dtype=np.float64)
    return float((alpha**2 @ error + lost_mean**2) @ counts / energy)


def _error_given_bits(
    received: Received, truth: Truth, signal: np.ndarray, power: np.ndarray, factor: float
) -> float:
    """Return the squared error, averaged over the noise alone; O(K M), whatever devices have in common.

    Given the bits, device k's part has the mean `scale_k * E[s f] * s_k` and the variance
    `scale_k**2 * (E[f**2] - E[s f]**2)` in each coordinate, and all parts are independent.
    """
    alpha = received.weights.double()
    share = alpha * received.layer_scale[:, 0].double()
    seen, one, signals = share * torch.from_numpy(signal), torch.ones_like(share), received.signals
    sent = (signals.bits.packed, signals.bits.size)
    mean = fused_sum("high_snr", *sent, one, 0 * one, None, seen, None, signals.keys)
    known = float(alpha @ received.layer_mean[:, 0].double())
    bias = received.turned_back(known + factor * mean).double() - truth.total.double()
    noise = (factor * share.numpy()) ** 2 @ (power - signal**2)
    return float(bias @ bias + len(bias) * noise)


def _expected_vote_error(method: MethodSettings, received: Received, truth: Truth) -> float | None:
    """Predict the error of the best multiple of a majority vote, which has no size of its own."""
    if received.in_doubt:  # all devices may be taken for their opposite
        return None
    snr, alpha, std = received.link.snr, received.weights, truth.priors.std.double().numpy()
    if method.rotation != "none":
        if truth.correlation is None:
            return None
        law = {"agreement": 1 - 2 * method.flip, "noise": method.sign_noise}
        moments = theory.vote_moments(snr, std[:, 0], truth.correlation, weights=alpha, **law, tie=method.tie)
        return received.restored(moments).best_scaled_nmse()
    if std.shape[1] > 1 or not bool(truth.total.any()):
        return None
    kappa = np.minimum(truth.priors.scale.double().numpy(), std)
    return theory.vote_nmse(snr, std[:, 0], alpha, mean_abs=kappa[:, 0], tie=method.tie)
