"""The sum of detected signs: signSGD without its majority, and what a one-bit downlink makes of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from signfade.server import Server, detect, majority_vote, sign_sum
from signfade.settings import CellSettings
from signfade.simulation import Experiment
from signfade.uplink.cost import uplink_bits

from ..runs import settings


def run(**changes: Any) -> tuple[list[dict[str, Any]], torch.Tensor]:
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
    task, everyone = experiment.task, np.arange(5)
    server = Server(experiment.settings, task.segments, 5)
    memory = server.init(experiment.weights)
    gradients = task.local_updates(experiment.weights, everyone, 0).gradients
    message, _ = server.encoder(memory).encode(gradients)
    received = server.transmit(memory, message, everyone, torch.ones(5))
    total = server.aggregate(memory, received)[1].value
    assert torch.equal(total, sign_sum(received.signals, received.h))
    assert torch.equal(total, detect(received.y, received.h).sum(dim=0))
    vote = majority_vote(received.signals, received.h)
    assert torch.equal(vote, majority_vote(received.y, received.h))
    assert torch.equal(vote, total.sign())
    assert total.abs().max() > 1


def test_its_devices_send_what_those_of_signsgd_send() -> None:
    votes = []
    for name in ("signsgd", "signsum"):
        server = Server(settings(method__aggregator=name), (100,), 3)
        votes.append(server.encoder(server.init(torch.zeros(100))))
    assert [uplink_bits(vote, CellSettings()).payload for vote in votes] == [100, 100]
    g = torch.randn(3, 100, generator=torch.Generator().manual_seed(0)) + 0.3  # a mean that must not matter
    assert torch.equal(*(vote.encode(g)[0].bits.packed for vote in votes))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_one_bit_downlink_changes_nothing_for_a_vote_and_makes_one_of_a_sum(momentum: float) -> None:
    """So a table with two different columns for signSGD cannot mean the same vote with both downlinks."""
    common: dict[str, Any] = {"server__learning_rate": 1e-2, "server__momentum": momentum}
    vote, w_vote = run(method__aggregator="signsgd", **common)
    vote_down, w_down = run(method__aggregator="signsgd", server__downlink="sign", **common)
    assert vote == vote_down
    assert torch.equal(w_vote, w_down)
    _, w_sum_down = run(method__aggregator="signsum", server__downlink="sign", **common)
    assert torch.equal(w_vote, w_sum_down)
    _, w_sum = run(method__aggregator="signsum", **common)
    assert not torch.allclose(w_vote, w_sum)
