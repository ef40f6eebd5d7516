"""The registry of aggregators: everything the system must know about a rule stands in its one entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from signfade import theory
from signfade.device.compressors import COMPRESSORS
from signfade.registry import Registry, is_import_path, user_code
from signfade.server.predict import known_gain, predicted_error, predicted_vote_error
from signfade.server.received import Estimate, Received
from signfade.settings import DefenceSettings, MethodSettings, RunSettings

__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "Context",
    "check_settings",
    "is_vote",
    "one_device_at_a_time",
    "vote",
]


@dataclass(frozen=True)
class Context:
    """What a rule may use besides what was received.

    Attributes:
        method: Section `method` of the configuration.
        defence: Section `defence` of it.
        memory: What the rule returned as its memory in the last round, or `Aggregator.memory` made.
        genie: The true correlation between devices, with `method.correlation = "genie"` only.
    """

    method: MethodSettings
    defence: DefenceSettings
    memory: Any = None
    genie: Tensor | None = None


@dataclass(frozen=True)
class Aggregator:
    """One rule.

    Attributes:
        help: One line for people.
        estimate: From what was received to an estimate.
        sends: What devices send: signs with means and scales, bare signs, or the gradient itself.
        law: Name of its per-device law in `signfade.theory`, for predictions and `signfade link`; None where
            theory has none.
        scaled: Whether its estimate has a size; a vote has only a direction.
        breaks_ties: Whether it takes a majority, so that `method.tie` matters.
        over_the_air: How it reads signs that the air has added up: the posterior mean, the best linear rule,
            or the sign; None where it cannot.
        needs_correlation: Whether the true correlation between devices is wanted for its prediction even
            without a rotation.
        soft: How it adds up soft values, for private rotations, levels and amplitudes; None where it cannot.
        memory: From the number of devices to its memory before the first round; None for rules without.
        check: Raises a ValueError for settings it cannot follow.
    """

    help: str
    estimate: Callable[[Received, Context], Estimate]
    sends: Literal["signs and scalars", "signs", "values"] = "signs and scalars"
    law: theory.Rule | None = None
    scaled: bool = True
    breaks_ties: bool = False
    over_the_air: Literal["posterior", "linear", "sign", "values"] | None = None
    needs_correlation: bool = False
    soft: Literal["independent", "joint"] | None = None
    memory: Callable[[int], Any] | None = None
    check: Callable[[RunSettings], None] = lambda settings: None

    @property
    def sends_scalars(self) -> bool:
        """Whether devices send means and scales."""
        return self.sends == "signs and scalars"


def one_device_at_a_time(
    law: theory.Rule, combine: Callable[[Received, MethodSettings], Tensor]
) -> Callable[[Received, Context], Estimate]:
    """Make the estimate of a rule that reads every device by itself and adds the results up.

    Args:
        law: The rule's name in `signfade.theory`.
        combine: From what was received to the sum, `[M]`.
    """

    def estimate(received: Received, context: Context) -> Estimate:
        method = context.method
        return Estimate(
            combine(received, method),
            known_gain(law, method, received) if method.debias else 1.0,
            predict=lambda truth, factor: predicted_error(law, method, received, truth, factor),
        )

    return estimate


def vote(combine: Callable[[Received, MethodSettings], Tensor]) -> Callable[[Received, Context], Estimate]:
    """Make the estimate of a majority vote; its error is that of the best multiple of it."""

    def estimate(received: Received, context: Context) -> Estimate:
        method = context.method
        return Estimate(
            combine(received, method),
            predict=lambda truth, factor: predicted_vote_error(method, received, truth),
        )

    return estimate


def _adopt(path: str, function: Callable[..., Any]) -> Aggregator:
    """Make an aggregator of a user's own function from `Received` to an estimate `[M]`."""

    def estimate(received: Received, context: Context) -> Estimate:
        with user_code(path):
            value = function(received)
        if not isinstance(value, Tensor) or value.shape != (received.size,):
            got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"{path} must return a tensor of shape [{received.size}]; got {got}")
        if not bool(value.isfinite().all()):
            raise ValueError(f"{path} returned NaN or infinity")
        return Estimate(value.to(torch.float32))

    return Aggregator(help=f"your own rule {path}", estimate=estimate)


