"""The aggregation rules a run can name, each from what was received to an estimate of the sum.

A rule is a function from `Received` to the estimate `[M]`; your own is one too, named by its import path.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from signfade import server
from signfade.device import sign
from signfade.learn.imports import blame, is_import_path, load_function
from signfade.learn.received import Received
from signfade.settings import MethodSettings

__all__ = ["ELEMENTWISE", "Rule", "find_rule"]

Rule = Callable[[Received], Tensor]
_BlockRule = Callable[[Received, MethodSettings], Tensor]

# Rules that treat every device by itself and add the results up, so that groups of devices can go one after
# another.
ELEMENTWISE: dict[str, _BlockRule] = {
    "signsgd": lambda r, method: server.detect(r.y, r.h).sum(dim=0),
    "sbfl": lambda r, method: server.sbfl(r.y, r.h, r.sigma2, r.mean, r.scale, r.weights, method.form),
    "blmmse": lambda r, method: server.blmmse(r.y, r.h, r.sigma2, r.mean, r.scale, r.weights, method.form),
    "high_snr": lambda r, method: server.high_snr(r.y, r.h, r.mean, r.scale, r.weights),
    "zero_forcing": lambda r, method: server.zero_forcing(r.y, r.h, r.mean, r.scale, r.weights),
}


def find_rule(method: MethodSettings) -> Rule:
    """Return the rule that the settings name.

    Raises:
        ValueError: There is no such rule.
    """
    name = method.aggregator
    if name in ELEMENTWISE:
        block_rule = ELEMENTWISE[name]

        def add_up(received: Received) -> Tensor:
            total = torch.zeros(received.size)
            for block in received.blocks():
                total += block_rule(block, method)
            return sign(total) if name == "signsgd" else total

        return add_up
    if is_import_path(name):
        return _checked(name, load_function(name))
    known = ", ".join(["ideal", *ELEMENTWISE, "bfl"])
    raise ValueError(f"method.aggregator must be one of {known}, or package.module:function; got {name!r}")


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
