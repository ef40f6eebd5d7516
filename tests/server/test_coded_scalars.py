"""Scalars as codewords: they arrive as sent, and the server copes when they do not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from signfade.keys import stream_keys
from signfade.device.encoder import Encoder
from signfade.server.received import Received
from signfade.uplink.coded_scalars import CodedScalars
from signfade.settings import CellSettings, MethodSettings
from signfade.uplink import Link, send_coded

EVERYONE = np.arange(4)


def side(layers: tuple[int, ...] = (30,), population: int = 4, **options: Any) -> CodedScalars:
    names = set(CellSettings.model_fields)
    cell = CellSettings(side_info="coded", **{k: v for k, v in options.items() if k in names})
    method = MethodSettings(**{k: v for k, v in options.items() if k not in names})
    return CodedScalars(cell, Encoder(method, layers), population, seed=3)


def round_of(
    mean: torch.Tensor, scale: torch.Tensor, h: torch.Tensor, sigma2: float = 1e-4, air: Link | None = None
) -> Received:
    """A round of devices with these scalars and gains; the signs play no part."""
    devices, layers = mean.shape
    return Received(
        packed=torch.zeros(devices, 4, dtype=torch.uint8),
        size=30,
        link=Link(h.double(), torch.full((devices,), sigma2).double()),
        layer_mean=mean,
        layer_scale=scale,
        segments=(30 // layers,) * layers,
        weights=torch.ones(devices),
        keys=np.arange(devices, dtype=np.uint64),
        air=air,
    )


def scalars(devices: int = 4, layers: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    return 0.01 * torch.randn(devices, layers, generator=rng), torch.rand(devices, layers, generator=rng)


@pytest.mark.parametrize("layers", [1, 3])
def test_floats_arrive_to_the_last_bit(layers: int) -> None:
    mean, scale = scalars(layers=layers)
    coded = side((30 // layers,) * layers, scales="layer")
    r = round_of(mean, scale, torch.tensor([1.0, -1.0, 2.0, -0.3]))
    found = coded.receive(r, r.link, EVERYONE, 0)
    assert bool(found.passed.all())
    assert torch.equal(found.mean, mean)
    assert torch.equal(found.scale, scale)


@pytest.mark.parametrize("bits", [1, 4, 16])
def test_levels_arrive_as_they_are(bits: int) -> None:
    coded = side((10, 20), scales="layer", side_bits=bits)
    encoder = coded._encoder
    for round, width in enumerate((16, bits)):  # on the wide grid, then on the one that follows
        g = 0.03 * torch.randn(4, 30, generator=torch.Generator().manual_seed(round)) + 0.01
        sent = encoder.encode(g)
        assert coded.code.payload == 2 * (bits + width)
        r = round_of(sent.mean, sent.scale, torch.ones(4))
        found = coded.receive(r, r.link, EVERYONE, round)
        assert torch.equal(found.mean, sent.mean)
        assert torch.equal(found.scale, sent.scale)
        encoder.range.follow(found.scale)


def test_length_and_rate_of_the_code_are_those_set() -> None:
    assert side(code_rate=0.5).code.length == 2 * (64 + 24)
    assert side(code_length=300, code_check=16, code_list=2).code.length == 300
    with pytest.raises(
        ValueError, match=r"cell.code_length does not fit the scalars: length must be at least"
    ):
        side(code_length=80)


def test_words_are_lost_as_by_send_coded() -> None:
    """The decoder needs LLRs in their true scale, and a run gives it those: short words at 3 dB."""
    everyone = np.arange(300)
    coded = side(population=300, side_bits=8, code_rate=0.9)
    encoder = coded._encoder
    encoder.range.follow(torch.full((3, 1), 0.03))
    sent = encoder.encode(0.03 * torch.randn(300, 30, generator=torch.Generator().manual_seed(1)))
    r = round_of(sent.mean, sent.scale, torch.ones(300), sigma2=0.5)
    found = coded.receive(r, r.link, everyone, 0)
    bits = coded._to_bits(sent.mean, sent.scale)
    expected = send_coded(bits, coded.code, r.h, r.sigma2, stream_keys(3, "side noise", 0, everyone))
    assert 0.2 < float(expected.passed.double().mean()) < 0.8
    assert torch.equal(found.passed, expected.passed)


def test_a_lost_word_is_stood_in_for_by_the_last_one_drawn_to_the_others() -> None:
    """Weights 0.5, 0.25, ... of the scale's logarithm and the mean; none for who was never heard."""
    coded = side(outage_decay=0.5)
    mean, scale = scalars()
    first = torch.tensor([1.0, 1.0, 1.0, 0.0])  # the last device is never heard
    r = round_of(mean, scale, first)
    found = coded.receive(r, r.link, EVERYONE, 0)
    common = scale[:3].double().log().mean().exp()
    assert found.passed.tolist() == [True, True, True, False]
    assert float(found.scale[3]) == pytest.approx(float(common), rel=1e-6)
    assert float(found.mean[3]) == 0.0
    later = torch.tensor([0.0, 1.0, 1.0, 0.0])
    for age in (1, 2, 3):
        new = scale * (1 + age)
        r = round_of(2 * mean, new, later)
        found = coded.receive(r, r.link, EVERYONE, age)
        weight = 0.5**age
        others = float(new[1:3].double().log().mean())
        expected = math.exp(weight * math.log(float(scale[0])) + (1 - weight) * others)
        assert float(found.scale[0]) == pytest.approx(expected, rel=1e-5)
        assert float(found.mean[0]) == pytest.approx(weight * float(mean[0]), rel=1e-5)
        assert torch.equal(found.scale[1:3], new[1:3])


