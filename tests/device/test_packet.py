"""Packets survive the round trip bit by bit, account for every bit, and nothing else gets in."""

from __future__ import annotations

import math
import struct
import tracemalloc
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from signfade.device import (
    LogQuantizer,
    Packet,
    PacketError,
    UniformQuantizer,
    fit_prior,
    one_bit,
    packet_overhead,
    spread,
)

HEADER = 6  # bytes before the scalars


def agreed(packet: Packet) -> dict[str, int]:
    """What a server knows of a packet beforehand."""
    return {name: getattr(packet, name) for name in ("size", "layers", "mean_bits", "scale_bits")}


def with_crc(body: bytes, size: int, layers: int, mean_bits: int, scale_bits: int) -> bytes:
    """Append the CRC-32 of the numbers that are agreed upon, and of what is sent."""
    return body + struct.pack(
        ">I", zlib.crc32(struct.pack(">QIBB", size, layers, mean_bits, scale_bits) + body)
    )


def reseal(data: bytes, known: dict[str, int]) -> bytes:
    """Put a correct CRC on a packet that was changed."""
    return with_crc(data[:-4], **known)


def bit_string(fields: list[tuple[list[int], int]]) -> bytes:
    """The naive twin of the packing: a string of binary digits, cut into bytes."""
    digits = "".join(format(value, f"0{width}b") for values, width in fields for value in values)
    digits += "0" * (-len(digits) % 8)
    return bytes(int(digits[i : i + 8], 2) for i in range(0, len(digits), 8))


WIDTHS = st.sampled_from([*range(1, 17), 32])


@st.composite
def messages(draw):
    """Arguments of `Packet.make` as plain lists."""
    size, layers = draw(st.integers(0, 70)), draw(st.integers(0, 9))
    mean_bits, scale_bits = draw(st.just(0) | WIDTHS), draw(WIDTHS)

    def scalars(bits, floats):
        count = layers if bits else 0
        codes = st.integers(0, 2**bits - 1)
        return draw(st.lists(floats if bits == 32 else codes, min_size=count, max_size=count))

    return {
        "signs": draw(st.lists(st.sampled_from([-1.0, 1.0]), min_size=size, max_size=size)),
        "mean": scalars(mean_bits, st.floats(width=32, allow_nan=False, allow_infinity=False)),
        "scale": scalars(scale_bits, st.floats(0, width=32, allow_nan=False, allow_infinity=False)),
        "device": draw(st.integers(0, 2**24 - 1)),
        "round": draw(st.integers(0, 2**16 - 1)),
        "mean_bits": mean_bits,
        "scale_bits": scale_bits,
    }


def make(message) -> Packet:
    def tensor(name):
        return torch.tensor(
            message[name], dtype=torch.float32 if message[f"{name}_bits"] == 32 else torch.int64
        )

    tensors = {"signs": torch.tensor(message["signs"]), "mean": tensor("mean"), "scale": tensor("scale")}
    return Packet.make(**{**message, **tensors})


@settings(deadline=None, derandomize=True, max_examples=300)
@given(message=messages())
def test_round_trip_accounting_and_layout(message):
    packet = make(message)
    data = packet.to_bytes()
    back = Packet.from_bytes(data, **agreed(packet))
    assert back == packet
    assert hash(back) == hash(packet)
    assert (back.device, back.round) == (message["device"], message["round"])
    for name in ("signs", "mean", "scale"):
        assert getattr(back, name).tolist() == message[name]

    size, layers = len(message["signs"]), len(message["scale"])
    mean_bits, scale_bits = message["mean_bits"], message["scale_bits"]
    bits = size + layers * (mean_bits + scale_bits)
    overhead = packet_overhead(size, layers, mean_bits, scale_bits)
    assert overhead + bits == 8 * len(data)
    assert overhead == 80 + -bits % 8

    def raw(name):
        values, width = message[name], message[f"{name}_bits"]
        if width == 32:
            values = [struct.unpack(">I", struct.pack(">f", value))[0] for value in values]
        return values, width

    expected = bytes([2]) + message["device"].to_bytes(3, "big") + message["round"].to_bytes(2, "big")
    expected += bit_string([raw("mean"), raw("scale"), ([int(s > 0) for s in message["signs"]], 1)])
    assert data == with_crc(expected, size, layers, mean_bits, scale_bits)


