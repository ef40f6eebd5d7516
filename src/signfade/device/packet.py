"""The packet of one device and round, as it is sent.

Wire format of a packet, version 2. Integers are big-endian, bits go most significant first:

    version 8 bits, device 24, round 16 (modulo 65,536)
    S means, S scales, M signs (1 is +1), filled up to a whole byte with zero bits
    CRC-32 of the agreed numbers and of all of the above

A mean and a scale have 1 to 16 bits, a code's, or 32, a float32's; 0 where none are sent. These widths, the
numbers S of layers and M of signs follow from the server's order. So they are not sent, but the CRC-32 begins
with them (M 64 bits, S 32, then 8 each): a packet of another method or model does not pass for one of this.

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

from signfade.device.bits import Bits, pack_signs, unpack_signs
from signfade.device.encoder import EXACT_BITS, Encoder, Message

__all__ = [
    "ROUNDS",
    "Packet",
    "PacketError",
    "decode_packets",
    "make_packet",
    "packet_overhead",
    "read_packet",
]

ROUNDS = 1 << 16  # after which a packet's number of the round begins again
_VERSION = 2
_HEADER = struct.Struct(">IH")  # version and device share a word
_AGREED = struct.Struct(">QIBB")
_CRC = struct.Struct(">I")


class PacketError(ValueError):
    """Bytes that are no packet, or a packet that cannot be."""


@dataclass(frozen=True)
class Packet:
    """One device's message of one round, as it goes over the air; `make` builds one from tensors.

    Scalars and signs are kept packed, so that a packet is never larger than its bytes; `mean`, `scale` and
    `signs` unpack them. A code says nothing about its quantiser: device and server agree on that beforehand,
    and the quantiser's `decode` refuses codes it does not use.

    Example:
        >>> signs, mean_code, scale = torch.tensor([1.0, -1.0, 1.0]), torch.tensor([7]), torch.tensor([2.5])
        >>> packet = Packet.make(signs, mean_code, scale, device=3, round=9, mean_bits=4)
        >>> data = packet.to_bytes()  # 6 bytes of header, 4 + 32 + 3 bits and one to fill up, 4 of CRC-32
        >>> len(data), Packet.from_bytes(data, size=3, layers=1, mean_bits=4, scale_bits=32) == packet
        (15, True)

    Reference: paper Sec. IV-A, the uplink packet: 2B bits of side information beside M signs.
    """

    device: int
    round: int  # modulo `ROUNDS`
    size: int  # number M of signs
    layers: int  # number S of layers with a scale, and a mean, each; 0 for signs alone
    mean_bits: int  # 1 to 16 of a code, 32 of a float32, 0 without means
    scale_bits: int
    body: bytes  # means, scales and signs

    def __post_init__(self) -> None:
        _check_agreed(self.size, self.layers, self.mean_bits, self.scale_bits)
        _check_integer("device", self.device, 24)
        _check_integer("round", self.round, 16)
        bits = _body_bits(self.size, self.layers, self.mean_bits, self.scale_bits)
        if not isinstance(self.body, bytes) or len(self.body) != -(-bits // 8):
            got = f"{len(self.body)} bytes" if isinstance(self.body, bytes) else type(self.body).__name__
            raise PacketError(f"body must be {-(-bits // 8)} bytes; got {got}")
        spare = -bits % 8
        if spare and self.body[-1] & ((1 << spare) - 1):
            raise PacketError(f"body must end in {spare} zero bits; some are set")
        if self.mean_bits == EXACT_BITS:
            _check_floats("mean", self._packed_mean)
        if self.scale_bits == EXACT_BITS:
            _check_floats("scale", self._packed_scale, signed=False)

    @classmethod
    def make(
        cls,
        signs: Tensor,
        mean: Tensor,
        scale: Tensor,
        *,
        device: int = 0,
        round: int = 0,
        mean_bits: int = EXACT_BITS,
        scale_bits: int = EXACT_BITS,
    ) -> Packet:
        """Build a packet from signs `[M]` and means and scales `[S]`, codes or numbers; `[0]` with 0 bits."""
        layers = max(mean.numel(), scale.numel())
        _check_agreed(len(signs), layers, mean_bits, scale_bits)
        for name, value in (("signs", signs), ("mean", mean), ("scale", scale)):
            if value.dim() != 1:
                raise PacketError(f"{name} must have one dimension; got shape {list(value.shape)}")
        for name, value, bits in (("mean", mean, mean_bits), ("scale", scale, scale_bits)):
            if len(value) != (layers if bits else 0):
                must = f"{layers} numbers of {bits} bits" if bits else "empty where its bits are 0"
                raise PacketError(f"{name} must be {must}; got {len(value)}")
        try:
            packed = pack_signs(signs).numpy()
        except ValueError as error:
            raise PacketError(str(error)) from None
        scalars = _digits("mean", mean, mean_bits), _digits("scale", scale, scale_bits)
        body = np.packbits(np.concatenate([*scalars, np.unpackbits(packed, count=len(signs))])).tobytes()
        return cls(_plain(device), _plain(round), len(signs), layers, mean_bits, scale_bits, body)

    @property
    def mean(self) -> Tensor:
        """The S means: int64 codes or float32 numbers; none if `mean_bits` is 0."""
        return _scalars(self._packed_mean, self.layers, self.mean_bits)

    @property
    def scale(self) -> Tensor:
        """The S scales: int64 codes or float32 numbers; none if `scale_bits` is 0."""
        return _scalars(self._packed_scale, self.layers, self.scale_bits)

    @property
    def signs(self) -> Tensor:
        """The M signs, +1 or -1, float32."""
        return unpack_signs(torch.from_numpy(self.packed_signs.copy()), self.size)

    @property
    def packed_signs(self) -> NDArray[np.uint8]:
        """The signs as `pack_signs` packs them, `[ceil(M/8)]`."""
        return _cut(self.body, self.layers * (self.mean_bits + self.scale_bits), self.size)

    @property
    def _packed_mean(self) -> NDArray[np.uint8]:
        return _cut(self.body, 0, self.layers * self.mean_bits)

    @property
    def _packed_scale(self) -> NDArray[np.uint8]:
        return _cut(self.body, self.layers * self.mean_bits, self.layers * self.scale_bits)

    def to_bytes(self) -> bytes:
        """Return the packet in the wire format above."""
        sent = _HEADER.pack(_VERSION << 24 | self.device, self.round) + self.body
        agreed = zlib.crc32(_AGREED.pack(self.size, self.layers, self.mean_bits, self.scale_bits))
        return sent + _CRC.pack(zlib.crc32(sent, agreed))

    @classmethod
    def from_bytes(cls, data: bytes, *, size: int, layers: int, mean_bits: int, scale_bits: int) -> Packet:
        """Read the bytes of exactly one packet, trusting nothing; raise a `PacketError` for all else.

        Example:
            >>> Packet.from_bytes(b"hello", size=3, layers=1, mean_bits=4, scale_bits=32)
            Traceback (most recent call last):
            signfade.device.packet.PacketError: a packet of 3 signs and 36 bits of scalars has 15 bytes; got 5
        """
        _check_agreed(size, layers, mean_bits, scale_bits)
        if not isinstance(data, bytes):
            raise PacketError(f"data must be bytes; got {type(data).__name__}")
        bits = _body_bits(size, layers, mean_bits, scale_bits)
        end = _HEADER.size - (-bits // 8)
        if len(data) != end + _CRC.size:
            what = f"a packet of {size} signs and {bits - size} bits of scalars"
            raise PacketError(f"{what} has {end + _CRC.size} bytes; got {len(data)}")
        word, round_ = _HEADER.unpack_from(data)
        if word >> 24 != _VERSION:
            raise PacketError(f"this reads packets of version {_VERSION}; got version {word >> 24}")
        agreed = zlib.crc32(_AGREED.pack(size, layers, mean_bits, scale_bits))
        if zlib.crc32(memoryview(data)[:end], agreed) != _CRC.unpack_from(data, end)[0]:
            raise PacketError("the CRC-32 does not match: damaged on its way, or of another method or model")
        device, body = word & 0xFFFFFF, data[_HEADER.size : end]
        return cls(device, round_, size, layers, mean_bits, scale_bits, body)


def packet_overhead(size: int, layers: int, mean_bits: int = EXACT_BITS, scale_bits: int = EXACT_BITS) -> int:
    """Return the bits of a packet that carry neither signs nor scalars: header, filling and CRC-32.

    Example:
        >>> packet_overhead(size=62_346, layers=1, mean_bits=4, scale_bits=4)  # 10 bytes, 6 bits
        86
    """
    return 8 * (_HEADER.size + _CRC.size) + -_body_bits(size, layers, mean_bits, scale_bits) % 8


def make_packet(encoder: Encoder, message: Message, row: int, *, device: int, round: int) -> Packet:
    """Return the packet of one device, the `row`-th of a message.

    Example:
        >>> from signfade.settings import MethodSettings
        >>> encoder = Encoder(MethodSettings(side_bits=8), layers=(3,))
        >>> message, _ = encoder.encode(torch.tensor([[0.2, -0.1, 0.05]]))
        >>> packet = make_packet(encoder, message, 0, device=7, round=2)
        >>> packet.mean_bits, packet.scale_bits  # the first round's scales are on the wide grid
        (8, 16)
    """
    mean, scale = message.mean[row], message.scale[row]
    if encoder.quantised:  # what was sent are levels already: each is in its own bin
        mean, scale = encoder.scalar_code.encode(mean, scale)
    mean, scale = mean[: None if encoder.sends_mean else 0], scale[: None if encoder.sends_scalars else 0]
    signs = message.bits[row : row + 1].signs()[0]
    mean_bits, scale_bits = encoder.scalar_bits
    return Packet.make(
        signs, mean, scale, device=device, round=round % ROUNDS, mean_bits=mean_bits, scale_bits=scale_bits
    )


def read_packet(encoder: Encoder, data: bytes) -> Packet:
    """Read the bytes of a packet of this round; raise a `PacketError` unless the method's devices send such.

    Example:
        >>> from signfade.settings import MethodSettings
        >>> other = Packet.make(torch.ones(9), torch.zeros(1), torch.ones(1)).to_bytes()
        >>> read_packet(Encoder(MethodSettings(), layers=(3,)), other)
        Traceback (most recent call last):
        signfade.device.packet.PacketError: a packet of 3 signs and 64 bits of scalars has 19 bytes; got 20
    """
    mean_bits, scale_bits = encoder.scalar_bits
    layers = len(encoder.segments) if encoder.sends_scalars else 0
    packet = Packet.from_bytes(
        data, size=encoder.size, layers=layers, mean_bits=mean_bits, scale_bits=scale_bits
    )
    try:
        _decode(encoder, packet)
    except ValueError as error:
        raise PacketError(str(error)) from None
    return packet


def decode_packets(encoder: Encoder, packets: Sequence[Packet]) -> Message:
    """Decode K packets that were read by `read_packet`; scalars are zero where the method sends none."""
    mean, scale = zip(*(_decode(encoder, packet) for packet in packets), strict=True)
    bits = Bits(torch.from_numpy(np.stack([packet.packed_signs for packet in packets])), encoder.size)
    nothing = torch.zeros(len(packets), 2, dtype=torch.int64)
    return Message(bits, torch.stack(mean), torch.stack(scale), nothing)


def _decode(encoder: Encoder, packet: Packet) -> tuple[Tensor, Tensor]:
    """Return the means and scales of one packet, `[S]` each, float32."""
    zero = torch.zeros(len(encoder.segments))
    if not encoder.sends_scalars:
        return zero, zero
    return encoder.read_scalars(packet.mean if encoder.sends_mean else zero.long(), packet.scale)


def _plain(number: int) -> int:
    """Return NumPy's and torch's integers as Python's; what is no integer as it is, to be refused."""
    try:
        return operator.index(number)
    except TypeError:
        return number


