"""All devices at once: what a superposed signal says about the sum, in training and in formulas.

Signal model: `y = sum_k a_k s_k + n`, `n ~ N(0, sigma2)` real, with amplitudes a_k that the server knows
(`signfade.uplink.over_the_air`) and signs of centred gradients, independent and +1 as often as -1. The
target is `sum_k alpha_k g_k`, whose mean given the signs is `sum_k alpha_k (mean_k + scale_k s_k)`. All
coordinates share the amplitudes, so the posterior mean is one function of one number.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from signfade import theory
from signfade._check import check_choice, check_finite, check_rows, check_tensor
from signfade.device import bit_agreement, sign
from signfade.kernels import fused_sum, standard_normal
from signfade.kernels.integrals import mixture_range
from signfade.kernels.threads import available_threads, run_ranges
from signfade.keys import stream_key
from signfade.server._sum import check_devices
from signfade.server.received import VARIANCE_OVER_SCALE2, Estimate, Received, Truth, trial_moments
from signfade.settings import CellSettings, MethodSettings
from signfade.uplink import align

__all__ = ["AirRule", "over_the_air", "superposed_vote"]

AirMethod = Literal["auto", "exact", "gaussian"]
Float64 = NDArray[np.float64]

MOST_COMPONENTS = 1 << 16
AUTO_COMPONENTS = 1 << 8
# A device this much weaker than the deviation of all weaker ones and the noise together is one of many: the
# law of their sum is normal for all that matters.
WEAK = 0.35
_TRIES = 4096  # coordinates drawn for a prediction, fewer where there are very many devices
_NUMBERS = 1 << 22


def over_the_air(
    y: Tensor,
    amplitude: Tensor,
    sigma2: float,
    mean: Tensor,
    scale: Tensor,
    weights: Tensor | None = None,
    method: AirMethod = "auto",
) -> Tensor:
    """Posterior mean of the weighted sum of the gradients given the superposed signal.

    `ghat = sum_k alpha_k mean_k + E[sum_k alpha_k scale_k s_k | y]`. With levels `T_c = sum_k a_k s_k` and
    values `V_c = sum_k alpha_k scale_k s_k` over all sign patterns c, `E = sum_c V_c exp(-(y - T_c)^2/(2
    sigma2)) / sum_c exp(-(y - T_c)^2/(2 sigma2))`. Devices received alike need only be counted, so that
    inversion costs K + 1 patterns and not `2^K`.

    The signal y is `[M]` in real noise of variance sigma2; amplitudes `a_k`, means, scales and weights
    `alpha_k` are `[K]`, and a device with amplitude zero is silent. The method "exact" counts all patterns,
    up to 65536. "gaussian" takes the sum of all signs as normal, which is the best linear rule,
    `y sum_k alpha_k scale_k a_k / (sum_k a_k^2 + sigma2)`. "auto" counts the patterns of the strongest
    devices, up to 256, and takes the others and the noise together as normal: nearly the least error.

    Example:
        >>> y = torch.tensor([2.1, 0.2, -1.8])
        >>> one = torch.ones(2)
        >>> over_the_air(y, amplitude=one, sigma2=0.5, mean=0 * one, scale=one)
        tensor([ 1.9521,  0.0318, -1.8492])

    Reference: docs/radio.md.
    """
    check_choice("method", method, get_args(AirMethod))
    check_tensor("y", y)
    if y.ndim != 1 or y.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"y must be float32 or float64 of shape [M]; got {y.dtype} {list(y.shape)}")
    check_finite("y", y)
    check_rows("amplitude", amplitude, "[K]")
    alpha = torch.ones(len(amplitude)) if weights is None else weights
    check_devices(len(amplitude), amplitude=amplitude, mean=mean, scale=scale, weights=alpha)
    if not 0 < sigma2 < math.inf:
        raise ValueError(f"sigma2 must be positive and finite; got {sigma2!r}")
    strength, centre, kappa, alpha = (x.detach().cpu().double() for x in (amplitude, mean, scale, alpha))
    a, value, offset = strength.numpy(), (alpha * kappa).numpy(), float(alpha @ centre)
    active = a > 0
    a, value = a[active], value[active]
    parts = _patterns(a, value, sigma2, method)
    signal = y.double().cpu().numpy()
    if len(parts.level) == 1:
        estimate = parts.slope * signal
    else:
        estimate = np.empty(len(signal))
        adjusted = parts.value - parts.slope * parts.level

        law = (parts.level, parts.log_weight, adjusted, parts.variance, parts.slope)

        def work(first: int, last: int) -> None:
            mixture_range(signal, *law, first, last, estimate)

        if len(signal):
            run_ranges(work, len(signal), available_threads())
    return torch.from_numpy(estimate + offset).to(y)


def superposed_vote(y: Tensor) -> Tensor:
    """The majority vote taken by the air: `sign(y)`, `[M]`, with `sign(0) = 0`. Noise breaks all ties.

    Example:
        >>> superposed_vote(torch.tensor([1.2, -0.3, 0.0]))
        tensor([ 1., -1.,  0.])
    """
    return y.sign()


class _Patterns(NamedTuple):
    """Components of the law of y, levels ascending; one gives the estimate `value + slope*(y - level)`."""

    level: Float64
    log_weight: Float64
    value: Float64
    variance: float  # of the noise and all devices that are not counted
    slope: float  # of their part


def _patterns(a: Float64, value: Float64, sigma2: float, method: AirMethod) -> _Patterns:
    """Count the patterns of the strongest devices, group by group of equals, and take the rest as normal."""
    amplitudes, group = np.unique(-a, return_inverse=True)
    level, log_weight, worth = np.zeros(1), np.zeros(1), np.zeros(1)
    counted = np.zeros(len(a), dtype=bool)
    for g, strength in enumerate(-amplitudes):
        members = group == g
        count = int(members.sum())
        rest = float((a[~counted] ** 2).sum()) + sigma2
        if method == "gaussian" or (method == "auto" and strength < WEAK * np.sqrt(rest)):
            break
        if len(level) * (count + 1) > (MOST_COMPONENTS if method == "exact" else AUTO_COMPONENTS):
            if method == "auto":
                break
            raise ValueError(
                f"method must be 'auto' or 'gaussian' for so many patterns; more than {MOST_COMPONENTS}"
            )
        up = np.arange(count + 1)
        excess = 2.0 * up - count
        level = np.add.outer(level, strength * excess).ravel()
        worth = np.add.outer(worth, value[members].sum() * excess / count).ravel()
        chance = special.gammaln(count + 1) - special.gammaln(up + 1) - special.gammaln(count - up + 1)
        log_weight = np.add.outer(log_weight, chance).ravel()
        counted |= members
    variance = float((a[~counted] ** 2).sum()) + sigma2
    slope = float((value * a)[~counted].sum()) / variance
    order = np.argsort(level, kind="stable")
    return _Patterns(level[order], log_weight[order], worth[order], variance, slope)


class AirRule:
    """Reads signs that the air has added up: `y = sum_k a_k s_k + n`, one signal for all devices.

    `kind` is "posterior" for the posterior mean of the sum, "linear" for the best linear rule, or "sign" for
    the sign of the signal.
    """

    def __init__(self, kind: str, cell: CellSettings, method: MethodSettings, seed: int) -> None:
        self._kind, self._cell, self._method, self._seed = kind, cell, method, seed
        self._variance = 1 / cell.repeats  # of the noise of a mean over repeats, in units of the receiver's

    def estimate(self, received: Received) -> Estimate:
        """Estimate the sum of a round."""
        amplitude = self._amplitude(received)
        bits, keys = received.signals.bits, received.signals.keys
        nothing = torch.zeros_like(amplitude)
        total = fused_sum("linear", bits.packed, bits.size, amplitude, nothing, None, None, None, keys)
        key = np.array([stream_key(self._seed, "air noise", received.round)], dtype=np.uint64)
        noise = torch.from_numpy(standard_normal(key, received.size)[0])
        value = self._read(total + math.sqrt(self._variance) * noise, amplitude, received)
        debias = self._kind != "sign" and self._method.debias
        gain = self._gain(received, amplitude) if debias else 1.0
        return Estimate(value, gain, None, lambda t, f: self._predict(t, received, amplitude, f))

    def _amplitude(self, received: Received) -> Tensor:
        cell, link = self._cell, received.signals.link
        level = None if cell.inversion_db is None else 10 ** (cell.inversion_db / 20)
        return align(link.h, link.sigma2, cell.precoding, level, cell.repeats)

    def _read(self, y: Tensor, amplitude: Tensor, received: Received) -> Tensor:
        """Read a signal of all layers, `[M]`."""
        if self._kind == "sign":  # where nobody sends there is only noise: no step
            return superposed_vote(y) if bool(amplitude.any()) else torch.zeros_like(y)
        layers = enumerate(torch.split(y, list(received.segments)))
        return torch.cat([self._read_layer(part, amplitude, received, layer) for layer, part in layers])

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
            g = truth.draw_gradients(draw)
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