def test_the_format_is_pinned():
    packet = Packet.make(
        torch.tensor([1.0, -1.0, 1.0, 1.0]),
        torch.tensor([5, 2]),
        torch.tensor([1.5, 0.0]),
        device=7,
        round=258,
        mean_bits=4,
    )
    assert packet.to_bytes().hex(" ", 2) == "0200 0007 0102 523f c000 0000 0000 00b0 9553 0773"


def test_a_packet_without_means_has_a_scale_and_signs():
    packet = Packet.make(
        torch.tensor([1.0, -1.0, 1.0]), torch.zeros(0), torch.tensor([9]), mean_bits=0, scale_bits=4
    )
    assert packet.body == bytes([0b1001_1010])
    back = Packet.from_bytes(packet.to_bytes(), size=3, layers=1, mean_bits=0, scale_bits=4)
    assert (back.mean.tolist(), back.scale.tolist(), back.signs.tolist()) == ([], [9], [1.0, -1.0, 1.0])


def test_a_device_and_a_server_agree_through_a_packet():
    segments = [30, 500]
    g = 0.1 + torch.randn(1, 530, generator=torch.Generator().manual_seed(0)) * spread(
        torch.tensor([[0.5, 0.01]]), segments
    )
    mean_quantizer, scale_quantizer = UniformQuantizer(6, limit=1.0), LogQuantizer(4, low=1e-6, high=1.0)
    mean_codes = mean_quantizer.encode(fit_prior(g, segments=segments).mean)
    sent = mean_quantizer.decode(mean_codes)
    scale_codes = scale_quantizer.encode(fit_prior(g, segments=segments, mean=sent).scale)
    signs = one_bit(g, sent, segments).signs()
    packet = Packet.make(signs[0], mean_codes[0], scale_codes[0], mean_bits=6, scale_bits=4)
    assert len(packet.body) == 69  # 2*6, 2*4 and 530 bits, and two to fill up

    heard = Packet.from_bytes(packet.to_bytes(), size=530, layers=2, mean_bits=6, scale_bits=4)
    assert torch.equal(mean_quantizer.decode(heard.mean), sent[0])
    assert torch.equal(scale_quantizer.decode(heard.scale), scale_quantizer.decode(scale_codes)[0])
    assert torch.equal(heard.signs, signs[0])


def test_the_code_a_mid_tread_quantiser_leaves_unused_is_caught_when_decoding():
    packet = Packet.make(torch.ones(1), torch.tensor([15]), torch.tensor([0]), mean_bits=4, scale_bits=4)
    with pytest.raises(ValueError, match="codes must lie in 0"):
        UniformQuantizer(4, 1.0).decode(Packet.from_bytes(packet.to_bytes(), **agreed(packet)).mean)


def test_raw_scalars_are_rounded_to_float32_and_nothing_else():
    exact = torch.tensor([0.1, -1e-42], dtype=torch.float64)
    packet = Packet.make(torch.ones(2), exact, exact.abs())
    assert torch.equal(packet.mean, exact.float())
    assert Packet.from_bytes(packet.to_bytes(), **agreed(packet)) == packet


def test_unpacked_tensors_are_the_callers_own():
    packet = Packet.make(torch.ones(9), torch.tensor([1.0]), torch.tensor([2.0]))
    before = packet.to_bytes()
    for tensor in (packet.signs, packet.mean, packet.scale):
        tensor.zero_()
    assert packet.to_bytes() == before


def sample_packets() -> list[Packet]:
    """Small packets of every kind: codes and floats, with and without filling and means, empty ones."""
    generator = torch.Generator().manual_seed(11)
    packets = []

    def scalars(layers, bits, draw):
        if bits == 32:
            return draw(layers, generator=generator)
        return torch.randint(0, 2**bits, (layers if bits else 0,), generator=generator)

    for size, layers, mean_bits, scale_bits in (
        (0, 0, 0, 0),
        (13, 1, 4, 4),
        (40, 3, 32, 5),
        (7, 2, 32, 32),
        (64, 1, 16, 32),
        (1, 5, 1, 1),
        (60, 1, 0, 4),
        (21, 2, 5, 32),
    ):
        packets.append(
            Packet.make(
                torch.randint(0, 2, (size,), generator=generator) * 2 - 1,
                scalars(layers, mean_bits, torch.randn),
                scalars(layers, scale_bits, torch.rand),
                device=5,
                round=77,
                mean_bits=mean_bits,
                scale_bits=scale_bits,
            )
        )
    return packets


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """Change a few bytes or bits, cut, insert, repeat, or swap pieces."""
    changed = bytearray(data)
    kind = rng.integers(6)
    position = int(rng.integers(len(changed)))
    if kind == 0:
        changed[position] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        for _ in range(int(rng.integers(1, 6))):
            changed[int(rng.integers(len(changed)))] = int(rng.integers(256))
    elif kind == 2:
        del changed[position : position + int(rng.integers(1, 9))]
    elif kind == 3:
        changed[position:position] = rng.bytes(int(rng.integers(1, 9)))
    elif kind == 4:
        changed = changed[:position]
    else:
        changed = changed[position:] + changed[:position]
    return bytes(changed)


