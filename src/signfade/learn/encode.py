"""The device's half of a round: rotate, fit the prior, take the signs, quantise the scalars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from signfade.device import (
    LogQuantizer,
    UniformQuantizer,
    fit_prior,
    rotate,
    rotated_size,
)
from signfade.kernels import pack_above
from signfade.settings import VOTES, MethodSettings

__all__ = ["Encoder", "Sent", "join"]

EXACT_SCALAR_BITS = 32


@dataclass(frozen=True)
class Sent:
    """What K devices send in one round, and what only a simulation knows of it.

    Attributes:
        packed: Signs, eight to a byte, `[K, ceil(M/8)]`.
        mean: Means as the server decodes them, `[K, S]` for S layers.
        scale: Scales as the server decodes them, `[K, S]`.
        true_scale: Scales before quantisation, `[K, S]`; the server does not see them.
        std: Standard deviations about the decoded mean, `[K, S]`; the server does not see them.
    """

    packed: Tensor
    mean: Tensor
    scale: Tensor
    true_scale: Tensor
    std: Tensor


@dataclass(frozen=True)
class Encoder:
    """Turns gradients into what devices send, as the method's settings say.

    Attributes:
        method: Section `method` of the configuration.
        layers: Lengths of the layers in the flat gradient.
    """

    method: MethodSettings
    layers: tuple[int, ...]

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
    def device_bits(self) -> int:
        """Bits one device sends in a round: its signs and its scalars."""
        if self.method.aggregator == "ideal":
            return EXACT_SCALAR_BITS * sum(self.layers)
        if self.method.aggregator in VOTES:
            return self.size
        return self.size + 2 * len(self.segments) * (self.method.side_bits or EXACT_SCALAR_BITS)

    def rotate(self, g: Tensor, rotation_key: int) -> Tensor:
        """Rotate the gradients `[k, M]` if the method says so."""
        return rotate(g, rotation_key) if self.method.rotation == "hadamard" else g

    def encode(self, rotated: Tensor) -> Sent:
        """Encode the (rotated) gradients of some devices, `[k, size]`."""
        method = self.method
        segments = self.segments
        prior = fit_prior(rotated, method.prior, segments)
        if method.aggregator in VOTES:  # signSGD has no mean to send: its bits are the gradient's own signs
            zero = torch.zeros_like(prior.mean)
            prior = fit_prior(rotated, method.prior, segments, mean=zero)
        scale = prior.scale
        if method.side_bits is not None and method.aggregator not in VOTES:
            means = UniformQuantizer(method.side_bits, method.mean_limit)
            scales = LogQuantizer(method.side_bits, method.scale_low, method.scale_high)
            sent_mean = means.decode(means.encode(prior.mean)).to(prior.mean)
            prior = fit_prior(rotated, method.prior, segments, mean=sent_mean)
            scale = scales.decode(scales.encode(prior.scale)).to(prior.scale)
        packed = pack_above(rotated, prior.mean, segments)
        return Sent(packed, prior.mean, scale, prior.scale, prior.std)


def join(parts: Sequence[Sent]) -> Sent:
    """Put what several groups of devices sent into one."""
    if len(parts) == 1:
        return parts[0]
    names = ("packed", "mean", "scale", "true_scale", "std")
    return Sent(*(torch.cat([getattr(part, name) for part in parts]) for name in names))
