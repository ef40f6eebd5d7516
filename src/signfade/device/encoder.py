"""The device's half of a round: rotate, fit the prior, take one bit per weight, quantise the scalars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.device.bits import Bits, one_bit
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

Keys = Callable[[str], NDArray[np.uint64]]


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

    bits: Bits
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
    """

    method: MethodSettings
    layers: tuple[int, ...]
    sends_scalars: bool = True
    exponents: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Number of bits a device sends: M, or the padded size after a rotation."""
        size = sum(self.layers)
        return rotated_size(size) if self.method.rotation == "hadamard" else size

    @property
    def segments(self) -> tuple[int, ...]:
        """Lengths of the parts with a mean and a scale of their own; a rotation mixes all layers into one."""
        per_layer = self.method.scales == "layer" and self.method.rotation == "none"
        return self.layers if per_layer else (self.size,)

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

    def rotate(self, g: Tensor, key: int) -> Tensor:
        """Rotate gradients `[k, M]` to `[k, size]`, if the method says so."""
        return rotate(g, key) if self.method.rotation == "hadamard" else g

    def unrotate(self, x: Tensor, key: int) -> Tensor:
        """Undo the rotation of estimates `[k, size]`."""
        return unrotate(x, key, sum(self.layers)) if self.method.rotation == "hadamard" else x

    def encode(self, rotated: Tensor, keys: Keys | None = None) -> tuple[Message, Priors]:
        """Encode the (rotated) gradients of some devices, `[k, size]`.

        Args:
            rotated: What the devices want to send.
            keys: From a purpose to the keys of the devices' streams, `[k]`, where bits are drawn at random.

        Returns:
            What is sent, and what is known about it on the devices only.

        Raises:
            ValueError: No keys where they are needed.
        """
        method, segments = self.method, self.segments
        prior = fit_prior(rotated, method.prior, segments)
        true_mean = prior.mean
        if not self.sends_scalars:  # signSGD has no mean to send: its bits are the gradient's own signs
            prior = fit_prior(rotated, method.prior, segments, mean=torch.zeros_like(prior.mean))
        true_scale = scale = self._true_scale(rotated, prior)
        saturated = torch.zeros(len(rotated), 2, dtype=torch.int64)
        if self.quantised:
            code = self.scalar_code
            saturated = torch.stack([x.sum(dim=1) for x in code.saturated(prior.mean, true_scale)], dim=1)
            mean, scale = code.rounded(prior.mean, code.sent_scale(prior.mean, true_scale))
            prior = fit_prior(rotated, method.prior, segments, mean=mean)
            true_scale = self._true_scale(rotated, prior)
        bits = self._take_bits(rotated, prior, keys)
        return Message(bits, prior.mean, scale, saturated), Priors(true_mean, prior.std, true_scale)

    def _true_scale(self, rotated: Tensor, prior: Prior) -> Tensor:
        """Return `E[(g - mean)*b]` of the bits b that are sent, all the server needs to know, `[k, S]`."""
        method = self.method
        scale = prior.scale
        if method.sign_noise > 0:
            scale = noisy_scale(rotated, prior, method.sign_noise, self.segments)
        return scale if method.flip == 0 else (1 - 2 * method.flip) * scale

    def _take_bits(self, rotated: Tensor, prior: Prior, keys: Keys | None) -> Bits:
        method = self.method
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
    bits = Bits(torch.cat([message.bits.packed for message in messages]), messages[0].bits.size)
    scalars = ("mean", "scale", "saturated")
    return (
        Message(bits, *(torch.cat([getattr(message, name) for message in messages]) for name in scalars)),
        Priors(*(torch.cat([getattr(prior, one.name) for prior in priors]) for one in fields(Priors))),
    )
