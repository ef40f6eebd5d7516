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

HEADER = 27  # bytes before the sections


def with_crc(body: bytes) -> bytes:
    return body + struct.pack(">I", zlib.crc32(body))


def reseal(data: bytes) -> bytes:
    """Put a correct CRC on a packet that was changed."""
    return with_crc(data[:-4])


def bit_string(values: list[int], width: int) -> bytes:
    """The naive twin of the packing: a string of binary digits, cut into bytes."""
    digits = "".join(format(value, f"0{width}b") for value in values)
    digits += "0" * (-len(digits) % 8)
    return bytes(int(digits[i : i + 8], 2) for i in range(0, len(digits), 8))


@st.composite
def messages(draw):
    """Arguments of `Packet.make` as plain lists."""
    size, layers = draw(st.integers(0, 70)), draw(st.integers(0, 9))
    mean_bits, scale_bits = draw(st.integers(0, 16)), draw(st.integers(0, 16))

    def scalars(bits, floats):
        codes = st.integers(0, 2**bits - 1)
        return draw(st.lists(codes if bits else floats, min_size=layers, max_size=layers))

    return {
        "signs": draw(st.lists(st.sampled_from([-1.0, 1.0]), min_size=size, max_size=size)),
        "mean": scalars(mean_bits, st.floats(width=32, allow_nan=False, allow_infinity=False)),
        "scale": scalars(scale_bits, st.floats(0, width=32, allow_nan=False, allow_infinity=False)),
        "device": draw(st.integers(0, 2**32 - 1)),
        "round": draw(st.integers(0, 2**32 - 1)),
        "mean_bits": mean_bits,
        "scale_bits": scale_bits,
    }


def make(message) -> Packet:
    tensors = {
        "signs": torch.tensor(message["signs"]),
        "mean": torch.tensor(message["mean"], dtype=torch.int64 if message["mean_bits"] else torch.float32),
        "scale": torch.tensor(
            message["scale"], dtype=torch.int64 if message["scale_bits"] else torch.float32
        ),
    }
    return Packet.make(**{**message, **tensors})


@settings(deadline=None, derandomize=True, max_examples=150)
@given(message=messages())
def test_round_trip_accounting_and_layout(message):
    packet = make(message)
    data = packet.to_bytes()
    back = Packet.from_bytes(data)
    assert back == packet
    assert hash(back) == hash(packet)
    assert (back.device, back.round) == (message["device"], message["round"])
    for name in ("signs", "mean", "scale"):
        assert getattr(back, name).tolist() == message[name]

    size, layers = len(message["signs"]), len(message["mean"])
    mean_width, scale_width = message["mean_bits"] or 32, message["scale_bits"] or 32
    overhead = packet_overhead(size, layers, packet.mean_bits, packet.scale_bits)
    assert overhead + size + layers * (mean_width + scale_width) == 8 * len(data)
    filling = -size % 8 + -(layers * mean_width) % 8 + -(layers * scale_width) % 8
    assert overhead == 8 * (HEADER + 4) + filling

    def section(values, bits):
        raw = values if bits else [struct.unpack(">I", struct.pack(">f", value))[0] for value in values]
        return bit_string(raw, bits or 32)

    expected = b"SFPK" + struct.pack(">BBB", 1, message["mean_bits"], message["scale_bits"])
    expected += struct.pack(">IIQI", message["device"], message["round"], size, layers)
    expected += section(message["mean"], message["mean_bits"])
    expected += section(message["scale"], message["scale_bits"])
    expected += bit_string([int(s > 0) for s in message["signs"]], 1)
    assert data == with_crc(expected)


def test_the_format_is_pinned():
    packet = Packet.make(
        torch.tensor([1.0, -1.0, 1.0, 1.0]),
        torch.tensor([5, 2]),
        torch.tensor([1.5, 0.0]),
        device=7,
        round=258,
        mean_bits=3,
    )
    header = "5346504b 01 03 00 00000007 00000102 0000000000000004 00000002"
    body = bytes.fromhex(header + "a8 3fc00000 00000000 b0")
    assert packet.to_bytes()[:-4] == body
    assert packet.to_bytes() == with_crc(body)


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
    assert (len(packet.mean_bytes), len(packet.scale_bytes)) == (2, 1)  # 2*6 and 2*4 bits

    heard = Packet.from_bytes(packet.to_bytes())
    assert torch.equal(mean_quantizer.decode(heard.mean), sent[0])
    assert torch.equal(scale_quantizer.decode(heard.scale), scale_quantizer.decode(scale_codes)[0])
    assert torch.equal(heard.signs, signs[0])


