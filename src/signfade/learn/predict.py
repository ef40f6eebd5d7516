"""What theory expects of a round: the error of the estimate, and the shrinkage built into it."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from signfade import theory
from signfade.learn.encode import Sent
from signfade.learn.received import Received
from signfade.settings import MethodSettings

__all__ = ["SMALLEST_GAIN", "known_gain", "predicted_error"]

# Dividing by a smaller gain than this would amplify noise more than it restores the step.
SMALLEST_GAIN = 0.15

# Rules that theory knows one device at a time.
_RULES: dict[str, theory.Rule] = {
    "sbfl": "sbfl",
    "blmmse": "blmmse",
    "high_snr": "high_snr",
    "zero_forcing": "zero_forcing",
}

_VARIANCE_OVER_SCALE2 = {"gaussian": math.pi / 2, "laplacian": 2.0, "empirical": math.pi / 2}


def predicted_error(method: MethodSettings, received: Received, sent: Sent, truth: Tensor) -> float | None:
    """Predict `E|estimate - truth|^2 / |truth|^2` of a round, if independent devices had the prior they
    claim.

    For `signsgd` it is the error of the best-scaled vote, since a vote has no size of its own. Rules that
    theory does not know give None.
    """
    snr = received.link.snr.double().numpy()
    alpha = received.weights.double().numpy()[:, None]
    counts = np.array(received.segments, dtype=np.float64)
    std = sent.std.double().numpy()
    kappa = np.minimum(sent.true_scale.double().numpy(), std)
    energy = float(truth.double().square().sum())
    if energy == 0:
        return None
    if method.aggregator == "signsgd":
        if len(counts) > 1:
            return None
        return theory.vote_nmse(snr, std[:, 0], alpha[:, 0], mean_abs=kappa[:, 0])
    rule = _RULES.get(method.aggregator)
    if rule is None:
        return None
    error = theory.mse(
        rule,
        snr[:, None],
        std,
        form=method.form,
        scale=sent.scale.double().numpy(),
        mean_abs=kappa,
    )
    return float((alpha**2 * error * counts).sum() / energy)


def known_gain(method: MethodSettings, received: Received) -> float:
    """Return by how much the rule shrinks the sum, from what the server itself knows; 1 where that is
    unknown.

    `sum_k alpha_k^2 scale_k^2 E[s f] / sum_k alpha_k^2 var_k` for independent devices.
    """
    rule = _RULES.get(method.aggregator)
    if rule is None:
        return 1.0
    gain = theory.gain(rule, received.link.snr, method.form)
    counts = np.array(received.segments, dtype=np.float64)
    power = received.weights.double().numpy() ** 2 * (received.layer_scale.double().numpy() ** 2 @ counts)
    if power.sum() == 0:
        return 1.0
    return float((power * gain).sum() / (power.sum() * _VARIANCE_OVER_SCALE2[method.prior]))
