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
from signfade.settings import AttackSettings

__all__ = ["Attack", "choose_attackers"]


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
        """Return what the devices send, `[k, ...]`; fields that only a simulation knows stay the truth."""
        rows = np.flatnonzero(np.isin(devices, self.attackers))
        if len(rows) == 0:
            return sent
        packed, mean, scale = sent.packed.clone(), sent.mean.clone(), sent.scale.clone()
        scale[rows] *= self._settings.strength
        if self._settings.kind == "sign-flip":
            packed[rows] ^= self._used
            mean[rows] *= -1
        elif self._settings.kind == "random-bits":
            for row in rows:
                packed[row] = self._noise(round, 0 if self._settings.collude else 1 + int(devices[row]))
        mean[rows], scale[rows] = self._levels(mean[rows], scale[rows])
        return replace(sent, packed=packed, mean=mean, scale=scale)

    @property
    def _used(self) -> Tensor:
        """A byte mask of the bits in use, `[ceil(M/8)]`."""
        return torch.from_numpy(np.packbits(np.ones(self._encoder.size, dtype=bool)))

    def _noise(self, round: int, stream: int) -> Tensor:
        draw = generator(self._seed, "attack", round, stream)
        return torch.from_numpy(np.packbits(draw.integers(0, 2, self._encoder.size, dtype=np.uint8)))

    def _levels(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        if not self._encoder.quantised:
            return mean, scale
        return self._encoder.scalar_code.rounded(mean, scale)
