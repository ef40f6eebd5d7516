"""A deployment's run folder is the simulator's; stopped anywhere and started again, it ends the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord

from signfade.experiments.config import resolve
from signfade.experiments.folder import FolderError, RunFolder
from signfade.experiments.metrics import BIT_KEYS
from signfade.experiments.training import train
from signfade.integrations.flower.deployed import evaluation
from signfade.integrations.flower.messages import Start
from signfade.integrations.flower.strategy import OneBitStrategy
from signfade.settings import RunSettings
from signfade.simulation.run import make_task

from .grids import cell_of


class PowerCut(BaseException):
    """The server's machine goes dark: nothing may be caught or tidied up."""


def settings(**changes: Any) -> RunSettings:
    base = {
        "rounds": 6,
        "data.devices": 3,
        "model.name": "linear",
        "cell.snr_db": 4.0,
        "checkpoint_every": 2,
        "eval.every": 1,
        "server.momentum": 0.9,
    }
    return resolve(base | changes)


def run_strategy(run: RunSettings, folder: Path, cut_after: int | None = None) -> OneBitStrategy:
    task = make_task(run)
    look = evaluation(task)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if server_round == cut_after:
            raise PowerCut
        return look(server_round, arrays)

    strategy = OneBitStrategy(run, Start.of_task(task), folder=folder)
    strategy.start(cell_of(run), timeout=60, evaluate_fn=evaluate)
    return strategy


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    return [record | {"seconds": 0} for record in RunFolder(folder).read_metrics()]


@pytest.mark.parametrize(
    "method",
    [
        {},
        {"method.preset": "best"},
        {"server.optimizer": "adam", "server.momentum": 0.0},
        {"method.side_bits": 4, "method.scales": "layer"},
    ],
    ids=["sbfl", "best", "adam", "quantised"],
)
def test_killed_and_resumed_equals_never_stopped(method: dict[str, Any], tmp_path: Path) -> None:
    run = settings(**method)
    whole = run_strategy(run, tmp_path / "whole")
    for cut in (1, 4):  # before the first checkpoint, and after the second but within a round
        with pytest.raises(PowerCut):
            run_strategy(run, tmp_path / "cut", cut_after=cut)
    assert len(rounds_of(tmp_path / "cut")) == 3
    resumed = run_strategy(run, tmp_path / "cut")
    assert torch.equal(resumed.server.weights, whole.server.weights)
    assert rounds_of(tmp_path / "cut") == rounds_of(tmp_path / "whole")
    newest = "checkpoints/round-00000006.safetensors"
    assert (tmp_path / "cut" / newest).read_bytes() == (tmp_path / "whole" / newest).read_bytes()
    log = (tmp_path / "cut" / "log").read_text()
    assert [line[20:] for line in log.splitlines()] == [
        "round 0 of 6 is done, going on",
        "round 0 of 6 is done, going on",
        "round 2 of 6 is done, going on",
        "finished",
    ]


def test_the_folder_is_that_of_a_simulated_run(tmp_path: Path) -> None:
    """Same files, same numbers where both know them; what goes over the wire is measured beside them."""
    run = settings()
    run_strategy(run, tmp_path / "deployed")
    train(run, tmp_path / "simulated")
    deployed, simulated = rounds_of(tmp_path / "deployed"), rounds_of(tmp_path / "simulated")
    for mine, other in zip(deployed, simulated, strict=True):
        for key in ("round", "test_loss", "test_accuracy", "snr_db", "devices", *BIT_KEYS):
            assert mine[key] == other[key]
        assert mine["train_loss"] == pytest.approx(other["train_loss"], rel=1e-12)
        assert mine["wire_uplink_bits"] > mine["uplink_bits"] > mine["payload_bits"] > 0
        assert (mine["refused"], mine["failed"], mine["missing"]) == (0, 0, 0)
    summaries = [
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("deployed", "simulated")
    ]
    assert summaries[0].keys() == summaries[1].keys()
    for key in ("rounds", "parameters", "devices", "best_accuracy", "last_test_loss"):
        assert summaries[0][key] == summaries[1][key]


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = run_strategy(settings(), tmp_path / "run")
    again = run_strategy(settings(), tmp_path / "run", cut_after=1)  # would be cut if it ran again
    assert torch.equal(first.server.weights, again.server.weights)


def test_another_run_is_refused(tmp_path: Path) -> None:
    run_strategy(settings(), tmp_path / "run")
    with pytest.raises(FolderError, match=r"another config \(seed: 0 there, 1 here\)"):
        run_strategy(settings(seed=1), tmp_path / "run")


def test_faults_are_in_the_runs_log(tmp_path: Path) -> None:
    run = settings(rounds=2)
    grid = cell_of(run)
    grid.nodes[999] = lambda message: None
    strategy = OneBitStrategy(run, Start.of_task(make_task(run)), folder=tmp_path / "run")
    strategy.start(grid, timeout=0.02)
    assert "round 1: missing: node 999: no answer in time" in (tmp_path / "run" / "log").read_text()
    assert [record["missing"] for record in rounds_of(tmp_path / "run")] == [1, 0]
    assert [record["devices"] for record in rounds_of(tmp_path / "run")] == [2, 2]


def test_a_round_is_a_line_of_flowers_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(
        "signfade.integrations.flower.strategy.log", lambda level, text, *words: lines.append(text % words)
    )
    run = settings(rounds=2)
    grid = cell_of(run)
    grid.nodes[999] = lambda message: None
    strategy = OneBitStrategy(run, Start.of_task(make_task(run)), folder=tmp_path / "run")
    strategy.start(grid, timeout=0.02, evaluate_fn=lambda round, arrays: MetricRecord({"accuracy": 0.5}))
    losses = [record["train_loss"] for record in rounds_of(tmp_path / "run")]
    assert [line for line in lines if line.startswith("round ")] == [
        f"round 1 of 2: 2 of 3 devices, training loss {losses[0]:.4g}, accuracy 0.5",
        f"round 2 of 2: 2 of 3 devices, training loss {losses[1]:.4g}, accuracy 0.5",
    ]
