"""Radio switches in training: predicted errors hold, bits and symbols are counted, runs resume."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from signfade.experiments.config import ConfigError, load
from signfade.simulation import Experiment
from signfade.uplink import make_radio
from signfade.device.encoder import Encoder
from signfade.simulation.radio import Radio
from signfade.simulation.availability import collect
from signfade.simulation.synthetic import GaussianTask
from signfade.settings import AIR_RULES, RunSettings
from signfade.uplink import Link

from ..runs import settings
from .test_run import play

PILOT = {"cell__csi": "pilot"}
CODED = {"cell__side_info": "coded"}


def gaussian(rounds: int = 30, **options: Any) -> Experiment:
    defaults = {"data__name": "gaussian", "data__size": 3000, "cell__snr_db": 5.0}
    return Experiment(settings(rounds=rounds, **(defaults | options)))


@pytest.mark.parametrize(
    "options",
    [
        {**PILOT, "cell__pilots": 1, "cell__csi_error": "naive"},
        {**PILOT, "cell__pilots": 1, "cell__csi_error": "aware"},
        {**PILOT, "cell__pilots": 1},
        {**PILOT, "cell__pilots": 2, "cell__noise": "known"},
        {**PILOT, "cell__fading": "rayleigh", "method__aggregator": "blmmse"},
        {**PILOT, "cell__modulation": "qpsk", "method__debias": True},
        {**PILOT, "method__rotation": "hadamard", "method__aggregator": "high_snr"},
        {**PILOT, "method__rotation": "hadamard", "method__debias": True},
        {**PILOT, "method__rotation": "hadamard", "method__aggregator": "bfl"},
        {**PILOT, "method__rotation": "hadamard", "method__aggregator": "bfl", "method__joint": "soft"},
        {**CODED, "cell__code_rate": 0.5},
        {**CODED, "cell__code_rate": 0.5, "cell__outage": "drop", "method__scales": "layer"},
        {**CODED, "cell__code_rate": 0.5, "method__rotation": "hadamard"},
        {**CODED, **PILOT, "cell__pilots": 1, "data__participation": 0.5},
    ],
    ids=lambda options: " ".join(str(value) for value in options.values()),
)
def test_measured_errors_agree_with_theory(options: dict[str, Any]) -> None:
    """Ratio of measured to predicted error, averaged over rounds, is one within four standard errors."""
    experiment = gaussian(**options)
    ratio = np.array([record["nmse"] / record["nmse_theory"] for record in play(experiment)])
    error = 4 * ratio.std() / math.sqrt(len(ratio))
    assert abs(ratio.mean() - 1) < error
    assert error < 0.05


def test_the_ladder_of_csi_holds_in_training() -> None:
    """One pilot, the same thousand links and noise: naive > aware > refined > perfect."""
    crowd = {"data__devices": 100, "data__size": 1000}
    errors = [
        np.mean([record["nmse"] for record in play(gaussian(10, **crowd, **options))])
        for options in (
            *({**PILOT, "cell__pilots": 1, "cell__csi_error": use} for use in ("naive", "aware", "refined")),
            {},
        )
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > errors[3] + 0.02


def test_a_codeword_also_tells_the_sign_of_its_gain() -> None:
    """With one pilot, words that check remove most of what a doubtful sign costs."""
    alone = np.mean([record["nmse"] for record in play(gaussian(**PILOT, cell__pilots=1))])
    with_words = np.mean([record["nmse"] for record in play(gaussian(**PILOT, **CODED, cell__pilots=1))])
    assert with_words < alone - 0.01


def test_noise_is_learned_over_the_rounds() -> None:
    """Six devices at 0 and 10 dB; after 12 rounds of 3000 symbols each variance is within 10 %."""
    snr_db = [0.0, 10.0] * 3
    experiment = gaussian(12, **PILOT, cell__snr_db=snr_db)
    play(experiment)
    noise = experiment.state()["radio.noise"].numpy()
    assert np.abs(noise * 10 ** (np.array(snr_db) / 10) - 1).max() < 0.1


def test_a_gain_that_was_lowered_stays_lowered() -> None:
    """A device short of power comes with a smaller gain than the cell drew; pilots do not bring it back."""
    options = settings(**PILOT, data__name="gaussian")
    plan, encoder = make_radio(options.cell, 6, 0), Encoder(options.method, (300,))
    everyone = np.arange(6)
    task = GaussianTask(6, 300, 0)
    uplink = collect(task, encoder, plan, torch.zeros(300), devices=everyone, round=2, seed=0)
    assert uplink.received is not None
    full = uplink.received.link
    half = replace(uplink.received, link=Link(0.5 * full.h, full.sigma2))
    heard = Radio(plan, encoder).hear(replace(uplink, received=half), 2).received
    assert heard is not None
    assert heard.air is not None
    assert torch.allclose(heard.air.h, 0.5 * full.h)


def test_defaults_leave_no_trace() -> None:
    record = gaussian(1).advance()
    assert "channel_uses" not in record
    assert not [name for name in gaussian(1).state() if name.startswith("radio")]
    ideal = gaussian(1, **PILOT, method__aggregator="ideal")
    assert ideal.advance()["nmse"] == 0.0


@pytest.mark.parametrize(
    ("options", "bits", "uses"),
    [
        (CODED, 3248 + 4 * 88, 6 * (3248 + 352)),
        ({**CODED, "method__aggregator": "signsgd"}, 3248, 6 * 3248),
        ({**PILOT, "cell__pilots": 5}, 3312 + 5, 6 * (3312 + 5)),
        ({"cell__modulation": "qpsk", "data__size": 2999}, 3312, 6 * 1656),
        ({"cell__access": "over_the_air", "cell__repeats": 3}, 9000 + 312, 3 * 3000 + 6 * 312),
        ({"cell__access": "over_the_air", **CODED, "cell__modulation": "qpsk"}, 3352, 1500 + 6 * 176),
    ],
)
def test_bits_and_symbols_are_counted(options: dict[str, Any], bits: int, uses: int) -> None:
    """A packet has 31 bytes around its signs and scalars; over the air signs have none."""
    records = play(gaussian(2, **options))
    assert [record["uplink_bits"] for record in records] == [6 * bits, 12 * bits]
    assert [record["channel_uses"] for record in records] == [uses, 2 * uses]


def test_the_first_codeword_is_longer_where_scalars_are_quantised() -> None:
    """Its scale takes 16 bits: (4 + 16 + 24)/0.5 coded bits, then (4 + 4 + 24)/0.5."""
    records = play(gaussian(2, **CODED, method__side_bits=4, cell__code_rate=0.5))
    assert [record["uplink_bits"] for record in records] == [6 * (3248 + 88), 6 * (2 * 3248 + 88 + 64)]
    assert [record["channel_uses"] for record in records] == [record["uplink_bits"] for record in records]


def test_two_bits_a_symbol_are_one_at_half_the_snr() -> None:
    one = play(gaussian(3, cell__snr_db=5.0))
    two = play(gaussian(3, cell__snr_db=5.0 + 10 * math.log10(2), cell__modulation="qpsk"))
    for a, b in zip(one, two, strict=True):
        assert a["snr_db"] == pytest.approx(b["snr_db"], abs=1e-3)
        assert a["nmse"] == pytest.approx(b["nmse"], rel=1e-4)


def test_decoded_devices_are_those_above_the_threshold() -> None:
    """All links at one SNR, without fading: all words arrive, or none."""
    for snr_db, decoded in ((3.0, 6), (-12.0, 0)):
        record = gaussian(1, **CODED, cell__snr_db=snr_db, cell__fading="none").advance()
        assert record["decoded"] == decoded


SWITCHES: list[dict[str, Any]] = [
    {**PILOT, **CODED, "cell__pilots": 1, "data__participation": 0.5},
    {**CODED, "cell__outage": "drop", "method__aggregator": "bfl", "method__rotation": "hadamard"},
    {"cell__access": "over_the_air", "cell__precoding": "phase", **CODED},
    {"cell__modulation": "qpsk", **PILOT, "method__aggregator": "signsgd"},
]


@pytest.mark.parametrize("options", SWITCHES)
def test_stopping_anywhere_changes_nothing(options: dict[str, Any]) -> None:
    def fresh() -> Experiment:
        return Experiment(settings(rounds=6, cell__snr_db=-2.0, **options))

    through = fresh()
    records = play(through)
    first = fresh()
    for _ in range(2):
        first.advance()
    saved = {name: value.clone() for name, value in first.state().items()}
    second = fresh()
    second.restore(saved, round=2)
    assert play(second) == records[2:]
    assert torch.equal(second.weights, through.weights)


@pytest.mark.parametrize("options", SWITCHES)
def test_threads_change_nothing(options: dict[str, Any]) -> None:
    one, three = (Experiment(settings(threads=n, **options)) for n in (1, 3))
    assert play(one) == play(three)
    assert torch.equal(one.weights, three.weights)


AGGREGATORS = ["ideal", "signsgd", "signsum", "sbfl", "blmmse", "high_snr", "zero_forcing", "bfl", "own"]


def refused(
    aggregator: str, access: str, csi: str, side: str, modulation: str, fading: str, cell: str
) -> bool:
    """What is refused, and nothing else."""
    together = access == "over_the_air"
    if cell == "perfect" and (together or csi == "pilot" or side == "coded"):
        return True
    if together and (csi == "pilot" or aggregator not in AIR_RULES):
        return True
    return csi == "pilot" and modulation == "qpsk" and fading == "rayleigh"


@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_every_combination_works_or_is_refused_in_one_sentence(aggregator: str, tmp_path: Path) -> None:
    file = tmp_path / "rule.py"
    file.write_text(
        "from signfade import server\n"
        "def own(r):\n"
        "    return server.sbfl(r.y, r.h, r.sigma2, r.mean, r.scale, r.weights)\n"
    )
    name = f"{file}:own" if aggregator == "own" else aggregator
    axes = (
        ("orthogonal", "over_the_air"),
        ("perfect", "pilot"),
        ("error_free", "coded"),
        ("bpsk", "qpsk"),
        ("gaussian", "rayleigh"),
        ("radio", "perfect"),
    )
    for access, csi, side, modulation, fading, cell in itertools.product(*axes):
        tree = {
            "rounds": 2,
            "data": {"name": "gaussian", "size": 60, "devices": 4},
            "method": {"aggregator": name, "debias": fading == "rayleigh"},
            "cell": {
                "perfect": cell == "perfect",
                "access": access,
                "csi": csi,
                "side_info": side,
                "modulation": modulation,
                "fading": fading,
            },
        }
        if refused(aggregator, access, csi, side, modulation, fading, cell):
            with pytest.raises(ValueError, match="must be") as caught:
                RunSettings.model_validate(tree)
            assert "\n" not in str(caught.value).split("Value error, ")[1].split(" [type=")[0]
            continue
        for record in play(Experiment(RunSettings.model_validate(tree))):
            json.dumps(record, allow_nan=False)
            assert record["nmse"] is not None
            assert math.isfinite(record["nmse"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["cell.perfect=true", "cell.csi=pilot"], r'"perfect" over perfect links, where nothing is in doubt'),
        (["cell.csi=pilot", "cell.access=over_the_air"], "devices must know their gains to align"),
        (
            ["cell.csi=pilot", "cell.modulation=qpsk", "cell.fading=rician"],
            "would mix the two bits of a symbol",
        ),
        (
            ["cell.access=over_the_air", "method.aggregator=bfl"],
            "must be one of ideal, sbfl, blmmse, signsgd",
        ),
        (
            ["cell.access=over_the_air", "method.aggregator=sbfl", "method.form=published"],
            'method.form must be "corrected"',
        ),
        (["cell.code_check=7"], "cell.code_check"),
        (["cell.pilots=0"], "cell.pilots"),
        (["cell.inversion_db=1e5"], "cell.inversion_db must be less than or equal to 100"),
        (["cell.code_rate=0"], "cell.code_rate"),
        (["cell.repeats=0"], "cell.repeats"),
        (["cell.csi=guess"], "cell.csi"),
    ],
)
def test_the_command_line_refuses_with_one_sentence(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(None, overrides)
    assert "\n" not in str(caught.value)


def test_a_code_too_short_for_its_scalars_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"cell.code_rate or cell.code_length does not fit"):
        Experiment(settings(cell__side_info="coded", cell__code_length=50))
