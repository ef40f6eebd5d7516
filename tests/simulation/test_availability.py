"""Who is received: every device by its own law, late gradients at the weights they began with."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from signfade.server.scheduling import choose_devices
from signfade.server.tasks import Broadcast
from signfade.settings import AvailabilitySettings
from signfade.simulation import Experiment
from signfade.simulation.clients import Availability, AvailabilityState, Clients
from signfade.simulation.synthetic import GaussianTask
from signfade.simulation.task import Devices, LocalGradients
from signfade.uplink import Link

from ..runs import settings

ALL = np.arange(40)


class Echo(GaussianTask):
    """Gradients that tell the weights and the round they were computed with."""

    def local_updates(self, weights: torch.Tensor, devices: Devices, round: int) -> LocalGradients:
        rows = torch.stack(
            [torch.stack([weights[0], torch.tensor(float(round)), torch.tensor(float(k))]) for k in devices]
        )
        return LocalGradients(rows, torch.from_numpy(devices).float())


def run(rounds: int, **options: float) -> tuple[AvailabilityState, list[np.ndarray]]:
    """The state after some rounds, and who was received in each."""
    availability = Availability(AvailabilitySettings(**options), 40, seed=3)
    state, received = availability.init(), []
    for t in range(rounds):
        state, present = availability.apply(state, ALL, torch.full((3,), float(t)), t)
        received.append(present.devices)
    return state, received


def test_dropouts_are_as_frequent_as_said_and_anew_each_round() -> None:
    _, received = run(200, dropout=0.3)
    counts = np.bincount(np.concatenate(received), minlength=40)
    deviation = math.sqrt(200 * 0.3 * 0.7)
    assert abs(counts - 140).max() < 4.5 * deviation
    assert abs(counts.sum() - 40 * 140) < 4 * math.sqrt(40) * deviation
    assert all((np.diff(devices) > 0).all() for devices in received)


def test_a_late_device_is_busy_until_it_arrives() -> None:
    """A cycle takes one round or, with probability p, s + 1: `1/(1 + p*s)` of all rounds bring a packet."""
    late, staleness, rounds = 0.4, 3, 400
    _, received = run(rounds, late=late, staleness=staleness)
    share = np.concatenate(received).size / (40 * rounds)
    assert share == pytest.approx(1 / (1 + late * staleness), abs=0.01)  # 16,000 device-rounds
    options = {"availability__late": late, "availability__staleness": staleness, "data__devices": 40}
    clients = Clients(settings(seed=3, **options), Echo(40, 3, 0))
    state, last_free = clients.init(), np.zeros(40, dtype=int)
    for t in range(60):
        weights = torch.full((3,), float(t))
        available, present = clients.availability.apply(state.availability, ALL, weights, t)
        state, now = replace(state, availability=available), present.devices
        models = Broadcast(weights[None], np.zeros(len(now), dtype=np.int64))
        origin = next(clients.train(state, present, models, t)).gradients
        began = origin[:, 1].numpy().astype(int)
        assert set((t - began).tolist()) <= {0, staleness}
        assert (origin[:, 0] == origin[:, 1]).all()  # the weights of the round it began in
        assert origin[:, 2].tolist() == now.tolist()
        assert (began == last_free[now]).all()  # it began as soon as it was free
        assert present.began.tolist() == began.tolist()
        last_free[now] = t + 1


def test_who_is_not_asked_does_not_begin_but_may_arrive() -> None:
    availability = Availability(AvailabilitySettings(late=1.0, staleness=2), 5, seed=0)
    asked = [np.array([1, 3]), np.array([0, 1]), np.array([2]), np.array([0])]
    state, received = availability.init(), []
    for t, who in enumerate(asked):
        state, present = availability.apply(state, who, torch.zeros(1), t)
        received.append(present.devices.tolist())
    assert received == [[], [], [1, 3], [0]]


def test_weights_nobody_works_on_are_forgotten() -> None:
    state, _ = run(30, late=0.5, staleness=4)
    assert sorted(state.models, key=int) == ["25", "26", "27", "28", "29"]


def test_less_power_is_a_smaller_gain() -> None:
    availability = Availability(AvailabilitySettings(limited=0.25, backoff_db=20.0), 4000, seed=1)
    link = Link(torch.full((4000,), -2.0), torch.ones(4000))
    limited = availability.limit(link, np.arange(4000), 7)
    assert sorted(set(limited.h.tolist())) == pytest.approx([-2.0, -0.2])
    short = (limited.h > -1).double().mean()
    assert abs(float(short) - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 4000)
    assert torch.equal(limited.sigma2, link.sigma2)
    some = np.array([5, 77, 1234])
    assert torch.equal(availability.limit(Link(link.h[:3], link.sigma2[:3]), some, 7).h, limited.h[some])


def test_a_round_in_which_nobody_is_received_changes_nothing() -> None:
    experiment = Experiment(
        settings(rounds=4, availability__late=1.0, availability__staleness=2, eval__every=1)
    )
    before = experiment.weights.clone()
    first = experiment.advance()
    assert first["devices"] == 0
    assert first["train_loss"] is None
    assert first["uplink_bits"] == first["downlink_bits"] == 0
    assert first["test_accuracy"] is not None
    assert torch.equal(experiment.weights, before)
    experiment.advance()
    third = experiment.advance()
    assert third["devices"] == 6
    assert third["late"] == 6
    assert not torch.equal(experiment.weights, before)


def test_bits_and_links_are_those_of_the_devices_received() -> None:
    records = []
    experiment = Experiment(settings(rounds=8, availability__dropout=0.5))
    while not experiment.done:
        records.append(experiment.advance())
    bits = np.diff([0, *(record["payload_bits"] for record in records)])
    assert bits.tolist() == [record["devices"] * (650 + 64) for record in records]
    assert len({record["devices"] for record in records}) > 1


def test_theory_knows_who_is_there_and_with_what_power() -> None:
    rounds = 30
    experiment = Experiment(
        settings(
            rounds=rounds,
            data__name="gaussian",
            data__size=4000,
            availability__dropout=0.3,
            availability__late=0.3,
            availability__limited=0.5,
            cell__snr_db=5.0,
        )
    )
    records = [experiment.advance() for _ in range(rounds)]
    ratio = np.array([r["nmse"] / r["nmse_theory"] for r in records if r["nmse"] is not None])
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / math.sqrt(len(ratio))


def test_participation_draws_that_many_devices_anew_each_round() -> None:
    draws = [choose_devices(40, 0.25, seed=0, round=t) for t in range(200)]
    assert all(len(set(d.tolist())) == 10 and (np.diff(d) > 0).all() for d in draws)
    counts = np.bincount(np.concatenate(draws), minlength=40)
    assert abs(counts - 50).max() < 5 * math.sqrt(200 * 0.25 * 0.75)
    assert len(choose_devices(40, 1e-6, seed=0, round=0)) == 1
    assert [len(choose_devices(10, p, seed=0, round=0)) for p in (0.24, 0.25, 0.26, 0.94)] == [2, 3, 3, 9]
    assert choose_devices(3, 1.0, seed=0, round=0).tolist() == [0, 1, 2]
