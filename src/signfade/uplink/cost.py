"""What a device sends in a round, item by item, and the symbols that takes."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

from signfade.device import EXACT_BITS, Encoder, packet_overhead
from signfade.settings import CellSettings
from signfade.uplink.code import codeword

__all__ = ["UplinkBits", "airtime_s", "bits_per_symbol", "channel_uses", "uplink_bits"]


@dataclass(frozen=True)
class UplinkBits:
    """Bits sent, by what they are for.

    Example:
        >>> UplinkBits(signs=300, scalars=16) + UplinkBits(signs=300, header=82)
        UplinkBits(signs=600, scalars=16, header=82, pilots=0, code=0, buffers=0)
    """

    signs: int = 0  # one per coordinate, the padding of a rotation included; 32 per weight for `ideal`
    scalars: int = 0  # means and scales
    header: int = 0  # the packet's header and CRC-32, and what fills it up to whole bytes
    pilots: int = 0  # known symbols, as many bits as they could have carried
    code: int = 0  # redundancy of a codeword, its check included, and signs repeated over the air
    buffers: int = 0  # numbers of the model that are not trained, 32 bits each

    @property
    def payload(self) -> int:
        """Signs and scalars, which is all that the paper counts."""
        return self.signs + self.scalars

    @property
    def total(self) -> int:
        """All items together."""
        return sum(astuple(self))

    def __add__(self, other: UplinkBits) -> UplinkBits:
        """Add item by item."""
        return UplinkBits(*(a + b for a, b in zip(astuple(self), astuple(other))))

    def times(self, devices: int) -> UplinkBits:
        """Return what so many devices send."""
        return UplinkBits(*(devices * bits for bits in astuple(self)))

    def record(self) -> dict[str, int]:
        """Return the numbers by their names in metrics.jsonl."""
        items = {f"bits.{one.name}": getattr(self, one.name) for one in fields(self)}
        return {"uplink_bits": self.total, "payload_bits": self.payload, **items}


def uplink_bits(encoder: Encoder, cell: CellSettings, buffers: int = 0, values: bool = False) -> UplinkBits:
    """Return what one device sends in this round, item by item.

    Signs and scalars go as one `Packet`. Coded scalars go as a codeword beside it, and over the air signs go
    without a packet. Where devices send the gradient itself (`values`, for `ideal`), only its weights count.
    `buffers` are the bits of the model's buffers.

    Example:
        >>> from signfade.settings import MethodSettings
        >>> uplink_bits(Encoder(MethodSettings(aggregator="sbfl"), (300,)), CellSettings(perfect=True))
        UplinkBits(signs=300, scalars=64, header=84, pilots=0, code=0, buffers=0)
    """
    if values:
        return UplinkBits(signs=EXACT_BITS * sum(encoder.layers), buffers=buffers)
    layers = len(encoder.segments) if encoder.sends_scalars else 0
    mean_bits, scale_bits = encoder.scalar_bits
    scalars = layers * (mean_bits + scale_bits)
    together, coded = cell.access == "over_the_air", cell.side_info == "coded" and layers > 0
    packed_signs, packed_layers = 0 if together else encoder.size, 0 if coded else layers
    header = 0
    if packed_signs or packed_layers:
        header = packet_overhead(packed_signs, packed_layers, mean_bits, scale_bits)
    code = (cell.repeats - 1) * encoder.size if together else 0
    if coded:
        code += codeword(encoder, cell).length - scalars
    pilots = cell.pilots * bits_per_symbol(cell) if cell.csi == "pilot" else 0
    return UplinkBits(encoder.size, scalars, header, pilots, code, buffers)


def channel_uses(encoder: Encoder, cell: CellSettings, devices: int) -> int:
    """Return how many symbols a round of so many devices takes, of all subchannels together.

    A packet and a codeword take a symbol for each bit or two; pilots are symbols. Over the air all devices'
    signs share theirs. Buffers are not counted.

    Example:
        >>> from signfade.settings import MethodSettings
        >>> encoder = Encoder(MethodSettings(), (300,), sends_scalars=False)
        >>> channel_uses(encoder, CellSettings(csi="pilot", pilots=4), 20)  # 300 signs, 84 bits of header
        7760
    """
    bits, per_symbol = uplink_bits(encoder, cell), bits_per_symbol(cell)
    together, coded = cell.access == "over_the_air", cell.side_info == "coded" and encoder.sends_scalars
    word = codeword(encoder, cell).length if coded else 0
    packet = bits.header + (0 if together else bits.signs) + (0 if coded else bits.scalars)
    per_device = -(-packet // per_symbol) + -(-word // per_symbol) + bits.pilots // per_symbol
    shared = cell.repeats * -(-bits.signs // per_symbol) if together else 0
    return shared + devices * per_device


def airtime_s(encoder: Encoder, cell: CellSettings, devices: int) -> float:
    """Return how long a round of so many devices is on the air, at one symbol per hertz and second.

    Devices send at the same time, each on its own subchannel; over the air they share one, on which what is
    not added up goes in turn.

    Example:
        >>> from signfade.settings import MethodSettings
        >>> encoder = Encoder(MethodSettings(), (300,), sends_scalars=False)  # 300 signs, 84 bits of header
        >>> airtime_s(encoder, CellSettings(bandwidth_hz=1e3), devices=20)
        0.384
    """
    taking_turns = devices if cell.access == "over_the_air" else 1
    return channel_uses(encoder, cell, taking_turns) / cell.bandwidth_hz


def bits_per_symbol(cell: CellSettings) -> int:
    """Return how many bits share a symbol."""
    return 2 if cell.modulation == "qpsk" else 1
