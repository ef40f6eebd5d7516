"""What theory expects of a round: the error of the estimate, and the shrinkage built into it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from signfade import theory
from signfade.kernels import fused_sum
from signfade.learn.encode import Sent, bit_agreement
from signfade.learn.received import Received
from signfade.learn.round import Uplink
from signfade.settings import MethodSettings

__all__ = [
    "VARIANCE_OVER_SCALE2",
    "debias_factor",
    "drawn_gradients",
    "known_gain",
    "predicted_error",
    "tried_moments",
]

# Dividing by a smaller gain than this would amplify noise more than it restores the step.
SMALLEST_GAIN = 0.15

# Rules that theory knows one device at a time.
_RULES: dict[str, theory.Rule] = {
    "sbfl": "sbfl",
    "blmmse": "blmmse",
    "high_snr": "high_snr",
    "zero_forcing": "zero_forcing",
}

VARIANCE_OVER_SCALE2 = {"gaussian": math.pi / 2, "laplacian": 2.0, "empirical": math.pi / 2}


def predicted_error(
    method: MethodSettings,
    uplink: Uplink,
    factor: float = 1.0,
    rotate_back: Callable[[Tensor], Tensor] | None = None,
) -> float | None:
    """Predict `E|factor * estimate - truth|^2 / |truth|^2` of a round for a rule that reads one device at a
    time.

    Rotated gradients are jointly Gaussian, and the prediction knows their correlation; where there are too
    many devices for that, it is the mean over the noise given the bits they sent, for which it must be told
    how to `rotate_back`. Without a rotation it is what the paper's theory says: independent devices with the
    prior they claim, layer by layer. For `signsgd` it is the error of the best-scaled vote, since a vote has
    no size of its own. Rules that theory does not know give None.
    """
    received, sent = uplink.received, uplink.sent
    if received is None or sent is None:
        return None
    if received.air is not None:
        return _predicted_in_doubt(method, uplink, received, sent, factor, rotate_back)
    snr, alpha = received.link.snr, received.weights
    rule = _RULES.get(method.aggregator)
    if method.rotation != "none" and uplink.correlation is not None:
        prior = (sent.std[:, 0], uplink.correlation)
        kept = len(uplink.truth) / received.size
        if method.aggregator == "signsgd":
            law = {"agreement": 1 - 2 * method.flip, "noise": method.sign_noise}
            vote = theory.vote_moments(snr, *prior, weights=alpha, **law, tie=method.tie)
            return vote.cut(kept).best_scaled_nmse()
        if rule is None:
            return None
        signal, power = theory.moments(rule, snr, method.form)
        told = (1 - 2 * method.flip) * np.atleast_1d(signal)
        how = {"weights": alpha, "scale": sent.scale[:, 0]}
        moments = theory.given_moments(told, power, *prior, **how, noise=method.sign_noise)
        return moments.cut(kept).nmse(factor) if moments.energy > 0 else None
    if method.rotation != "none":
        if rule is None or rotate_back is None:
            return None
        return _given_bits(uplink, received, *theory.moments(rule, snr, method.form), factor, rotate_back)
    std = sent.std.double().numpy()
    kappa = np.minimum(sent.true_scale.double().numpy(), std)
    energy = float(uplink.truth.double().square().sum())
    if energy == 0:
        return None
    if method.aggregator == "signsgd":
        if std.shape[1] > 1:
            return None
        return theory.vote_nmse(snr, std[:, 0], alpha, mean_abs=kappa[:, 0], tie=method.tie)
    if rule is None:
        return None
    error = theory.mse(
        rule, snr[:, None], std, form=method.form, scale=factor * sent.scale.double(), mean_abs=kappa
    )
    counts = np.array(received.segments, dtype=np.float64)
    return float(alpha.double().numpy() ** 2 @ error @ counts / energy)


def _predicted_in_doubt(
    method: MethodSettings,
    uplink: Uplink,
    received: Received,
    sent: Sent,
    factor: float,
    rotate_back: Callable[[Tensor], Tensor] | None,
) -> float | None:
    """`predicted_error` where links or scalars are not as the server has them.

    The rule is made from what it has, its moments are taken over the links as they are, and a mean that was
    lost adds its own error.
    """
    rule = _RULES.get(method.aggregator)
    if rule is None:  # a vote, whose devices may all be taken for their opposite
        return None
    known = received.link if received.refined is None else received.refined.link
    air = received.true_link
    trust = np.ones(len(received)) if received.refined is None else received.refined.trust.numpy()
    found = theory.mismatched_moments(rule, air.h, air.sigma2, known.h, known.sigma2, method.form)
    signal, power = trust * np.atleast_1d(found[0]), trust**2 * np.atleast_1d(found[1])
    alpha = received.weights.double().numpy()
    scale, std = received.layer_scale.double().numpy(), sent.std.double().numpy()
    lost_mean = alpha @ (received.layer_mean - sent.mean).double().numpy()
    if method.rotation != "none" and uplink.correlation is not None:
        told, how = (1 - 2 * method.flip) * signal, {"weights": alpha, "scale": scale[:, 0]}
        moments = theory.given_moments(
            told, power, std[:, 0], uplink.correlation, **how, noise=method.sign_noise
        ).cut(len(uplink.truth) / received.size)
        return moments.nmse(factor) + lost_mean[0] ** 2 / moments.energy if moments.energy > 0 else None
    if method.rotation != "none":
        if rotate_back is None:
            return None
        return _given_bits(uplink, received, signal, power, factor, rotate_back)
    energy = float(uplink.truth.double().square().sum())
    if energy == 0:
        return None
    kappa, used = np.minimum(sent.true_scale.double().numpy(), std), factor * scale
    error = std**2 - 2 * kappa * used * signal[:, None] + used**2 * power[:, None]
    counts = np.array(received.segments, dtype=np.float64)
    return float((alpha**2 @ error + lost_mean**2) @ counts / energy)


def _given_bits(
    uplink: Uplink,
    received: Received,
    signal: np.ndarray,
    power: np.ndarray,
    factor: float,
    rotate_back: Callable[[Tensor], Tensor],
) -> float | None:
    """Return the normalised error, averaged over the noise alone; O(K M), whatever devices have in common.

    Given the bits, device k's part has the mean `scale_k * E[s f] * s_k` and the variance
    `scale_k**2 * (E[f**2] - E[s f]**2)` in each coordinate, and all parts are independent.
    """
    energy = float(uplink.truth.double().square().sum())
    if energy == 0:
        return None
    alpha = received.weights.double()
    share = alpha * received.layer_scale[:, 0].double()
    perfect = (torch.ones_like(share), torch.zeros_like(share))
    seen = share * torch.from_numpy(np.atleast_1d(signal))
    mean = fused_sum("high_snr", received.packed, received.size, *perfect, None, seen, None, received.keys)
    known = float(alpha @ received.layer_mean[:, 0].double())
    bias = rotate_back(known + factor * mean).double() - uplink.truth.double()
    noise = (factor * share.numpy()) ** 2 @ (np.atleast_1d(power) - np.atleast_1d(signal) ** 2)
    return float((bias @ bias + len(bias) * noise) / energy)


def drawn_gradients(correlation: Tensor, std: Tensor, draw: Tensor) -> Tensor:
    """Turn independent standard normal numbers, `[K, n]`, into gradients of these devices' joint law."""
    values, vectors = torch.linalg.eigh(correlation)
    root: Tensor = vectors * values.clamp_min(0).sqrt()
    return std[:, None] * (root @ draw)


