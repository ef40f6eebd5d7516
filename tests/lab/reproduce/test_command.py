"""`signfade reproduce` from the first run to the page, on settings that take seconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import signfade.engines.process
import signfade.lab.reproduce
from signfade.cli.main import run
from signfade.engines.events import Event, OnEvent, Outcome
from signfade.lab.reproduce import artefacts, setups
from signfade.lab.reproduce.artefacts import ARTEFACTS
from signfade.lab.reproduce.bench import Bench
from signfade.lab.train import PlannedRun, train

from .conftest import SMALL


class Player:
    """Plays in this process, and remembers what."""

    def __init__(self) -> None:
        self.played: list[str] = []
        self.stop_after: int | None = None

    def __call__(self, runs: Sequence[PlannedRun], jobs: int, *, on_event: OnEvent) -> Outcome:
        for index, one in enumerate(runs):
            if self.stop_after is not None and len(self.played) >= self.stop_after:
                raise KeyboardInterrupt
            on_event(Event("started", index, one))
            train(one.settings, one.folder, resume=True)
            on_event(Event("finished", index, one, one.settings.rounds))
            self.played.append(one.folder.name)
        return Outcome(tuple(one.folder for one in runs))


@pytest.fixture
def player(monkeypatch: pytest.MonkeyPatch) -> Player:
    small = replace(SMALL, rounds=2)
    monkeypatch.setattr(setups, "QUICK", small)
    monkeypatch.setattr(setups, "FULL", replace(small, name="full"))
    played = Player()
    monkeypatch.setattr(signfade.engines.process, "play", played)
    return played


def results(folder: Path) -> str:
    return (folder / "results.md").read_text()


def test_from_the_first_run_to_the_page_and_never_twice(
    tmp_path: Path, player: Player, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    command = ["reproduce", "fig-quantisation", "fig-mse", "--quick", "--out", out]
    player.stop_after = 4
    assert run(command) == 130
    assert "resume with: signfade reproduce fig-quantisation" in capsys.readouterr().err
    player.stop_after = None
    assert run(command) == 0
    assert len(player.played) == len(set(player.played)) == 10  # two priors, five precisions
    assert run(command) == 0
    assert len(player.played) == 10
    printed = capsys.readouterr().out.splitlines()
    assert printed[-3:] == [f"{out}/results.md", f"{out}/results.html", f"{out}/runs.json"]
    text = results(tmp_path / "out")
    assert "| 4 | 0." in text
    assert "not to be compared with the paper" in text
    assert (tmp_path / "out" / "results" / "fig-quantisation.svg").exists()
    assert (tmp_path / "out" / "measured" / "fig-mse.json").exists()


def test_pages_of_the_docs_are_drawn_again_without_the_runs(
    tmp_path: Path, player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {name: ARTEFACTS[name] for name in ("fig-setup", "fig-quantisation", "fig-downlink")}
    monkeypatch.setattr(artefacts, "ARTEFACTS", few)  # all figures would take their time
    docs = tmp_path / "docs"
    command = ["reproduce", "fig-quantisation", "fig-setup"]
    assert run([*command, "--out", str(tmp_path / "one"), "--docs", str(docs)]) == 0
    first = results(docs)
    assert all(f"({artefact.place})" in first for artefact in few.values())  # all, not only those named
    assert len(json.loads((docs / "results" / "runs.json").read_text())["runs"]) == 10
    before = {file: file.read_bytes() for file in docs.rglob("*.*") if file.suffix != ".svg"}
    assert run(["reproduce", "all", "--render", "--out", str(tmp_path / "two"), "--docs", str(docs)]) == 0
    assert {file: file.read_bytes() for file in before} == before
    bench = Bench(tmp_path / "three", setups.FULL, docs)  # what the docs have counts as played
    assert bench.to_play([ARTEFACTS["fig-quantisation"]]) == []
    assert bench.measurement(ARTEFACTS["fig-setup"]) is not None


def test_the_list_counts_runs(tmp_path: Path, player: Player, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "fig-quantisation", "--quick", "--out", str(tmp_path)]

    def row() -> list[str]:
        assert run([*command, "--list"]) == 0
        lines = capsys.readouterr().out.splitlines()
        return next(line for line in lines if "fig-quantisation" in line).split()

    assert row()[-4:-2] == ["10", "0"] or row()[-3:-1] == ["10", "0"]
    assert player.played == []
    player.stop_after = 3
    run(command)
    capsys.readouterr()
    assert "3" in row()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["table-round"], "the nearest name is 'table-rounds'"),
        ([], 'name tables or figures, or "all"'),
        (["all", "--seeds", "0"], "seeds must be 1 or more; got 0"),
        (["all", "--jobs", "0"], "--jobs must be 1 or more; got 0"),
        (["all", "--quick", "--docs", "docs"], "--docs holds the whole reproduction"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["reproduce", *arguments, "--out", str(tmp_path / "out")]) == 2
    error: Any = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()
