"""The aggregation rules a run can name, each from what was received to an estimate of the sum.

A rule is a function from `Received` to the estimate `[M]`; your own is one too, named by its import path.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from signfade.kernels import fused_sum
from signfade.learn.imports import blame, is_import_path, load_function
from signfade.learn.received import Received
from signfade.server import break_ties
from signfade.settings import MethodSettings, Tie

__all__ = ["ELEMENTWISE", "Rule", "find_rule"]

Rule = Callable[[Received], Tensor]

# Rules that treat every device by itself and add the results up: one fused pass, no signal is ever stored.
ELEMENTWISE = ("signsgd", "sbfl", "blmmse", "high_snr", "zero_forcing", "signsum")


def find_rule(method: MethodSettings) -> Rule:
    """Return the rule that the settings name.

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
    if is_import_path(name):
        return _checked(name, load_function(name))
    known = ", ".join(["ideal", *ELEMENTWISE, "bfl"])
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
