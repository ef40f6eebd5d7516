"""Error feedback in training: one memory a device, kept between rounds."""

from __future__ import annotations

import torch
from torch import Tensor

from signfade.device import lost_by_bits, unrotate
from signfade.learn.encode import Encoder, Sent
from signfade.learn.task import Devices

__all__ = ["Feedback"]

_LARGEST_MEMORY = 2 << 30


class Feedback:
    """What all devices' bits have lost so far, `[N, M]`.

    Args:
        encoder: The device's half of the method; its `error_feedback` is the part that is kept.
        population: Number of devices N.

    Raises:
        ValueError: The memories would take more than two gigabytes.

    Example:
        >>> from signfade.settings import MethodSettings
        >>> feedback = Feedback(Encoder(MethodSettings(error_feedback=1.0), (62_346,)), population=100_000)
        Traceback (most recent call last):
        ValueError: method.error_feedback keeps a gradient of 62346 numbers for each of 100000 devices, 24.9
            GB;
        at most 2.1 GB are given to it
    """

    def __init__(self, encoder: Encoder, population: int) -> None:
        self._encoder = encoder
        size = sum(encoder.layers)
        needed = 4 * size * population
        if needed > _LARGEST_MEMORY:
            raise ValueError(
                f"method.error_feedback keeps a gradient of {size} numbers for each of {population} devices, "
                f"{needed / 1e9:.1f} GB; at most {_LARGEST_MEMORY / 1e9:.1f} GB are given to it"
            )
        self._memory = torch.zeros(population, size)

    def add(self, gradients: Tensor, devices: Devices) -> Tensor:
        """Return what the devices want to send: their gradients `[k, M]` and what they still owe."""
        return gradients + self._memory[torch.from_numpy(devices)]

    def keep(self, rotated: Tensor, sent: Sent, devices: Devices, rotation_key: int) -> None:
        """Keep what the bits of `rotated` `[k, size]` lost, in the unrotated coordinates."""
        method = self._encoder.method
        lost = lost_by_bits(rotated, sent.packed, sent.mean, sent.scale, self._encoder.segments)
        if method.rotation == "hadamard":
            lost = unrotate(lost, rotation_key, self._memory.shape[1])
        self._memory[torch.from_numpy(devices)] = method.error_feedback * lost

    def state(self) -> dict[str, Tensor]:
        """Return what must be saved."""
        return {"memory": self._memory}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        self._memory = state["memory"].clone()
