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
from signfade.server.received import Context, Estimate, Received
from signfade.settings import RunSettings

__all__ = ["AGGREGATORS", "Aggregator", "Context", "check_settings", "is_vote"]


@dataclass(frozen=True)
class Aggregator:
    """One rule."""

    help: str  # one line for people
    estimate: Callable[[Received, Context], Estimate]
    sends: Literal["signs and scalars", "signs", "values"] = "signs and scalars"  # "values": the gradient
    law: theory.Rule | None = None  # its name in `signfade.theory`, for predictions and `signfade link`
    scaled: bool = True  # whether its estimate has a size; a vote has only a direction
    # The server's learning rate where nobody gives one; None is the default of estimates. A vote's rate is
    # the length of a step in each weight.
    learning_rate: float | None = None
    breaks_ties: bool = False  # whether it takes a majority, so that `method.tie` matters
    # How it reads signs that the air has added up; None where it cannot.
    over_the_air: Literal["posterior", "linear", "sign", "values"] | None = None
    needs_correlation: bool = False  # whether its prediction wants the true one even without a rotation
    # How it adds up soft values, for private rotations, levels and amplitudes; None where it cannot.
    soft: Literal["independent", "joint"] | None = None
    memory: Callable[[int], Any] | None = None  # from the number of devices to the memory of round 0
    check: Callable[[RunSettings], None] = lambda settings: None  # raises for settings it cannot follow

    @property
    def sends_scalars(self) -> bool:
        """Whether devices send means and scales."""
        return self.sends == "signs and scalars"


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


def _check_dial(settings: RunSettings, rule: Aggregator) -> None:
    """Raise a ValueError for what private rotations, subsets, levels and amplitudes cannot follow."""
    method, cell = settings.method, settings.cell
    if method.bits_per_weight != 1 and method.rotation == "none":
        raise ValueError(
            f"method.rotation must not be none with method.bits_per_weight {method.bits_per_weight}, which "
            'needs coordinates that are alike; set method.rotation = "private"'
        )
    if not method.soft:
        return
    if rule.soft is None:
        able = ", ".join(name for name, entry in AGGREGATORS.items() if entry.soft)
        raise ValueError(
            f"method.aggregator must be one of {able} with private rotations or more than one bit per "
            f"weight; got {method.aggregator!r}"
        )
    signs = method.level_bits == 1
    for allowed, must, why in (
        (cell.access == "orthogonal", "cell.access must be orthogonal", "no device is received by itself"),
        (not settings.defence.reliability, "defence.reliability must be false", "it compares signs as sent"),
        (signs or settings.attack.kind == "none", "attack.kind must be none", "attacks change signs"),
        (method.level_bits or cell.csi == "perfect", "cell.csi must be perfect", "pilots know signs alone"),
    ):
        if not allowed:
            raise ValueError(f"{must} with private rotations or more than one bit per weight: {why}")


def _check_tasks(settings: RunSettings, rule: Aggregator) -> None:
    """Raise a ValueError for what several models, or layers and labels of a device's own, cannot follow."""
    server, data, method = settings.server, settings.data, settings.method
    own = [
        *(["model.personal"] if settings.model.personal else []),
        *(["data.groups"] if data.groups > 1 else []),
    ]
    if own and data.name in ("regression", "gaussian"):
        raise ValueError(f"{own[0]} needs a data set with labels and a model with layers; got {data.name}")
    if settings.model.personal and settings.device.control_variates:
        raise ValueError("device.control_variates must be false with model.personal: own layers have none")
    if data.regroup_at is not None and data.groups == 1:
        raise ValueError("data.regroup_at needs data.groups of 2 or more")
    if server.tasks == "one":
        return
    learned = server.tasks == "clustered" or (server.tasks == "related" and server.relations == "learned")
    able = ", ".join(name for name, entry in AGGREGATORS.items() if entry.soft)
    for allowed, must, why in (
        (
            rule.soft or (rule.sends == "values" and not learned),
            f"method.aggregator must be one of {able}",
            "",
        ),
        (
            not learned or method.rotation != "none",
            "method.rotation must not be none",
            "the law of rotated bits",
        ),
        (
            settings.cell.access == "orthogonal",
            "cell.access must be orthogonal",
            "devices received one by one",
        ),
        (not settings.defence.reliability, "defence.reliability must be false", "devices that may disagree"),
        (settings.availability.late == 0, "availability.late must be 0", "updates of the present models"),
        (
            not settings.device.control_variates,
            "device.control_variates must be false",
            "one control variate",
        ),
        (data.devices <= 1000 or not learned, "data.devices must be at most 1000", "all pairs of devices"),
        (data.name != "gaussian", "data.name must not be gaussian", "something to learn"),
        (
            settings.cell.downlink == "error_free" or server.downlink == "full",
            "server.downlink must be full over a coded downlink",
            "every device to have its model",
        ),
    ):
        if not allowed:
            raise ValueError(
                f'{must} with server.tasks = "{server.tasks}"' + (f", which needs {why}" if why else "")
            )


