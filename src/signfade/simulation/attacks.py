"""Hostile devices: what the server receives from them instead of what an honest device would send.

An attack is a function that changes one attacker's part of a message in place. `attack.kind` names one of the
registry, or your own as `package.module:function` or `file.py:function`: a function of the signs `[M]`, the
means `[S]`, the scales `[S]` and a NumPy generator that returns the three as they are sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.device import Bits, Encoder, Message, pack_signs, unpack_signs
from signfade.keys import generator
from signfade.registry import Registry, user_code
from signfade.server import Devices, accepted_scale
from signfade.settings import AttackSettings

__all__ = ["ATTACKS", "Attack", "Attackers", "Hostile", "choose_attackers"]

_VANISHING = 1e-38  # a scale that is positive and says nothing
_INFLATORS = 6  # of this many attackers in a scale collusion one inflates


@dataclass(frozen=True)
class Hostile:
    """One attacker in one round; an attack changes the tensors in place."""

    packed: Tensor  # its bits, eight to a byte, [ceil(M/8)]
    mean: Tensor  # [S]
    scale: Tensor  # [S]
    size: int  # number of bits M
    place: int  # among the attackers
    accepted: (
        Tensor | None
    )  # the largest scales that `bound_scalars` accepts, [S]; None without honest devices
    settings: AttackSettings
    stream: Callable[[int], np.random.Generator]  # random numbers of this round, by number
    number: int  # of the device

    @property
    def ones(self) -> Tensor:
        """A byte mask of the bits in use."""
        return torch.from_numpy(np.packbits(np.ones(self.size, dtype=bool)))


@dataclass(frozen=True)
class Attack:
    """One kind of attack: a line of help, and the function that changes an attacker's message in place."""

    help: str
    apply: Callable[[Hostile], None]


def _adopt(path: str, function: Callable[..., Any]) -> Attack:
    def apply(hostile: Hostile) -> None:
        signs = unpack_signs(hostile.packed, hostile.size)
        with user_code(path):
            signs, mean, scale = function(
                signs, hostile.mean.clone(), hostile.scale.clone(), hostile.stream(1 + hostile.number)
            )
            hostile.packed.copy_(pack_signs(signs))
            hostile.mean.copy_(mean)
            hostile.scale.copy_(scale)

    return Attack(f"your own attack {path}", apply)


ATTACKS: Registry[Attack] = Registry("attack.kind", _adopt)


def _flip(hostile: Hostile) -> None:
    hostile.packed.bitwise_xor_(hostile.ones)
    hostile.mean.neg_()


def _sign_flip(hostile: Hostile) -> None:
    _flip(hostile)
    _inflate(hostile)


def _inflate(hostile: Hostile) -> None:
    hostile.scale.mul_(hostile.settings.strength)


def _random_bits(hostile: Hostile) -> None:
    draw = hostile.stream(0 if hostile.settings.collude else 1 + hostile.number)
    hostile.packed.copy_(torch.from_numpy(np.packbits(draw.integers(0, 2, hostile.size, dtype=np.uint8))))
    _inflate(hostile)


def _ones(hostile: Hostile) -> None:
    hostile.packed.copy_(hostile.ones)
    _inflate(hostile)


def _mean_shift(hostile: Hostile) -> None:
    hostile.mean.add_(hostile.settings.strength * hostile.scale)


def _scale_collusion(hostile: Hostile) -> None:
    _flip(hostile)
    if (hostile.place + 1) % _INFLATORS:
        hostile.scale.fill_(_VANISHING)
    else:
        _inflate(hostile)


def _below_bound(hostile: Hostile) -> None:
    _flip(hostile)
    if hostile.accepted is not None:
        hostile.scale.copy_(hostile.accepted)


_IN_TURN = (_sign_flip, _ones, _mean_shift, _inflate, _random_bits)


def _mixed(hostile: Hostile) -> None:
    _IN_TURN[hostile.place % len(_IN_TURN)](hostile)


for _name, _apply, _help in (
    ("none", lambda hostile: None, "nobody attacks"),
    ("sign-flip", _sign_flip, "all bits flipped, means negated, scales times strength"),
    ("scale-inflation", _inflate, "honest bits, scales times strength"),
    ("random-bits", _random_bits, "random bits, the same from all attackers if they collude"),
    ("ones", _ones, "all bits +1"),
    ("mean-shift", _mean_shift, "strength times the honest scale added to the mean"),
    (
        "scale-collusion",
        _scale_collusion,
        "bits flipped; one attacker in six inflates, the others report scales of 1e-38",
    ),
    ("below-bound", _below_bound, "bits flipped, with the largest scale that defence.bound_scales accepts"),
    ("mixed", _mixed, "sign-flip, ones, mean-shift, scale-inflation and random-bits in turn"),
):
    ATTACKS.add(_name, Attack(_help, _apply))


def choose_attackers(settings: AttackSettings, population: int, seed: int) -> NDArray[np.int64]:
    """Draw who attacks in all rounds: the nearest whole number to `fraction*N`, ascending.

    Example:
        >>> choose_attackers(AttackSettings(kind="sign-flip", fraction=0.3), 20, seed=0)
        array([ 3,  8,  9, 12, 14, 15])
        >>> len(choose_attackers(AttackSettings(), 20, seed=0))
        0
    """
    count = 0 if settings.kind == "none" else int(np.floor(population * settings.fraction + 0.5))
    return np.sort(generator(seed, "attackers").choice(population, size=count, replace=False))


class Attackers:
    """The hostile devices of a run.

    In a below-bound attack they know the defence, every honest scale of the round, and each other. With
    quantised scalars a scale cannot exceed the largest level, and a mean is what can be sent beside that
    scale: next to a large scale an honest mean is rounded to zero. `devices` says who attacks, ascending.
    """

    def __init__(self, settings: AttackSettings, population: int, seed: int) -> None:
        self._settings, self._seed = settings, seed
        self.devices = choose_attackers(settings, population, seed)
        self._attack = None if settings.kind == "none" else ATTACKS.find(settings.kind)

    def change(self, message: Message, encoder: Encoder, devices: Devices, round: int) -> Message:
        """Return what all devices of a round send."""
        rows = np.flatnonzero(np.isin(devices, self.devices))
        if self._attack is None or len(rows) == 0:
            return message
        packed, mean, scale = message.bits.packed.clone(), message.mean.clone(), message.scale.clone()
        honest = np.delete(np.arange(len(scale)), rows)
        # Where nobody is honest, nobody's scale bounds another's.
        accepted = accepted_scale(message.scale[honest], len(rows)).to(scale) if len(honest) else None

        def stream(number: int) -> np.random.Generator:
            return generator(self._seed, "attack", round, number)

        for row in rows:
            place, number = int(np.searchsorted(self.devices, devices[row])), int(devices[row])
            sent = (packed[row], mean[row], scale[row], encoder.size)
            self._attack.apply(Hostile(*sent, place, accepted, self._settings, stream, number))
        if not encoder.sends_mean:
            mean[rows] = 0.0  # whatever it says of its mean has no place in its packet
        if encoder.quantised:
            mean[rows], scale[rows] = encoder.scalar_code.rounded(mean[rows], scale[rows])
        return replace(message, bits=Bits(packed, encoder.size), mean=mean, scale=scale)
