"""The air: block fading, noise, and what a received symbol says about the bit behind it.

Signal model, symbol m of device k in one round: `y = h s + n`, `s = +1 or -1`, `n ~ N(0, sigma2)` and real.
`sigma2` is the variance of the real noise on one symbol; the instantaneous SNR is `h**2 / sigma2`. Symbols
are lazy: they are made only when somebody asks for them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade._check import check_choice, check_finite, check_positive, check_shape, check_tensor
from signfade.device import Amplitudes, Bits
from signfade.kernels import received, standard_normal
from signfade.keys import generator
from signfade.settings import Fading

__all__ = [
    "GaussMarkov",
    "Link",
    "Noise",
    "Normals",
    "Signals",
    "draw_fading",
    "draw_phasors",
    "error_probability",
    "half_llr",
    "symbols",
    "transmit",
]

Noise = torch.Generator | NDArray[np.uint64]
_LONGEST = 1 << 40  # rounds over which even a chain of correlation one is followed


def _check_link(h: Tensor, sigma2: Tensor, devices: int) -> None:
    check_shape("h", h, (devices,))
    check_shape("sigma2", sigma2, (devices,))
    if h.is_complex():
        raise ValueError(f"h must be real (the receiver turns the phase back); got {h.dtype}")
    check_finite("h", h)
    check_positive("sigma2", sigma2, zero=True)
    check_finite("sigma2", sigma2)


@dataclass(frozen=True)
class Link:
    """The state of every device's link in one round, known to the server.

    `h` `[K]` is the real gain, `sigma2` `[K]` the variance of the real noise on one symbol. `sigma2 = 0` is a
    noiseless link and works everywhere; `h = 0` is a dead one, whose symbols say nothing.

    Example:
        >>> Link(h=torch.tensor([1.0, -2.0, 0.0]), sigma2=torch.tensor([0.5, 0.0, 0.0])).snr
        tensor([2., inf, 0.])

    Reference: Sec. II, "Uplink transmission"; docs/model.md.
    """

    h: Tensor
    sigma2: Tensor

    def __post_init__(self) -> None:
        check_tensor("h", self.h)
        if self.h.ndim != 1:
            raise ValueError(f"h must have shape [K]; got {list(self.h.shape)}")
        _check_link(self.h, self.sigma2, len(self.h))

    @property
    def snr(self) -> Tensor:
        """The instantaneous SNR `h**2 / sigma2`, `[K]`, of h's dtype but at least float32."""
        power = self.h.double().square()
        snr = torch.where(power == 0, torch.zeros_like(power), power / self.sigma2.double())
        return snr.to(torch.promote_types(self.h.dtype, torch.float32))


class GaussMarkov:
    """Standard normals of one round of a chain in time, in place of a generator's: `z_t = r z_(t-1) + ...`.

    Every number of a round's draw is correlated with its own in other rounds, `E[z_s z_t] = r**|s - t|`, and
    with no other. There is no state: rounds far apart are drawn from their own keys, and those between by
    bisection, each given the two around it (the chain is Markov, so that is exact). A round takes at most
    41 + 1 draws, and is the same whatever was drawn before it.

    Example:
        >>> steady, new = GaussMarkov(7, 3, 1.0), GaussMarkov(7, 3, 0.0)
        >>> bool((steady.standard_normal(4) == GaussMarkov(7, 9, 1.0).standard_normal(4)).all())
        True
        >>> bool((new.standard_normal(4) == generator(7, "fading", 3).standard_normal(4)).all())
        True
    """

    def __init__(self, seed: int, round: int, correlation: float) -> None:
        self._seed, self._round, self._correlation = seed, round, correlation

    def standard_normal(self, size: int | tuple[int, ...]) -> NDArray[np.float64]:
        """Return the round's numbers, of shape `size`."""

        def own(round: int) -> NDArray[np.float64]:
            return generator(self._seed, "fading", round).standard_normal(size)

        r, span = self._correlation, 1
        while abs(r) ** span > 1e-16 and span < _LONGEST:  # rounds as far apart as this are independent
            span *= 2
        start = self._round - self._round % span
        left = own(start)
        if self._round == start:
            return left
        right = r**span * left + math.sqrt(1 - r ** (2 * span)) * own(start + span)
        while True:
            span //= 2
            middle, near = start + span, r**span
            between = near / (1 + near**2) * (left + right)
            between += math.sqrt((1 - near**2) / (1 + near**2)) * own(middle)
            if middle == self._round:
                return between
            if self._round < middle:
                right = between
            else:
                start, left = middle, between


Normals = np.random.Generator | GaussMarkov


