"""A device number belongs to the key that first used it, for the whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord

from signfade.experiments.config import resolve
from signfade.integrations.flower.client_registry import ClientRegistry
from signfade.integrations.flower.messages import Start
from signfade.integrations.flower.strategy import OneBitStrategy
from signfade.simulation.run import make_task
from signfade.state import from_tensors, to_tensors

from .grids import CallingGrid, cell_of, device_node

SETTINGS = resolve(
    {"rounds": 3, "data.devices": 3, "model.name": "linear", "cell.perfect": True, "eval.every": 1}
)


def strategy_for(**options: Any) -> OneBitStrategy:
    return OneBitStrategy(SETTINGS, Start.of_task(make_task(SETTINGS)), **options)


def run_round(strategy: OneBitStrategy, grid: CallingGrid, number: int, silent: int | None = None) -> None:
    """Run a round in which one node is asked and silent."""
    messages = list(strategy.configure_train(number, strategy.arrays(), ConfigRecord(), grid))
    replies = [grid.nodes[m.metadata.dst_node_id](m) for m in messages if m.metadata.dst_node_id != silent]
    strategy.aggregate_train(number, [reply for reply in replies if reply is not None])


def test_nobody_takes_the_number_of_an_owner_who_is_late() -> None:
    """Whatever the numbers of the nodes; the owner is accepted again as soon as it answers."""
    for stranger in (1, 2000):
        strategy, grid = strategy_for(), cell_of(SETTINGS)
        run_round(strategy, grid, 1)
        grid.nodes[stranger] = device_node(SETTINGS, 0)
        run_round(strategy, grid, 2, silent=1000)  # node 1000 is device 0
        own = "its device number 0 belongs to another key, that of node 1000"
        assert f"round 2: refused: node {stranger}: {own}" in strategy.validator.faults
        run_round(strategy, grid, 3)
        assert f"round 3: refused: node {stranger}: {own}" in strategy.validator.faults
        assert strategy.validator.counts == {"missing": 1, "refused": 2}


def test_nor_of_one_who_is_gone() -> None:
    strategy, grid = strategy_for(), cell_of(SETTINGS)
    run_round(strategy, grid, 1)
    grid.nodes[5] = grid.nodes.pop(1000)  # another node, without a key of its own
    run_round(strategy, grid, 2)
    assert strategy.validator.counts == {"refused": 1}
    assert strategy.registry.node_of(0) == 1000


@pytest.mark.parametrize("stranger", [1, 2000])
def test_a_clash_in_the_first_round_is_nobodys(stranger: int) -> None:
    """Neither the smaller number nor the first to arrive wins; when one is gone, the other is the device."""
    strategy, grid = strategy_for(min_devices=4), cell_of(SETTINGS)
    grid.nodes[stranger] = device_node(SETTINGS, 0)
    run_round(strategy, grid, 1)
    first, second = sorted([stranger, 1000])
    claimed = f"device number 0 is claimed by nodes {first} and {second}"
    assert strategy.validator.faults == [
        f"round 1: refused: node {node}: {claimed}" for node in (first, second)
    ]
    del grid.nodes[stranger]
    run_round(strategy, grid, 2)
    assert strategy.registry.node_of(0) == 1000
    assert strategy.validator.counts == {"refused": 2}


def test_a_node_is_one_device() -> None:
    registry = ClientRegistry(4)
    assert registry.claim({7: 1}) == {}
    assert registry.claim({7: 2}) == {7: "its device number was 1 before; got 2"}
    assert (registry.device_of(7), registry.device_of(8)) == (1, None)


def test_a_device_comes_back_as_another_node_with_its_key() -> None:
    strategy, grid = strategy_for(), cell_of(SETTINGS)
    grid.keys = {1000: b"zero", 999: b"one", 998: b"two"}
    run_round(strategy, grid, 1)
    grid.nodes[2001] = grid.nodes.pop(998)
    grid.keys[2001] = b"two"
    run_round(strategy, grid, 2)
    assert strategy.validator.faults == []
    assert strategy.registry.name(2001) == "node 2001 (device 2)"
    assert strategy.registry.node_of(2) == 2001


class PowerCut(BaseException):
    """The server's machine goes dark."""


@pytest.mark.parametrize("remembered", [True, False])
def test_owners_outlive_the_server(remembered: bool, tmp_path: Path) -> None:
    """Unless the strategy is asked to forget them."""
    run = SETTINGS.model_copy(update={"checkpoint_every": 1})

    def served(grid: CallingGrid, rounds: int) -> OneBitStrategy:
        task = make_task(run)
        strategy = OneBitStrategy(run, Start.of_task(task), folder=tmp_path / "run", remember_keys=remembered)

        def evaluate(server_round: int, arrays: Any) -> None:
            if server_round > rounds:
                raise PowerCut

        strategy.start(grid, timeout=1.0, evaluate_fn=evaluate)
        return strategy

    with pytest.raises(PowerCut):
        served(cell_of(run), rounds=1)
    grid = cell_of(run)
    grid.nodes[5] = grid.nodes.pop(1000)
    strategy = served(grid, rounds=3)
    assert strategy.validator.counts["refused"] == (2 if remembered else 0)


def test_state_is_restored() -> None:
    registry = ClientRegistry(3)
    grid = CallingGrid({4: lambda message: None, 9: lambda message: None})
    grid.keys = {4: b"x", 9: b"x"}
    registry.connect(grid)
    registry.claim({4: 2, 5: 0})
    other = ClientRegistry(3)
    other.owners = from_tensors({"owners": other.owners}, to_tensors({"owners": registry.owners}))["owners"]
    assert (other.owners == registry.owners).all()
    other.connect(grid)
    assert other.claim({9: 1}) == {9: "its device number was 2 before; got 1"}


def test_a_silent_device_keeps_its_number_when_devices_are_identified() -> None:
    run = resolve(SETTINGS.model_dump() | {"data": SETTINGS.data.model_dump() | {"participation": 0.6}})
    strategy, grid = OneBitStrategy(run, Start.of_task(make_task(run))), cell_of(run)
    run_round(strategy, grid, 1)
    grid.nodes[5] = device_node(run, 0)
    run_round(strategy, grid, 2)
    assert all(m.content["signfade"]["identify"] for m in grid.sent if m.metadata.dst_node_id == 5)
    assert any(
        "node 5: its device number 0 belongs to another key" in text for text in strategy.validator.faults
    )
