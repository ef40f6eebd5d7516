"""The device's half of a round: rotate, fit the prior, take the signs, quantise the scalars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.device import (
    LogQuantizer,
    Prior,
    ScalarCode,
    UniformQuantizer,
    add_sign_noise,
    fit_prior,
    noisy_scale,
    randomised_response,
    rotate,
    rotated_size,
    sign_noise_factor,
)
from signfade.kernels import pack_above
from signfade.learn.scale_range import EXPONENT_BITS, ScaleRange
from signfade.settings import VOTES, MethodSettings

__all__ = ["Encoder", "Keys", "Sent", "bit_agreement", "join"]

EXACT_SCALAR_BITS = 32
_WIDE_BITS = 16

Keys = Callable[[str], NDArray[np.uint64]]


@dataclass(frozen=True)
class Sent:
    """What K devices send in one round, and what only a simulation knows of it.

    Attributes:
        packed: Signs, eight to a byte, `[K, ceil(M/8)]`.
        mean: Means as the server decodes them, `[K, S]` for S layers.
        scale: Scales as the server decodes them, `[K, S]`.
        true_scale: What the scale should be, `E[(g - mean)*b]` of the bits b about the decoded mean,
            `[K, S]`; the server does not see it.
        std: Standard deviations about the decoded mean, `[K, S]`; the server does not see them.
        true_mean: Means before quantisation, `[K, S]`; the server does not see them.
        saturated: How many of a device's means and of its scales were beyond their quantiser's range,
            `[K, 2]`.
    """

    packed: Tensor
    mean: Tensor
    scale: Tensor
    true_scale: Tensor
    std: Tensor
    true_mean: Tensor
    saturated: Tensor


@dataclass(frozen=True)
class Encoder:
    """Turns gradients into what devices send, as the method's settings say.

    Attributes:
        method: Section `method` of the configuration.
        layers: Lengths of the layers in the flat gradient.
        range: Where the scale quantiser's range lies; the server moves it between rounds.
    """

    method: MethodSettings
    layers: tuple[int, ...]
    range: ScaleRange = field(default_factory=ScaleRange, compare=False)

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
    def sends_scalars(self) -> bool:
        """Whether devices send means and scales beside their bits."""
        return self.method.aggregator not in (*VOTES, "ideal")

    @property
    def quantised(self) -> bool:
        """Whether the means and scales that devices send are quantised."""
        return self.sends_scalars and self.method.side_bits is not None

    @property
    def range_bits(self) -> int:
        """Bits a round's broadcast takes for the range of the scales: an exponent a layer."""
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
        bits, exponents = self.method.side_bits, self.range.exponents
        if bits is None:
            raise ValueError("method.side_bits must be set for scalars to be quantised")
        means, scales = _quantizers(bits, exponents is None)
        return ScalarCode(means, scales, self._kept, exponents or (0,))

    @cached_property
    def _kept(self) -> float:
        return bit_agreement(self.method)

    def rotate(self, g: Tensor, rotation_key: int) -> Tensor:
        """Rotate the gradients `[k, M]` if the method says so."""
        return rotate(g, rotation_key) if self.method.rotation == "hadamard" else g

    def encode(self, rotated: Tensor, keys: Keys | None = None) -> Sent:
        """Encode the (rotated) gradients of some devices, `[k, size]`.

        Args:
            rotated: What the devices want to send.
            keys: From a purpose to the keys of the devices' streams, `[k]`, where bits are drawn at random.

        Raises:
            ValueError: No keys where they are needed.
        """
        method = self.method
        segments = self.segments
        prior = fit_prior(rotated, method.prior, segments)
        true_mean = prior.mean
        if method.aggregator in VOTES:  # signSGD has no mean to send: its bits are the gradient's own signs
            zero = torch.zeros_like(prior.mean)
            prior = fit_prior(rotated, method.prior, segments, mean=zero)
        true_scale = scale = self._true_scale(rotated, prior)
        saturated = torch.zeros(len(rotated), 2, dtype=torch.int64)
        if self.quantised:
            code = self.scalar_code
            saturated = torch.stack([x.sum(dim=1) for x in code.saturated(prior.mean, true_scale)], dim=1)
            mean, scale = code.rounded(prior.mean, code.told_scale(prior.mean, true_scale))
            prior = fit_prior(rotated, method.prior, segments, mean=mean)
            true_scale = self._true_scale(rotated, prior)
        packed = self._take_signs(rotated, prior, keys)
        return Sent(packed, prior.mean, scale, true_scale, prior.std, true_mean, saturated)

    def _true_scale(self, rotated: Tensor, prior: Prior) -> Tensor:
        """Return `E[(g - mean)*b]` of the bits b that are sent, all the server needs to know, `[k, S]`."""
        method = self.method
        scale = prior.scale
        if method.sign_noise > 0:
            scale = noisy_scale(rotated, prior, method.sign_noise, self.segments)
        return scale if method.flip == 0 else (1 - 2 * method.flip) * scale

    def _take_signs(self, rotated: Tensor, prior: Prior, keys: Keys | None) -> Tensor:
        method = self.method
        if method.sign_noise == 0 and method.flip == 0:
            return pack_above(rotated, prior.mean, self.segments)
        if keys is None:
            raise ValueError(
                "keys must be given with method.sign_noise or method.flip: bits are drawn at random"
            )
        if method.sign_noise > 0:
            rotated = add_sign_noise(rotated, prior.std, method.sign_noise, self.segments, keys("sign noise"))
        packed = pack_above(rotated, prior.mean, self.segments)
        return randomised_response(packed, self.size, method.flip, keys("flip")) if method.flip else packed


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


def join(parts: Sequence[Sent]) -> Sent:
    """Put what several groups of devices sent into one."""
    if len(parts) == 1:
        return parts[0]
    names = [one.name for one in fields(Sent)]
    return Sent(*(torch.cat([getattr(part, name) for part in parts]) for name in names))