AGGREGATORS: Registry[Aggregator] = Registry("method.aggregator", _adopt)


def is_vote(name: object) -> bool:
    """Tell whether this is the name of a built-in rule whose estimate has a direction and no size."""
    return name in AGGREGATORS.names() and not AGGREGATORS.find(str(name)).scaled


def check_settings(settings: RunSettings) -> None:
    """Raise a ValueError for settings that the chosen rule cannot follow."""
    import signfade.server  # noqa: F401 - late: its modules register the rules

    method, cell, defence = settings.method, settings.cell, settings.defence
    name = method.aggregator
    # A user's rule is loaded when the run begins, so that reading a file of settings runs no code of others.
    rule = _adopt(name, lambda received: None) if is_import_path(name) else AGGREGATORS.find(name)
    if method.compressor != "auto" and rule.sends != "values":
        raise ValueError(
            f'method.compressor must be "auto" with {method.aggregator}, which reads one bit per weight; '
            "set method.aggregator to ideal for a digital message"
        )
    COMPRESSORS.check(method.compressor)
    if rule.sends == "values" and method.bits_per_weight == "analog":
        raise ValueError(
            f"method.bits_per_weight must be a number with {method.aggregator}, whose messages are digital"
        )
    if rule.sends == "values":
        for key in ("error_feedback", "sign_noise", "flip"):
            if getattr(method, key) > 0:
                raise ValueError(f"method.{key} must be 0 with {method.aggregator}, which sends no bits")
        if settings.attack.kind != "none":
            raise ValueError(f'attack.kind must be "none" with {method.aggregator}, the honest sum')
        for key in ("bound_scales", "reliability"):
            if getattr(defence, key):
                raise ValueError(f"defence.{key} must be false with {method.aggregator}, the honest sum")
    if rule.sends == "signs":
        if method.error_feedback > 0:
            raise ValueError(
                f"method.error_feedback must be 0 with {method.aggregator}: bits without a scale lose no size"
            )
        if defence.bound_scales:
            raise ValueError(
                f"defence.bound_scales must be false with {method.aggregator}, whose devices send no scales"
            )
    if rule.sends != "values" and method.bits_per_weight != 1 and method.rotation == "none":
        raise ValueError(
            f"method.rotation must not be none with method.bits_per_weight {method.bits_per_weight}, which "
            'needs coordinates that are alike; set method.rotation = "private"'
        )
    if rule.sends != "values" and (method.rotation in ("private", "auto") or method.level_bits != 1):
        if rule.soft is None:
            able = ", ".join(name for name, entry in AGGREGATORS.items() if entry.soft)
            raise ValueError(
                f"method.aggregator must be one of {able} with private rotations or more than one bit per "
                f"weight; got {method.aggregator!r}"
            )
        for wanted, key, why in (
            (
                cell.access != "over_the_air",
                "cell.access must be orthogonal",
                "no device is received by itself",
            ),
            (
                not defence.reliability,
                "defence.reliability must be false",
                "it compares signs of one rotation",
            ),
            (
                settings.attack.kind == "none" or method.level_bits == 1,
                "attack.kind must be none",
                "attacks change signs",
            ),
            (
                cell.csi == "perfect" or method.level_bits is not None,
                "cell.csi must be perfect",
                "pilots know signs",
            ),
        ):
            if not wanted:
                raise ValueError(f"{key} with private rotations or more than one bit per weight: {why}")
    if cell.access == "over_the_air":
        if rule.over_the_air is None:
            able = ", ".join(name for name, entry in AGGREGATORS.items() if entry.over_the_air)
            raise ValueError(
                f'method.aggregator must be one of {able} with cell.access = "over_the_air", where no device '
                f"is received by itself; got {method.aggregator!r}"
            )
        if method.form != "corrected":
            raise ValueError('method.form must be "corrected" with cell.access = "over_the_air"')
        if defence.reliability:
            raise ValueError(
                'defence.reliability must be false with cell.access = "over_the_air", where no device is '
                "received by itself"
            )
    rule.check(settings)