def test_with_nobody_heard_last_scalars_stay_and_strangers_count_for_nothing() -> None:
    coded = side(outage_decay=0.5)
    mean, scale = scalars()
    r = round_of(mean, scale, torch.tensor([1.0, 0.0, 0.0, 0.0]))
    coded.receive(r, r.link, EVERYONE, 0)
    r = round_of(mean, 7 * scale, torch.zeros(4))
    found = coded.receive(r, r.link, EVERYONE, 1)
    assert not bool(found.passed.any())
    assert float(found.scale[0]) == pytest.approx(float(scale[0]), rel=1e-6)
    assert not bool(found.scale[1:].any())


def test_a_dropped_device_counts_for_nothing() -> None:
    coded = side(outage="drop")
    mean, scale = scalars()
    for t, h in enumerate(([1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 0.0])):
        r = round_of(mean, scale, torch.tensor(h))
        found = coded.receive(r, r.link, EVERYONE, t)
    assert found.scale[:, 0].tolist() == [float(scale[0]), 0.0, float(scale[2]), 0.0]
    assert found.mean[:, 0].tolist() == [float(mean[0]), 0.0, float(mean[2]), 0.0]


def test_a_gain_taken_for_its_opposite_is_found_out() -> None:
    """Only where the server has estimated its gains does it try the other sign."""
    mean, scale = scalars()
    h = torch.tensor([1.0, -1.0, 1.0, -1.0]).double()
    wrong = Link(torch.tensor([1.0, 1.0, -1.0, -1.0]).double(), torch.full((4,), 1e-4).double())
    r = round_of(mean, scale, h, air=Link(h, torch.full((4,), 1e-4).double()))
    found = side().receive(r, wrong, EVERYONE, 0)
    assert bool(found.passed.all())
    assert found.turned.tolist() == [False, True, True, False]
    assert torch.equal(found.scale, scale)
    sure = side().receive(round_of(mean, scale, h), wrong, EVERYONE, 0)
    assert sure.passed.tolist() == [True, False, False, True]


def test_a_word_that_checks_but_makes_no_sense_is_lost() -> None:
    exact, coarse = side(), side(side_bits=4)
    for bad in (float("nan"), float("inf"), -1.0):
        words = exact._to_bits(torch.tensor([[0.5]]), torch.tensor([[bad]]))
        assert not bool(exact._from_bits(words)[2].any())
    words = coarse._to_bits(torch.tensor([[0.0]]), torch.tensor([[0.1]]))
    assert bool(coarse._from_bits(words)[2].all())
    words[:, :4] = 1  # the code of a mean that stands for nothing
    assert not bool(coarse._from_bits(words)[2].any())


def test_what_was_decoded_is_kept_and_restored() -> None:
    mean, scale = scalars()
    first, second = side(), side()
    r = round_of(mean, scale, torch.tensor([1.0, 1.0, 0.0, 1.0]))
    first.receive(r, r.link, EVERYONE, 0)
    second.restore(first.state())
    later = round_of(mean, scale, torch.tensor([0.0, 1.0, 0.0, 0.0]))
    a, b = (one.receive(later, later.link, EVERYONE, 4) for one in (first, second))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    fresh = side().receive(later, later.link, EVERYONE, 4)
    assert not torch.equal(a.scale, fresh.scale)