def test_the_code_a_mid_tread_quantiser_leaves_unused_is_caught_when_decoding():
    packet = Packet.make(torch.ones(1), torch.tensor([15]), torch.tensor([0]), mean_bits=4, scale_bits=4)
    with pytest.raises(ValueError, match="codes must lie in 0"):
        UniformQuantizer(4, 1.0).decode(Packet.from_bytes(packet.to_bytes()).mean)


def test_raw_scalars_are_rounded_to_float32_and_nothing_else():
    exact = torch.tensor([0.1, -1e-42], dtype=torch.float64)
    packet = Packet.make(torch.ones(2), exact, exact.abs())
    assert torch.equal(packet.mean, exact.float())
    assert Packet.from_bytes(packet.to_bytes()) == packet


def test_unpacked_tensors_are_the_callers_own():
    packet = Packet.make(torch.ones(9), torch.tensor([1.0]), torch.tensor([2.0]))
    before = packet.to_bytes()
    for tensor in (packet.signs, packet.mean, packet.scale):
        tensor.zero_()
    assert packet.to_bytes() == before


def sample_packets() -> list[bytes]:
    """Small packets of every kind: codes and floats, sections with and without filling, empty ones."""
    generator = torch.Generator().manual_seed(11)
    packets = []
    for size, layers, mean_bits, scale_bits in (
        (0, 0, 0, 0),
        (13, 1, 4, 4),
        (40, 3, 0, 5),
        (7, 2, 0, 0),
        (64, 1, 16, 0),
        (1, 5, 1, 1),
    ):
        packets.append(
            Packet.make(
                torch.randint(0, 2, (size,), generator=generator) * 2 - 1,
                torch.randint(0, 2**mean_bits, (layers,), generator=generator)
                if mean_bits
                else torch.randn(layers, generator=generator),
                torch.randint(0, 2**scale_bits, (layers,), generator=generator)
                if scale_bits
                else torch.rand(layers, generator=generator),
                device=5,
                round=77,
                mean_bits=mean_bits,
                scale_bits=scale_bits,
            ).to_bytes()
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


def noise(rng: np.random.Generator) -> bytes:
    """Random bytes, most of them behind a plausible beginning."""
    tail = rng.bytes(int(rng.integers(64)))
    start = int(rng.integers(4))
    if start == 0:
        return tail
    if start == 1:
        return b"SFPK" + tail
    widths = rng.bytes(2) if start == 2 else bytes(rng.integers(0, 18, 2).tolist())
    return b"SFPK\x01" + widths + tail


def test_a_hundred_thousand_strings_that_are_no_packet():
    rng = np.random.default_rng(0)
    originals = sample_packets()
    refused = 0
    for i in range(100_000):
        original = originals[i % len(originals)]
        data = noise(rng) if i % 3 == 0 else mutate(original, rng)
        try:
            packet = Packet.from_bytes(data)
        except PacketError:
            refused += 1
        else:
            assert packet.to_bytes() == original
    assert refused > 90_000  # a mutation may by chance write what was there


def test_behind_a_correct_crc_all_is_refused_or_is_a_packet_with_one_encoding():
    rng = np.random.default_rng(1)
    originals = sample_packets()
    accepted = refused = 0
    for i in range(30_000):
        data = reseal(mutate(originals[i % len(originals)], rng) if i % 4 else noise(rng) + b"1234")
        try:
            packet = Packet.from_bytes(data)
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


def peak_of(data: bytes) -> int:
    """Bytes allocated at most while reading `data`, successfully or not."""
    tracemalloc.start()
    try:
        Packet.from_bytes(data)
    except PacketError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize(("size", "layers"), [(2**60, 1), (2**64 - 1, 0), (8, 2**32 - 1), (2**40, 2**31)])
@pytest.mark.parametrize("bits", [(0, 0), (16, 1)])
def test_a_claim_allocates_nothing(size, layers, bits):
    data = with_crc(b"SFPK" + struct.pack(">BBBIIQI", 1, *bits, 0, 0, size, layers) + bytes(100))
    with pytest.raises(PacketError, match=f"a packet of {size} signs and {layers} layers has"):
        Packet.from_bytes(data)
    assert peak_of(data) < 8_000  # the error and its traceback


@pytest.mark.parametrize(
    ("size", "layers", "bits"), [(8_000_000, 1, 0), (3, 200_000, 0), (3, 1_000_000, 1), (5, 300_001, 5)]
)
def test_reading_takes_no_more_than_the_input(size, layers, bits):
    scalars = torch.zeros(layers, dtype=torch.int64 if bits else torch.float32)
    data = Packet.make(torch.ones(size), scalars, scalars, mean_bits=bits, scale_bits=bits).to_bytes()
    assert len(data) > 200_000
    assert peak_of(data) <= len(data) + 50_000  # a cast buffer and the object itself, whatever the size


def damaged() -> dict[str, tuple[bytes, str]]:
    floats = Packet.make(torch.ones(3), torch.tensor([1.0]), torch.tensor([2.0])).to_bytes()
    codes = Packet.make(
        torch.ones(3), torch.tensor([1]), torch.tensor([2]), mean_bits=3, scale_bits=4
    ).to_bytes()

    def put(data, position, replacement):
        return reseal(data[:position] + replacement + data[position + len(replacement) :])

    mean, scale, signs = HEADER, HEADER + 4, HEADER + 8
    return {
        "nothing": (b"", "at least 31 bytes; got 0"),
        "too short": (floats[:30], "at least 31 bytes; got 30"),
        "magic": (put(floats, 0, b"RIFF"), "begins with b'SFPK'; got b'RIFF'"),
        "version": (put(floats, 4, b"\x02"), "version 1; got version 2"),
        "mean bits": (put(floats, 5, b"\x11"), r"mean_bits must be an integer in 0\.\.16; got 17"),
        "scale bits": (put(floats, 6, b"\xff"), r"scale_bits must be an integer in 0\.\.16; got 255"),
        "cut": (floats[:-1], "has 40 bytes; got 39"),
        "longer": (floats + b"\0", "has 40 bytes; got 41"),
        "one sign more": (put(floats, 22, b"\x09"), "a packet of 9 signs and 1 layers has 41 bytes; got 40"),
        "crc": (floats[:-1] + bytes([floats[-1] ^ 1]), "CRC-32 does not match"),
        "mean nan": (put(floats, mean, struct.pack(">f", math.nan)), "mean must be finite"),
        "mean signalling nan": (put(floats, mean, b"\x7f\xa0\0\0"), "mean must be finite"),
        "mean infinite": (put(floats, mean, struct.pack(">f", -math.inf)), "mean must be finite"),
        "scale infinite": (put(floats, scale, struct.pack(">f", math.inf)), "scale must be finite"),
        "scale negative": (put(floats, scale, struct.pack(">f", -2)), "scale must be non-negative; .* -2"),
        "sign filling": (put(floats, signs, b"\xe1"), "sign_bytes must end in 5 zero bits"),
        "mean filling": (put(codes, mean, b"\x21"), "mean_bytes must end in 5 zero bits"),
        "scale filling": (put(codes, mean + 1, b"\x28"), "scale_bytes must end in 4 zero bits"),
    }


@pytest.mark.parametrize("kind", damaged())
def test_each_damage_has_its_sentence(kind):
    data, words = damaged()[kind]
    with pytest.raises(PacketError, match=words):
        Packet.from_bytes(data)


@pytest.mark.parametrize("data", [None, "SFPK", bytearray(40), 7])
def test_only_bytes_are_read(data):
    with pytest.raises(PacketError, match="data must be bytes"):
        Packet.from_bytes(data)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"signs": torch.zeros(3)}, r"signs must be \+1 or -1"),
        ({"signs": torch.ones(1, 3)}, "signs must have one dimension"),
        ({"mean": torch.zeros(())}, "mean must have one dimension"),
        ({"mean": torch.zeros(2)}, "mean and scale must be equally many; got 2 and 1"),
        ({"mean": torch.tensor([1])}, "mean must be floating point when mean_bits is 0"),
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
        ({"device": -1}, "device must be an integer of 32 bits; got -1"),
        ({"device": 1.5}, "device must be an integer of 32 bits; got 1.5"),
        ({"round": None}, "round must be an integer of 32 bits; got None"),
        ({"round": 2**32}, "round must be an integer of 32 bits"),
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
        ({"size": 9}, "sign_bytes must be 2 bytes; got 1 bytes"),
        ({"size": 2}, "sign_bytes must end in 6 zero bits"),
        ({"size": 3.0}, "size must be an integer of 64 bits"),
        ({"layers": 2}, "mean_bytes must be 8 bytes; got 4 bytes"),
        ({"scale_bits": True}, "scale_bits must be an integer in 0"),
        ({"sign_bytes": bytearray(b"\xe0")}, "sign_bytes must be 1 bytes; got bytearray"),
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
