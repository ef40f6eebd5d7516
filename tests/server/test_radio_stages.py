"""Radio switches in training: predicted errors hold, bits and symbols are counted, runs resume."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from signfade.experiments.config import ConfigError, load
from signfade.server import AGGREGATORS, Server
from signfade.server.stages import PilotEstimation
from signfade.settings import RunSettings
from signfade.simulation import Experiment
from signfade.simulation.synthetic import GaussianTask
from signfade.uplink import Link

from ..runs import finish, gaussian, settings

PILOT = {"cell__csi": "pilot"}
CODED = {"cell__side_info": "coded"}


@pytest.mark.parametrize(
    "options",
    [
        {**PILOT, "cell__pilots": 1, "cell__csi_error": "naive"},
        {**PILOT, "cell__pilots": 1, "cell__csi_error": "aware"},
        {**PILOT, "cell__pilots": 1},
        {**PILOT, "cell__pilots": 2, "cell__noise": "known"},
        {**PILOT, "cell__fading": "rayleigh", "method__aggregator": "blmmse"},
        {**PILOT, "cell__modulation": "qpsk", "method__debias": True},
        {**PILOT, "method__rotation": "shared", "method__aggregator": "high_snr"},
        {**PILOT, "method__rotation": "shared", "method__debias": True},
        {**PILOT, "method__rotation": "shared", "method__aggregator": "bfl"},
        {**PILOT, "method__rotation": "shared", "method__aggregator": "bfl", "method__joint": "soft"},
        {**CODED, "cell__code_rate": 0.5},
        {**CODED, "cell__code_rate": 0.5, "cell__outage": "drop", "method__scales": "layer"},
        {**CODED, "cell__code_rate": 0.5, "method__rotation": "shared"},
        {**CODED, **PILOT, "cell__pilots": 1, "data__participation": 0.5},
    ],
    ids=lambda options: " ".join(str(value) for value in options.values()),
)
def test_measured_errors_agree_with_theory(options: dict[str, Any]) -> None:
    """Ratio of measured to predicted error, averaged over rounds, is one within four standard errors."""
    experiment = gaussian(**options)
    ratio = np.array([record["nmse"] / record["nmse_theory"] for record in finish(experiment)])
    error = 4 * ratio.std() / math.sqrt(len(ratio))
    assert abs(ratio.mean() - 1) < error
    assert error < 0.05


def test_the_ladder_of_csi_holds_in_training() -> None:
    """One pilot, the same thousand links and noise: naive > aware > refined > perfect."""
    crowd = {"data__devices": 100, "data__size": 1000}
    errors = [
        np.mean([record["nmse"] for record in finish(gaussian(10, **crowd, **options))])
        for options in (
            *({**PILOT, "cell__pilots": 1, "cell__csi_error": use} for use in ("naive", "aware", "refined")),
            {},
        )
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > errors[3] + 0.02


def test_a_codeword_also_tells_the_sign_of_its_gain() -> None:
    """With one pilot, words that check remove most of what a doubtful sign costs."""
    without = np.mean([record["nmse"] for record in finish(gaussian(**PILOT, cell__pilots=1))])
    with_words = np.mean([record["nmse"] for record in finish(gaussian(**PILOT, **CODED, cell__pilots=1))])
    assert with_words < without - 0.01


def test_noise_is_learned_over_the_rounds() -> None:
    """Six devices at 0 and 10 dB; after 12 rounds of 3000 symbols each variance is within 10 %."""
    snr_db = [0.0, 10.0] * 3
    experiment = gaussian(12, **PILOT, cell__snr_db=snr_db)
    finish(experiment)
    noise = experiment.state()["server.stages.pilots.noise"].numpy()
    assert np.abs(noise * 10 ** (np.array(snr_db) / 10) - 1).max() < 0.1


def test_a_gain_that_was_lowered_stays_lowered() -> None:
    """A device short of power comes with a smaller gain than the cell drew; pilots do not bring it back."""
    options = settings(**PILOT, data__name="gaussian")
    server, everyone = Server(options, (300,), 6), np.arange(6)
    memory = server.init(torch.zeros(300))
    gradients = GaussianTask(6, 300, 0).local_updates(memory.weights, everyone, 0).gradients
    message, _ = server.encoder(memory).encode(gradients)
    full = server.radio.link(everyone, 0)
    half = Link(0.5 * full.h, full.sigma2)
    received = server.transmit(memory, message, everyone, torch.ones(6), link=half)
    stage = PilotEstimation(server.radio)
    _, received, _ = stage.apply(stage.init(), received)
    assert torch.allclose(received.signals.link.h, 0.5 * full.h)


def test_defaults_leave_no_trace() -> None:
    assert not [name for name in gaussian(1).state() if name.startswith("server.stages")]
    ideal = gaussian(1, **PILOT, method__aggregator="ideal")
    assert ideal.advance()["nmse"] == 0.0


@pytest.mark.parametrize(
    ("options", "bits", "uses"),
    [
        (CODED, 3080 + 4 * 88, 6 * (3080 + 352)),
        ({**CODED, "method__aggregator": "signsgd"}, 3080, 6 * 3080),
        ({**PILOT, "cell__pilots": 5}, 3144 + 5, 6 * (3144 + 5)),
        ({"cell__modulation": "qpsk", "data__size": 2999}, 3144, 6 * 1572),
        ({"cell__access": "over_the_air", "cell__repeats": 3}, 9000 + 144, 3 * 3000 + 6 * 144),
        ({"cell__access": "over_the_air", **CODED, "cell__modulation": "qpsk"}, 3352, 1500 + 6 * 176),
    ],
)
def test_bits_and_symbols_are_counted(options: dict[str, Any], bits: int, uses: int) -> None:
    """A packet has 10 bytes around its signs and scalars; over the air signs have none."""
    records = finish(gaussian(2, **options))
    assert [record["uplink_bits"] for record in records] == [6 * bits, 12 * bits]
    assert [record["channel_uses"] for record in records] == [uses, 2 * uses]


def test_the_first_codeword_is_longer_where_scalars_are_quantised() -> None:
    """Its scale takes 16 bits: (4 + 16 + 24)/0.5 coded bits, then (4 + 4 + 24)/0.5."""
    records = finish(gaussian(2, **CODED, method__side_bits=4, cell__code_rate=0.5))
    assert [record["uplink_bits"] for record in records] == [6 * (3080 + 88), 6 * (2 * 3080 + 88 + 64)]
    assert [record["channel_uses"] for record in records] == [record["uplink_bits"] for record in records]


def test_two_bits_a_symbol_are_one_at_half_the_snr() -> None:
    one = finish(gaussian(3, cell__snr_db=5.0))
    two = finish(gaussian(3, cell__snr_db=5.0 + 10 * math.log10(2), cell__modulation="qpsk"))
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
    {**CODED, "cell__outage": "drop", "method__aggregator": "bfl", "method__rotation": "shared"},
    {"cell__access": "over_the_air", "cell__precoding": "phase", **CODED},
    {"cell__modulation": "qpsk", **PILOT, "method__aggregator": "signsgd"},
]


@pytest.mark.parametrize("options", SWITCHES)
def test_stopping_anywhere_changes_nothing(options: dict[str, Any]) -> None:
    def fresh() -> Experiment:
        return Experiment(settings(rounds=6, cell__snr_db=-2.0, **options))

    through = fresh()
    records = finish(through)
    first = fresh()
    for _ in range(2):
        first.advance()
    saved = {name: value.clone() for name, value in first.state().items()}
    second = fresh()
    second.restore(saved, round=2)
    assert finish(second) == records[2:]
    assert torch.equal(second.weights, through.weights)


@pytest.mark.parametrize("options", SWITCHES)
def test_threads_change_nothing(options: dict[str, Any]) -> None:
    one, three = (Experiment(settings(threads=n, **options)) for n in (1, 3))
    assert finish(one) == finish(three)
    assert torch.equal(one.weights, three.weights)


def refused(
    aggregator: str, access: str, csi: str, side: str, modulation: str, fading: str, cell: str
) -> bool:
    """What is refused, and nothing else."""
    together = access == "over_the_air"
    if cell == "perfect" and (together or csi == "pilot" or side == "coded"):
        return True
    if together and (
        csi == "pilot" or (aggregator == "own" or AGGREGATORS.find(aggregator).over_the_air is None)
    ):
        return True
    return csi == "pilot" and modulation == "qpsk" and fading == "rayleigh"


@pytest.mark.parametrize("aggregator", [*AGGREGATORS.names(), "own"])
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
        for record in finish(Experiment(RunSettings.model_validate(tree))):
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
            "must be one of .*sbfl.*where no device is received by itself",
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