def tried_moments(g: Tensor, weights: Tensor, guess: Tensor) -> theory.JointMoments:
    """Return the moments of a rule whose estimates `[n]` for gradients `[K, n]` are there."""
    truth, shared = weights.double() @ g, g @ guess
    return theory.JointMoments(
        energy=float(truth @ truth),
        product=float(truth @ guess),
        power=float(guess @ guess),
        aligned=float(shared @ torch.linalg.pinv(g @ g.T, hermitian=True) @ shared),
    )


def debias_factor(method: MethodSettings, gain: float) -> float:
    """Return what an estimate with a known gain is multiplied by: the gain undone, if the method says so."""
    return 1 / max(gain, SMALLEST_GAIN) if method.debias else 1.0


def known_gain(method: MethodSettings, received: Received) -> float:
    """Return by how much the rule shrinks the sum, from what the server itself knows; 1 where that is
    unknown.

    `sum_k alpha_k^2 scale_k^2 E[s f] / sum_k alpha_k^2 var_k` for independent devices.
    """
    rule = _RULES.get(method.aggregator)
    if rule is None:
        return 1.0
    gain = _believed_gain(rule, method, received)
    counts = np.array(received.segments, dtype=np.float64)
    power = received.weights.double().numpy() ** 2 * (received.layer_scale.double().numpy() ** 2 @ counts)
    if power.sum() == 0:
        return 1.0
    known = float((power * gain).sum() / (power.sum() * VARIANCE_OVER_SCALE2[method.prior]))
    return bit_agreement(method) ** 2 * known


def _believed_gain(rule: theory.Rule, method: MethodSettings, received: Received) -> np.ndarray:
    """Return the rule's `E[s f]` on each link as the server knows it, `[K]`."""
    if received.refined is None:
        return theory.gain(rule, received.link.snr, method.form)
    gain = theory.gain(rule, received.refined.link.snr, method.form)
    return received.refined.trust.numpy() ** 2 * gain
