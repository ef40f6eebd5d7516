"""Sending bits over the air, lazily: symbols are made only when somebody asks for them.

Signal model, symbol m of device k in one round: `y = h s + n`, `s = +1 or -1`, `n ~ N(0, sigma2)` and real.
`sigma2` is the variance of the real noise on one symbol; the instantaneous SNR is `h**2 / sigma2`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade._check import check_shape
from signfade.device import Amplitudes, Bits
from signfade.kernels import received, standard_normal
from signfade.uplink.channel import Link

__all__ = ["Noise", "Signals", "symbols", "transmit"]

Noise = torch.Generator | NDArray[np.uint64]


@dataclass(frozen=True)
class Signals:
    """What the base station receives from K devices: `y = h s + n`, kept as bits, links and noise keys.

    The aggregators in `signfade.server` take `Signals` wherever they take a tensor `[K, M]`; they then add
    devices up in one fused pass that never stores the symbols.

    Attributes:
        bits: What the devices sent.
        link: The links as they are; what the server knows of them is an argument of the aggregators.
        keys: Keys of the noise streams, uint64 `[K]`. A device's noise depends on its key alone, not on its
            place among the others; it is float32 inside and stays within 6.4 deviations.
        dtype: Of the symbols.
    """

    bits: Bits | Amplitudes
    link: Link
    keys: NDArray[np.uint64]
    dtype: torch.dtype = torch.float32

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

    `sigma2` is the variance of the real noise on one symbol; signs have unit power.

    Args:
        bits: From `device.one_bit`, or signs +1 and -1, `[K, M]`, float32 or float64.
        h: Gains `[K]`.
        sigma2: Noise variances `[K]`; zero for a noiseless link.
        noise: The K uint64 keys of the devices' noise streams
            ([`keys.stream_keys`][signfade.keys.stream_keys]), or a torch.Generator to draw them from.

    Returns:
        The signals; `transmit(...).y` are the symbols `[K, M]`.

    Raises:
        ValueError: Shapes that do not match, a gain that is not finite, a negative variance, signs other than
            +1 and -1.

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
    return Signals(bits, Link(h, sigma2), noise_keys(noise, len(bits)), dtype)


def noise_keys(noise: Noise, devices: int) -> NDArray[np.uint64]:
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
