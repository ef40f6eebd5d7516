"""A channel that has to be learned: pilots, the estimate they allow, and what the data add.

A device sends P known symbols +1 ahead of its signs. The receiver turns the phase of its estimate away and
keeps the real part, so that signs pass a real gain `h = hhat + error`, `error ~ N(0, eps)`, whatever the
fading:

- gaussian: h is real. `hhat = v*sum(pilots)/(P*v + sigma2)`, `eps = v*sigma2/(P*v + sigma2)`, `v = 1`;
- rayleigh, rician: a complex gain with scattered power v, v/2 in each dimension, about a direct path whose
  phase is known. The same formulas hold in each dimension; hhat is the magnitude of the complex estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade._check import check_choice, check_positive, check_shape
from signfade.kernels import standard_normal
from signfade.settings import Fading
from signfade.uplink.channel import Link, Normals, draw_phasors

__all__ = ["GainEstimate", "Refined", "Sounding", "fit_levels", "refine_gain", "sound"]

_STEPS = 12  # of expectation maximisation; it starts close


class GainEstimate(NamedTuple):
    """The MMSE estimate of every gain, `[K]`, and the variance of its error, `[K]`."""

    h: Tensor
    error: Tensor

    def aware(self, sigma2: Tensor) -> Link:
        """Return the link that one symbol shows, the error counted as noise: `N(hhat*s, sigma2 + eps)`."""
        return Link(self.h, sigma2 + self.error)


@dataclass(frozen=True)
class Sounding:
    """What K devices' pilots say in one round."""

    h: Tensor  # the real gains that the signs pass, [K]; the server does not know them
    pilot: Tensor  # mean of the received pilots after the phase is turned away, real part, [K]
    centre: Tensor  # the gain expected before any pilot, seen in that phase, [K]
    variance: float  # its prior variance in one dimension
    pilots: int  # number of pilots P

    def estimate(self, sigma2: Tensor) -> GainEstimate:
        """Return the MMSE estimate for noise of variance `sigma2`, `[K]`.

        `hhat = (P*v*pilot + sigma2*centre)/(P*v + sigma2)`, `eps = v*sigma2/(P*v + sigma2)`
        """
        known = self.pilots * self.variance
        total = torch.where(sigma2 + known == 0, torch.ones_like(sigma2), sigma2 + known)
        h = torch.where(sigma2 + known == 0, self.centre, (known * self.pilot + sigma2 * self.centre) / total)
        return GainEstimate(h, self.variance * sigma2 / total)


def sound(
    fading: str,
    devices: int,
    sigma2: Tensor,
    pilots: int,
    generator: Normals,
    keys: NDArray[np.uint64],
    rician_k: float = 4.0,
    chosen: NDArray[np.int64] | None = None,
    amplitude: Tensor | None = None,
) -> Sounding:
    """Draw the fading of a round and let devices send pilots over it.

    The gains are those of `draw_fading` with the same generator, but for the phase that the receiver misses.
    All `devices` of the cell have their gains drawn; those that send are `chosen`, `[K]`, or all if None.
    `sigma2` and the noise `keys` (uint64) are theirs, `[K]`; so is `amplitude`, what they multiply pilots
    and signs by, which the server does not know (ones if None).

    Example:
        >>> from signfade.keys import generator, stream_keys
        >>> stream, keys = generator(1, "fading"), stream_keys(1, "pilots", 0, range(3))
        >>> sounding = sound("rayleigh", 3, torch.full((3,), 1e-9), 4, stream, keys)
        >>> bool((sounding.estimate(torch.full((3,), 1e-9)).h - sounding.h).abs().max() < 1e-3)
        True

    Reference: docs/radio.md.
    """
    check_choice("fading", fading, get_args(Fading))
    if pilots < 1:
        raise ValueError(f"pilots must be at least 1; got {pilots}")
    who = np.arange(devices) if chosen is None else chosen
    check_shape("sigma2", sigma2, (len(who),))
    check_positive("sigma2", sigma2, zero=True)
    noise = standard_normal(keys, 2 * pilots).astype(np.float64).reshape(len(who), 2, pilots).mean(axis=2)
    noise *= sigma2.double().sqrt().numpy()[:, None]
    sent = np.ones(len(who)) if amplitude is None else amplitude.double().numpy()
    if fading in ("gaussian", "none"):
        still = fading == "none"
        h = sent * (np.ones(devices) if still else generator.standard_normal(devices))[who]
        centre = np.full(len(who), float(still))
        return _sounding(h, h + noise[:, 0], centre, 0.0 if still else 1.0, pilots)
    ratio = rician_k if fading == "rician" else 0.0
    real, imaginary = draw_phasors(devices, generator, ratio)[:, who]
    direct, variance = float(np.sqrt(ratio / (1 + ratio))), 1 / (2 * (1 + ratio))
    gain = sent * (real + 1j * imaginary)
    seen = gain + noise[:, 0] + 1j * noise[:, 1]
    estimate = pilots * variance * seen + sigma2.double().numpy() * direct
    size = np.abs(estimate)
    turn = np.where(size > 0, estimate.conj() / np.where(size > 0, size, 1.0), 1.0)
    return _sounding((gain * turn).real, (seen * turn).real, direct * turn.real, variance, pilots)


