"""Tied votes in a run: symmetric, keyed, and no step where nothing was received."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from signfade.experiments.config import deciding, load
from signfade.settings import Tie
from signfade.simulation import Experiment
from signfade.simulation.synthetic import GaussianTask
from signfade.simulation.task import Devices, LocalGradients
from signfade.theory import tie_probability
from signfade.uplink import Link
from signfade.uplink.radio import Radio

from ..runs import settings

TIES: tuple[Tie, ...] = ("zero", "plus", "random")
SIZE, DEVICES = 20_000, 4


class Negated(GaussianTask):
    """The same devices, going the other way."""

    def local_updates(self, weights: torch.Tensor, devices: Devices, round: int) -> LocalGradients:
        local = super().local_updates(weights, devices, round)
        return LocalGradients(-local.gradients, local.losses)


def run(kind: type[GaussianTask] = GaussianTask, rounds: int = 1, **changes: Any) -> torch.Tensor:
    """The weights after some rounds of votes with steps of one, from zero."""
    changes = {"cell__perfect": True, "server__learning_rate": 1.0} | changes
    options = settings(rounds=rounds, method__aggregator="signsgd", **changes)
    experiment = Experiment(options, task=kind(devices=DEVICES, size=SIZE, seed=0))
    for _ in range(rounds):
        experiment.advance()
    return experiment.weights


@pytest.mark.parametrize("threads", [1, 3])
def test_negated_gradients_make_negated_steps(threads: int) -> None:
    there, back = (run(kind, method__tie="zero", threads=threads) for kind in (GaussianTask, Negated))
    assert torch.equal(there, -back)
    tied = there == 0
    chance, error = tie_probability(DEVICES), 4.5 / math.sqrt(SIZE)
    assert abs(float(tied.double().mean()) - chance) < error
    by_coin, other = (run(kind, method__tie="random", threads=threads) for kind in (GaussianTask, Negated))
    assert torch.equal(by_coin[~tied], -other[~tied])
    assert abs(float(by_coin.mean())) < error
    assert float(-run(method__tie="plus").mean()) > chance - 2 * error  # all weights drift one way


def test_coins_are_new_in_every_round() -> None:
    one, two = (run(rounds=rounds, method__tie="random") for rounds in (1, 2))
    zeros = [run(rounds=rounds, method__tie="zero") for rounds in (1, 2)]
    first, second = zeros[0] == 0, zeros[1] == zeros[0]
    both = first & second
    assert both.sum() > 1000
    product = (one * (two - one))[both]
    assert abs(float(product.mean())) < 4.5 / math.sqrt(float(both.sum()))


def test_with_one_bit_down_a_zero_is_a_plus() -> None:
    zero, plus = (run(rounds=3, method__tie=tie, server__downlink="sign") for tie in ("zero", "plus"))
    assert torch.equal(zero, plus)
    assert not torch.equal(run(rounds=3, method__tie="zero"), zero)


@pytest.mark.parametrize("tie", TIES)
@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"server__downlink": "sign"},
        {"server__downlink": "sign", "server__optimizer": "adam"},
        {"cell__access": "over_the_air"},
        {"method__rotation": "shared"},
    ],
)
def test_no_signal_no_step(tie: Tie, switches: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(radio: Radio, devices: Devices, round: int) -> Link:
        return Link(torch.zeros(len(devices)).double(), torch.ones(len(devices)).double())

    monkeypatch.setattr(Radio, "link", nothing)
    weights = run(rounds=2, method__tie=tie, cell__perfect=False, cell__snr_db=0.0, **switches)
    assert torch.equal(weights, torch.zeros(SIZE))


def test_a_tie_decides_the_numbers_of_votes_only() -> None:
    def key(rule: str) -> str | None:
        value: str | None = deciding(load(None, [f"method.aggregator={rule}"]).model_dump()).get("method.tie")
        return value

    assert [key(rule) for rule in ("signsgd", "sbfl", "signsum")] == ["zero", None, None]
