"""Devices that lie: what the server receives from them instead of what an honest device would send."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.keys import generator
from signfade.learn.encode import Encoder, Sent
from signfade.learn.task import Devices
from signfade.server import accepted_scale
from signfade.settings import MIXED_ATTACKS, AttackSettings

__all__ = ["Attack", "choose_attackers"]

_VANISHING = 1e-38  # a scale that is positive and says nothing
_INFLATORS = 6  # of so many attackers in a scale collusion one inflates


def choose_attackers(settings: AttackSettings, population: int, seed: int) -> NDArray[np.int64]:
    """Draw who lies, all run long: the nearest whole number to `fraction*N`, ascending.

    Example:
        >>> choose_attackers(AttackSettings(kind="sign-flip", fraction=0.3), 20, seed=0)
        array([ 3,  8,  9, 12, 14, 15])
        >>> len(choose_attackers(AttackSettings(), 20, seed=0))
        0
    """
    count = 0 if settings.kind == "none" else int(np.floor(population * settings.fraction + 0.5))
    return np.sort(generator(seed, "attackers").choice(population, size=count, replace=False))


class Attack:
    """Turns what some devices honestly encoded into what they send.

    | kind | bits | mean | scale |
    |---|---|---|---|
    | sign-flip | all flipped | negated | times strength |
    | scale-inflation | honest | honest | times strength |
    | random-bits | random, the same from all of them if they collude | honest | times strength |
    | ones | all +1 | honest | times strength |
    | mean-shift | honest | plus strength times the honest scale | honest |
    | scale-collusion | all flipped | negated | one attacker in six: times strength; the others: 1e-38 |
    | below-bound | all flipped | negated | the largest that `bound_scalars` accepts in this round |
    | mixed | the attackers take sign-flip, ones, mean-shift, scale-inflation and random-bits in turn | | |

    In a below-bound attack the attackers know the defence, every honest scale of the round, and each other.
    With quantised scalars a scale cannot exceed the largest level, and a mean is what can be told beside that
    scale: next to a large lie an honest mean is rounded to zero.

    Args:
        settings: Section `attack` of the configuration.
        encoder: The device's half of the method.
        population: Number of devices in the cell.
        seed: Seed of the run.

    Attributes:
        attackers: Who lies, ascending.
    """

    def __init__(self, settings: AttackSettings, encoder: Encoder, population: int, seed: int) -> None:
        self._settings, self._encoder, self._seed = settings, encoder, seed
        self.attackers = choose_attackers(settings, population, seed)

    def __call__(self, sent: Sent, devices: Devices, round: int) -> Sent:
        """Return what all devices of a round send, `[K, ...]`; fields only a simulation knows stay true."""
        rows = np.flatnonzero(np.isin(devices, self.attackers))
        if len(rows) == 0:
            return sent
        packed, mean, scale = sent.packed.clone(), sent.mean.clone(), sent.scale.clone()
        honest = np.delete(np.arange(len(scale)), rows)
        if self._settings.kind == "below-bound" and len(honest) > 0:
            scale[rows] = accepted_scale(sent.scale[honest], len(rows)).to(scale)
        for row in rows:
            place = int(np.searchsorted(self.attackers, devices[row]))
            kind: str = self._settings.kind
            if kind == "mixed":
                kind = MIXED_ATTACKS[place % len(MIXED_ATTACKS)]
            self._lie(kind, packed[row], mean[row], scale[row], place, round)
        mean[rows], scale[rows] = self._levels(mean[rows], scale[rows])
        return replace(sent, packed=packed, mean=mean, scale=scale)

    def _lie(self, kind: str, packed: Tensor, mean: Tensor, scale: Tensor, place: int, round: int) -> None:
        """Change one attacker's bits `[ceil(M/8)]`, means and scales `[S]` in place."""
        if kind in ("sign-flip", "scale-collusion", "below-bound"):
            packed ^= self._used
            mean.neg_()
        elif kind == "ones":
            packed.copy_(self._used)
        elif kind == "random-bits":
            stream = 0 if self._settings.collude else 1 + int(self.attackers[place])
            packed.copy_(self._noise(round, stream))
        if kind == "mean-shift":
            mean += self._settings.strength * scale
        elif kind == "scale-collusion" and (place + 1) % _INFLATORS:
            scale.fill_(_VANISHING)
        elif kind != "below-bound":
            scale *= self._settings.strength

    @property
    def _used(self) -> Tensor:
        """A byte mask of the bits in use, `[ceil(M/8)]`."""
        return torch.from_numpy(np.packbits(np.ones(self._encoder.size, dtype=bool)))

    def _noise(self, round: int, stream: int) -> Tensor:
        draw = generator(self._seed, "attack", round, stream)
        return torch.from_numpy(np.packbits(draw.integers(0, 2, self._encoder.size, dtype=np.uint8)))

    def _levels(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        if self._encoder.method.side_bits is None:
            return mean, scale
        return self._encoder.scalar_code.rounded(mean, scale)
