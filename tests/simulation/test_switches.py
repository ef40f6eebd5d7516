"""Every combination of switches works or is refused in one sentence, and whatever works can be stopped."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from signfade.device import bit_epsilon, composed_epsilon
from signfade.experiments.config import ConfigError, resolve
from signfade.simulation import Experiment

SWITCHES: dict[str, dict[str, Any]] = {
    "dropout": {"availability.dropout": 0.4},
    "late": {"availability.late": 0.5, "availability.staleness": 2},
    "limited": {"availability.limited": 0.5},
    "feedback": {"method.error_feedback": 1.0},
    "sign-noise": {"method.sign_noise": 0.7},
    "flip": {"method.flip": 0.2},
    "flippers": {"attack.kind": "sign-flip", "attack.fraction": 0.34},
    "inflators": {"attack.kind": "scale-inflation", "attack.fraction": 0.2, "attack.strength": 1000.0},
    "colluders": {"attack.kind": "random-bits", "attack.fraction": 0.34, "attack.collude": True},
    "bound": {"defence.bound_scales": True},
    "reliability": {"defence.reliability": True},
    "pilot": {"cell.csi": "pilot"},
    "coded": {"cell.side_info": "coded"},
    "air": {"cell.access": "over_the_air"},
    "qpsk": {"cell.modulation": "qpsk"},
    "perfect": {"cell.perfect": True},
    "doppler": {"cell.doppler_hz": 0.05},
    "antennas": {"cell.antennas": 3},
    "fractional": {"cell.power_control": "fractional"},
    "posterior": {"cell.scheduling": "posterior", "data.participation": 0.5},
    "fair": {"cell.scheduling": "proportional-fair", "data.participation": 0.5},
    "broadcast": {"cell.downlink": "coded"},
    "rotation": {"method.rotation": "shared"},
    "layers": {"method.scales": "layer"},
    "bits": {"method.side_bits": 4},
    "debias": {"method.debias": True},
    "share": {"method.weights": "share"},
    "laplacian": {"method.prior": "laplacian"},
    "empirical": {"method.prior": "empirical"},
    "downlink": {"server.downlink": "sign"},
    "participation": {"data.participation": 0.5},
    "private": {"method.rotation": "private"},
    "auto": {"method.rotation": "auto"},
    "subset": {"method.rotation": "shared", "method.bits_per_weight": 0.2},
    "private subset": {"method.rotation": "private", "method.bits_per_weight": 0.2},
    "levels": {"method.rotation": "shared", "method.bits_per_weight": 3},
    "amplitudes": {"method.rotation": "private", "method.bits_per_weight": "analog"},
}
RULES: dict[str, dict[str, Any]] = {
    "sbfl": {},
    "blmmse": {"method.aggregator": "blmmse"},
    "high_snr": {"method.aggregator": "high_snr"},
    "zero_forcing": {"method.aggregator": "zero_forcing"},
    "signsgd": {"method.aggregator": "signsgd"},
    "signsum": {"method.aggregator": "signsum"},
    "ideal": {"method.aggregator": "ideal"},
    "best": {"method.preset": "best"},
    "linear": {"method.aggregator": "bfl"},
    "ep": {"method.aggregator": "bfl", "method.joint": "ep"},
    "factor": {"method.aggregator": "bfl", "method.joint": "factor"},
}
CHECKED = ("dropout", "late", "limited", "feedback", "sign-noise", "flip")
CHECKED += ("flippers", "inflators", "colluders", "bound", "reliability")
# Pairs of a checked switch with a rule or another switch that have no meaning, and the sentence's beginning.
REFUSED = {
    ("ideal", "feedback"): "method.error_feedback must be 0 with ideal",
    ("ideal", "sign-noise"): "method.sign_noise must be 0 with ideal",
    ("ideal", "flip"): "method.flip must be 0 with ideal",
    ("ideal", "flippers"): 'attack.kind must be "none" with ideal',
    ("ideal", "inflators"): 'attack.kind must be "none" with ideal',
    ("signsgd", "inflators"): 'attack.kind must not be "scale-inflation"',
    ("signsum", "inflators"): 'attack.kind must not be "scale-inflation"',
    ("ideal", "colluders"): 'attack.kind must be "none" with ideal',
    ("ideal", "bound"): "defence.bound_scales must be false with ideal",
    ("ideal", "reliability"): "defence.reliability must be false with ideal",
    ("signsgd", "feedback"): "method.error_feedback must be 0 with signsgd",
    ("signsum", "feedback"): "method.error_feedback must be 0 with signsum",
    ("signsgd", "bound"): "defence.bound_scales must be false with signsgd",
    ("signsum", "bound"): "defence.bound_scales must be false with signsum",
    ("air", "reliability"): "defence.reliability must be false with cell.access",
    ("perfect", "limited"): "availability.limited must be 0 over perfect links",
}
_DIALLED = ("private", "auto", "subset", "private subset", "levels", "amplitudes")
for _dial in _DIALLED:
    for _name, _key in (("feedback", "error_feedback"), ("sign-noise", "sign_noise"), ("flip", "flip")):
        REFUSED[_name, _dial] = f"method.{_key} must be 0 with private rotations or bits_per_weight"
    if _dial != "subset":
        REFUSED["reliability", _dial] = "defence.reliability must be false with private rotations"
    if _dial in ("levels", "amplitudes"):
        for _name in ("flippers", "inflators", "colluders"):
            REFUSED[_name, _dial] = "attack.kind must be none with private rotations or more than one bit"
TINY = {"rounds": 5, "data.name": "gaussian", "data.size": 60, "data.devices": 6, "threads": 1}


def refusal(keys: dict[str, Any]) -> str | None:
    """Run a few rounds; return the sentence if the settings are refused."""
    try:
        experiment = Experiment(resolve({**TINY, **keys}))
    except ValueError as error:
        return str(error)
    while not experiment.done:
        json.dumps(experiment.advance(), allow_nan=False)
    assert bool(experiment.weights.isfinite().all())
    return None


def expected(*names: str) -> set[str]:
    return {sentence for pair, sentence in REFUSED.items() if set(pair) <= set(names)}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("switch", CHECKED)
def test_every_rule_with_every_switch(rule: str, switch: str) -> None:
    said = refusal({**SWITCHES[switch], **RULES[rule]})
    reasons = expected(rule, switch)
    assert (said is None) == (not reasons)
    assert said is None or (said.startswith(reasons.pop()) and "\n" not in said)


@pytest.mark.parametrize("rule", ["sbfl", "signsgd", "best"])
@pytest.mark.parametrize("first", CHECKED)
def test_every_two_switches_work_or_are_refused(rule: str, first: str) -> None:
    """Also with the radio's: refused by one sentence that this table or the radio's own tests know."""
    for second in SWITCHES:
        one = (SWITCHES[first], SWITCHES[second])
        if second == first or one[0].keys() & one[1].keys():
            continue
        said = refusal({**one[0], **one[1], **RULES[rule]})
        reasons = expected(rule, first, second)
        if rule == "signsgd" and second in _DIALLED and second != "subset":
            reasons = {"method.aggregator must be one of sbfl, bfl with private rotations", *reasons}
        if said is None:
            assert not reasons, (first, second)
        elif not any(said.startswith(reason) for reason in reasons):
            # Then the other one is refused by itself, in the same words.
            assert said == refusal({**one[1], **RULES[rule]}), (first, second)
        assert said is None or "\n" not in said


@pytest.mark.parametrize(
    "names",
    [
        ("feedback", "rotation", "flip", "late"),
        ("late", "dropout", "limited", "reliability", "bound", "flippers"),
        ("reliability", "layers", "participation", "colluders"),
        ("reliability", "bound", "inflators", "pilot", "coded", "rotation"),
        ("feedback", "bits", "layers", "downlink"),
        ("reliability", "flippers", "best"),
        ("private subset", "bits", "late", "bound", "best"),
        ("auto", "participation", "best"),
        ("amplitudes", "dropout", "best"),
        ("doppler", "antennas", "fractional", "posterior", "broadcast", "downlink", "late"),
        ("doppler", "pilot", "fair", "best"),
    ],
)
def test_stopping_anywhere_changes_nothing(names: tuple[str, ...]) -> None:
    keys = {key: value for name in names for key, value in {**SWITCHES, **RULES}[name].items()}
    tree = {**TINY, "rounds": 9, **keys}

    def rest(experiment: Experiment) -> list[dict[str, Any]]:
        return [{**experiment.advance(), "seconds": 0} for _ in range(9 - experiment.round)]

    through = Experiment(resolve(tree))
    records = rest(through)
    first = Experiment(resolve(tree))
    for _ in range(5):
        first.advance()
    saved = {name: value.clone() for name, value in first.state().items()}
    rest(first)  # going on must not reach into what was saved
    second = Experiment(resolve(tree))
    second.restore(saved, round=5)
    assert rest(second) == records[5:]
    assert torch.equal(second.weights, through.weights)


@pytest.mark.parametrize("threads", [3])
def test_bytes_do_not_depend_on_threads(threads: int) -> None:
    keys = {**SWITCHES["feedback"], **SWITCHES["flip"], **SWITCHES["reliability"], **SWITCHES["late"]}
    one, many = (
        Experiment(resolve({**TINY, "data.name": "digits", "model.name": "linear", **keys, "threads": n}))
        for n in (1, threads)
    )
    for _ in range(4):
        assert {**one.advance(), "seconds": 0} == {**many.advance(), "seconds": 0}
    assert torch.equal(one.weights, many.weights)


def test_switches_that_are_off_leave_no_trace() -> None:
    experiment = Experiment(resolve(TINY))
    plain = experiment.advance()
    assert not plain.keys() & {"late", "epsilon", "epsilon_bit", "reliability"}
    assert not any(name.startswith("server.stages") for name in experiment.state())
    assert experiment.state()["clients.feedback"].numel() == 0


def test_a_run_states_its_privacy() -> None:
    experiment = Experiment(resolve({**TINY, "method.flip": 0.25}))
    assert len(experiment.warnings) == 1
    assert experiment.warnings[0].startswith(
        "privacy covers the bits, not the means and scales: epsilon 1.1 "
    )
    for t in range(1, 4):
        record = experiment.advance()
        assert record["epsilon_bit"] == bit_epsilon(0.25)
        assert record["epsilon"] == composed_epsilon(0.25, 60 * t, 1e-5)
    vote = Experiment(resolve({**TINY, "method.flip": 0.25, "method.aggregator": "signsgd"}))
    assert vote.warnings[0].startswith("privacy covers all that is sent")


@pytest.mark.parametrize("method", ["sbfl", "high_snr", "zero_forcing", "signsgd"])
@pytest.mark.parametrize("law", [{"method.flip": 0.15}, {"method.sign_noise": 1.0}])
@pytest.mark.parametrize("prior", ["gaussian", "empirical"])
def test_theory_knows_flipped_and_noisy_bits(method: str, law: dict[str, Any], prior: str) -> None:
    """Measured over predicted error is one within four standard errors where gradients are Gaussian."""
    rounds = 25
    keys = {"method.aggregator": method, "method.prior": prior, "cell.snr_db": 5.0, "data.size": 4000, **law}
    experiment = Experiment(resolve({**TINY, **keys, "rounds": rounds}))
    records = [experiment.advance() for _ in range(rounds)]
    ratio = np.array([record["nmse"] / record["nmse_theory"] for record in records])
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(rounds)


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"method.aggregator": "signsgd"},
        {"method.aggregator": "blmmse", "cell.csi": "pilot"},
        {"method.preset": "best"},
        {"method.aggregator": "bfl", "method.correlation": "genie"},
        {"method.aggregator": "bfl", "method.joint": "ep"},
    ],
)
@pytest.mark.parametrize("law", [{"method.flip": 0.15}, {"method.sign_noise": 1.0}])
def test_theory_knows_them_on_real_gradients_that_are_rotated(
    rule: dict[str, Any], law: dict[str, Any]
) -> None:
    keys = {
        "data.name": "digits",
        "model.name": "mlp",
        "method.rotation": "shared",
        "server.learning_rate": 1e-3,
    }
    experiment = Experiment(resolve({**TINY, **keys, **rule, **law, "rounds": 10}))
    ratio = [r["nmse"] / r["nmse_theory"] for r in (experiment.advance() for _ in range(10))]
    assert np.mean(ratio) == pytest.approx(1, abs=0.06)


def test_debiasing_knows_what_flips_and_noise_take() -> None:
    """The debiased estimate's projection on the truth has length one, as it has without them."""
    for law in ({"method.flip": 0.1}, {"method.sign_noise": 0.7}):
        for rule in ({}, {"method.aggregator": "bfl", "method.correlation": "genie", "method.joint": "soft"}):
            keys = {"data.size": 4000, "cell.snr_db": 20.0, "method.debias": True, **law, **rule}
            experiment = Experiment(resolve({**TINY, **keys, "rounds": 15}))
            slopes = []
            for _ in range(15):
                record = experiment.advance()
                c, e = record["cosine"], record["nmse"]
                slopes.append(c * (c + np.sqrt(c * c - 1 + e)))
            assert abs(np.mean(slopes) - 1) < 4 * np.std(slopes) / np.sqrt(15) + 2e-3


def test_a_config_error_is_one_sentence() -> None:
    with pytest.raises(
        ConfigError, match=r"attack.fraction must be at least one device; got 0.01 of 6 devices"
    ):
        resolve({**TINY, "attack.kind": "sign-flip", "attack.fraction": 0.01})
