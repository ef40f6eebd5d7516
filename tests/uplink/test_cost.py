"""The account of what is sent against what is sent: bytes of packets, pilots, codewords."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch

from signfade.device import Encoder, make_packet
from signfade.experiments.metrics import BIT_KEYS
from signfade.server import AGGREGATORS, stages
from signfade.settings import CellSettings, MethodSettings
from signfade.simulation import Experiment
from signfade.uplink import Sounding, sound
from signfade.uplink.code import bits_to_scalars, codeword, scalars_to_bits
from signfade.uplink.cost import UplinkBits, uplink_bits

from ..runs import settings

LAYERS = (50, 7, 44)
METHODS: list[dict[str, Any]] = [
    {},
    {"side_bits": 3},
    {"side_bits": 5, "scales": "layer"},
    {"scales": "layer"},
    {"preset": "best", "side_bits": 7},
    {"rotation": "private", "side_bits": 4},
    {"rotation": "private", "bits_per_weight": 0.2},
    {"rotation": "shared", "bits_per_weight": 2, "side_bits": 4},
    {"aggregator": "signsgd"},
    {"aggregator": "signsum", "rotation": "shared"},
]
KEYS = np.full(2, 3, dtype=np.uint64)


def encoders(method: dict[str, Any]) -> list[Encoder]:
    """An encoder of the first round, and one of a later round."""
    settings = MethodSettings.model_validate(method)
    encoder = Encoder(settings, LAYERS, AGGREGATORS.find(settings.aggregator).sends_scalars)
    return [encoder, replace(encoder, exponents=(-5,) * len(encoder.segments))]


def gradients() -> torch.Tensor:
    return 0.03 * torch.randn(2, sum(LAYERS), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("later", [0, 1])
def test_an_account_is_the_packet(method: dict[str, Any], later: int) -> None:
    encoder = encoders(method)[later]
    sent, _ = encoder.encode(encoder.rotate(gradients(), KEYS), rotation_keys=KEYS)
    packet = make_packet(encoder, sent, 0, device=7, round=later)
    bits = uplink_bits(encoder, CellSettings(perfect=True))
    assert bits.total == 8 * len(packet.to_bytes())
    assert bits.signs == len(packet.signs)
    assert bits.scalars == packet.layers * (packet.mean_bits + packet.scale_bits)
    assert bits.header == 80 + -bits.payload % 8
    assert bits.payload == bits.signs + bits.scalars
    assert (bits.pilots, bits.code, bits.buffers) == (0, 0, 0)


@pytest.mark.parametrize("method", [one for one in METHODS if "aggregator" not in one])
@pytest.mark.parametrize(
    "cell", [{"code_rate": 0.5}, {"code_rate": 0.25, "code_check": 16}, {"code_length": 512}]
)
@pytest.mark.parametrize("later", [0, 1])
def test_an_account_is_packet_and_codeword(method: dict[str, Any], cell: dict[str, Any], later: int) -> None:
    """A packet without scalars, and the coded bits of the scalars."""
    encoder = encoders(method)[later]
    coded_cell = CellSettings(side_info="coded", **cell)
    sent, _ = encoder.encode(encoder.rotate(gradients(), KEYS), rotation_keys=KEYS)
    payload = scalars_to_bits(encoder, sent.mean, sent.scale)
    word = codeword(encoder, coded_cell).encode(payload)
    votes = replace(encoder, sends_scalars=False)
    packet = make_packet(votes, sent, 0, device=0, round=0)
    bits = uplink_bits(encoder, coded_cell)
    assert bits.scalars == payload.shape[1]
    assert bits.code == word.shape[1] - payload.shape[1]
    assert bits.total == 8 * len(packet.to_bytes()) + word.shape[1]
    mean, scale, sane = bits_to_scalars(encoder, payload)
    assert sane.all()
    assert torch.equal(mean, sent.mean)
    assert torch.equal(scale, sent.scale)


def test_votes_have_no_codeword() -> None:
    encoder = Encoder(MethodSettings(), LAYERS, sends_scalars=False)
    assert uplink_bits(encoder, CellSettings(side_info="coded")) == uplink_bits(encoder, CellSettings())


@pytest.mark.parametrize("modulation", ["bpsk", "qpsk"])
@pytest.mark.parametrize("pilots", [1, 4, 9])
def test_pilots_are_symbols(pilots: int, modulation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the radio of a run sends, each the time of one bit or two."""
    soundings: list[Sounding] = []

    def spy(*given: Any) -> Sounding:
        soundings.append(sound(*given))
        return soundings[-1]

    monkeypatch.setattr(stages, "sound", spy)
    cell = {"cell__csi": "pilot", "cell__pilots": pilots, "cell__modulation": modulation}
    first, plain = (Experiment(settings(**changes)).advance() for changes in (cell, {}))
    (sounding,) = soundings
    symbols = len(sounding.pilot) * sounding.pilots
    assert first["bits.pilots"] == symbols * (2 if modulation == "qpsk" else 1)
    assert first["uplink_bits"] - plain["uplink_bits"] == first["bits.pilots"]


def test_over_the_air_signs_are_repeated_without_a_packet() -> None:
    """The scalars have a packet of their own, unless they are coded; votes have none."""
    air: dict[str, Any] = {"access": "over_the_air", "repeats": 5}
    one = uplink_bits(Encoder(MethodSettings(), LAYERS), CellSettings(**air))
    assert one == UplinkBits(signs=101, scalars=64, header=80, code=4 * 101)
    coded = uplink_bits(Encoder(MethodSettings(), LAYERS), CellSettings(**air, side_info="coded"))
    assert coded == UplinkBits(signs=101, scalars=64, code=4 * 101 + 352 - 64)
    vote = uplink_bits(Encoder(MethodSettings(), LAYERS, sends_scalars=False), CellSettings(**air))
    assert vote == UplinkBits(signs=101, code=4 * 101)


def _later(run: Experiment) -> Encoder:
    """The encoder of the rounds after the first."""
    encoder = Encoder(run.settings.method, run.task.segments)
    return replace(encoder, exponents=(0,) if encoder.quantised else ())


def test_the_items_of_a_run_add_up() -> None:
    assert tuple(UplinkBits().record()) == BIT_KEYS
    for side_info, csi, bits in product(("error_free", "coded"), ("perfect", "pilot"), ("none", 4)):
        run = Experiment(
            settings(
                rounds=3,
                cell__side_info=side_info,
                cell__csi=csi,
                method__side_bits=None if bits == "none" else bits,
                data__participation=0.5,
            )
        )
        records = [run.advance() for _ in range(3)]
        steps = [{key: b[key] - a[key] for key in BIT_KEYS} for a, b in pairwise(records)]
        for record in (*records, *steps):
            assert record["uplink_bits"] == sum(record[key] for key in BIT_KEYS[2:])
            assert record["payload_bits"] == record["bits.signs"] + record["bits.scalars"]
        assert steps[0] == steps[1] == uplink_bits(_later(run), run.settings.cell).times(3).record()
