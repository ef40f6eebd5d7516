"""Scalars as codewords: they arrive as sent, and the server copes when they do not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from signfade.device import Encoder
from signfade.device.scale_range import RangeState, follow_scales
from signfade.keys import stream_keys
from signfade.server.received import Received
from signfade.server.stages import CodedScalars
from signfade.settings import CellSettings, MethodSettings
from signfade.state import from_tensors, to_tensors
from signfade.uplink import Link, PolarCode, Refined, send_coded, transmit
from signfade.uplink.code import bits_to_scalars, codeword, scalars_to_bits


class Coded:
    """The stage with its memory, and rounds of devices with given scalars; their signs play no part."""

    def __init__(self, layers: tuple[int, ...] = (30,), population: int = 4, **options: Any) -> None:
        names = set(CellSettings.model_fields)
        self.cell = CellSettings(side_info="coded", **{k: v for k, v in options.items() if k in names})
        method = MethodSettings(**{k: v for k, v in options.items() if k not in names})
        self.encoder = Encoder(method, layers)
        self.stage = CodedScalars(self.cell, self.encoder, population, seed=3)
        self.state = self.stage.init()

    @property
    def code(self) -> PolarCode:
        return codeword(self.encoder, self.cell)

    def receive(
        self,
        mean: torch.Tensor,
        scale: torch.Tensor,
        h: torch.Tensor,
        round: int = 0,
        sigma2: float = 1e-4,
        **known: Any,
    ) -> Received:
        """Send scalars in a round, over these gains, and return what the server has of them."""
        devices, noise = np.arange(len(mean)), torch.full((len(mean),), sigma2).double()
        signals = transmit(
            torch.ones(len(mean), 30), h.double(), noise, np.arange(len(mean), dtype=np.uint64)
        )
        there = (devices, round, torch.zeros(30), np.ones(len(mean), dtype=bool))
        sent = Received(signals, signals.link, mean, scale, torch.ones(len(mean)), self.encoder, *there)
        self.state, received, metrics = self.stage.apply(self.state, sent.but(**known))
        assert received.decoded is not None
        assert metrics == {"decoded": int(received.decoded.sum())}
        return received


def scalars(devices: int = 4, layers: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    return 0.01 * torch.randn(devices, layers, generator=rng), torch.rand(devices, layers, generator=rng)


def passed(received: Received) -> list[bool]:
    assert received.decoded is not None
    return [bool(one) for one in received.decoded]


@pytest.mark.parametrize("layers", [1, 3])
def test_floats_arrive_to_the_last_bit(layers: int) -> None:
    mean, scale = scalars(layers=layers)
    coded = Coded((30 // layers,) * layers, scales="layer")
    found = coded.receive(mean, scale, torch.tensor([1.0, -1.0, 2.0, -0.3]))
    assert all(passed(found))
    assert torch.equal(found.layer_mean, mean)
    assert torch.equal(found.layer_scale, scale)


@pytest.mark.parametrize("bits", [1, 4, 16])
def test_levels_arrive_as_they_are(bits: int) -> None:
    coded, scale_range = Coded((10, 20), scales="layer", side_bits=bits), RangeState()
    for round, width in enumerate((16, bits)):  # on the wide grid, then on the one that follows
        g = 0.03 * torch.randn(4, 30, generator=torch.Generator().manual_seed(round)) + 0.01
        sent, _ = coded.encoder.encode(g)
        assert coded.code.payload == 2 * (bits + width)
        found = coded.receive(sent.mean, sent.scale, torch.ones(4), round)
        assert torch.equal(found.layer_mean, sent.mean)
        assert torch.equal(found.layer_scale, sent.scale)
        scale_range = follow_scales(scale_range, found.layer_scale)
        coded.encoder = replace(coded.encoder, exponents=tuple(scale_range.exponents))


def test_length_and_rate_of_the_code_are_those_set() -> None:
    assert Coded(code_rate=0.5).code.length == 2 * (64 + 24)
    assert Coded(code_length=300, code_check=16, code_list=2).code.length == 300
    with pytest.raises(
        ValueError, match=r"cell.code_length does not fit the scalars: length must be at least"
    ):
        Coded(code_length=80)


def test_words_are_lost_as_by_send_coded() -> None:
    """The decoder needs LLRs in their true scale, and a run gives it those: short words at 3 dB."""
    coded = Coded(population=300, side_bits=8, code_rate=0.9)
    coded.encoder = replace(coded.encoder, exponents=(-5,))
    sent, _ = coded.encoder.encode(0.03 * torch.randn(300, 30, generator=torch.Generator().manual_seed(1)))
    found = coded.receive(sent.mean, sent.scale, torch.ones(300), sigma2=0.5)
    bits = scalars_to_bits(coded.encoder, sent.mean, sent.scale)
    keys = stream_keys(3, "side noise", 0, np.arange(300))
    expected = send_coded(bits, coded.code, torch.ones(300), torch.full((300,), 0.5), keys).passed
    assert 0.2 < float(expected.double().mean()) < 0.8
    assert passed(found) == expected.tolist()


def test_a_lost_word_is_replaced_by_the_last_one_drawn_to_the_others() -> None:
    """Weights 0.5, 0.25, ... of the scale's logarithm and the mean; none for who was never decoded."""
    coded = Coded(outage_decay=0.5)
    mean, scale = scalars()
    found = coded.receive(mean, scale, torch.tensor([1.0, 1.0, 1.0, 0.0]))  # the last is never decoded
    common = scale[:3].double().log().mean().exp()
    assert passed(found) == [True, True, True, False]
    assert float(found.layer_scale[3]) == pytest.approx(float(common), rel=1e-6)
    assert float(found.layer_mean[3]) == 0.0
    for age in (1, 2, 3):
        new = scale * (1 + age)
        found = coded.receive(2 * mean, new, torch.tensor([0.0, 1.0, 1.0, 0.0]), age)
        weight = 0.5**age
        others = float(new[1:3].double().log().mean())
        expected = math.exp(weight * math.log(float(scale[0])) + (1 - weight) * others)
        assert float(found.layer_scale[0]) == pytest.approx(expected, rel=1e-5)
        assert float(found.layer_mean[0]) == pytest.approx(weight * float(mean[0]), rel=1e-5)
        assert torch.equal(found.layer_scale[1:3], new[1:3])