def check_settings(settings: RunSettings) -> None:
    """Raise a ValueError for settings that the chosen rule cannot follow."""
    import signfade.server  # noqa: F401 - late: its modules register the rules

    method, defence, name = settings.method, settings.defence, settings.method.aggregator
    # A user's rule is loaded when the run begins, so that reading a file of settings runs no code of others.
    rule = _adopt(name, lambda received: None) if is_import_path(name) else AGGREGATORS.find(name)
    if method.compressor != "auto" and rule.sends != "values":
        raise ValueError(
            f'method.compressor must be "auto" with {name}, which reads one bit per weight; '
            "set method.aggregator to ideal for a digital message"
        )
    COMPRESSORS.check(method.compressor)
    if rule.sends == "values" and method.bits_per_weight == "analog":
        raise ValueError(f"method.bits_per_weight must be a number with {name}, whose messages are digital")
    if rule.sends != "values":
        _check_dial(settings, rule)
    if rule.sends == "values":
        for key in ("error_feedback", "sign_noise", "flip"):
            if getattr(method, key) > 0:
                raise ValueError(f"method.{key} must be 0 with {name}, which sends no bits")
        if settings.attack.kind != "none":
            raise ValueError(f'attack.kind must be "none" with {name}, the honest sum')
        for key in ("bound_scales", "reliability"):
            if getattr(defence, key):
                raise ValueError(f"defence.{key} must be false with {name}, the honest sum")
    kind, means = settings.attack.kind, rule.sends_scalars and not method.dialled
    if (kind == "mean-shift" and not means) or (kind == "scale-inflation" and not rule.sends_scalars):
        what = "means" if kind == "mean-shift" else "scales"
        raise ValueError(
            f'attack.kind must not be "{kind}" with these settings of method: devices send no {what}, so it '
            "would do nothing; sign-flip attacks every method"
        )
    if rule.sends == "signs":
        if method.error_feedback > 0:
            raise ValueError(
                f"method.error_feedback must be 0 with {name}: bits without a scale lose no size"
            )
        if defence.bound_scales:
            raise ValueError(f"defence.bound_scales must be false with {name}, whose devices send no scales")
    if settings.cell.scheduling == "posterior" and not rule.sends_scalars:
        raise ValueError(f'cell.scheduling must not be "posterior" with {name}, whose devices send no scales')
    if settings.cell.access == "over_the_air":
        if rule.over_the_air is None:
            able = ", ".join(other for other, entry in AGGREGATORS.items() if entry.over_the_air)
            raise ValueError(
                f'method.aggregator must be one of {able} with cell.access = "over_the_air", where no device '
                f"is received by itself; got {name!r}"
            )
        if method.form != "corrected":
            raise ValueError('method.form must be "corrected" with cell.access = "over_the_air"')
        if defence.reliability:
            raise ValueError(
                'defence.reliability must be false with cell.access = "over_the_air", where no device is '
                "received by itself"
            )
    _check_tasks(settings, rule)
    rule.check(settings)
