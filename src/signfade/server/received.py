"""What the base station has at the end of a round's uplink, for any aggregator to read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from signfade.device import Encoder, Message, Priors, spread
from signfade.keys import generator
from signfade.theory import JointMoments
from signfade.uplink import Link, Refined, Signals

__all__ = ["Devices", "Estimate", "Received", "Truth"]

Devices = NDArray[np.int64]


@dataclass(frozen=True)
class Received:
    """Signals of K devices and what the server knows of their links and priors.

    Attributes:
        signals: Lazy; `y` makes the symbols `[K, M]`. Rules that only add devices up never ask.
        link: Gains `h` and noise variances `sigma2` as the server knows them, `[K]` each.
        layer_mean: Decoded means, `[K, S]`.
        layer_scale: Decoded scales, `[K, S]`.
        weights: `alpha_k`, `[K]`.
        encoder: The device's half of the method, as it was in this round.
        devices: Who sent, `[K]`.
        round: Counted from 0.
        model: The weights that were broadcast, `[M]`.
        fresh: Whose gradient is at these weights, `[K]`.
        rotation_keys: Of the devices' rotations, `[K]`; all the same unless rotations are private.
        tie_key: Of the round's coins, one per coordinate, for votes that are tied.
        refined: Gains whose magnitude the signals gave, for rules that read one device at a time. `link`
            then counts the doubt about their signs as noise.
        decoded: Whose scalars arrived, `[K]`; None where they cannot be lost.
        trust: Reliabilities, `[K]`, where they are learned; `weights` are then multiplied by them.
        altered: Whether a defence has changed what was received.
    """

    signals: Signals
    link: Link
    layer_mean: Tensor
    layer_scale: Tensor
    weights: Tensor
    encoder: Encoder
    devices: Devices
    round: int
    model: Tensor
    fresh: NDArray[np.bool_]
    rotation_keys: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(1, np.uint64))
    tie_key: int = 0
    refined: Refined | None = None
    decoded: Tensor | None = None
    trust: Tensor | None = None
    altered: bool = False

    def __len__(self) -> int:
        return len(self.signals)

    def but(self, **changes: Any) -> Received:
        """Return this with other links, scalars, weights or trust; the signals stay the same."""
        return replace(self, **changes)

    @property
    def y(self) -> Tensor:
        """Received symbols, `[K, M]`."""
        return self.signals.y

    @property
    def size(self) -> int:
        """Number of coordinates M."""
        return self.signals.bits.size

    @property
    def segments(self) -> tuple[int, ...]:
        """Lengths of the S layers with a mean and a scale of their own."""
        return self.encoder.segments

    @property
    def in_doubt(self) -> bool:
        """Whether links or scalars may not be as the server has them."""
        return self.link is not self.signals.link or self.decoded is not None

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

    @property
    def device_link(self) -> Link:
        """Links for rules that read one device at a time."""
        return self.link if self.refined is None else self.refined.link

    @property
    def device_scale(self) -> Tensor:
        """Scales for rules that read one device at a time, `[K, S]`."""
        if self.refined is None:
            return self.layer_scale
        return self.refined.trust.to(self.layer_scale)[:, None] * self.layer_scale

    def turned_back(self, estimate: Tensor) -> Tensor:
        """Undo the round's rotation of an estimate, `[size]` to `[M]`; nothing where there was none."""
        return self.encoder.unrotate(estimate.unsqueeze(0), self.rotation_keys[:1]).squeeze(0)

    def restored(self, moments: JointMoments) -> JointMoments:
        """Return the moments after subset and rotation have been undone."""
        encoder = self.encoder
        return moments.cut(sum(encoder.layers) / encoder.coordinates, encoder.sent / encoder.coordinates)

    def trial_stream(self, purpose: str) -> np.random.Generator:
        """Return the randomness of trials that predict this round: another round's noise has another key."""
        return generator(int(self.signals.keys[0]) >> 1, purpose)


@dataclass(frozen=True)
class Truth:
    """What only a simulation knows of a round. It goes to the metrics and to genie rules, nowhere else.

    Attributes:
        total: The true weighted sum of the gradients, `[M]`.
        correlation: Between the devices' centred gradients, `[K, K]`; None where it was not worked out.
        message: What honest devices would have sent.
        priors: What the devices know of their gradients.
    """

    total: Tensor
    correlation: Tensor | None
    message: Message
    priors: Priors


@dataclass(frozen=True)
class Estimate:
    """What an aggregator makes of a round.

    Attributes:
        value: Estimate of the weighted sum, `[M]`.
        gain: By how much the rule is known to shrink it; `method.debias` divides by it.
        memory: What the rule remembers for the next round; None for rules without memory.
        turned_back: Whether the rule has undone the devices' rotations already.
        predict: From the truth and the factor by which the value is multiplied afterwards to the normalised
            error that theory expects; None where it does not know.
    """

    value: Tensor
    gain: float = 1.0
    memory: Any = None
    predict: Callable[[Truth, float], float | None] = lambda truth, factor: None
    turned_back: bool = False
