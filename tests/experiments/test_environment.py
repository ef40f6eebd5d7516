"""A run keeps what it was computed with, and says so where it continues elsewhere."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch

from signfade import __version__
from signfade.experiments import environment as module
from signfade.experiments.config import load
from signfade.experiments.environment import describe_environment, record_environment
from signfade.experiments.training import Interrupted, train

TINY = load(None, ["rounds=6", "data.name=gaussian", "data.size=16", "data.devices=2"])


def stop_after(round: int) -> Any:
    def stop(record: dict[str, Any]) -> None:
        if record["round"] == round:
            os.kill(os.getpid(), signal.SIGTERM)

    return stop


def play(folder: Path, until: int | None = None) -> list[str]:
    notes: list[str] = []
    if until is None:
        train(TINY, folder, resume=True, on_note=notes.append)
    else:
        with pytest.raises(Interrupted):
            train(TINY, folder, resume=True, on_note=notes.append, on_round=stop_after(until))
    return notes


def test_versions_and_cpu_are_those_of_this_process() -> None:
    found = describe_environment()
    assert found["torch"] == torch.__version__
    assert found["numpy"] == np.__version__
    assert found["numba"] == numba.__version__
    assert found["signfade"] == __version__
    assert found["instructions"] == torch.backends.cpu.get_cpu_capability()
    assert len(found["cpu"]) > 2


def test_a_run_that_goes_on_in_its_place_says_nothing_and_changes_nothing(tmp_path: Path) -> None:
    assert play(tmp_path / "a", until=3) == []
    first = (tmp_path / "a" / "environment.json").read_bytes()
    assert json.loads(first) == [{"round": 0} | describe_environment()]
    assert play(tmp_path / "a") == []
    assert (tmp_path / "a" / "environment.json").read_bytes() == first


def test_a_resume_elsewhere_warns_in_one_sentence_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(tmp_path / "a", until=2)
    here = describe_environment()
    there = here | {"cpu": "Emulator 9000", "torch": "3.1"}
    monkeypatch.setattr(module, "describe_environment", lambda: there)
    (note,) = play(tmp_path / "a", until=4)
    assert "the rounds so far were computed elsewhere" in note
    assert f"cpu: {here['cpu']} there, Emulator 9000 here" in note
    assert f"torch: {here['torch']} there, 3.1 here" in note
    assert "numpy" not in note
    assert "\n" not in note
    assert "computed elsewhere" in (tmp_path / "a" / "log").read_text()
    monkeypatch.undo()
    assert len(play(tmp_path / "a")) == 1  # back again
    entries = json.loads((tmp_path / "a" / "environment.json").read_text())
    assert [(entry["round"], entry["torch"]) for entry in entries] == [
        (0, torch.__version__),
        (2, "3.1"),
        (4, torch.__version__),
    ]


def test_rounds_that_are_computed_again_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "environment.json"
    here = describe_environment()
    record_environment(path, 0)
    monkeypatch.setattr(module, "describe_environment", lambda: here | {"torch": "3.1"})
    assert record_environment(path, 5) is not None
    assert record_environment(path, 0) is None  # starting over: everything is computed here
    assert [entry["torch"] for entry in json.loads(path.read_text())] == ["3.1"]


@pytest.mark.parametrize("content", ["", "{}", "[1]", "[" * 9999, '[{"round": "0"}]', "\udcff"])
def test_a_damaged_file_is_written_anew(tmp_path: Path, content: str) -> None:
    path = tmp_path / "environment.json"
    path.write_text(content, errors="surrogateescape")
    assert record_environment(path, 3) is None
    assert json.loads(path.read_text()) == [{"round": 3} | describe_environment()]
