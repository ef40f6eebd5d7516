"""What the rate dial does to the error: from a thousandth of a bit per weight to amplitudes.

After a random rotation a coordinate in units of its deviation is `x ~ N(0, 1)`. A device sends one sign, the
B bits of a Lloyd-Max level (Gray labels, one symbol `y = h*b + n` per bit), or the amplitude itself, clipped
at the peak that is allowed. The server reads its *soft value* `z = E[x | y]`, and all that errors need is

- `E[x*z] = E[z**2]`, the part of the variance that is explained, and
- how soft values of correlated devices go together: with `m(x) = E[z | x]` and Hermite coefficients
  `a_n = E[m(x)*He_n(x)]/sqrt(n!)`, `Cov(z_k, z_j) = sum_n a_kn * a_jn * r_kj**n` (Mehler).

Below one bit per weight the part f of the coordinates is sent and the rest is estimated as zero. SNRs are
ratios, `gamma = h**2/sigma2`, with sigma2 the variance of the real noise per symbol.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import interpolate, special

from signfade.device.constellation import clip_level, clipped_power, levels
from signfade.theory.joint import JointMoments
from signfade.theory.rules import Array, Numbers, non_negative, real, soft_bit

__all__ = [
    "Rotated",
    "RotatedFit",
    "explained",
    "harmonics",
    "soft_amplitude",
]

ORDERS = np.arange(1, 33, 2)  # of the Hermite coefficients; a last one, of order 33, takes what is left
# Trapezoidal sums over the noise: off by exp(-2*pi*d/0.5), the nearest pole d = pi/(2*sqrt(gamma)) away, and
# where that is large the noise seldom reaches the pole. Together below 1e-5.
_NOISE = np.arange(-6.5, 6.6, 0.5)
_BELL = np.exp(-(_NOISE**2) / 2) / np.exp(-(_NOISE**2) / 2).sum()
_WIDE_DB, _NARROW_DB = np.arange(-60.0, 81.0, 2.0), np.arange(-40.0, 25.0, 2.0)  # SNRs of the tables


def soft_amplitude(y: Numbers, snr: Numbers, papr_db: float | None = None) -> Array:
    """The posterior mean of a coordinate that was sent as a clipped amplitude.

    `y = sqrt(gamma) * clip(x, -A, A)/sqrt(P) + n`, `n ~ N(0, 1)`, `P` the mean power after clipping;
    `E[x | y] = y*sqrt(gamma)/(1 + gamma)` without a limit. Arguments broadcast.

    Example:
        >>> float(soft_amplitude(1.0, 1.0)), round(float(soft_amplitude(1.0, 1.0, papr_db=3.0)), 4)
        (0.5, 0.5874)
    """
    signal, gamma = real("y", y), non_negative("snr", snr)
    level = clip_level(papr_db)
    if level == math.inf:
        return np.asarray(signal * np.sqrt(gamma) / (1 + gamma))
    slope = np.sqrt(gamma / clipped_power(level))
    spread = 1 / np.sqrt(1 + slope**2)
    centre = slope * signal * spread**2
    upper, lower = (level - centre) / spread, (-level - centre) / spread
    # Exponents of: the coordinate within the limits, above and below; the largest is taken out of all three.
    inside = -(signal**2) * spread**2 / 2
    above, below = -((signal - slope * level) ** 2) / 2, -((signal + slope * level) ** 2) / 2
    largest = np.maximum(np.maximum(inside, above), below)
    inside, above, below = (np.exp(one - largest) for one in (inside, above, below))
    root = math.sqrt(2 * math.pi)
    tail, density = special.ndtr(-level), math.exp(-(level**2) / 2) / root
    mass = spread * inside * (special.ndtr(upper) - special.ndtr(lower))
    edges = spread**2 * inside * (np.exp(-(upper**2) / 2) - np.exp(-(lower**2) / 2)) / root
    first = mass * centre - edges + density * (above - below)
    return np.asarray(first / (mass + tail * (above + below)))


def harmonics(snr: Numbers, bits: int | None = 1, papr_db: float | None = None) -> Array:
    """Hermite coefficients `a_1, a_3, ..., a_31` of the soft value, and one for what is left, `[K, 17]`.

    `bits` is 1 to 4, or None for amplitudes. `a_1 = E[x*z] = E[z**2]`.

    Example:
        >>> harmonics([1e9], 2)[0, 0].round(4), harmonics([1.0], None)[0, :2].round(4)
        (np.float64(0.8825), array([0.5, 0. ]))
    """
    gamma = np.atleast_1d(non_negative("snr", snr, infinite=True))
    if bits is None:
        linear = 1 / (1 + 1 / np.maximum(gamma, 1e-300))  # gamma/(1 + gamma), for infinite gamma as well
        if papr_db is None:
            return np.column_stack([linear, np.zeros((len(gamma), len(ORDERS)))])
        return linear[:, None] * _at(_amplitude_table(papr_db), gamma)
    cells, sign = levels(bits), soft_bit(gamma).signal
    seen = np.repeat(cells.values[None], len(gamma), 0) if bits == 1 else _at(_magnitude_table(bits), gamma)
    kept = sign[:, None] * seen
    found = kept @ _cell_coefficients(bits).T
    left = kept**2 @ cells.masses - (found**2).sum(axis=1)
    return np.column_stack([found, np.sqrt(np.maximum(left, 0.0))])


def explained(snr: Numbers, bits: int | None = 1, papr_db: float | None = None) -> Array:
    """The part of a coordinate's variance that its soft value explains, `E[z**2]`, `[K]`.

    One minus it is the normalised error of one device: 0.3634, 0.1175, 0.03454 and 0.009497 for 1 to 4 bits
    over a perfect link, `1/(1 + gamma)` for amplitudes without a limit.

    Example:
        >>> (1 - explained([1.0])).round(3), (1 - explained([1.0], None)).round(3)
        (array([0.65]), array([0.5]))
    """
    return harmonics(snr, bits, papr_db)[:, 0]


class RotatedFit(NamedTuple):
    """The best weights on the devices' soft values.

    Attributes:
        combine: `w_k`, `[K]`, of `ghat = sum_k w_k * z_k`.
        gain: `E[gsum*ghat]/E[gsum**2]`.
    """

    combine: Array
    gain: float


class Rotated(NamedTuple):
    """Devices whose gradients have been rotated, and what their links explain.

    Attributes:
        coefficients: From `harmonics`, `[K, 17]`.
        std: Deviations of the rotated coordinates, `[K]`.
        correlation: Between the devices' gradients, `[K, K]`.
        part: Of the coordinates that is sent, f.
        kept: `M/n` of a rotation that padded M coordinates to n.
        private: Whether each device has a rotation (and below one bit a subset) of its own.
    """

    coefficients: Array
    std: Array
    correlation: Array
    part: float = 1.0
    kept: float = 1.0
    private: bool = False

    def _covariances(self) -> tuple[Array, Array]:
        """Of what is added up, and its product with the devices' coordinates in units of their deviation."""
        first, r = self.coefficients[:, 0], self.correlation
        if self.private:  # turned back, the soft values are D*x + e with independent white errors e
            signal = self.part * first
            both = np.outer(signal, signal) * r
            np.fill_diagonal(both, signal**2 + self.kept * (signal - signal**2))
            return both, signal[:, None] * r
        powers = r[..., None] ** np.append(ORDERS, ORDERS[-1] + 2)
        both = np.einsum("kn,jn,kjn->kj", self.coefficients, self.coefficients, powers)
        np.fill_diagonal(both, first)
        return both, first[:, None] * r

    def fit(self, weights: Array) -> RotatedFit:
        """Return the weights on soft values that estimate `sum_k alpha_k*g_k` best, and their gain."""
        both, cross = self._covariances()
        target = weights * self.std
        root = np.sqrt(np.maximum(both.diagonal(), 1e-300))
        seen = cross @ target
        scaled = both / np.outer(root, root) + 1e-9 * np.eye(len(root))
        combine = np.where(both.diagonal() > 0, np.linalg.solve(scaled, seen / root) / root, 0.0)
        energy = float(target @ self.correlation @ target)
        part = 1.0 if self.private else self.part
        gain = part * float(combine @ seen) / energy if energy > 0 else 0.0
        return RotatedFit(combine, min(1.0, max(0.0, gain)))

    def moments(self, weights: Array, combine: Array) -> JointMoments:
        """Return the second moments of the sum and of its estimate after the rotations are undone."""
        both, cross = self._covariances()
        target, first = weights * self.std, self.coefficients[:, 0]
        energy = float(target @ self.correlation @ target)
        product, power = float(combine @ cross @ target), float(combine @ both @ combine)
        if self.private:
            return JointMoments(energy, product, power, power)
        linear = combine * first
        aligned = self.part**2 * float(linear @ self.correlation @ linear)
        power = aligned + self.kept * (self.part * power - aligned)
        return JointMoments(energy, self.part * product, power, power)


