"""Bits as they are sent: signs, packed eight to a byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from signfade._check import check_tensor

__all__ = ["Bits", "pack_signs", "sign", "unpack_signs"]


def sign(x: Tensor) -> Tensor:
    """Take the sign, one bit: -1 for x < 0 and +1 otherwise, in x's shape and dtype, without gradient.

    There is no third value: `torch.sign` gives 0 for 0, which no single bit can carry. NaN gives +1.

    Example:
        >>> sign(torch.tensor([-2.0, -0.0, 0.0, 3.0]))
        tensor([-1.,  1.,  1.,  1.])

    Reference: paper Sec. II, one-bit compression of the local gradient.
    """
    _check_signed("x", x.dtype)
    below = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    torch.lt(x.detach(), 0, out=below)  # 0 or 1, written in x's dtype without a boolean pass
    return below.mul_(-2).add_(1)


def pack_signs(signs: Tensor) -> Tensor:
    """Pack signs +1 and -1, `[..., M]`, eight to a byte: uint8 `[..., ceil(M/8)]` on the CPU; bit 1 is +1.

    The first sign is the most significant bit of the first byte (NumPy's `packbits`, bitorder "big"); the
    unused low bits of the last byte are 0.

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
    """Unpack what `pack_signs` packed: `size` signs per row, of a signed dtype, on the CPU.

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


@dataclass(frozen=True)
class Bits:
    """One bit per coordinate of K devices, packed as by `pack_signs`: what is sent over the air.

    Example:
        >>> bits = Bits.of(torch.tensor([[1.0, -1.0, 1.0]]))
        >>> bits.packed, bits.shape, bits.signs()
        (tensor([[160]], dtype=torch.uint8), (1, 3), tensor([[ 1., -1.,  1.]]))
    """

    packed: Tensor  # uint8 [K, ceil(M/8)]
    size: int  # M

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