def _sounding(
    h: NDArray[np.float64],
    pilot: NDArray[np.float64],
    centre: NDArray[np.float64],
    variance: float,
    pilots: int,
) -> Sounding:
    h, pilot, centre = (np.ascontiguousarray(part) for part in (h, pilot, centre))
    return Sounding(torch.from_numpy(h), torch.from_numpy(pilot), torch.from_numpy(centre), variance, pilots)


class Refined(NamedTuple):
    """A gain whose magnitude the data have settled."""

    link: Link  # the magnitude with the likelier sign, and the noise
    trust: Tensor  # E[sign is right], 0 to 1, [K]: what an estimate of the sign is multiplied by

    def effective(self) -> Link:
        """Return the link with the same mean and power of y given s: a doubtful sign counted as noise."""
        h, sigma2 = self.link.h, self.link.sigma2
        return Link(self.trust * h, sigma2 + (1 - self.trust**2) * h**2)


def refine_gain(estimate: GainEstimate, power: Tensor, sigma2: Tensor, size: int) -> Refined:
    """Learn a gain's magnitude from the data; the pilots then only have to settle its sign.

    `h**2` is `mean(y**2) - sigma2`, a sum of M terms, joined with the pilots' `hhat**2 + eps` by their
    variances `(2*sigma2**2 + 4*h**2*sigma2)/M` and `2*eps**2 + 4*hhat**2*eps`. Given the magnitude, the
    pilots are a message of one bit: `E[sign(h)] = tanh(|h|*hhat/eps)`. The signs themselves, +1 as often as
    -1, say nothing about it. So the posterior mean of a sign is `trust * tanh(h*y/sigma2)`. The magnitude is
    taken as known, which a thousand symbols justify: `trust` is then right within 0.03, and with a hundred
    too large by 0.1. `power` is `mean(y**2)` over a device's `size` symbols, `[K]`.

    Example:
        >>> guess = GainEstimate(torch.tensor([0.5, -0.1]), torch.tensor([0.2, 0.2]))
        >>> refined = refine_gain(guess, torch.tensor([1.0, 1.0]), torch.tensor([0.1, 0.1]), size=10**6)
        >>> refined.link.h, refined.trust
        (tensor([ 0.9487, -0.9487]), tensor([0.9827, 0.4417]))

    Reference: docs/radio.md.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1; got {size}")
    h, error = estimate
    for name, value in (("power", power), ("sigma2", sigma2)):
        check_shape(name, value, (len(h),))
        check_positive(name, value, zero=True)
    expected = h.square() + error
    doubt = 2 * error.square() + 4 * h.square() * error
    sampled = (2 * sigma2.square() + 4 * expected * sigma2) / size
    share = torch.where(doubt > 0, doubt / (doubt + sampled), torch.zeros_like(doubt))
    magnitude = (expected + share * (power - sigma2 - expected)).clamp_min(0).sqrt()
    certain = torch.ones_like(h)
    trust = torch.where(error > 0, torch.tanh(magnitude * h.abs() / error.clamp_min(1e-300)), certain)
    return Refined(Link(torch.where(h < 0, -magnitude, magnitude), sigma2), trust)


def fit_levels(y: Tensor) -> tuple[Tensor, Tensor]:
    """Fit `+-gain` in noise to each device's symbols `[K, M]`: gains (magnitudes) and noise variances, `[K]`.

    The maximum of the likelihood of a mixture of two normal laws, by expectation maximisation,
    `gain = mean(y*tanh(gain*y/sigma2))`, `sigma2 = mean(y**2) - gain**2`, from the start that the second
    and fourth moment give, `gain**4 = (3*mean(y**2)**2 - mean(y**4))/2`. No bit needs to be known.

    Example:
        >>> gain, sigma2 = fit_levels(torch.tensor([[1.0, -3.0, -1.0, 3.0]]))
        >>> float(gain**2 + sigma2)
        5.0
    """
    if y.ndim != 2 or y.shape[1] == 0:
        raise ValueError(f"y must have shape [K, M] with M at least 1; got {list(y.shape)}")
    square = y.square()
    power = square.mean(dim=1, dtype=torch.float64)
    fourth = square.square_().mean(dim=1, dtype=torch.float64)
    gain2 = ((3 * power.square() - fourth) / 2).clamp_min(0).sqrt()
    # Neither end is a start: without a gain the steps stay there, without noise they have no slope.
    gain2 = torch.minimum(torch.maximum(gain2, 0.01 * power), (1 - 1e-6) * power)
    soft = torch.empty_like(y)
    for _ in range(_STEPS):
        gain = gain2.sqrt()
        slope = torch.where(power > 0, gain / (power - gain2).clamp_min(1e-300), torch.zeros_like(gain))
        torch.mul(y, slope.clamp(max=1e30).to(y)[:, None], out=soft)
        mean = soft.tanh_().mul_(y).mean(dim=1, dtype=torch.float64)
        gain2 = torch.minimum(mean.square(), (1 - 1e-9) * power)
    return gain2.sqrt(), power - gain2