def _body_bits(size: int, layers: int, mean_bits: int, scale_bits: int) -> int:
    return layers * (mean_bits + scale_bits) + size


def _check_integer(name: str, value: int, width: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**width:
        raise PacketError(f"{name} must be an integer of {width} bits; got {value!r}")


def _check_agreed(size: int, layers: int, mean_bits: int, scale_bits: int) -> None:
    _check_integer("size", size, 64)
    _check_integer("layers", layers, 32)
    for name, bits in (("mean_bits", mean_bits), ("scale_bits", scale_bits)):
        if isinstance(bits, bool) or not isinstance(bits, int) or bits not in (*range(17), EXACT_BITS):
            raise PacketError(f"{name} must be an integer in 0..16 or {EXACT_BITS}; got {bits!r}")


def _check_floats(name: str, packed: NDArray[np.uint8], signed: bool = True) -> None:
    if not len(packed):
        return
    values = packed.view(">f4")
    with np.errstate(invalid="ignore"):  # a signalling NaN
        low, high = float(values.min()), float(values.max())  # NaN wins both, and nothing is copied
    if not (math.isfinite(low) and math.isfinite(high)):
        raise PacketError(f"{name} must be finite; got NaN or infinity")
    if not signed and low < 0:
        raise PacketError(f"{name} must be non-negative; its smallest is {low:g}")


def _cut(data: bytes, start: int, count: int) -> NDArray[np.uint8]:
    """Return `count` bits from bit `start` on, packed anew; nothing is copied where bytes begin and end."""
    first, shift = divmod(start, 8)
    found: NDArray[np.uint8] = np.frombuffer(data, dtype=np.uint8)[first : -(-(start + count) // 8)]
    if shift:
        after = np.append(found[1:], np.uint8(0))
        found = (found << np.uint8(shift)) | (after >> np.uint8(8 - shift))
        found = found[: -(-count // 8)]
    if count % 8:
        found = found.copy()
        found[-1] &= 0xFF << (-count % 8) & 0xFF
    return found


def _digits(name: str, values: Tensor, bits: int) -> NDArray[np.uint8]:
    """Return the binary digits of codes or of float32 numbers, one after the other."""
    array = values.detach().cpu()
    if bits == EXACT_BITS:
        if not array.is_floating_point():
            raise PacketError(f"{name} must be floating point when {name}_bits is {bits}; got {array.dtype}")
        return np.unpackbits(array.float().numpy().astype(">f4").view(np.uint8))
    if bits and (array.dtype == torch.bool or array.is_floating_point() or array.is_complex()):
        raise PacketError(f"{name} must be integer codes when {name}_bits is {bits}; got {array.dtype}")
    codes: NDArray[np.int64] = array.long().numpy()
    if bool(((codes < 0) | (codes >> bits != 0)).any()):
        raise PacketError(f"{name} must be codes in 0..{2**bits - 1}; got {codes.min()}..{codes.max()}")
    return ((codes[:, None] >> np.arange(bits - 1, -1, -1)) & 1).astype(np.uint8).ravel()


def _scalars(packed: NDArray[np.uint8], count: int, bits: int) -> Tensor:
    if bits == EXACT_BITS:
        return torch.from_numpy(packed.view(">f4").astype(np.float32))
    digits = np.unpackbits(packed, count=count * bits).reshape(count if bits else 0, bits)
    return torch.from_numpy(digits.astype(np.int64) @ (1 << np.arange(bits - 1, -1, -1)))