def noise(rng: np.random.Generator, length: int) -> bytes:
    """Random bytes, most of them of the right length or behind a plausible beginning."""
    start = int(rng.integers(4))
    if start == 0:
        return rng.bytes(int(rng.integers(64)))
    if start == 1:
        return rng.bytes(length)
    beginning = b"\x02" if start == 2 else b"\x02\0\0\x05\0\x4d"
    return (beginning + rng.bytes(length))[:length]


def test_a_hundred_thousand_strings_that_are_no_packet():
    rng = np.random.default_rng(0)
    originals = [(packet.to_bytes(), agreed(packet)) for packet in sample_packets()]
    refused = 0
    for i in range(100_000):
        original, known = originals[i % len(originals)]
        data = noise(rng, len(original)) if i % 3 == 0 else mutate(original, rng)
        try:
            packet = Packet.from_bytes(data, **known)
        except PacketError:
            refused += 1
        else:
            assert packet.to_bytes() == original
    assert refused > 90_000  # a mutation may by chance write what was there


def test_behind_a_correct_crc_all_is_refused_or_is_a_packet_with_one_encoding():
    rng = np.random.default_rng(1)
    originals = [(packet.to_bytes(), agreed(packet)) for packet in sample_packets()]
    accepted = refused = 0
    for i in range(30_000):
        original, known = originals[i % len(originals)]
        data = reseal(mutate(original, rng) if i % 4 else noise(rng, len(original)), known)
        try:
            packet = Packet.from_bytes(data, **known)
        except PacketError:
            refused += 1
            continue
        accepted += 1
        assert packet.to_bytes() == data
        assert packet.signs.abs().eq(1).all()
        assert packet.signs.numel() == packet.size
        assert bool(packet.mean.isfinite().all() and packet.scale.ge(0).all())
    assert accepted > 1000  # both ways out were really taken
    assert refused > 1000


@pytest.mark.parametrize("number", range(8))
def test_every_truncation_and_every_flipped_bit_is_refused(number):
    packet = sample_packets()[number]
    data, known = packet.to_bytes(), agreed(packet)
    for end in range(len(data)):
        with pytest.raises(PacketError, match=rf"has {len(data)} bytes; got {end}"):
            Packet.from_bytes(data[:end], **known)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 0x80 >> bit % 8
        with pytest.raises(PacketError, match="version" if bit < 8 else "CRC-32 does not match"):
            Packet.from_bytes(bytes(changed), **known)


@pytest.mark.parametrize(
    "other",
    [
        {"size": 11, "layers": 1, "mean_bits": 5, "scale_bits": 5},
        {"size": 13, "layers": 2, "mean_bits": 2, "scale_bits": 2},
        {"size": 13, "layers": 1, "mean_bits": 3, "scale_bits": 5},
        {"size": 13, "layers": 1, "mean_bits": 0, "scale_bits": 8},
        {"size": 21, "layers": 0, "mean_bits": 0, "scale_bits": 0},
        {"size": 14, "layers": 1, "mean_bits": 4, "scale_bits": 4},
    ],
)
def test_a_packet_of_another_method_does_not_pass_though_it_is_as_long(other):
    """The numbers that are not sent are in the CRC-32."""
    packet = sample_packets()[1]
    assert agreed(packet) == {"size": 13, "layers": 1, "mean_bits": 4, "scale_bits": 4}
    with pytest.raises(PacketError, match="or of another method or model"):
        Packet.from_bytes(packet.to_bytes(), **other)


def peak_of(data: bytes, known: dict[str, int]) -> int:
    """Bytes allocated at most while reading `data`, successfully or not."""
    tracemalloc.start()
    try:
        Packet.from_bytes(data, **known)
    except PacketError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize("length", [0, 10, 1000, 3_000_000])
