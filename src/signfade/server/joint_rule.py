"""The joint posterior in training: the correlation is learned round by round, then one of four rules."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from signfade import theory
from signfade.device import sign
from signfade.server.aggregators import AGGREGATORS, Aggregator
from signfade.server.joint import (
    LowRank,
    bfl,
    factor_bfl,
    fit_factor,
    fit_joint_blmmse,
    fit_joint_sbfl,
    initial_correlation,
    joint_blmmse,
    joint_sbfl,
    learn_correlation,
    learn_low_rank,
    private_part,
    smooth_correlation,
)
from signfade.server.joint.weighted import JointFit
from signfade.server.joint_inputs import JointInputs, make_inputs
from signfade.server.received import Context, Estimate, Received, Truth, trial_moments
from signfade.settings import MethodSettings, RunSettings

__all__ = ["PAIRED_DEVICES"]

# Pairs of devices are compared up to this many, and remembered in cells of up to this many: beyond, they
# would cost more than gradients.
PAIRED_DEVICES = 1000
_TRIES = 4096


def _estimate(received: Received, context: Context) -> Estimate:
    method = context.method
    inputs = make_inputs(method, received)
    correlation, memory = _correlation(received, inputs, context)
    weights, part = inputs.noisy_weights(correlation)
    prior = (inputs.scale, correlation, weights)
    known = (inputs.mean, inputs.scale, correlation, inputs.weights)
    if method.joint == "linear":
        h, sigma2 = inputs.linear_link
        fit = fit_joint_blmmse(h, sigma2, *prior)
        value = joint_blmmse(received.y, h, sigma2, *known, fit)
    else:
        fit = fit_joint_sbfl(inputs.h, inputs.sigma2, *prior, inputs.agreement)
        if method.joint == "soft":
            value = joint_sbfl(received.y, inputs.h, inputs.sigma2, *known, fit=fit)
        else:
            value = _posterior_mean(method, received.y, inputs, correlation, weights)
            value = value + inputs.weights.to(value) @ inputs.mean.to(value)

    def predict(truth: Truth, factor: float) -> float | None:
        if truth.correlation is None:
            return None
        if method.joint in ("linear", "soft"):
            moments = _computed(method, truth, received, inputs, fit)
        else:
            moments = _tried(method, truth, received, inputs, correlation, weights)
        moments = received.restored(moments)
        return moments.nmse(factor) if moments.energy > 0 else None

    return Estimate(value, part * fit.gain, memory, predict)


def _correlation(
    received: Received, inputs: JointInputs, context: Context
) -> tuple[Tensor | LowRank, object]:
    """Return the correlation between the variables whose signs are sent, and what is remembered of it."""
    if context.method.correlation == "genie":
        if context.genie is None:
            raise ValueError(
                f'method.correlation must be "learned" for more than {PAIRED_DEVICES} devices per round, '
                "or gradients that do not fit in memory"
            )
        return inputs.noisy_correlation(context.genie), context.memory
    links = (received.y, *inputs.linear_link)
    if context.memory is None:
        return (learn_correlation if len(received) <= PAIRED_DEVICES else learn_low_rank)(*links), None
    return smooth_correlation(context.memory, *links, torch.from_numpy(received.devices))


def _posterior_mean(
    method: MethodSettings, y: Tensor, inputs: JointInputs, correlation: Tensor | LowRank, weights: Tensor
) -> Tensor:
    """Return the posterior mean of the centred sum, from symbols `[K, M]`."""
    if isinstance(correlation, LowRank):
        raise ValueError(
            f'method.joint must be "linear" or "soft" for more than {PAIRED_DEVICES} devices per round; '
            f"got {len(y)}"
        )
    signals, zero = inputs.posterior_link(y), torch.zeros_like(inputs.mean)
    std = math.sqrt(math.pi / 2) * inputs.scale.double()
    if method.joint == "ep":
        covariance = correlation * std[:, None] * std[None, :]
        return bfl(*signals, zero, covariance, weights, method="ep")
    shared = fit_factor(correlation) * std
    return factor_bfl(*signals, zero, shared, private_part(std, shared), weights)


def _computed(
    method: MethodSettings, truth: Truth, received: Received, inputs: JointInputs, fit: JointFit
) -> theory.JointMoments:
    """Return the moments of a weighted sum, of signals or of their soft bits, over the true links."""
    assert truth.correlation is not None
    air = received.signals.link
    if method.joint == "linear":
        signal, power = air.h.double().numpy(), (air.h.double().square() + air.sigma2.double()).numpy()
    elif not received.in_doubt:
        signal, power = theory.moments("sbfl", air.snr)
    else:
        signal, power = theory.mismatched_moments("sbfl", air.h, air.sigma2, inputs.h, inputs.sigma2)
    return theory.given_moments(
        (1 - 2 * method.flip) * np.atleast_1d(signal),
        power,
        truth.priors.std[:, 0].double(),
        truth.correlation,
        weights=received.weights,
        combine=fit.combine,
        noise=method.sign_noise,
    )


def _tried(
    method: MethodSettings,
    truth: Truth,
    received: Received,
    inputs: JointInputs,
    correlation: Tensor | LowRank,
    weights: Tensor,
) -> theory.JointMoments:
    """Return the moments of a rule without formulas, tried on coordinates drawn from the true prior."""
    air, std = received.signals.link, truth.priors.std[:, 0].double()
    stream = received.trial_stream("prediction")
    draw = torch.from_numpy(stream.standard_normal((2, len(std), _TRIES)))
    g = truth.draw_gradients(draw[0])
    y = air.h[:, None] * _bits(method, g, std, received) + air.sigma2.sqrt()[:, None] * draw[1]
    guess = _posterior_mean(method, y.float(), inputs, correlation, weights).double()
    return trial_moments(g, received.weights, guess)


def _bits(method: MethodSettings, g: Tensor, std: Tensor, received: Received) -> Tensor:
    """Draw the bits that devices would send for gradients `[K, M]`."""
    stream = received.trial_stream("prediction of bits")
    if method.sign_noise > 0:
        noise = torch.from_numpy(stream.standard_normal(tuple(g.shape)))
        g = g + method.sign_noise * std[:, None] * noise
    if method.flip == 0:
        return sign(g)
    flipped = torch.from_numpy(stream.random(tuple(g.shape)) < method.flip)
    return torch.where(flipped, -sign(g), sign(g))


def _check(settings: RunSettings) -> None:
    method = settings.method
    if method.scales == "layer" and method.rotation == "none":
        raise ValueError('method.scales must be "device" with bfl: devices are correlated alike everywhere')
    if method.prior != "gaussian":
        raise ValueError('method.prior must be "gaussian" with bfl')


AGGREGATORS.add(
    "bfl",
    Aggregator(
        help="joint posterior of all devices (Section III), their correlation learned from what is received",
        estimate=_estimate,
        needs_correlation=True,
        soft="joint",
        memory=lambda devices: initial_correlation(devices) if devices <= PAIRED_DEVICES else None,
        check=_check,
    ),
)
