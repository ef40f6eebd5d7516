"""The device's half of a round: rotate, fit the prior, take one bit per weight, quantise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade._check import check_finite, check_shape, check_tensor
from signfade.device.bits import Bits, unpack_signs
from signfade.device.constellation import Amplitudes, clipped_amplitudes, level_bits
from signfade.device.prior import (
    Prior,
    add_sign_noise,
    check_segments,
    fit_prior,
    noisy_scale,
    sign_noise_factor,
    spread,
)
from signfade.device.privacy import randomised_response
from signfade.device.quantizers import LogQuantizer, ScalarCode, UniformQuantizer
from signfade.device.rotation import rotate, rotated_size, unrotate
from signfade.device.scale_range import EXPONENT_BITS
from signfade.kernels import pack_above
from signfade.settings import MethodSettings

__all__ = [
    "EXACT_BITS",
    "Encoder",
    "Keys",
    "Message",
    "Priors",
    "bit_agreement",
    "join",
    "lost_by_bits",
    "one_bit",
]

EXACT_BITS = 32  # of a number that is not quantised
_WIDE_BITS = 16

_SUBSET = 0x9E3779B97F4A7C15  # sets a subset's stream apart from its rotation's

Keys = Callable[[str], NDArray[np.uint64]]
RotationKeys = NDArray[np.uint64]


def one_bit(g: Tensor, mean: Tensor, segments: Sequence[int] | None = None) -> Bits:
    """Compress every device's gradient to the signs of its centred coordinates, `s = sign(g - mean)`.

    `mean` is the mean the device sends, as the server will decode it: the posterior mean of the server is
    right only about the threshold that was really used. Compared, not subtracted, so that nothing rounds.
    Takes gradients `[K, M]`, float32 or float64, and means `[K]`, or `[K, S]` with the lengths of S layers as
    `segments`; `one_bit(...).signs()` are the signs as numbers.

    Example:
        >>> one_bit(torch.tensor([[0.5, 1.0, 2.0]]), torch.tensor([1.0])).signs()
        tensor([[-1.,  1.,  1.]])

    Reference: paper Sec. III-A and IV-A, normalisation and quantisation; docs/errata.md on Algorithm 1, which
    prints sign(g).
    """
    check_tensor("g", g)
    if g.dim() != 2 or g.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"g must be float32 or float64 [K, M]; got {g.dtype} {list(g.shape)}")
    devices, size = g.shape
    check_finite("g", g)
    check_finite("mean", mean)
    if segments is None:
        check_shape("mean", mean, (devices,))
        return Bits(pack_above(g, mean.reshape(devices, 1)), size)
    lengths = check_segments(segments, size)
    check_shape("mean", mean, (devices, len(lengths)))
    return Bits(pack_above(g, mean, lengths), size)


def lost_by_bits(
    u: Tensor, packed: Tensor, mean: Tensor, scale: Tensor, segments: Sequence[int] | None = None
) -> Tensor:
    """Return what a device's packet does not say of its vector, `[K, M]`: `u - (mean + scale*b)`.

    With error feedback a device sends the bits b of `u = g + memory` and keeps `memory = keep*(u - C(u))`,
    `C(u) = mean + scale*b`. With keep = 1 everything is sent in the end: what was sent and the memory add up
    to the sum of the gradients. Where a rotation makes every round's errors new, a memory settles at
    `(1 - d)*(2 - d)/d^2` times the energy of a gradient, d being the part that a sign with a scale tells
    (`scale^2/variance`, 2/pi for a Gaussian), and feedback helps below the step
    `signfade.theory.feedback_limit`. Without a rotation the bits of a gradient that stays lose the same thing
    again and again; feedback then pays more, but memories grow to about ten times a gradient's energy.

    Takes the bits packed as by `pack_signs`, and means and scales as the server decodes them, `[K, S]`.

    Example:
        >>> u, packed = torch.tensor([[3.0, -1.0]]), torch.tensor([[0b10000000]], dtype=torch.uint8)
        >>> lost_by_bits(u, packed, torch.tensor([[1.0]]), torch.tensor([[1.5]]))
        tensor([[ 0.5000, -0.5000]])

    Reference: S. P. Karimireddy et al., "Error feedback fixes signSGD and other gradient compression
    schemes".
    """
    if u.ndim != 2:
        raise ValueError(f"u must have shape [K, M]; got {list(u.shape)}")
    lengths = check_segments([u.shape[1]] if segments is None else segments, u.shape[1])
    for name, value in (("mean", mean), ("scale", scale)):
        check_shape(name, value, (u.shape[0], len(lengths)))
    bits = unpack_signs(packed, u.shape[1], dtype=u.dtype).to(u.device)
    return u - spread(mean.to(u), lengths) - bits.mul_(spread(scale.to(u), lengths))


@dataclass(frozen=True)
class Message:
    """What K devices send in one round."""

    bits: Bits | Amplitudes
    mean: Tensor  # as the server decodes them, [K, S] for S layers
    scale: Tensor  # the same
    saturated: Tensor  # how many of a device's means and of its scales were beyond their range, [K, 2]

    def __len__(self) -> int:
        return len(self.bits)


@dataclass(frozen=True)
class Priors:
    """What devices know of their gradients and do not send, `[K, S]` each."""

    mean: Tensor  # before quantisation
    std: Tensor  # about the mean that was sent
    scale: Tensor  # E[(g - mean)*b] of the bits b about the mean that was sent: what the scale should be


@dataclass(frozen=True)
class Encoder:
    """Turns gradients into messages, as the method's settings say."""

    method: MethodSettings
    layers: tuple[int, ...]  # their lengths in the flat gradient
    sends_scalars: bool = True  # whether devices send means and scales beside their bits
    exponents: tuple[int, ...] = ()  # of the scale quantiser in this round; empty before the server knows
    papr_db: float | None = None  # peak over mean power of amplitudes; None without a limit

    @property
    def rotated(self) -> bool:
        """Whether gradients are rotated before they are sent."""
        return self.method.rotation != "none"

    @property
    def coordinates(self) -> int:
        """Number of weights M, or the padded number after a rotation."""
        size = sum(self.layers)
        return rotated_size(size) if self.rotated else size

    @property
    def sent(self) -> int:
        """Number of coordinates that are sent: a subset of them below one bit per weight."""
        return max(1, round(self.method.part * self.coordinates))

    @property
    def part(self) -> float:
        """Part of the coordinates that is sent."""
        return self.sent / self.coordinates

    @property
    def kept(self) -> float:
        """Part of the coordinates that are weights, M/n after a rotation that padded M to n."""
        return sum(self.layers) / self.coordinates

    @property
    def size(self) -> int:
        """Number of symbols a device sends: one for each bit, or one for each amplitude."""
        return self.sent * (self.method.level_bits or 1)

    @property
    def segments(self) -> tuple[int, ...]:
        """Lengths of the parts with a mean and a scale of their own; a rotation mixes all layers into one."""
        per_layer = self.method.scales == "layer" and self.method.rotation == "none"
        return self.layers if per_layer else (self.sent,)

    @property
    def quantised(self) -> bool:
        """Whether the means and scales that devices send are quantised."""
        return self.sends_scalars and self.method.side_bits is not None

    @property
    def range_bits(self) -> int:
        """Bits a round's broadcast takes for the range of the scales: one exponent per layer."""
        return EXPONENT_BITS * len(self.segments) if self.quantised else 0

    @property
    def sends_mean(self) -> bool:
        """Whether a mean goes with each scale: not where bits are the signs of the coordinates themselves."""
        return self.sends_scalars and not self.method.dialled

    @property
    def scalar_bits(self) -> tuple[int, int]:
        """Bits of a mean and of a scale in this round: a code's, 32 for numbers in full, 0 where none go."""
        if not self.sends_scalars:
            return 0, 0
        mean, scale = EXACT_BITS, EXACT_BITS
        if self.quantised:
            mean, scale = self.scalar_code.means.bits, self.scalar_code.scales.bits
        return mean if self.sends_mean else 0, scale

    @property
    def scalar_code(self) -> ScalarCode:
        """How means and scales become bits in this round.

        A scale goes as a code of B bits for its ratio to the broadcast power of two, on a grid that reaches
        a factor of `2**(B + 2)` up and down. Before the server knows of any scale it goes as one of 16 bits
        on a grid of all that a float32 can be: 0.13 % off at most.
        """
        bits = self.method.side_bits
        if bits is None:
            raise ValueError("method.side_bits must be set for scalars to be quantised")
        means, scales = _quantizers(bits, wide=not self.exponents)
        return ScalarCode(means, scales, self._kept, self.exponents or (0,))

    def read_scalars(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and scales `[..., S]` from codes or numbers as they came; means not sent are zero."""
        if self.quantised:
            mean, scale = self.scalar_code.decode(mean, scale)
        return mean if self.sends_mean else torch.zeros_like(scale), scale

    @cached_property
    def _kept(self) -> float:
        return bit_agreement(self.method)

    def rotate(self, g: Tensor, keys: RotationKeys) -> Tensor:
        """Rotate gradients `[k, M]` to `[k, n]`, if the method says so; one key for each device, `[k]`."""
        return rotate(g, keys) if self.rotated else g

    def unrotate(self, x: Tensor, keys: RotationKeys) -> Tensor:
        """Undo rotation and subset: `[k, sent]` to `[k, M]`, coordinates that were not sent being zero."""
        if not self.rotated:
            return x
        if self.sent < self.coordinates:
            full = x.new_zeros(len(x), self.coordinates)
            x = full.scatter_(1, self._subsets(keys, x.device), x)
        return unrotate(x, keys, sum(self.layers))

    def select(self, rotated: Tensor, keys: RotationKeys) -> Tensor:
        """Return the coordinates that are sent, `[k, n]` to `[k, sent]`."""
        if self.sent == self.coordinates:
            return rotated
        return torch.gather(rotated, 1, self._subsets(keys, rotated.device))

    def _subsets(self, keys: RotationKeys, place: torch.device) -> Tensor:
        """Which coordinates each device sends, ascending, `[k, sent]`; devices of one key send the same."""
        chosen: dict[int, NDArray[np.int64]] = {}
        for key in np.unique(keys).tolist():
            draw = np.random.Generator(np.random.Philox(key=key ^ _SUBSET))
            chosen[key] = np.sort(draw.choice(self.coordinates, self.sent, replace=False, shuffle=False))
        return torch.from_numpy(np.stack([chosen[key] for key in keys.tolist()])).to(place)

    def encode(
        self, rotated: Tensor, keys: Keys | None = None, rotation_keys: RotationKeys | None = None
    ) -> tuple[Message, Priors]:
        """Encode the (rotated) gradients of some devices, `[k, n]`.

        `rotation_keys` are those of `rotate`, needed below one bit per weight; `keys` turns a purpose into
        the keys of the devices' streams, `[k]`, needed where bits are drawn at random. Returns what is sent,
        and what is known about it on the devices only.
        """
        method = self.method
        columns = self.segments if len(self.segments) > 1 else (self.coordinates,)
        prior = fit_prior(rotated, method.prior, columns)
        true_mean = prior.mean
        if not self.sends_mean:  # the bits are the signs of the coordinates themselves
            prior = fit_prior(rotated, method.prior, columns, mean=torch.zeros_like(prior.mean))
        true_scale = scale = self._true_scale(rotated, prior, columns)
        saturated = torch.zeros(len(rotated), 2, dtype=torch.int64)
        if self.quantised:
            code = self.scalar_code
            saturated = torch.stack([x.sum(dim=1) for x in code.saturated(prior.mean, true_scale)], dim=1)
            mean, scale = code.rounded(prior.mean, code.sent_scale(prior.mean, true_scale))
            prior = fit_prior(rotated, method.prior, columns, mean=mean)
            true_scale = self._true_scale(rotated, prior, columns)
        if self.sent < self.coordinates:
            if rotation_keys is None:
                raise ValueError("rotation_keys must be given below one bit per weight: they name the subset")
            rotated = self.select(rotated, rotation_keys)
        bits = self._take_bits(rotated, prior, scale, keys)
        return Message(bits, prior.mean, scale, saturated), Priors(true_mean, prior.std, true_scale)

    def _true_scale(self, rotated: Tensor, prior: Prior, columns: tuple[int, ...]) -> Tensor:
        """Return `E[(g - mean)*b]` of the bits b that are sent, all the server needs to know, `[k, S]`."""
        method = self.method
        scale = prior.scale
        if method.sign_noise > 0:
            scale = noisy_scale(rotated, prior, method.sign_noise, columns)
        return scale if method.flip == 0 else (1 - 2 * method.flip) * scale

    def _take_bits(
        self, rotated: Tensor, prior: Prior, scale: Tensor, keys: Keys | None
    ) -> Bits | Amplitudes:
        method = self.method
        if method.level_bits != 1:
            unit = rotated / (math.sqrt(math.pi / 2) * scale).clamp_min(torch.finfo(scale.dtype).tiny)
            if method.level_bits is None:
                return clipped_amplitudes(unit, self.papr_db)
            return level_bits(unit, method.level_bits)
        threshold = prior.mean if method.center else torch.zeros_like(prior.mean)
        if method.sign_noise == 0 and method.flip == 0:
            return one_bit(rotated, threshold, self.segments)
        if keys is None:
            raise ValueError(
                "keys must be given with method.sign_noise or method.flip: bits are drawn at random"
            )
        if method.sign_noise > 0:
            rotated = add_sign_noise(rotated, prior.std, method.sign_noise, self.segments, keys("sign noise"))
        bits = one_bit(rotated, threshold, self.segments)
        if method.flip == 0:
            return bits
        return Bits(randomised_response(bits.packed, self.size, method.flip, keys("flip")), self.size)


@lru_cache
def _quantizers(bits: int, wide: bool) -> tuple[UniformQuantizer, LogQuantizer]:
    """Return the quantisers of the mean, in units of the scale, and of the scale."""
    means = UniformQuantizer(bits, 1.0)
    if wide:
        return means, LogQuantizer(_WIDE_BITS, 2.0**-126, 2.0**127)
    return means, LogQuantizer(bits, 2.0 ** -(bits + 2), 2.0 ** (bits + 2))


def bit_agreement(method: MethodSettings) -> float:
    """Return the scale a device sends over `E|g - mean|`: what noise before the sign and flips leave."""
    return (1 - 2 * method.flip) * sign_noise_factor(method.sign_noise, method.family)


def join(parts: Sequence[tuple[Message, Priors]]) -> tuple[Message, Priors]:
    """Put what several groups of devices encoded into one."""
    if len(parts) == 1:
        return parts[0]
    messages, priors = zip(*parts)
    bits = type(messages[0].bits).join([message.bits for message in messages])
    scalars = ("mean", "scale", "saturated")
    return (
        Message(bits, *(torch.cat([getattr(message, name) for message in messages]) for name in scalars)),
        Priors(*(torch.cat([getattr(prior, one.name) for prior in priors]) for one in fields(Priors))),
    )
