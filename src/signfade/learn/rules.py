"""The aggregation rules a run can name, each from what was received to an estimate of the sum.

A rule is a function from `Received` to the estimate `[M]`; your own is one too, named by its import path.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from signfade.kernels import fused_sum
from signfade.learn.imports import blame, is_import_path, load_function
from signfade.learn.received import Received
from signfade.server import break_ties, coordinate_median, krum, trimmed_mean
from signfade.settings import ROBUST_RULES, MethodSettings, Tie
from signfade.uplink.channel import half_llr

__all__ = ["ELEMENTWISE", "Rule", "find_rule"]

Rule = Callable[[Received], Tensor]

# Rules that treat every device by itself and add the results up: one fused pass, no signal is ever stored.
ELEMENTWISE = ("signsgd", "sbfl", "blmmse", "high_snr", "zero_forcing", "signsum")


def find_rule(method: MethodSettings, assumed: float = 0.0) -> Rule:
    """Return the rule that the settings name.

    Args:
        method: Section `method` of the configuration.
        assumed: Part of the devices that rules against attackers assume to be hostile.

    Raises:
        ValueError: There is no such rule.
    """
    name = method.aggregator
    if name == "signsgd":
        return lambda r: _vote(r, method.tie)
    if name == "signsum":  # what signSGD would step along if its server kept the tally
        return lambda r: _fused("vote", r, None, None, r.trust)
    if name in ELEMENTWISE:
        return lambda r: _fused(name, r, r.layer_mean, r.layer_scale, r.weights, method.form)
    if name in ROBUST_RULES:
        return lambda r: _robust(name, r, assumed)
    if is_import_path(name):
        return _checked(name, load_function(name))
    known = ", ".join(["ideal", *ELEMENTWISE, *ROBUST_RULES, "bfl"])
    raise ValueError(f"method.aggregator must be one of {known}, or package.module:function; got {name!r}")


def _vote(r: Received, tie: Tie) -> Tensor:
    """Return the majority vote, or zeros where nobody has a vote: no signal, no step."""
    tally = _fused("vote", r, None, None, r.trust)
    gain = r.h if r.refined is None else r.refined.link.h
    voters = gain if r.trust is None else gain * r.trust.to(gain)
    return break_ties(tally, tie, r.tie_key) if bool(voters.any()) else tally


def _fused(
    rule: str,
    r: Received,
    mean: Tensor | None,
    scale: Tensor | None,
    weights: Tensor | None,
    form: str = "corrected",
) -> Tensor:
    known = None if r.air is None else (r.h, r.sigma2)
    if r.refined is not None:
        known = (r.refined.link.h, r.refined.link.sigma2)
        scale = None if scale is None else r.refined.trust.to(scale)[:, None] * scale
    h, sigma2 = r.true_link.h, r.true_link.sigma2
    prior = (mean, scale, weights)
    return fused_sum(
        rule, r.packed, r.size, h, sigma2, *prior, r.keys, form=form, segments=r.segments, known=known
    )


def _robust(name: str, r: Received, assumed: float) -> Tensor:
    """Return `sum_k alpha_k` times the robust mean of `mean_k + scale_k*tanh(l_k)`: as long as the sum is.

    Of K devices `f = assumed*K`, rounded, are taken for attackers, but no more than the rule can bear.
    """
    devices = len(r)
    soft, links = torch.tanh(half_llr(r.y, r.h, r.sigma2)), (r.mean, r.scale)
    mean, scale = (value.to(soft) if value.ndim == 2 else value.to(soft).unsqueeze(1) for value in links)
    x = soft.mul_(scale).add_(mean)
    attackers = min(int(assumed * devices + 0.5), (devices - 1) // 2)
    if name == "median":
        found = coordinate_median(x)
    elif name == "trimmed_mean":
        found = trimmed_mean(x, attackers)
    elif devices < 3:
        raise ValueError(f"method.aggregator = {name!r} needs at least 3 devices a round; got {devices}")
    else:
        attackers = min(attackers, (devices - 3) // 2)
        found = krum(x, attackers, devices - attackers if name == "multi_krum" else 1)
    return float(r.weights.sum()) * found


def _checked(name: str, function: Callable[..., object]) -> Rule:
    """Wrap a user's rule so that a wrong result is named as such."""

    def rule(received: Received) -> Tensor:
        with blame(name):
            estimate = function(received)
        if not isinstance(estimate, Tensor) or estimate.shape != (received.size,):
            got = list(estimate.shape) if isinstance(estimate, Tensor) else type(estimate).__name__
            raise ValueError(f"{name} must return a tensor of shape [{received.size}]; got {got}")
        if not bool(estimate.isfinite().all()):
            raise ValueError(f"{name} returned NaN or infinity")
        return estimate.float()

    return rule
