"""The model goes down in full or by signs; a device that fell behind or forgot gets what it needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from flwr.app import Context, Message

from signfade.experiments.config import resolve
from signfade.integrations.flower.deployed import train_on
from signfade.integrations.flower.exchange import message_bytes
from signfade.integrations.flower.messages import Start
from signfade.integrations.flower.strategy import OneBitStrategy
from signfade.simulation.run import Experiment, make_task

from .grids import CallingGrid, cell_of, context, device_node

SIGNS: dict[str, Any] = {
    "rounds": 6,
    "data.devices": 3,
    "model.name": "linear",
    "cell.perfect": True,
    "server.downlink": "sign",
    "server.learning_rate": 1e-3,
    "server.momentum": 0.9,
}
WEIGHTS = 650


def downlink(grid: CallingGrid, node: int) -> list[int]:
    return [message_bytes(message) for message in grid.sent if message.metadata.dst_node_id == node]


def test_signs_cost_a_thirtysecond() -> None:
    """The first message has all weights and momenta, every later one a bit a weight."""
    settings = resolve(SIGNS)
    grid = cell_of(settings)
    strategy = OneBitStrategy(settings, Start.of_task(make_task(settings)))
    strategy.start(grid, timeout=60)
    first, *later = downlink(grid, 1000)
    assert first > 8 * WEIGHTS
    assert max(later) - min(later) <= 4  # the same every round, but for a checksum of one to five bytes
    overhead = message_bytes(grid.sent[-1]) - WEIGHTS // 8
    assert overhead < 2000
    assert strategy.downlink_bytes == sum(map(message_bytes, grid.sent))


def forgetting(settings: Any, device: int, round: int) -> tuple[CallingGrid, list[Context]]:
    """A cell in which a device loses what it kept before a round."""
    grid, kept = cell_of(settings), [context(device)]
    task = make_task(settings)

    def answer(message: Message) -> Message:
        if message.metadata.group_id == str(round):
            kept.append(context(device))
        return train_on(message, kept[-1], settings, task)

    grid.nodes[1000 - device] = answer
    return grid, kept


def test_a_device_that_forgot_gets_the_model_in_full() -> None:
    settings = resolve(SIGNS)
    grid, _ = forgetting(settings, device=1, round=3)
    strategy = OneBitStrategy(settings, Start.of_task(make_task(settings)))
    strategy.start(grid, timeout=60)
    [fault] = strategy.validator.faults
    assert fault.startswith("round 3: failed: node 999 (device 1): ")
    assert "no weights are kept here; they are needed in full" in fault
    in_full = [size > 8 * WEIGHTS for size in downlink(grid, 999)]
    assert in_full == [True, False, False, True, False, False]
    assert strategy.validator.counts == {"failed": 1}


def test_weights_that_are_not_the_servers_are_noticed() -> None:
    settings = resolve(SIGNS)
    grid, own = cell_of(settings), context(1)
    task = make_task(settings)

    def answer(message: Message) -> Message:
        if message.metadata.group_id == "3":
            record = own.state.array_records["signfade.kept"]
            spoiled = record["weights"].numpy().copy()
            spoiled[7] += 1e-6
            record["weights"] = type(record["weights"])(spoiled)
        return train_on(message, own, settings, task)

    grid.nodes[999] = answer
    strategy = OneBitStrategy(settings, Start.of_task(make_task(settings)))
    strategy.start(grid, timeout=60)
    [fault] = strategy.validator.faults
    assert "the weights kept here are not the server's" in fault


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_rounds_that_a_device_sat_out_are_sent_sign_by_sign(optimizer: str) -> None:
    """With few devices asked a round, most have missed some: the weights are the simulator's all the same."""
    momentum = 0.9 if optimizer == "momentum" else 0.0
    settings = resolve(
        SIGNS
        | {"rounds": 12, "data.participation": 0.34, "data.devices": 4}
        | {"server.optimizer": optimizer, "server.momentum": momentum}
    )
    grid = cell_of(settings)
    strategy = OneBitStrategy(settings, Start.of_task(make_task(settings)))
    strategy.start(grid, timeout=60)
    simulated = Experiment(settings)
    for _ in range(12):
        simulated.advance()
    assert strategy.validator.faults == []
    assert torch.equal(strategy.server.weights, simulated.weights)
    asked = [message for message in grid.sent if "config" in message.content]
    sizes = [len(message.content["signfade"].get("moves", [])) for message in asked]
    assert max(sizes) > 1  # somebody caught up with several rounds at once
    assert len(asked) == 12


def test_a_device_that_missed_too_much_gets_the_model_in_full() -> None:
    """From 32 missed rounds on, weights are cheaper than signs."""
    settings = resolve(SIGNS | {"data.devices": 1})
    strategy = OneBitStrategy(settings, Start.of_task(make_task(settings)))
    server = strategy.server
    for _ in range(40):
        server.aggregate([])
    for since, missed in ((9, 31), (39, 1), (40, 0)):
        known = server.catch_up(since)
        assert known is not None
        assert len(known.moves) == missed
    assert server.catch_up(8) is None
    assert server.catch_up(41) is None
    assert server.catch_up(None) is None


def test_a_round_without_a_step_moves_no_device() -> None:
    settings = resolve(SIGNS | {"data.devices": 2, "rounds": 3})
    node = device_node(settings, 0)

    def second(message: Message) -> Message | None:
        if message.metadata.group_id == "2":
            raise RuntimeError("busy")
        return node(message)

    grid = CallingGrid({10: second})
    strategy = OneBitStrategy(settings, Start.of_task(make_task(settings)), min_devices=1)
    result = strategy.start(grid, timeout=60)
    assert strategy.validator.counts == {"failed": 1}
    assert [result.train_metrics_clientapp[number]["devices"] for number in (1, 2, 3)] == [1, 0, 1]
