"""What the base station has at the end of a round's uplink, and what an aggregator makes of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade import theory
from signfade.device import Encoder, Message, Priors, spread
from signfade.keys import generator
from signfade.settings import DefenceSettings, MethodSettings
from signfade.uplink import Link, Refined, Signals

__all__ = ["VARIANCE_OVER_SCALE2", "Context", "Devices", "Estimate", "Received", "Truth", "trial_moments"]

Devices = NDArray[np.int64]

VARIANCE_OVER_SCALE2 = {"gaussian": math.pi / 2, "laplacian": 2.0, "empirical": math.pi / 2}


@dataclass(frozen=True)
class Received:
    """Signals of K devices and what the server knows of their links and priors."""

    signals: Signals  # lazy; `y` makes the symbols `[K, M]`, and rules that only add devices up never ask
    link: Link  # gains and noise variances as the server knows them, `[K]` each
    layer_mean: Tensor  # decoded means, `[K, S]`
    layer_scale: Tensor  # decoded scales, `[K, S]`
    weights: Tensor  # `alpha_k`, `[K]`
    encoder: Encoder  # the device's half of the method, as it was in this round
    devices: Devices  # who sent, `[K]`
    round: int  # counted from 0
    model: Tensor  # the weights that were broadcast, `[M]`
    fresh: NDArray[np.bool_]  # whose gradient is at these weights, `[K]`
    # Of the devices' rotations, `[K]`; all the same unless rotations are private.
    rotation_keys: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(1, np.uint64))
    tie_key: int = 0  # of the round's coins, one per coordinate, for votes that are tied
    # Gains whose magnitude the signals gave, for rules that read one device at a time. `link` then counts the
    # doubt about their signs as noise.
    refined: Refined | None = None
    decoded: Tensor | None = None  # whose scalars arrived, `[K]`; None where they cannot be lost
    trust: Tensor | None = None  # learned reliabilities, `[K]`, by which `weights` are multiplied
    altered: bool = False  # whether a defence has changed what was received

    def __len__(self) -> int:
        return len(self.signals)

    def but(self, **changes: Any) -> Received:
        """Return this with other links, scalars, weights or trust."""
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

    def restored(self, moments: theory.JointMoments) -> theory.JointMoments:
        """Return the moments after subset and rotation have been undone."""
        return moments.cut(self.encoder.kept, self.encoder.part)

    def trial_stream(self, purpose: str) -> np.random.Generator:
        """Return the randomness of trials that predict this round: another round's noise has another key."""
        return generator(int(self.signals.keys[0]) >> 1, purpose)


@dataclass(frozen=True)
class Truth:
    """What only a simulation knows of a round. It goes to the metrics and to genie rules, nowhere else."""

    total: Tensor  # the true weighted sum of the gradients, `[M]`
    correlation: Tensor | None  # between the devices' centred gradients, `[K, K]`; None if not computed
    message: Message  # what honest devices would have sent
    priors: Priors  # what the devices know of their gradients

    def draw_gradients(self, normal: Tensor) -> Tensor:
        """Turn independent standard normal numbers, `[K, n]`, into gradients of the devices' joint law."""
        assert self.correlation is not None
        values, vectors = torch.linalg.eigh(self.correlation)
        root: Tensor = vectors * values.clamp_min(0).sqrt()
        return self.priors.std[:, 0].double()[:, None] * (root @ normal)


def trial_moments(g: Tensor, weights: Tensor, guess: Tensor) -> theory.JointMoments:
    """Return the moments of a rule from its estimates `[n]` for gradients `[K, n]`."""
    truth, shared = weights.double() @ g, g @ guess
    return theory.JointMoments(
        energy=float(truth @ truth),
        product=float(truth @ guess),
        power=float(guess @ guess),
        aligned=float(shared @ torch.linalg.pinv(g @ g.T, hermitian=True) @ shared),
    )


@dataclass(frozen=True)
class Context:
    """What a rule may use besides what was received."""

    method: MethodSettings
    defence: DefenceSettings
    memory: Any = None  # what the rule returned in the last round, or what `Aggregator.memory` made
    genie: Tensor | None = None  # the true correlation, with `method.correlation = "genie"` only


@dataclass(frozen=True)
class Estimate:
    """What an aggregator makes of a round."""

    value: Tensor  # estimate of the weighted sum, `[M]`
    gain: float = 1.0  # by how much the rule is known to shrink it; `method.debias` divides by it
    memory: Any = None  # what the rule remembers for the next round; None for rules without memory
    # From the truth and the factor by which the value is multiplied afterwards to the normalised error that
    # theory expects; None where it does not know.
    predict: Callable[[Truth, float], float | None] = lambda truth, factor: None
    turned_back: bool = False  # whether the rule has undone the devices' rotations already
