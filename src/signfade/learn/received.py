"""What the base station has at the end of a round's uplink, for any aggregation rule to read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from signfade.device import spread
from signfade.kernels import received
from signfade.keys import generator
from signfade.uplink import Link, Refined

__all__ = ["Received"]


@dataclass(frozen=True)
class Received:
    """Signals of K devices and what the server knows of their links and priors.

    The signals `y` are made when they are first asked for, from the sent bits and the keys of the noise.
    Rules that only add devices up never ask.

    Attributes:
        packed: The sent signs, eight to a byte, `[K, ceil(M/8)]`. A simulation has them; a real server does
            not.
        size: Number of coordinates M.
        link: Gains `h` and noise variances `sigma2` as the server knows them, `[K]` each.
        layer_mean: Decoded means, `[K, S]`.
        layer_scale: Decoded scales, `[K, S]`.
        segments: Lengths of the S layers.
        weights: `alpha_k`, `[K]`.
        keys: Keys of the noise streams, `[K]`.
        air: The links as they are, where the server does not know them exactly; None where it does.
        refined: Gains whose magnitude the signals have told, for rules that read one device at a time. `link`
            then counts the doubt about their signs as noise.
        trust: Reliabilities from -1 to 1, `[K]`, where they are learned; `weights` are then multiplied by
            them.
        tie_key: Key of the round's coins, one a coordinate, for votes that are tied.
    """

    packed: Tensor
    size: int
    link: Link
    layer_mean: Tensor
    layer_scale: Tensor
    segments: tuple[int, ...]
    weights: Tensor
    keys: NDArray[np.uint64]
    air: Link | None = None
    refined: Refined | None = None
    trust: Tensor | None = None
    tie_key: int = 0

    def __len__(self) -> int:
        return len(self.packed)

    @cached_property
    def y(self) -> Tensor:
        """Received signals, `[K, M]`."""
        air = self.true_link
        return received(self.packed, self.size, air.h, air.sigma2, self.keys)

    def signals(self, rows: slice) -> Tensor:
        """Received signals of some devices, `[k, M]`: the round's if they are made already, or only these."""
        if "y" in self.__dict__:
            return self.y[rows]
        air = self.true_link
        return received(self.packed[rows], self.size, air.h[rows], air.sigma2[rows], self.keys[rows])

    def believed(self, **changes: Any) -> Received:
        """Return this with other scalars, weights or trust; signals that are made already stay."""
        changed = replace(self, **changes)
        if "y" in self.__dict__:
            changed.__dict__["y"] = self.y
        return changed

    def trial_stream(self, purpose: str) -> np.random.Generator:
        """Return the randomness of trials that predict this round: another round's noise has another key."""
        return generator(int(self.keys[0]) >> 1, purpose)

    @property
    def true_link(self) -> Link:
        """The links as they are, which a simulation knows."""
        return self.link if self.air is None else self.air

    @property
    def h(self) -> Tensor:
        """Channel gains, `[K]`."""
        return self.link.h

    @property
    def sigma2(self) -> Tensor:
        """Variances of the real noise, `[K]`."""
        return self.link.sigma2

    @property
    def mean(self) -> Tensor:
        """Means, `[K]`, or `[K, M]` where they differ by layer."""
        return self._spread(self.layer_mean)

    @property
    def scale(self) -> Tensor:
        """`E|g - mean|`, `[K]`, or `[K, M]` where it differs by layer."""
        return self._spread(self.layer_scale)

    def _spread(self, values: Tensor) -> Tensor:
        return values[:, 0] if len(self.segments) == 1 else spread(values, self.segments)
