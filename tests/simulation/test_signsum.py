"""The sum of detected signs: signSGD without its majority, and what a one-bit downlink makes of both."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from signfade.simulation import Experiment
from signfade.uplink.cost import uplink_bits
from signfade.device.encoder import Encoder
from signfade.simulation.availability import collect
from signfade.simulation.rules import find_rule
from signfade.server.vote import detect, majority_vote
from signfade.settings import CellSettings

from .conftest import settings


def play(**changes: Any) -> tuple[list[dict[str, Any]], torch.Tensor]:
    experiment = Experiment(settings(rounds=6, data__name="digits", data__devices=5, **changes))
    records = []
    while not experiment.done:
        record = experiment.advance()
        records.append(
            {key: value for key, value in record.items() if key not in ("seconds", "downlink_bits")}
        )
    return records, experiment.weights


def test_the_sum_is_that_of_the_detected_signs_and_its_sign_is_the_vote() -> None:
    experiment = Experiment(settings(data__name="digits", data__devices=5, method__aggregator="signsum"))
    method = experiment.settings.method
    devices = torch.arange(5).numpy()
    uplink = collect(
        experiment.task,
        Encoder(method, experiment.task.segments),
        experiment.cell,
        experiment.weights,
        devices=devices,
        round=0,
        seed=0,
    )
    received = uplink.received
    assert received is not None
    total = find_rule(method)(received)
    assert torch.equal(total, detect(received.y, received.h).sum(dim=0))
    vote = find_rule(method.model_copy(update={"aggregator": "signsgd"}))(received)
    assert torch.equal(vote, majority_vote(received.y, received.h))
    assert total.abs().max() > 1


def test_its_devices_send_what_those_of_signsgd_send() -> None:
    votes = [Encoder(settings(method__aggregator=name).method, (100,)) for name in ("signsgd", "signsum")]
    assert [uplink_bits(vote, CellSettings()).payload for vote in votes] == [100, 100]
    g = torch.randn(3, 100, generator=torch.Generator().manual_seed(0)) + 0.3  # a mean that must not matter
    assert torch.equal(votes[0].encode(g).packed, votes[1].encode(g).packed)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_one_bit_downlink_changes_nothing_for_a_vote_and_makes_one_of_a_sum(momentum: float) -> None:
    """So a table with two different columns for signSGD cannot mean the same vote with both downlinks."""
    common: dict[str, Any] = {"server__step": 1e-2, "server__momentum": momentum}
    vote, w_vote = play(method__aggregator="signsgd", **common)
    vote_down, w_down = play(method__aggregator="signsgd", server__downlink="sign", **common)
    assert vote == vote_down
    assert torch.equal(w_vote, w_down)
    _, w_sum_down = play(method__aggregator="signsum", server__downlink="sign", **common)
    assert torch.equal(w_vote, w_sum_down)
    _, w_sum = play(method__aggregator="signsum", **common)
    assert not torch.allclose(w_vote, w_sum)