def draw_fading(
    kind: str, count: int, generator: Normals, rician_k: float = 4.0, antennas: int = 1
) -> Tensor:
    """Draw the gain of every device for one round, float64 `[K]`, scaled to `E[h**2] = antennas`.

    | kind | h |
    |---|---|
    | `gaussian` | `N(0, 1)`, the paper's: the real part of a complex gain, its sign known to the server |
    | `rayleigh` | magnitude of a complex Gaussian gain whose phase the receiver has removed |
    | `rician` | the same with a direct path `rician_k` times as strong as the scattered ones |
    | `none` | 1 |

    Maximum-ratio combining of several receive antennas, which fade independently, leaves one link with the
    same noise and `h = sqrt(sum_i h_i**2)`; a direct path reaches all of them alike. Device k's gain does not
    depend on how many come after.

    Example:
        >>> from signfade.keys import generator
        >>> draw_fading("none", 2, generator(1, "fading"))
        tensor([1., 1.], dtype=torch.float64)

    Reference: Sec. VI-A, "Network model" (`gaussian`).
    """
    check_choice("kind", kind, get_args(Fading))
    if count < 0:
        raise ValueError(f"count must be non-negative; got {count!r}")
    if not 0 <= rician_k < np.inf:
        raise ValueError(f"rician_k must be non-negative and finite; got {rician_k!r}")
    if antennas < 1:
        raise ValueError(f"antennas must be at least 1; got {antennas!r}")
    if kind == "none":
        return torch.full((count,), math.sqrt(antennas), dtype=torch.float64)
    if kind == "gaussian":
        gains = generator.standard_normal((count, antennas))
    else:
        phasors = draw_phasors(count * antennas, generator, rician_k if kind == "rician" else 0.0)
        gains = np.hypot(*phasors).reshape(count, antennas)
    return torch.from_numpy(gains[:, 0] if antennas == 1 else np.sqrt(np.square(gains).sum(axis=1)))


def draw_phasors(count: int, generator: Normals, ratio: float) -> NDArray[np.float64]:
    """Return real and imaginary parts, `[2, K]`, of the gains whose magnitudes `draw_fading` returns.

    `ratio` is the power of the direct path, whose phase is zero, over that of the scattered ones.
    """
    phasors: NDArray[np.float64] = generator.standard_normal((count, 2)).T / np.sqrt(2 * (1 + ratio))
    phasors[0] += np.sqrt(ratio / (1 + ratio))
    return phasors


def half_llr(y: Tensor, h: Tensor, sigma2: Tensor, limit: float = 1e30) -> Tensor:
    """Return half the log-likelihood ratio of every bit given its symbol, `[K, M]`, of the dtype of `y`.

    `l = (1/2) ln(p(y | +1) / p(y | -1)) = h y / sigma2`, so `P(s = +1 | y) = 1 / (1 + exp(-2 l))` and
    `E[s | y] = tanh(l)`. Here sigma2 is the variance of the *real* noise; the paper's tanh(2 h y / sigma2)
    has the factor that a complex noise of variance sigma2 would bring.

    Always finite: clamped to `[-limit, limit]`, which is also where a noiseless link lands. A dead link
    (`h = 0`) gives 0, noiseless or not. tanh has long saturated there; whoever *adds* half-LLRs should pass
    a limit small enough that the sum still resolves the other terms.

    Example:
        >>> y = torch.tensor([[1.0, -3.0], [0.5, -0.5]])
        >>> half_llr(y, h=torch.tensor([2.0, 0.5]), sigma2=torch.tensor([4.0, 0.0]))
        tensor([[ 5.0000e-01, -1.5000e+00],
                [ 1.0000e+30, -1.0000e+30]])

    Reference: Sec. IV-A, Proposition 1; docs/errata.md for the factor two.
    """
    check_tensor("y", y)
    if y.ndim != 2:
        raise ValueError(f"y must have shape [K, M]; got {list(y.shape)}")
    if y.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"y must be float32 or float64; got {y.dtype}")
    _check_link(h, sigma2, y.shape[0])
    check_finite("y", y)
    if not 0 < limit <= 1e30:
        raise ValueError(f"limit must be above 0 and at most 1e30; got {limit!r}")
    largest = torch.finfo(y.dtype).max
    slope = (h.double() / sigma2.double()).nan_to_num().clamp(-largest, largest).to(y)
    half = (y * slope[:, None]).clamp_(-limit, limit)
    noiseless = sigma2 == 0
    if bool(noiseless.any()):  # a finite slope falls short of the limit where y is tiny too
        # sign(0) is 0 here on purpose: a dead link is certain of nothing
        certain = y.sign() * h.sign().to(y)[:, None] * limit
        half = torch.where(noiseless[:, None].to(y.device), certain, half)
    return half


