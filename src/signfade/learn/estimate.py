"""The server's reading of a round: from what was received to an estimate of the sum."""

from __future__ import annotations

from torch import Tensor

from signfade.learn.encode import Encoder
from signfade.learn.joint import JointRule
from signfade.learn.predict import debias_factor, known_gain, predicted_error
from signfade.learn.round import Uplink, rotate_back
from signfade.learn.rules import Rule, find_rule
from signfade.settings import MethodSettings

__all__ = ["Estimator", "rule_of"]


def rule_of(method: MethodSettings) -> Rule | None:
    """Return the rule that reads each round by itself; None for `ideal` and `bfl`, which are none.

    Raises:
        ValueError: There is no such rule.
    """
    return None if method.aggregator in ("ideal", "bfl") else find_rule(method)


class Estimator:
    """A run's rule with all around it: the joint rule's memory, the shrinkage undone, the rotation undone.

    Args:
        rule: What `rule_of` returned.
        encoder: The device's half of the method.
        population: Number of devices in the cell.
        seed: Seed of the run.

    Attributes:
        joint: The joint rule with its memory, to be saved; None for all other rules.
    """

    def __init__(self, rule: Rule | None, encoder: Encoder, population: int, seed: int) -> None:
        method = encoder.method
        self._rule, self._encoder, self._seed = rule, encoder, seed
        self.joint = JointRule(method, population) if method.aggregator == "bfl" else None

    def __call__(self, uplink: Uplink, round: int) -> tuple[Tensor, float | None]:
        """Return the estimate of the sum, `[M]`, and the error that theory expects of it.

        Args:
            uplink: What was received; where nothing was, because the method is `ideal`, the truth.
            round: Round, counted from 0.
        """
        method, received = self._encoder.method, uplink.received
        if received is None:
            return uplink.truth, 0.0
        if self.joint is not None:
            estimate, factor, expected = self.joint(uplink, received)
        else:
            assert self._rule is not None
            estimate = self._rule(received)
            factor = debias_factor(method, known_gain(method, received))
            expected = predicted_error(method, uplink, factor)
        if factor != 1:  # the means were told: only what was estimated about them is shrunk
            known = received.weights @ received.mean
            estimate = known + factor * (estimate - known)
        return rotate_back(estimate, self._encoder, self._seed, round), expected
