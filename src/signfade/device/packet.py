"""The packet a device sends in a round: its bits, the scalars of its prior, and what it takes to trust them.

Wire format, version 1. Integers are big-endian, bits go most significant first, and each of the three
sections is filled up to a whole byte with zero bits:

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
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.device.sign import pack_signs, unpack_signs

__all__ = ["Packet", "PacketError", "packet_overhead"]

_MAGIC = b"SFPK"
_VERSION = 1
_HEADER = struct.Struct(">4sBBBIIQI")
_CRC = struct.Struct(">I")


class PacketError(ValueError):
    """Bytes that are no packet, or a packet that cannot be."""


@dataclass(frozen=True)
class Packet:
    """One device's message of one round, as it goes over the air.

    The sections are kept packed, so that a packet is never larger than its bytes; `mean`, `scale` and `signs`
    unpack them. Use `make` to build one from tensors. A code says nothing about its quantiser: device and
    server agree on that beforehand, and the quantiser's `decode` refuses codes it does not use.

    Args:
        device: Number of the device, 32 bits.
        round: Number of the round, 32 bits.
        size: Number M of signs, 64 bits.
        layers: Number S of layers with a mean and a scale each, 32 bits; 0 for signs alone.
        mean_bits: Bits of a mean's code, 1 to 16, or 0 for float32.
        scale_bits: Bits of a scale's code, 1 to 16, or 0 for float32.
        mean_bytes: The S means, packed.
        scale_bytes: The S scales, packed; non-negative.
        sign_bytes: The M signs, packed as by `pack_signs`.

    Raises:
        PacketError: A number is out of range, a section has another length than it must, a bit that fills up
            a byte is set, or a float32 is not finite or, for a scale, negative.

    Example:
        >>> signs, mean_code, scale = torch.tensor([1.0, -1.0, 1.0]), torch.tensor([7]), torch.tensor([2.5])
        >>> packet = Packet.make(signs, mean_code, scale, device=3, round=9, mean_bits=4)
        >>> Packet.from_bytes(packet.to_bytes()) == packet
        True
        >>> packet.payload_bits, packet.side_bits, packet.header_bits, 8 * len(packet.to_bytes())
        (3, 36, 257, 296)

    Reference: paper Sec. IV-A, the uplink packet: 2B bits of side information beside M signs.
    """

    device: int
    round: int
    size: int
    layers: int
    mean_bits: int
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
        """Build a packet from tensors.

        Args:
            signs: +1 or -1, `[M]`.
            mean: Codes `[S]` if `mean_bits` is positive, else numbers `[S]`, sent as float32.
            scale: The same for the scales.
            device: Number of the device.
            round: Number of the round.
            mean_bits: Bits of a mean's code, or 0 for float32.
            scale_bits: Bits of a scale's code, or 0 for float32.

        Returns:
            The packet.

        Raises:
            PacketError: A shape, a dtype or a value cannot be sent.

        Example:
            >>> Packet.make(torch.ones(9), torch.zeros(0), torch.zeros(0)).total_bits
            264
        """
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

    @property
    def payload_bits(self) -> int:
        """Bits that carry signs: M."""
        return self.size

    @property
    def side_bits(self) -> int:
        """Bits that carry the prior: S means and S scales."""
        return self.layers * (_width(self.mean_bits) + _width(self.scale_bits))

    @property
    def header_bits(self) -> int:
        """All other bits: header, filling and CRC."""
        return packet_overhead(self.size, self.layers, self.mean_bits, self.scale_bits)

    @property
    def total_bits(self) -> int:
        """Bits on the wire, `8*len(to_bytes())`."""
        sections = len(self.mean_bytes) + len(self.scale_bytes) + len(self.sign_bytes)
        return 8 * (_HEADER.size + sections + _CRC.size)

    def to_bytes(self) -> bytes:
        """Return the packet in the wire format above.

        Example:
            >>> Packet.make(torch.ones(8), torch.zeros(0), torch.zeros(0)).to_bytes()[:5]
            b'SFPK\\x01'
        """
        numbers = (self.mean_bits, self.scale_bits, self.device, self.round, self.size, self.layers)
        header = _HEADER.pack(_MAGIC, _VERSION, *numbers)
        body = b"".join((header, self.mean_bytes, self.scale_bytes, self.sign_bytes))
        return body + _CRC.pack(zlib.crc32(body))

    @classmethod
    def from_bytes(cls, data: bytes) -> Packet:
        """Read a packet, trusting nothing.

        All lengths are compared with what is there before anything is copied, so no claim of the header can
        make this allocate more than the input's own size.

        Args:
            data: The bytes of exactly one packet.

        Returns:
            The packet; its `to_bytes()` equals data.

        Raises:
            PacketError: data is anything else.

        Example:
            >>> Packet.from_bytes(b"hello")
            Traceback (most recent call last):
            signfade.device.packet.PacketError: a packet has at least 31 bytes; got 5
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
        return cls(
            device=device,
            round=round_,
            size=size,
            layers=layers,
            mean_bits=mean_bits,
            scale_bits=scale_bits,
            mean_bytes=data[means:scales],
            scale_bytes=data[scales:signs],
            sign_bytes=data[signs:end],
        )


def packet_overhead(size: int, layers: int, mean_bits: int = 0, scale_bits: int = 0) -> int:
    """Return the bits of a packet that carry neither signs nor scalars: header, filling and CRC-32.

    Args:
        size: Number M of signs.
        layers: Number S of layers with a mean and a scale each.
        mean_bits: Bits of a mean's code, or 0 for float32.
        scale_bits: Bits of a scale's code, or 0 for float32.

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
