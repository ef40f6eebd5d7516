"""Bits as they are sent: signs, packed eight to a byte, and the packet of one device and round.

Wire format of a packet, version 1. Integers are big-endian, bits go most significant first, and each of the
three sections is filled up to a whole byte with zero bits:

    "SFPK", version 8 bits, Bm 8, Bs 8, device 32, round 32, size M 64, layers S 32
    S means, Bm bits each   (Bm = 0: float32 each)
    S scales, Bs bits each  (Bs = 0: float32 each)
    M signs, one bit each   (1 is +1)
    CRC-32 of all of the above

Every packet has one encoding only: what `from_bytes` accepts, `to_bytes` gives back byte for byte.
"""

from __future__ import annotations

import math
import operator
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade._check import check_tensor

__all__ = ["Bits", "Packet", "PacketError", "pack_signs", "packet_overhead", "sign", "unpack_signs"]

_MAGIC = b"SFPK"
_VERSION = 1
_HEADER = struct.Struct(">4sBBBIIQI")
_CRC = struct.Struct(">I")


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


class PacketError(ValueError):
    """Bytes that are no packet, or a packet that cannot be."""


@dataclass(frozen=True)
class Packet:
    """One device's message of one round, as it goes over the air; `make` builds one from tensors.

    The sections are kept packed, so that a packet is never larger than its bytes; `mean`, `scale` and `signs`
    unpack them. A code says nothing about its quantiser: device and server agree on that beforehand, and the
    quantiser's `decode` refuses codes it does not use.

    Example:
        >>> signs, mean_code, scale = torch.tensor([1.0, -1.0, 1.0]), torch.tensor([7]), torch.tensor([2.5])
        >>> packet = Packet.make(signs, mean_code, scale, device=3, round=9, mean_bits=4)
        >>> Packet.from_bytes(packet.to_bytes()) == packet
        True

    Reference: paper Sec. IV-A, the uplink packet: 2B bits of side information beside M signs.
    """

    device: int
    round: int
    size: int  # number M of signs
    layers: int  # number S of layers with a mean and a scale each; 0 for signs alone
    mean_bits: int  # of a mean's code, 1 to 16, or 0 for float32
    scale_bits: int
    mean_bytes: bytes
    scale_bytes: bytes
    sign_bytes: bytes

    def __post_init__(self) -> None:
        for name, width in (("device", 32), ("round", 32), ("size", 64), ("layers", 32)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**width:
                raise PacketError(f"{name} must be an integer of {width} bits; got {value!r}")
        _check_code_bits(self.mean_bits, self.scale_bits)
        _check_section("mean_bytes", self.mean_bytes, self.layers, _width(self.mean_bits))
        _check_section("scale_bytes", self.scale_bytes, self.layers, _width(self.scale_bits))
        _check_section("sign_bytes", self.sign_bytes, self.size, 1)
        if self.mean_bits == 0:
            _check_floats("mean", self.mean_bytes)
        if self.scale_bits == 0:
            _check_floats("scale", self.scale_bytes, signed=False)

    @classmethod
    def make(
        cls,
        signs: Tensor,
        mean: Tensor,
        scale: Tensor,
        *,
        device: int = 0,
        round: int = 0,
        mean_bits: int = 0,
        scale_bits: int = 0,
    ) -> Packet:
        """Build a packet from signs `[M]` and means and scales `[S]`: codes, or numbers where bits are 0."""
        for name, value in (("signs", signs), ("mean", mean), ("scale", scale)):
            if value.dim() != 1:
                raise PacketError(f"{name} must have one dimension; got shape {list(value.shape)}")
        if len(mean) != len(scale):
            raise PacketError(f"mean and scale must be equally many; got {len(mean)} and {len(scale)}")
        _check_code_bits(mean_bits, scale_bits)
        try:
            packed = pack_signs(signs)
        except ValueError as error:
            raise PacketError(str(error)) from None
        return cls(
            device=_plain(device),
            round=_plain(round),
            size=len(signs),
            layers=len(mean),
            mean_bits=mean_bits,
            scale_bits=scale_bits,
            mean_bytes=_pack_scalars("mean", mean, mean_bits),
            scale_bytes=_pack_scalars("scale", scale, scale_bits),
            sign_bytes=packed.numpy().tobytes(),
        )

    @property
    def mean(self) -> Tensor:
        """The S means: int64 codes, or float32 numbers if `mean_bits` is 0."""
        return _unpack_scalars(self.mean_bytes, self.layers, self.mean_bits)

    @property
    def scale(self) -> Tensor:
        """The S scales: int64 codes, or float32 numbers if `scale_bits` is 0."""
        return _unpack_scalars(self.scale_bytes, self.layers, self.scale_bits)

    @property
    def signs(self) -> Tensor:
        """The M signs, +1 or -1, float32."""
        packed = np.frombuffer(self.sign_bytes, dtype=np.uint8)
        return unpack_signs(torch.from_numpy(packed.copy()), self.size)

    def to_bytes(self) -> bytes:
        """Return the packet in the wire format above."""
        numbers = (self.mean_bits, self.scale_bits, self.device, self.round, self.size, self.layers)
        header = _HEADER.pack(_MAGIC, _VERSION, *numbers)
        body = b"".join((header, self.mean_bytes, self.scale_bytes, self.sign_bytes))
        return body + _CRC.pack(zlib.crc32(body))

    @classmethod
    def from_bytes(cls, data: bytes) -> Packet:
        """Read the bytes of exactly one packet, trusting nothing; raise a `PacketError` for all else.

        All lengths are compared with what is there before anything is copied, so no claim of the header can
        make this allocate more than the input's own size.

        Example:
            >>> Packet.from_bytes(b"hello")
            Traceback (most recent call last):
            signfade.device.bits.PacketError: a packet has at least 31 bytes; got 5
        """
        if not isinstance(data, bytes):
            raise PacketError(f"data must be bytes; got {type(data).__name__}")
        least = _HEADER.size + _CRC.size
        if len(data) < least:
            raise PacketError(f"a packet has at least {least} bytes; got {len(data)}")
        magic, version, mean_bits, scale_bits, device, round_, size, layers = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise PacketError(f"a packet begins with {_MAGIC!r}; got {magic!r}")
        if version != _VERSION:
            raise PacketError(f"this reads packets of version {_VERSION}; got version {version}")
        _check_code_bits(mean_bits, scale_bits)
        means = _HEADER.size
        scales = means + _length(layers, _width(mean_bits))
        signs = scales + _length(layers, _width(scale_bits))
        end = signs + _length(size, 1)
        if len(data) != end + _CRC.size:
            raise PacketError(
                f"a packet of {size} signs and {layers} layers has {end + _CRC.size} bytes; got {len(data)}"
            )
        if zlib.crc32(memoryview(data)[:end]) != _CRC.unpack_from(data, end)[0]:
            raise PacketError("the CRC-32 does not match: the packet was damaged on its way")
        sections = (data[means:scales], data[scales:signs], data[signs:end])
        return cls(device, round_, size, layers, mean_bits, scale_bits, *sections)


def packet_overhead(size: int, layers: int, mean_bits: int = 0, scale_bits: int = 0) -> int:
    """Return the bits of a packet that carry neither signs nor scalars: header, filling and CRC-32.

    Example:
        >>> packet_overhead(size=62_346, layers=1, mean_bits=4, scale_bits=4)  # 31 bytes, 4 + 4 + 6 bits
        262
    """
    sections = ((layers, _width(mean_bits)), (layers, _width(scale_bits)), (size, 1))
    filling = sum(8 * _length(count, width) - count * width for count, width in sections)
    return 8 * (_HEADER.size + _CRC.size) + filling


def _plain(number: int) -> int:
    """Return NumPy's and torch's integers as Python's; what is no integer as it is, to be refused."""
    try:
        return operator.index(number)
    except TypeError:
        return number


def _width(bits: int) -> int:
    """Bits a scalar takes on the wire."""
    return bits or 32


def _length(count: int, width: int) -> int:
    """Bytes of a section."""
    return -(-count * width // 8)


def _check_code_bits(mean_bits: int, scale_bits: int) -> None:
    for name, bits in (("mean_bits", mean_bits), ("scale_bits", scale_bits)):
        if isinstance(bits, bool) or not isinstance(bits, int) or not 0 <= bits <= 16:
            raise PacketError(f"{name} must be an integer in 0..16; got {bits!r}")


def _check_section(name: str, section: bytes, count: int, width: int) -> None:
    if not isinstance(section, bytes) or len(section) != _length(count, width):
        got = f"{len(section)} bytes" if isinstance(section, bytes) else type(section).__name__
        raise PacketError(f"{name} must be {_length(count, width)} bytes; got {got}")
    spare = 8 * len(section) - count * width
    if spare and section[-1] & ((1 << spare) - 1):
        raise PacketError(f"{name} must end in {spare} zero bits; some are set")


def _check_floats(name: str, section: bytes, signed: bool = True) -> None:
    if not section:
        return
    values = np.frombuffer(section, dtype=">f4")
    with np.errstate(invalid="ignore"):  # a signalling NaN
        low, high = float(values.min()), float(values.max())  # NaN wins both, and nothing is copied
    if not (math.isfinite(low) and math.isfinite(high)):
        raise PacketError(f"{name} must be finite; got NaN or infinity")
    if not signed and low < 0:
        raise PacketError(f"{name} must be non-negative; its smallest is {low:g}")


def _pack_scalars(name: str, values: Tensor, bits: int) -> bytes:
    array = values.detach().cpu()
    if bits == 0:
        if not array.is_floating_point():
            raise PacketError(f"{name} must be floating point when {name}_bits is 0; got {array.dtype}")
        return array.float().numpy().astype(">f4").tobytes()
    if array.dtype == torch.bool or array.is_floating_point() or array.is_complex():
        raise PacketError(f"{name} must be integer codes when {name}_bits is {bits}; got {array.dtype}")
    codes: NDArray[np.int64] = array.long().numpy()
    if bool(((codes < 0) | (codes >> bits != 0)).any()):
        raise PacketError(f"{name} must be codes in 0..{2**bits - 1}; got {codes.min()}..{codes.max()}")
    digits = (codes[:, None] >> np.arange(bits - 1, -1, -1)) & 1
    return np.packbits(digits.astype(np.uint8).ravel()).tobytes()


def _unpack_scalars(section: bytes, count: int, bits: int) -> Tensor:
    if bits == 0:
        return torch.from_numpy(np.frombuffer(section, dtype=">f4").astype(np.float32))
    digits = np.unpackbits(np.frombuffer(section, dtype=np.uint8), count=count * bits).reshape(count, bits)
    return torch.from_numpy(digits.astype(np.int64) @ (1 << np.arange(bits - 1, -1, -1)))
