"""The server's reading of a round: from what was received to an estimate of the sum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from signfade.keys import stream_key
from signfade.learn.air import AirRule
from signfade.learn.cell import CellPlan
from signfade.learn.defence import Defence
from signfade.learn.encode import Encoder
from signfade.learn.joint import JointRule
from signfade.learn.predict import debias_factor, known_gain, predicted_error
from signfade.learn.radio import make_radio
from signfade.learn.round import Uplink, rotate_back
from signfade.learn.rules import Rule, find_rule
from signfade.settings import MethodSettings

__all__ = ["Estimator", "rule_of"]


def rule_of(method: MethodSettings, assumed: float = 0.0) -> Rule | None:
    """Return the rule that reads each round by itself; None for `ideal` and `bfl`, which are none.

    Args:
        method: Section `method` of the configuration.
        assumed: `defence.assumed`.

    Raises:
        ValueError: There is no such rule.
    """
    return None if method.aggregator in ("ideal", "bfl") else find_rule(method, assumed)


class Estimator:
    """A run's rule with all around it: the joint rule's memory, the shrinkage undone, the rotation undone.

    Args:
        rule: What `rule_of` returned.
        encoder: The device's half of the method.
        population: Number of devices in the cell.
        seed: Seed of the run.
        cell: The radio, where the server may have to find out what it needs to know of it; None where it is
            told.
        defence: What the server does before it believes a round; None where it believes everything.

    Attributes:
        joint: The joint rule with its memory, to be saved; None for all other rules.
        radio: What finds out about the links, with its memory; None where there is nothing to find out.
        defence: As given.
    """

    def __init__(
        self,
        rule: Rule | None,
        encoder: Encoder,
        population: int,
        seed: int,
        cell: CellPlan | None = None,
        defence: Defence | None = None,
    ) -> None:
        method = encoder.method
        self._rule, self._encoder, self._seed = rule, encoder, seed
        self.joint = JointRule(method, population) if method.aggregator == "bfl" else None
        self.radio = None if cell is None else make_radio(cell, encoder)
        self.defence = defence
        together = cell is not None and cell.settings.access == "over_the_air"
        self._air = AirRule(cell.settings, method, seed) if cell is not None and together else None

    def parts(self) -> dict[str, Any]:
        """Everything with a state of its own, by name."""
        named: dict[str, Any] = {"joint": self.joint, "radio": self.radio, "defence": self.defence}
        if self._encoder.quantised:
            named["range"] = self._encoder.range
        return {name: part for name, part in named.items() if part is not None}

    @property
    def record(self) -> dict[str, Any]:
        """What the radio and the defence have to say of the last round."""
        speakers = (part for part in (self.radio, self.defence) if part is not None)
        return {key: value for part in speakers for key, value in part.record.items()}

    def __call__(self, uplink: Uplink, round: int) -> tuple[Tensor, float | None]:
        """Return the estimate of the sum, `[M]`, and the error that theory expects of it.

        Args:
            uplink: What was received; where nothing was, because the method is `ideal`, the truth.
            round: Round, counted from 0.
        """
        method, received = self._encoder.method, uplink.received
        if received is None:
            return uplink.truth, 0.0
        if self.radio is not None:
            uplink = self.radio.hear(uplink, round)
            received = uplink.received
            assert received is not None
        told = received.layer_scale
        if self.defence is not None:
            received = self.defence(uplink, received, round)
            uplink = replace(uplink, received=received)
        if self._air is not None:
            estimate, factor, expected = self._air(uplink, received, round)
        elif self.joint is not None:
            estimate, factor, expected = self.joint(uplink, received)
        else:
            assert self._rule is not None
            received = received.believed(tie_key=stream_key(self._seed, "ties", round))
            estimate = self._rule(received)
            factor = debias_factor(method, known_gain(method, received)) if method.debias else 1.0
            expected = predicted_error(
                method, uplink, factor, lambda x: rotate_back(x, self._encoder, self._seed, round)
            )
        if factor != 1:  # the means were told: only what was estimated about them is shrunk
            known = received.weights @ received.mean
            estimate = known + factor * (estimate - known)
        if self.defence is not None and self.defence.changed:
            expected = None  # theory knows what was sent, not what is believed of it
        if self._encoder.quantised:
            decoded = None if self.radio is None else self.radio.decoded
            self._encoder.range.follow(told if decoded is None else told[decoded])
        return rotate_back(estimate, self._encoder, self._seed, round), expected
