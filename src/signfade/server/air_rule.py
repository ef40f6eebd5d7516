"""All devices at once in training: the superposed signal, the rule that reads it, and the error to expect."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from signfade import theory
from signfade.device import bit_agreement, sign
from signfade.kernels import fused_sum, standard_normal
from signfade.keys import stream_key
from signfade.server.predict import VARIANCE_OVER_SCALE2, drawn_gradients, trial_moments
from signfade.server.received import Estimate, Received, Truth
from signfade.server.superposition import AirMethod, over_the_air, superposed_vote
from signfade.settings import CellSettings, MethodSettings
from signfade.uplink import align

__all__ = ["AirRule"]

_TRIES = 4096  # coordinates drawn for a prediction, fewer where there are very many devices
_NUMBERS = 1 << 22


class AirRule:
    """Reads signs that the air has added up: `y = sum_k a_k s_k + n`, one signal for all devices.

    Args:
        kind: The posterior mean of the sum, the best linear rule, or the sign of the signal.
        cell: Section `cell` of the configuration.
        method: Section `method` of it.
        seed: Seed of the run.
    """

    def __init__(self, kind: str, cell: CellSettings, method: MethodSettings, seed: int) -> None:
        self._kind, self._cell, self._method, self._seed = kind, cell, method, seed
        self._variance = 1 / cell.repeats  # of the noise of a mean over repeats, in units of the receiver's

    def estimate(self, received: Received) -> Estimate:
        """Estimate the sum of a round."""
        amplitude = self._amplitude(received)
        bits = received.signals.bits
        keys = received.signals.keys
        nothing = torch.zeros_like(amplitude)
        total = fused_sum("linear", bits.packed, bits.size, amplitude, nothing, None, None, None, keys)
        key = np.array([stream_key(self._seed, "air noise", received.round)], dtype=np.uint64)
        noise = torch.from_numpy(standard_normal(key, received.size)[0])
        value = self._read(total + math.sqrt(self._variance) * noise, amplitude, received)
        gain = 1.0
        if self._kind != "sign" and self._method.debias:
            gain = self._gain(received, amplitude)
        return Estimate(value, gain, None, lambda t, f: self._predict(t, received, amplitude, f))

    def _amplitude(self, received: Received) -> Tensor:
        cell, link = self._cell, received.signals.link
        level = None if cell.inversion_db is None else 10 ** (cell.inversion_db / 20)
        return align(link.h, link.sigma2, cell.precoding, level, cell.repeats)

    def _read(self, y: Tensor, amplitude: Tensor, received: Received) -> Tensor:
        """Read a signal of all layers, `[M]`."""
        if self._kind == "sign":  # where nobody sends there is only noise: no step
            return superposed_vote(y) if bool(amplitude.any()) else torch.zeros_like(y)
        ends = np.cumsum([0, *received.segments]).tolist()
        parts = [y[first:last] for first, last in pairwise(ends)]
        return torch.cat([self._read_layer(part, amplitude, received, s) for s, part in enumerate(parts)])

    def _read_layer(self, y: Tensor, amplitude: Tensor, received: Received, layer: int) -> Tensor:
        prior = (received.layer_mean[:, layer], received.layer_scale[:, layer], received.weights)
        how: AirMethod = "gaussian" if self._kind == "linear" else "auto"
        return over_the_air(y, amplitude, self._variance, *prior, method=how)

    def _gain(self, received: Received, amplitude: Tensor) -> float:
        """Return by how much the rule shrinks the sum of independent devices, as the server sees them.

        `E[estimate * sum] / E[sum**2]` over signs drawn at random; both rules are orthogonal projections.
        """
        scale, alpha = received.layer_scale.double(), received.weights.double()
        counts = torch.tensor(received.segments, dtype=torch.float64)
        energy = float((alpha.square() @ scale.square()) @ counts) * VARIANCE_OVER_SCALE2[self._method.prior]
        energy /= bit_agreement(self._method) ** 2
        if energy == 0:
            return 1.0
        signs, noise = self._draws(received, len(alpha))
        y = amplitude @ signs + math.sqrt(self._variance) * noise
        explained = 0.0
        for layer, count in enumerate(received.segments):
            known = float(alpha @ received.layer_mean[:, layer].double())
            guess = self._read_layer(y, amplitude, received, layer) - known
            explained += count * float(guess @ ((alpha * scale[:, layer]) @ signs)) / len(noise)
        return explained / energy

    def _draws(self, received: Received, devices: int) -> tuple[Tensor, Tensor]:
        stream = received.trial_stream("prediction")
        tries = max(64, min(_TRIES, _NUMBERS // devices))
        draw = torch.from_numpy(stream.standard_normal((devices + 1, tries)))
        return sign(draw[:-1]), draw[-1]

    def _predict(self, truth: Truth, received: Received, amplitude: Tensor, factor: float) -> float | None:
        """Predict the normalised error by trying the rule on a few thousand coordinates drawn from the prior.

        Rotated gradients are drawn with the devices' true correlation. Without a rotation devices are
        independent, and only their signs have to be drawn.
        """
        if len(received.segments) > 1:
            return None
        alpha = received.weights.double()
        signs, noise = self._draws(received, len(alpha))
        std = truth.priors.std[:, 0].double()
        if self._method.rotation != "none":
            # Devices may be correlated in ways nobody has counted, or send other signs than those drawn here.
            if truth.correlation is None or bit_agreement(self._method) < 1:
                return None
            stream = received.trial_stream("correlated prediction")
            draw = torch.from_numpy(stream.standard_normal((len(std), len(noise))))
            g = drawn_gradients(truth.correlation, std, draw)
            guess = self._guess(sign(g), noise, amplitude, received)
            moments = received.restored(trial_moments(g, alpha, guess))
        else:
            kappa = torch.minimum(truth.priors.scale[:, 0].double(), std)
            guess = self._guess(signs, noise, amplitude, received)
            moments = theory.JointMoments(
                energy=float(alpha.square() @ std.square()),
                product=float(((alpha * kappa) @ signs) @ guess) / len(noise),
                power=float(guess @ guess) / len(noise),
            )
        if moments.energy <= 0:
            return None
        if self._kind == "sign":
            return moments.best_scaled_nmse()
        if self._method.rotation != "none":
            return moments.nmse(factor)
        energy = float(truth.total.double().square().mean())  # with the means, which are known
        return moments.nmse(factor) * moments.energy / energy if energy > 0 else None

    def _guess(self, signs: Tensor, noise: Tensor, amplitude: Tensor, received: Received) -> Tensor:
        y = amplitude @ signs + math.sqrt(self._variance) * noise
        if self._kind == "sign":
            return superposed_vote(y)
        known = float(received.weights.double() @ received.layer_mean[:, 0].double())
        return self._read_layer(y, amplitude, received, 0) - known