@pytest.mark.parametrize(("size", "layers"), [(2**60, 1), (2**64 - 1, 0), (8, 2**32 - 1), (40_000, 7)])
@pytest.mark.parametrize("bits", [(32, 32), (16, 1), (0, 4)])
def test_bytes_of_another_length_are_refused_before_anything_is_copied(length, size, layers, bits):
    known = {"size": size, "layers": layers, "mean_bits": bits[0], "scale_bits": bits[1]}
    data = bytes([2]) * length
    with pytest.raises(PacketError, match=rf"^a packet of {size} signs and .* bytes; got {length}$"):
        Packet.from_bytes(data, **known)
    assert peak_of(data, known) < 8_000  # the error and its traceback


@pytest.mark.parametrize(
    ("size", "layers", "bits"), [(8_000_000, 1, 32), (3, 200_000, 32), (3, 1_000_000, 1), (5, 300_001, 5)]
)
def test_reading_takes_no_more_than_the_input(size, layers, bits):
    scalars = torch.zeros(layers, dtype=torch.float32 if bits == 32 else torch.int64)
    packet = Packet.make(torch.ones(size), scalars, scalars, mean_bits=bits, scale_bits=bits)
    data = packet.to_bytes()
    assert len(data) > 200_000
    # A cast buffer and the object itself, whatever the size.
    assert peak_of(data, agreed(packet)) <= len(data) + 50_000


FLOATS = {"size": 3, "layers": 1, "mean_bits": 32, "scale_bits": 32}
CODES = {"size": 3, "layers": 1, "mean_bits": 3, "scale_bits": 32}


def damaged() -> dict[str, tuple[bytes, dict[str, int], str]]:
    floats = Packet.make(torch.ones(3), torch.tensor([1.0]), torch.tensor([2.0])).to_bytes()
    codes = Packet.make(torch.ones(3), torch.tensor([1]), torch.tensor([2.0]), mean_bits=3).to_bytes()

    def put(position, replacement):
        return reseal(floats[:position] + replacement + floats[position + len(replacement) :], FLOATS)

    def scale(value):
        """The same between codes and signs, where no byte begins."""
        (number,) = struct.unpack(">I", struct.pack(">f", value))
        return reseal(codes[:HEADER] + bit_string([([1], 3), ([number], 32), ([7], 3)]) + bytes(4), CODES)

    mean, at, signs = HEADER, HEADER + 4, HEADER + 8
    return {
        "nothing": (b"", FLOATS, "a packet of 3 signs and 64 bits of scalars has 19 bytes; got 0"),
        "cut": (floats[:-1], FLOATS, "has 19 bytes; got 18"),
        "longer": (floats + b"\0", FLOATS, "has 19 bytes; got 20"),
        "two": (floats + floats, FLOATS, "has 19 bytes; got 38"),
        "version 1": (put(0, b"\x01"), FLOATS, "version 2; got version 1"),
        "version": (put(0, b"S"), FLOATS, "version 2; got version 83"),
        "crc": (floats[:-1] + bytes([floats[-1] ^ 1]), FLOATS, "CRC-32 does not match"),
        "plain crc": (with_plain_crc(floats[:-4]), FLOATS, "CRC-32 does not match"),
        "mean nan": (put(mean, struct.pack(">f", math.nan)), FLOATS, "mean must be finite"),
        "mean signalling nan": (put(mean, b"\x7f\xa0\0\0"), FLOATS, "mean must be finite"),
        "mean infinite": (put(mean, struct.pack(">f", -math.inf)), FLOATS, "mean must be finite"),
        "scale infinite": (put(at, struct.pack(">f", math.inf)), FLOATS, "scale must be finite"),
        "scale negative": (put(at, struct.pack(">f", -2)), FLOATS, "scale must be non-negative; .* -2"),
        "filling": (put(signs, b"\xe1"), FLOATS, "body must end in 5 zero bits"),
        "shifted scale nan": (scale(math.nan), CODES, "scale must be finite"),
        "shifted scale infinite": (scale(math.inf), CODES, "scale must be finite"),
        "shifted scale negative": (scale(-2.0), CODES, "scale must be non-negative; .* -2"),
    }


def with_plain_crc(body: bytes) -> bytes:
    return body + struct.pack(">I", zlib.crc32(body))


@pytest.mark.parametrize("kind", damaged())
def test_each_damage_has_its_sentence(kind):
    data, known, words = damaged()[kind]
    with pytest.raises(PacketError, match=words):
        Packet.from_bytes(data, **known)


