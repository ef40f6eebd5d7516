"""The device's half of a round: rotate, fit the prior, take one bit per weight, quantise the scalars."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.device.bits import Bits, one_bit
from signfade.device.levels import Amplitudes, clipped_amplitudes, level_bits
from signfade.device.noisy_sign import add_sign_noise, noisy_scale, sign_noise_factor
from signfade.device.prior import Prior, fit_prior
from signfade.device.privacy import randomised_response
from signfade.device.quantize import LogQuantizer, UniformQuantizer
from signfade.device.rotation import rotate, rotated_size, unrotate
from signfade.device.scalar_code import ScalarCode
from signfade.device.scale_range import EXPONENT_BITS
from signfade.settings import MethodSettings

__all__ = ["EXACT_BITS", "Encoder", "Keys", "Message", "Priors", "bit_agreement", "join"]

EXACT_BITS = 32  # of a number that is not quantised
_WIDE_BITS = 16

_SUBSET = 0x9E3779B97F4A7C15  # sets a subset's stream apart from its rotation's

Keys = Callable[[str], NDArray[np.uint64]]
RotationKeys = NDArray[np.uint64]


@dataclass(frozen=True)
class Message:
    """What K devices send in one round.

    Attributes:
        bits: One per coordinate.
        mean: Means as the server decodes them, `[K, S]` for S layers.
        scale: Scales as the server decodes them, `[K, S]`.
        saturated: How many of a device's means and of its scales were beyond their quantiser's range,
            `[K, 2]`.
    """

    bits: Bits | Amplitudes
    mean: Tensor
    scale: Tensor
    saturated: Tensor

    def __len__(self) -> int:
        return len(self.bits)


@dataclass(frozen=True)
class Priors:
    """What devices know of their gradients and do not send, `[K, S]` each.

    Attributes:
        mean: Means before quantisation.
        std: Standard deviations about the mean that was sent.
        scale: `E[(g - mean)*b]` of the bits b about the mean that was sent: what the scale should be.
    """

    mean: Tensor
    std: Tensor
    scale: Tensor


@dataclass(frozen=True)
class Encoder:
    """Turns gradients into messages, as the method's settings say.

    Attributes:
        method: Section `method` of the configuration.
        layers: Lengths of the layers in the flat gradient.
        sends_scalars: Whether devices send means and scales beside their bits.
        exponents: Where the scale quantiser's range lies in this round; empty before the server knows.
        papr_db: Peak over mean power of amplitudes, `cell.papr_db`; None without a limit.
    """

    method: MethodSettings
    layers: tuple[int, ...]
    sends_scalars: bool = True
    exponents: tuple[int, ...] = ()
    papr_db: float | None = None

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
    def scalar_bits(self) -> tuple[int, int]:
        """Bits of a mean's and of a scale's code in this round; 0 for numbers in full, or where none go."""
        if not self.quantised:
            return 0, 0
        code = self.scalar_code
        return code.means.bits, code.scales.bits

    @property
    def scalar_code(self) -> ScalarCode:
        """How means and scales become bits in this round.

        A scale goes as a code of B bits for its ratio to the broadcast power of two, on a grid that reaches
        a factor of `2**(B + 2)` up and down. Before the server knows of any scale it goes as one of 16 bits
        on a grid of all that a float32 can be: 0.13 % off at most.

        Raises:
            ValueError: The method sends them as floats.
        """
        bits = self.method.side_bits
        if bits is None:
            raise ValueError("method.side_bits must be set for scalars to be quantised")
        means, scales = _quantizers(bits, wide=not self.exponents)
        return ScalarCode(means, scales, self._kept, self.exponents or (0,))

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
            x = full.scatter_(1, self._subsets(keys), x)
        return unrotate(x, keys, sum(self.layers))

    def _subsets(self, keys: RotationKeys) -> Tensor:
        """Which coordinates each device sends, ascending, `[k, sent]`; devices of one key send the same."""
        chosen = {
            int(key): np.sort(
                np.random.Generator(np.random.Philox(key=int(key) ^ _SUBSET)).choice(
                    self.coordinates, self.sent, replace=False, shuffle=False
                )
            )
            for key in np.unique(keys)
        }
        return torch.from_numpy(np.stack([chosen[int(key)] for key in keys]))

    def encode(
        self, rotated: Tensor, rotation_keys: RotationKeys | None = None, keys: Keys | None = None
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
        if not self.sends_scalars or method.dialled:  # the bits are the signs of the coordinates themselves
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
            rotated = torch.gather(rotated, 1, self._subsets(rotation_keys))
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
        if method.sign_noise == 0 and method.flip == 0:
            return one_bit(rotated, prior.mean, self.segments)
        if keys is None:
            raise ValueError(
                "keys must be given with method.sign_noise or method.flip: bits are drawn at random"
            )
        if method.sign_noise > 0:
            rotated = add_sign_noise(rotated, prior.std, method.sign_noise, self.segments, keys("sign noise"))
        bits = one_bit(rotated, prior.mean, self.segments)
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