def error_probability(snr: Tensor) -> Tensor:
    """Return the probability that a hard decision on one bit is wrong: `Q(sqrt(snr))`, `snr = h**2/sigma2`.

    Example:
        >>> error_probability(torch.tensor([0.0, 1.0, torch.inf]))
        tensor([0.5000, 0.1587, 0.0000])
    """
    check_positive("snr", snr, zero=True)
    return torch.erfc((snr / 2).sqrt()) / 2


@dataclass(frozen=True)
class Signals:
    """What the base station receives from K devices: `y = h s + n`, kept as bits, links and noise keys.

    The aggregators in `signfade.server` take `Signals` wherever they take a tensor `[K, M]`; they then add
    devices up in one fused pass that never stores the symbols. A device's noise depends on its key alone, not
    on its place among the others; it is float32 inside and stays within 6.4 deviations.
    """

    bits: Bits | Amplitudes
    link: Link  # as it is; what the server knows of it is an argument of the aggregators
    keys: NDArray[np.uint64]  # of the noise streams, [K]
    dtype: torch.dtype = torch.float32  # of the symbols

    def __len__(self) -> int:
        return len(self.bits)

    @property
    def shape(self) -> tuple[int, int]:
        """`(K, M)`."""
        return self.bits.shape

    @cached_property
    def y(self) -> Tensor:
        """The received symbols, `[K, M]`; made once and kept."""
        return self.rows(slice(None))

    def rows(self, rows: slice) -> Tensor:
        """Return the symbols of some devices, `[k, M]`, without keeping them."""
        if "y" in self.__dict__:
            return self.y[rows]
        bits, h, sigma2, keys = self.bits[rows], self.link.h[rows], self.link.sigma2[rows], self.keys[rows]
        if self.dtype == torch.float32 and isinstance(bits, Bits):
            return received(bits.packed, bits.size, h, sigma2, keys)
        noise = torch.from_numpy(standard_normal(keys, bits.size)).to(self.dtype)
        return noise.mul_(sigma2.sqrt().to(noise)[:, None]).addcmul_(
            bits.signs(self.dtype), h.to(noise)[:, None]
        )


def transmit(bits: Bits | Amplitudes | Tensor, h: Tensor, sigma2: Tensor, noise: Noise) -> Signals:
    """Send one symbol per coordinate over every device's own subchannel: `y = h s + n`, `n ~ N(0, sigma2)`.

    Takes bits from `device.one_bit`, or signs +1 and -1, `[K, M]`, float32 or float64; gains and noise
    variances `[K]` (zero for a noiseless link); and the K uint64 keys of the devices' noise streams
    ([`keys.stream_keys`][signfade.keys.stream_keys]), or a torch.Generator to draw them from. The result is
    lazy: `transmit(...).y` are the symbols `[K, M]`.

    Example:
        >>> signs = torch.tensor([[1.0, -1.0], [1.0, 1.0]])
        >>> transmit(signs, torch.tensor([2.0, -0.5]), torch.zeros(2), torch.Generator().manual_seed(1)).y
        tensor([[ 2.0000, -2.0000],
                [-0.5000, -0.5000]])

    Reference: Sec. II, "Uplink transmission".
    """
    dtype = torch.float32
    if not isinstance(bits, Bits | Amplitudes):
        if isinstance(bits, Tensor) and bits.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"signs must be float32 or float64; got {bits.dtype}")
        bits, dtype = Bits.of(bits), getattr(bits, "dtype", dtype)
    check_shape("h", h, (len(bits),))
    return Signals(bits, Link(h, sigma2), _noise_keys(noise, len(bits)), dtype)


def _noise_keys(noise: Noise, devices: int) -> NDArray[np.uint64]:
    """Return one noise key per device: the keys given, or drawn from a generator."""
    if isinstance(noise, torch.Generator):
        drawn = torch.randint(-(1 << 63), (1 << 63) - 1, (devices,), generator=noise, device=noise.device)
        return drawn.cpu().numpy().view(np.uint64)
    keys = np.asarray(noise)
    if keys.dtype != np.uint64 or keys.shape != (devices,):
        got = f"{keys.dtype} {list(keys.shape)}"
        raise ValueError(f"noise must be a torch.Generator or uint64 keys [{devices}]; got {got}")
    return keys


def symbols(y: Tensor | Signals) -> Tensor:
    """Return the received symbols `[K, M]`, whichever way they were given."""
    return y.y if isinstance(y, Signals) else y