def _at(table: interpolate.CubicSpline, gamma: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.asarray(table(np.clip(10 * np.log10(gamma), table.x[0], table.x[-1])))


@cache
def _cell_coefficients(bits: int) -> Array:
    """`[16, n]`: what a magnitude's cell and its mirror image add to the Hermite coefficients."""
    edges = levels(bits).edges
    bell = np.exp(-(edges**2) / 2) / math.sqrt(2 * math.pi)
    below = _hermite(ORDERS[-1] - 1, edges)[ORDERS - 1] * bell / np.sqrt(ORDERS)[:, None]
    return np.asarray(2 * (below - np.column_stack([below[:, 1:], np.zeros(len(ORDERS))])))


def _hermite(order: int, x: Array) -> Array:
    """`He_n(x)/sqrt(n!)` for n = 0 to `order`, `[order + 1, len(x)]`."""
    found = [np.ones_like(x), x]
    for n in range(1, order):
        found.append((x * found[n] - math.sqrt(n) * found[n - 1]) / math.sqrt(n + 1))
    return np.stack(found[: order + 1])


@cache
def _magnitude_table(bits: int) -> interpolate.CubicSpline:
    """From the SNR in dB to the mean soft magnitude of each cell, `[n]`."""
    cells = levels(bits)
    noise = np.stack(np.meshgrid(*[_NOISE] * (bits - 1), indexing="ij")).reshape(bits - 1, -1)
    bell = np.prod(np.stack(np.meshgrid(*[_BELL] * (bits - 1), indexing="ij")), axis=0).reshape(-1)
    used = bell > 1e-10 * bell.max()
    noise, bell = noise[:, used], bell[used]

    def seen(snr_db: float) -> Array:
        gamma = 10 ** (snr_db / 10)
        result = np.empty(len(cells.values))
        for i, label in enumerate(cells.labels):
            llr = cells.labels @ (gamma * label[:, None] + math.sqrt(gamma) * noise)
            odds = cells.masses[:, None] * np.exp(llr - llr.max(axis=0))
            result[i] = (cells.values @ odds / odds.sum(axis=0)) @ bell
        return result

    return interpolate.CubicSpline(_NARROW_DB, [seen(snr_db) for snr_db in _NARROW_DB])


@cache
def _amplitude_table(papr_db: float) -> interpolate.CubicSpline:
    """From the SNR in dB to the coefficients over `gamma/(1 + gamma)`, `[17]`."""
    level = clip_level(papr_db)
    nodes, shares = np.polynomial.legendre.leggauss(80)
    ends = (0.0, level, max(level, 1.0) + 9.0)
    x = np.concatenate([(a + b + (b - a) * nodes) / 2 for a, b in pairwise(ends)])
    share = np.concatenate([(b - a) * shares for a, b in pairwise(ends)])  # both halves of the bell
    share = share * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    basis = _hermite(int(ORDERS[-1]), x)[ORDERS]
    sent = np.minimum(x, level) / math.sqrt(clipped_power(level))

    def seen(snr_db: float) -> Array:
        gamma = 10 ** (snr_db / 10)
        mean = soft_amplitude(math.sqrt(gamma) * sent[:, None] + _NOISE, gamma, papr_db) @ _BELL
        found = basis @ (share * mean)
        left = share @ mean**2 - found @ found
        return np.append(found, math.sqrt(max(left, 0.0))) * (1 + gamma) / gamma

    return interpolate.CubicSpline(_WIDE_DB, [seen(snr_db) for snr_db in _WIDE_DB])
