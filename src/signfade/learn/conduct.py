"""What devices do besides computing and encoding: come late, drop out, draw bits, feed back, lie."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from signfade.device import bit_epsilon, composed_epsilon
from signfade.keys import stream_keys
from signfade.learn.attack import Attack
from signfade.learn.encode import Encoder, Sent
from signfade.learn.feedback import Feedback
from signfade.learn.presence import Presence
from signfade.learn.task import Devices, LocalGradients, Task
from signfade.settings import VOTES, RunSettings
from signfade.uplink import Link

__all__ = ["Conduct", "conduct_switches", "make_conduct"]

DELTA = 1e-5  # at which composed epsilons are told


class Conduct:
    """The devices' side of a run where not all do as they should; with all switches off there is none.

    Args:
        settings: All of the run.
        task: Model and data.
        encoder: The device's half of the method.

    Raises:
        ValueError: Error feedback would need too much memory.
    """

    def __init__(self, settings: RunSettings, task: Task, encoder: Encoder) -> None:
        self._settings, self._task, self._encoder = settings, task, encoder
        presence, method, seed = settings.presence, settings.method, settings.seed
        absent = max(presence.dropout, presence.late, presence.limited) > 0
        self.presence = Presence(presence, task.devices, seed) if absent else None
        self.feedback = Feedback(encoder, task.devices) if method.error_feedback > 0 else None
        lies = settings.attack.kind != "none"
        self.attack = Attack(settings.attack, encoder, task.devices, seed) if lies else None

    def heard(self, asked: Devices, weights: Tensor, round: int) -> Devices:
        """Return who is heard in a round, ascending; maybe nobody.

        Args:
            asked: Who is asked, ascending.
            weights: The model that is broadcast, `[M]`.
            round: Round, counted from 0.
        """
        if self.presence is None:
            return asked
        self.presence.begin(weights, round)
        return self.presence.heard(asked, round)

    def fresh(self, devices: Devices, round: int) -> NDArray[np.bool_]:
        """Tell whose gradient is at the round's own weights, `[K]`."""
        if self.presence is None:
            return np.ones(len(devices), dtype=bool)
        return ~self.presence.late(devices, round)

    def local_gradients(self, weights: Tensor, devices: Devices, round: int) -> LocalGradients:
        """Return the gradients of some devices, each at the weights it has."""
        if self.presence is None:
            return self._task.local_gradients(weights, devices, round)
        return self.presence.local_gradients(self._task, weights, devices, round)

    def send(self, gradients: Tensor, devices: Devices, round: int, rotation_key: int) -> Sent:
        """Return what some devices send of their gradients, `[k, M]`."""
        seed = self._settings.seed
        wanted = gradients if self.feedback is None else self.feedback.add(gradients, devices)
        rotated = self._encoder.rotate(wanted, rotation_key)
        sent = self._encoder.encode(rotated, lambda purpose: stream_keys(seed, purpose, round, devices))
        if self.feedback is not None:
            self.feedback.keep(rotated, sent, devices, rotation_key)
        return sent

    def lie(self, sent: Sent, devices: Devices, round: int) -> Sent:
        """Return what all devices of a round send after the attackers among them have changed theirs."""
        return sent if self.attack is None else self.attack(sent, devices, round)

    def link(self, link: Link, devices: Devices, round: int) -> Link:
        """Return the links of a round at the power that the devices have."""
        return link if self.presence is None else self.presence.limit(link, devices, round)

    @property
    def predictable(self) -> bool:
        """Whether theory knows what the server's estimate has to do with the devices' gradients."""
        return self.feedback is None and self.attack is None

    def record(self, devices: Devices, round: int) -> dict[str, Any]:
        """Return what a round's record says: how many were late, and the privacy of those heard every round.

        `epsilon_bit` is that of one bit in one round, `epsilon` that of all bits of a device in all rounds so
        far, at delta = 1e-5.
        """
        told: dict[str, Any] = {}
        if self._settings.presence.late > 0:
            told["late"] = int((~self.fresh(devices, round)).sum())
        if (flip := self._settings.method.flip) > 0:
            told["epsilon_bit"] = bit_epsilon(flip)
            told["epsilon"] = composed_epsilon(flip, self._encoder.size * (round + 1), DELTA)
        return told

    def notes(self) -> list[str]:
        """Return what a person should know before the first round, in sentences."""
        method, rounds = self._settings.method, self._settings.rounds
        if method.flip == 0:
            return []
        total = composed_epsilon(method.flip, self._encoder.size * rounds, DELTA)
        covered = "all that is sent" if method.aggregator in VOTES else "the bits, not the means and scales"
        return [
            f"privacy covers {covered}: epsilon {bit_epsilon(method.flip):.3g} for one bit, {total:.3g} for "
            f"a device's {self._encoder.size} bits in {rounds} rounds (delta {DELTA:g})"
        ]

    def parts(self) -> dict[str, Any]:
        """Everything with a state of its own, by name."""
        named = {"presence": self.presence, "feedback": self.feedback}
        return {name: part for name, part in named.items() if part is not None}


def conduct_switches(settings: RunSettings) -> dict[str, float]:
    """Return what devices are made to do, lies apart, by the name of the setting; 0 where they do not."""
    names = {
        "method": ("flip", "sign_noise", "error_feedback"),
        "presence": ("dropout", "late", "limited"),
    }
    return {
        f"{section}.{name}": getattr(getattr(settings, section), name)
        for section, inside in names.items()
        for name in inside
    }


def make_conduct(settings: RunSettings, task: Task, encoder: Encoder) -> Conduct | None:
    """Return the devices' conduct, or None where all do as they should, which costs nothing.

    Raises:
        ValueError: Error feedback would need too much memory.
    """
    if not any(conduct_switches(settings).values()) and settings.attack.kind == "none":
        return None
    return Conduct(settings, task, encoder)
