"""Packets of real bytes: the server decodes exactly what the simulation says was sent."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from signfade.device import Encoder, Packet, check_packet, decode_packets, make_packet
from signfade.keys import stream_key
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
    sent, _ = encoder.encode(encoder.rotate(gradients(), stream_key(1, "rotation", 4)))
    packets = [make_packet(encoder, sent, row, device=row + 5, round=4) for row in range(3)]
    received = [Packet.from_bytes(packet.to_bytes()) for packet in packets]
    for row, packet in enumerate(received):
        check_packet(encoder, packet)
        assert (packet.device, packet.round) == (row + 5, 4)
        bits = uplink_bits(encoder, CellSettings(perfect=True))
        scalars = packet.layers * ((packet.mean_bits or 32) + (packet.scale_bits or 32))
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
    sent, _ = encoder.encode(encoder.rotate(gradients()[:, : sum(layers)], 3))
    return make_packet(encoder, sent, 0, device=0, round=0)


@pytest.mark.parametrize(
    ("expected", "sent", "reason"),
    [
        ({}, packet({}, (50, 7)), "has 100 signs; got 57"),
        ({}, packet({"rotation": "shared"}), "has 100 signs; got 104"),
        ({}, packet({"scales": "layer"}), "has 1 means and scales; got 3"),
        ({}, packet({"aggregator": "signsgd"}), "has 1 means and scales; got 0"),
        ({"aggregator": "signsgd"}, packet({}), "has 0 means and scales; got 1"),
        ({}, packet({"side_bits": 6}), r"0 and 0 bits \(0: float32\); got 6 and 6"),
        ({"side_bits": 7}, packet({"side_bits": 6}), "7 and 7 bits .* got 6 and 6"),
        ({"side_bits": 6}, packet({"side_bits": 6}, exponents=()), "6 and 6 bits .* got 6 and 16"),
    ],
)
def test_a_packet_of_another_method_or_model_is_refused(
    expected: dict[str, object], sent: Packet, reason: str
) -> None:
    encoder = encoder_of(expected, exponents=(0,))
    with pytest.raises(ValueError, match=reason):
        check_packet(encoder, sent)


def test_a_code_that_nobody_uses_is_refused() -> None:
    encoder = Encoder(MethodSettings(side_bits=4), (3,), exponents=(0,))
    unused = Packet.make(
        torch.ones(3), torch.tensor([15]), torch.tensor([0]), mean_bits=4, scale_bits=4
    )  # a mean has fifteen levels, 0 to 14
    with pytest.raises(ValueError, match="codes"):
        check_packet(encoder, unused)
