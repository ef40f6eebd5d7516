"""Packets of real bytes: the server decodes exactly what the simulation says was sent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from signfade.device import Encoder, Packet, PacketError, decode_packets, make_packet, read_packet
from signfade.keys import stream_keys
from signfade.server import AGGREGATORS
from signfade.settings import CellSettings, MethodSettings
from signfade.uplink.cost import uplink_bits

LAYERS = (50, 7, 43)
METHODS: dict[str, dict[str, object]] = {
    "floats": {},
    "coded": {"side_bits": 6},
    "layers": {"scales": "layer"},
    "coded layers": {"scales": "layer", "side_bits": 5},
    "rotated": {"rotation": "shared"},
    "votes": {"aggregator": "signsgd", "side_bits": 6},
    "tally": {"aggregator": "signsum"},
    "joint": {"preset": "best", "side_bits": 9},
    "private": {"rotation": "private", "side_bits": 4},
    "private floats": {"rotation": "private"},
    "subset": {"rotation": "private", "bits_per_weight": 0.1, "side_bits": 4},
    "shared subset": {"rotation": "shared", "bits_per_weight": 0.3},
    "levels": {"rotation": "private", "bits_per_weight": 3, "side_bits": 5},
    "subset votes": {"aggregator": "signsgd", "rotation": "shared", "bits_per_weight": 0.5},
}


def encoder_of(
    method: dict[str, object], layers: tuple[int, ...] = LAYERS, exponents: tuple[int, ...] = ()
) -> Encoder:
    settings = MethodSettings.model_validate(method)
    return Encoder(settings, layers, AGGREGATORS.find(settings.aggregator).sends_scalars, exponents)


def gradients(devices: int = 3) -> torch.Tensor:
    return 0.03 * torch.randn(devices, sum(LAYERS), generator=torch.Generator().manual_seed(5)) + 0.01


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", METHODS)
def test_the_server_reads_what_was_sent(name: str, first: bool) -> None:
    encoder = encoder_of(METHODS[name])
    if not first:
        encoder = replace(encoder, exponents=(-5,) * len(encoder.segments))
    keys = stream_keys(1, "rotation", 4, np.arange(3))
    sent, _ = encoder.encode(encoder.rotate(gradients(), keys), rotation_keys=keys)
    packets = [make_packet(encoder, sent, row, device=row + 5, round=65_540) for row in range(3)]
    received = [read_packet(encoder, packet.to_bytes()) for packet in packets]
    assert received == packets
    for row, packet in enumerate(received):
        assert (packet.device, packet.round) == (row + 5, 4)
        bits = uplink_bits(encoder, CellSettings(perfect=True))
        scalars = packet.layers * (packet.mean_bits + packet.scale_bits)
        assert (bits.signs, bits.scalars) == (packet.size, scalars)
        assert bits.total == 8 * len(packet.to_bytes())
    decoded = decode_packets(encoder, received)
    assert torch.equal(decoded.bits.packed, sent.bits.packed)
    if not encoder.sends_scalars:
        assert not decoded.mean.any()
        assert not decoded.scale.any()
    else:
        assert torch.equal(decoded.mean, sent.mean)
        assert torch.equal(decoded.scale, sent.scale)


@pytest.mark.parametrize("name", METHODS)
def test_a_mean_is_sent_unless_bits_are_about_zero(name: str) -> None:
    encoder = encoder_of(METHODS[name])
    without = name in ("private", "private floats", "subset", "shared subset", "levels") or "votes" in name
    assert encoder.sends_mean is not (without or name == "tally")
    assert (encoder.scalar_bits[0] > 0) is encoder.sends_mean
    assert (encoder.scalar_bits[1] > 0) is encoder.sends_scalars


@pytest.mark.parametrize(
    ("rate", "side_bits", "bits"),
    [
        (0.01, 4, 635 + 4 + 80 + 1),
        (0.03, 4, 1905 + 4 + 80 + 3),
        (0.1, 4, 6349 + 4 + 80 + 7),
        (1.0, 4, 63488 + 4 + 80 + 4),
        (0.01, None, 635 + 32 + 80 + 5),
        (1.0, None, 63488 + 32 + 80),
        (3.0, 4, 3 * 63488 + 4 + 80 + 4),
    ],
)
def test_the_papers_model_takes_so_many_bits(rate: float, side_bits: int | None, bits: int) -> None:
    """A rotation pads its 62,346 weights to 63,488 coordinates."""
    method = MethodSettings(rotation="private", bits_per_weight=rate, side_bits=side_bits)
    encoder = Encoder(method, (62_346,), exponents=() if side_bits is None else (0,))
    assert uplink_bits(encoder, CellSettings()).total == bits


@pytest.mark.parametrize("bits", range(1, 17))
def test_every_level_is_in_its_own_bin(bits: int) -> None:
    """Codes are taken from the float32 levels that were sent; they must be those of the numbers before."""
    encoder = Encoder(MethodSettings(side_bits=bits), (100,), exponents=(-8,))
    sent, _ = encoder.encode(gradients(50) * torch.logspace(-5, 1, 50)[:, None])
    packets = [make_packet(encoder, sent, row, device=row, round=0) for row in range(50)]
    decoded = decode_packets(encoder, packets)
    assert torch.equal(decoded.mean, sent.mean)
    assert torch.equal(decoded.scale, sent.scale)


def packet(
    method: dict[str, object], layers: tuple[int, ...] = LAYERS, exponents: tuple[int, ...] = (0,)
) -> Packet:
    encoder = encoder_of(method, layers, exponents)
    keys = np.full(3, 3, dtype=np.uint64)
    sent, _ = encoder.encode(encoder.rotate(gradients()[:, : sum(layers)], keys), rotation_keys=keys)
    return make_packet(encoder, sent, 0, device=0, round=0)


DIALLED = {"rotation": "private", "bits_per_weight": 0.1, "side_bits": 4}


@pytest.mark.parametrize(
    ("expected", "sent", "reason"),
    [
        ({}, packet({}, (50, 7)), "100 signs and 64 bits of scalars has 31 bytes; got 26"),
        ({}, packet({"rotation": "shared"}), "another method or model"),  # 100 signs, or 104, in 21 bytes
        ({}, packet({"scales": "layer"}), "has 31 bytes; got 47"),
        ({}, packet({"aggregator": "signsgd"}), "has 31 bytes; got 23"),
        ({"aggregator": "signsgd"}, packet({}), "100 signs and 0 bits of scalars has 23 bytes; got 31"),
        ({}, packet({"side_bits": 6}), "has 31 bytes; got 24"),
        ({"side_bits": 7}, packet({"side_bits": 6}), "has 25 bytes; got 24"),
        ({"side_bits": 5}, packet({"side_bits": 6}), "another method or model"),
        ({"side_bits": 6}, packet({"side_bits": 6}, exponents=()), "has 24 bytes; got 26"),
        (DIALLED, packet({**DIALLED, "side_bits": 3}), "another method or model"),
        (DIALLED, packet({**DIALLED, "bits_per_weight": 0.2}), "has 12 bytes; got 14"),
    ],
)
def test_a_packet_of_another_method_or_model_is_refused(
    expected: dict[str, object], sent: Packet, reason: str
) -> None:
    encoder = encoder_of(expected, exponents=(0,))
    with pytest.raises(PacketError, match=reason):
        read_packet(encoder, sent.to_bytes())


def test_a_code_that_nobody_uses_is_refused() -> None:
    encoder = Encoder(MethodSettings(side_bits=4), (3,), exponents=(0,))
    unused = Packet.make(
        torch.ones(3), torch.tensor([15]), torch.tensor([0]), mean_bits=4, scale_bits=4
    )  # a mean has fifteen levels, 0 to 14
    with pytest.raises(PacketError, match="codes"):
        read_packet(encoder, unused.to_bytes())
