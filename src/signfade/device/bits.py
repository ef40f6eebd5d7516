"""One bit per coordinate: taking signs, and packing them eight to a byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from signfade._check import check_finite, check_shape, check_tensor
from signfade.device.prior import check_segments
from signfade.kernels import pack_above

__all__ = ["Bits", "one_bit", "pack_signs", "sign", "unpack_signs"]


def sign(x: Tensor) -> Tensor:
    """Take the sign, one bit: there is no third value.

        sign(x) = -1 for x < 0, +1 otherwise; so sign(0) = sign(-0.0) = +1.

    `torch.sign` gives 0 for 0, which no single bit can carry. NaN is not looked for and gives +1.

    Args:
        x: Numbers of any shape and any signed dtype.

    Returns:
        +1 or -1, in x's shape and dtype, without gradient.

    Raises:
        ValueError: The dtype of x has no -1.

    Example:
        >>> sign(torch.tensor([-2.0, -0.0, 0.0, 3.0]))
        tensor([-1.,  1.,  1.,  1.])

    Reference: paper Sec. II, one-bit compression of the local gradient.
    """
    _check_signed("x", x.dtype)
    return _below_to_sign(x, torch.zeros((), dtype=x.dtype, device=x.device))


@dataclass(frozen=True)
class Bits:
    """One bit per coordinate of K devices, eight to a byte: what is sent over the air.

    Attributes:
        packed: uint8 `[K, ceil(M/8)]`; bit 1 is +1, the first coordinate is the top bit, unused bits are 0.
        size: Number of coordinates M.

    Example:
        >>> bits = Bits.of(torch.tensor([[1.0, -1.0, 1.0]]))
        >>> bits.packed, bits.shape
        (tensor([[160]], dtype=torch.uint8), (1, 3))
        >>> bits.signs()
        tensor([[ 1., -1.,  1.]])
    """

    packed: Tensor
    size: int

    def __post_init__(self) -> None:
        check_tensor("packed", self.packed)
        width = -(-self.size // 8)
        if self.packed.dtype != torch.uint8 or self.packed.dim() != 2 or self.packed.shape[1] != width:
            got = f"{self.packed.dtype} {list(self.packed.shape)}"
            raise ValueError(f"packed must be uint8 [K, {width}] for {self.size} bits; got {got}")

    @classmethod
    def of(cls, signs: Tensor) -> Bits:
        """Pack signs, +1 or -1, `[K, M]`."""
        check_tensor("signs", signs)
        if signs.dim() != 2:
            raise ValueError(f"signs must have shape [K, M]; got {list(signs.shape)}")
        return cls(pack_signs(signs), signs.shape[1])

    @classmethod
    def join(cls, parts: Sequence[Bits]) -> Bits:
        """Put the bits of several groups of devices into one."""
        return cls(torch.cat([part.packed for part in parts]), parts[0].size)

    def __len__(self) -> int:
        return len(self.packed)

    @property
    def shape(self) -> tuple[int, int]:
        """`(K, M)`."""
        return len(self.packed), self.size

    def __getitem__(self, rows: slice) -> Bits:
        return Bits(self.packed[rows], self.size)

    def signs(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the signs, +1 or -1, `[K, M]`."""
        return unpack_signs(self.packed, self.size, dtype)


def one_bit(g: Tensor, mean: Tensor, segments: Sequence[int] | None = None) -> Bits:
    """Compress every device's gradient to the signs of its centred coordinates.

        s = sign(g - mean)

    `mean` is the mean the device sends, as the server will decode it: the posterior mean of the server is
    right only about the threshold that was really used. Compared, not subtracted, so that nothing rounds.

    Args:
        g: Gradients, `[K, M]`, float32 or float64, finite.
        mean: Thresholds, `[K]` or `[K, M]`; with segments `[K, S]`.
        segments: Lengths of the S layers, which sum to M; None for one threshold per device or coordinate.

    Returns:
        The bits, packed; `one_bit(...).signs()` are the signs as numbers.

    Raises:
        ValueError: A shape is wrong, g or mean is not finite, or the segments do not sum to M.

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
        check_shape("mean", mean, (devices,), (devices, size))
        if mean.dim() == 2 and size != 1:
            return Bits(pack_signs(_below_to_sign(g, mean)), size)
        return Bits(pack_above(g, mean.reshape(devices, 1)), size)
    lengths = check_segments(segments, size)
    check_shape("mean", mean, (devices, len(lengths)))
    return Bits(pack_above(g, mean, lengths), size)


def pack_signs(signs: Tensor) -> Tensor:
    """Pack signs eight to a byte: bit 1 is +1, bit 0 is -1.

    The first sign is the most significant bit of the first byte (NumPy's `packbits`, bitorder "big"); the
    unused low bits of the last byte are 0.

    Args:
        signs: +1 or -1 of any signed dtype, `[..., M]`.

    Returns:
        uint8, `[..., ceil(M/8)]`, on the CPU.

    Raises:
        ValueError: An entry is neither +1 nor -1.

    Example:
        >>> pack_signs(torch.tensor([1, -1, -1, -1, -1, -1, -1, 1, 1]))
        tensor([129, 128], dtype=torch.uint8)
    """
    if signs.dim() == 0:
        raise ValueError("signs must have shape [..., M]; got a scalar")
    _check_signed("signs", signs.dtype)
    values = signs.detach().cpu()
    plus = (values == 1).numpy()
    if not bool((plus | (values == -1).numpy()).all()):
        raise ValueError("signs must be +1 or -1; got another value")
    return torch.from_numpy(np.packbits(plus, axis=-1))


def unpack_signs(packed: Tensor, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Unpack what `pack_signs` packed.

    Args:
        packed: uint8, `[..., ceil(size/8)]`, in the bit order of `pack_signs`.
        size: Number M of signs in a row.
        dtype: Type of the result, signed.

    Returns:
        +1 or -1, `[..., size]`, on the CPU.

    Raises:
        ValueError: The bytes do not fit the size, one of the unused bits is set, or the dtype has no -1.

    Example:
        >>> unpack_signs(torch.tensor([129, 128], dtype=torch.uint8), 9, dtype=torch.int8)
        tensor([ 1, -1, -1, -1, -1, -1, -1,  1,  1], dtype=torch.int8)
    """
    if size < 0:
        raise ValueError(f"size must be non-negative; got {size}")
    _check_signed("dtype", dtype)
    width = -(-size // 8)
    if packed.dtype != torch.uint8 or packed.dim() == 0 or packed.shape[-1] != width:
        got = f"{packed.dtype} {list(packed.shape)}"
        raise ValueError(f"packed must be uint8 [..., {width}] for {size} signs; got {got}")
    values = packed.detach().cpu().numpy()
    if size % 8 and bool((values[..., -1] & (0xFF >> size % 8)).any()):
        raise ValueError(f"packed must have its unused bits zero; some are set after sign {size}")
    bits = np.unpackbits(values, axis=-1, count=size)
    return torch.from_numpy(bits).to(dtype).mul_(2).sub_(1)


def _check_signed(name: str, dtype: torch.dtype) -> None:
    if dtype.is_complex or not dtype.is_signed:
        raise ValueError(f"{name} must have a real dtype that holds -1; got {dtype}")


def _below_to_sign(x: Tensor, threshold: Tensor) -> Tensor:
    """Return -1 where x < threshold and +1 elsewhere, in x's dtype."""
    below = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    torch.lt(x.detach(), threshold.detach(), out=below)  # 0 or 1, written in x's dtype without a boolean pass
    return below.mul_(-2).add_(1)