@pytest.mark.parametrize("data", [None, "SFPK", bytearray(19), memoryview(bytes(19)), 7])
def test_only_bytes_are_read(data):
    with pytest.raises(PacketError, match="data must be bytes"):
        Packet.from_bytes(data, **FLOATS)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"size": -1}, "size must be an integer of 64 bits; got -1"),
        ({"size": 3.0}, "size must be an integer of 64 bits"),
        ({"layers": 2**32}, "layers must be an integer of 32 bits"),
        ({"mean_bits": 17}, r"mean_bits must be an integer in 0\.\.16 or 32; got 17"),
        ({"scale_bits": True}, r"scale_bits must be an integer in 0\.\.16 or 32; got True"),
    ],
)
def test_what_cannot_be_agreed_upon_is_refused(wrong, words):
    data = Packet.make(torch.ones(3), torch.tensor([1.0]), torch.tensor([2.0])).to_bytes()
    with pytest.raises(PacketError, match=words):
        Packet.from_bytes(data, **{**FLOATS, **wrong})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"signs": torch.zeros(3)}, r"signs must be \+1 or -1"),
        ({"signs": torch.ones(1, 3)}, "signs must have one dimension"),
        ({"mean": torch.zeros(())}, "mean must have one dimension"),
        ({"mean": torch.zeros(2)}, "scale must be 2 numbers of 32 bits; got 1"),
        ({"mean": torch.tensor([1])}, "mean must be floating point when mean_bits is 32"),
        ({"mean": torch.tensor([math.nan])}, "mean must be finite"),
        ({"mean": torch.tensor([1e39], dtype=torch.float64)}, "mean must be finite"),
        ({"scale": torch.tensor([-1.0])}, "scale must be non-negative"),
        ({"scale": torch.tensor([1.0]), "scale_bits": 4}, "scale must be integer codes when scale_bits is 4"),
        ({"scale": torch.tensor([16]), "scale_bits": 4}, r"scale must be codes in 0\.\.15; got 16\.\.16"),
        ({"mean": torch.tensor([0.0, 1.0]), "scale": torch.tensor([1.0, math.inf])}, "scale must be finite"),
        ({"mean": torch.tensor([0.0, -math.inf]), "scale": torch.ones(2)}, "mean must be finite"),
        ({"mean": torch.tensor([-1]), "mean_bits": 16}, r"mean must be codes in 0\.\.65535; got -1\.\.-1"),
        ({"mean_bits": 17}, "mean_bits must be an integer in 0"),
        ({"scale_bits": -1}, "scale_bits must be an integer in 0"),
        ({"mean_bits": 0}, "mean must be empty where its bits are 0; got 1"),
        ({"mean": torch.zeros(0)}, "mean must be 1 numbers of 32 bits; got 0"),
        ({"device": -1}, "device must be an integer of 24 bits; got -1"),
        ({"device": 1.5}, "device must be an integer of 24 bits; got 1.5"),
        ({"device": 2**24}, "device must be an integer of 24 bits; got 16777216"),
        ({"round": None}, "round must be an integer of 16 bits; got None"),
        ({"round": 2**16}, "round must be an integer of 16 bits"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(arguments, words):
    good = {"signs": torch.ones(3), "mean": torch.tensor([0.0]), "scale": torch.tensor([1.0])}
    assert Packet.make(**good).layers == 1
    with pytest.raises(PacketError, match=words):
        Packet.make(**{**good, **arguments})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"size": 9}, "body must be 10 bytes; got 9 bytes"),
        ({"size": 2}, "body must end in 6 zero bits"),
        ({"size": 3.0}, "size must be an integer of 64 bits"),
        ({"layers": 2}, "body must be 17 bytes; got 9 bytes"),
        ({"scale_bits": True}, "scale_bits must be an integer in 0"),
        ({"body": bytearray(9)}, "body must be 9 bytes; got bytearray"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields, words):
    good = Packet.make(torch.ones(3), torch.tensor([0.0]), torch.tensor([1.0]))
    with pytest.raises(PacketError, match=words):
        replace(good, **fields)


def test_ids_may_be_numpy_integers():
    packet = Packet.make(
        torch.ones(1), torch.zeros(0), torch.zeros(0), device=np.int64(3), round=np.uint32(4)
    )
    assert (packet.device, packet.round) == (3, 4)
    assert type(packet.device) is int