def test_with_nobody_decoded_last_scalars_stay_and_strangers_count_for_nothing() -> None:
    coded = Coded(outage_decay=0.5)
    mean, scale = scalars()
    coded.receive(mean, scale, torch.tensor([1.0, 0.0, 0.0, 0.0]))
    found = coded.receive(mean, 7 * scale, torch.zeros(4), 1)
    assert not any(passed(found))
    assert float(found.layer_scale[0]) == pytest.approx(float(scale[0]), rel=1e-6)
    assert not bool(found.layer_scale[1:].any())


def test_a_dropped_device_counts_for_nothing() -> None:
    coded = Coded(outage="drop")
    mean, scale = scalars()
    for t, h in enumerate(([1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 0.0])):
        found = coded.receive(mean, scale, torch.tensor(h), t)
    assert found.layer_scale[:, 0].tolist() == [float(scale[0]), 0.0, float(scale[2]), 0.0]
    assert found.layer_mean[:, 0].tolist() == [float(mean[0]), 0.0, float(mean[2]), 0.0]


def test_a_gain_taken_for_its_opposite_is_found_out() -> None:
    """Only where the server has estimated its gains does it try the other sign."""
    mean, scale = scalars()
    h = torch.tensor([1.0, -1.0, 1.0, -1.0]).double()
    wrong = Link(torch.tensor([1.0, 1.0, -1.0, -1.0]).double(), torch.full((4,), 1e-4).double())
    refined = Refined(wrong, torch.full((4,), 0.9).double())
    found = Coded().receive(mean, scale, h, link=refined.effective(), refined=refined)
    assert all(passed(found))
    assert found.refined is not None
    assert torch.equal(found.refined.link.h, h)
    assert found.refined.trust.tolist() == [1.0] * 4
    assert torch.equal(found.layer_scale, scale)
    sure = Coded().receive(mean, scale, h, refined=refined)
    assert passed(sure) == [True, False, False, True]


def test_a_word_that_checks_but_makes_no_sense_is_lost() -> None:
    exact, coarse = Coded().encoder, Coded(side_bits=4).encoder
    for bad in (float("nan"), float("inf"), -1.0):
        words = scalars_to_bits(exact, torch.tensor([[0.5]]), torch.tensor([[bad]]))
        assert not bool(bits_to_scalars(exact, words)[2].any())
    words = scalars_to_bits(coarse, torch.tensor([[0.0]]), torch.tensor([[0.1]]))
    assert bool(bits_to_scalars(coarse, words)[2].all())
    words[:, :4] = 1  # the code of a mean that stands for nothing
    assert not bool(bits_to_scalars(coarse, words)[2].any())


def test_what_was_decoded_is_kept_and_restored() -> None:
    mean, scale = scalars()
    first, second = Coded(), Coded()
    first.receive(mean, scale, torch.tensor([1.0, 1.0, 0.0, 1.0]))
    second.state = from_tensors(second.state, to_tensors(first.state))
    later = (mean, scale, torch.tensor([0.0, 1.0, 0.0, 0.0]), 4)
    a, b, fresh = (one.receive(*later) for one in (first, second, Coded()))
    assert passed(a) == passed(b)
    assert torch.equal(a.layer_mean, b.layer_mean)
    assert torch.equal(a.layer_scale, b.layer_scale)
    assert not torch.equal(a.layer_scale, fresh.layer_scale)
