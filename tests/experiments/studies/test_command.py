"""`signfade reproduce` from the first run to the page, on settings that take seconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import signfade.experiments.workers.run_pool
from signfade.cli.entry import run
from signfade.experiments.studies import catalogue, records
from signfade.experiments.studies.catalogue import PAPER, parts_by_name
from signfade.experiments.studies.runner import Runner
from signfade.experiments.training import PlannedRun, train
from signfade.experiments.workers.job_queue import Event, OnEvent, Outcome

from .conftest import SMALL

PARTS = parts_by_name()


class Pool:
    """Runs in this process, and remembers what."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.stop_after: int | None = None

    def __call__(self, runs: Sequence[PlannedRun], jobs: int, *, on_event: OnEvent) -> Outcome:
        for index, one in enumerate(runs):
            if self.stop_after is not None and len(self.done) >= self.stop_after:
                raise KeyboardInterrupt
            on_event(Event("started", index, one))
            train(one.settings, one.folder, resume=True)
            on_event(Event("finished", index, one, one.settings.rounds))
            self.done.append(one.folder.name)
        return Outcome(tuple(one.folder for one in runs))


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    small = replace(SMALL, rounds=2)
    monkeypatch.setattr(records, "QUICK", small)
    monkeypatch.setattr(records, "FULL", replace(small, name="full"))
    here = Pool()
    monkeypatch.setattr(signfade.experiments.workers.run_pool, "run_all", here)
    return here


def results(folder: Path) -> str:
    return (folder / "results.md").read_text()


def test_from_the_first_run_to_the_page_and_never_twice(
    tmp_path: Path, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    command = ["reproduce", "fig-quantisation", "fig-mse", "--quick", "--out", out]
    pool.stop_after = 4
    assert run(command) == 130
    assert "resume with: signfade reproduce fig-quantisation" in capsys.readouterr().err
    pool.stop_after = None
    assert run(command) == 0
    assert len(pool.done) == len(set(pool.done)) == 30  # two priors, five precisions, three tasks
    assert run(command) == 0
    assert len(pool.done) == 30
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2:] == [f"{out}/results.md", f"{out}/runs.json"]
    text = results(tmp_path / "out")
    assert "| digits, SBFL, Gaussian, printed | " in text
    assert "**quick: 30 of 30 runs, digits, regression, 2 to 10 rounds, 20 devices, 1 seed; not to be" in text
    assert (tmp_path / "out" / "results" / "fig-quantisation.svg").exists()
    assert (tmp_path / "out" / "measured" / "fig-mse.json").exists()


def test_pages_of_the_docs_are_drawn_again_without_the_runs(
    tmp_path: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = tuple(PARTS[name] for name in ("fig-setup", "fig-quantisation", "fig-downlink"))
    monkeypatch.setattr(catalogue, "STUDIES", (replace(PAPER, parts=few),))  # all would take their time
    docs = tmp_path / "docs"
    command = ["reproduce", "fig-quantisation", "fig-setup"]
    assert run([*command, "--out", str(tmp_path / "one"), "--docs", str(docs)]) == 0
    first = results(docs)
    assert all(f"({part.place})" in first for part in few)  # all, not only those named
    assert "- Accuracy with downlink compression (Fig. 7): `signfade reproduce fig-downlink`" in first
    assert len(json.loads((docs / "results" / "runs.json").read_text())["runs"]) == 30
    before = {file: file.read_bytes() for file in docs.rglob("*.*") if file.suffix != ".svg"}
    assert run(["reproduce", "all", "--render", "--out", str(tmp_path / "two"), "--docs", str(docs)]) == 0
    assert {file: file.read_bytes() for file in before} == before
    runner = Runner(tmp_path / "three", records.FULL, docs)  # what the docs have counts as finished
    assert runner.missing([PARTS["fig-quantisation"]]) == []
    assert runner.measurement(PARTS["fig-setup"]) is not None


def test_the_list_counts_runs(tmp_path: Path, pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "fig-quantisation", "--quick", "--out", str(tmp_path)]

    def row() -> list[str]:
        assert run([*command, "--list", "--jobs", "1"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert "on 1 core. Runs" in " ".join(" ".join(lines).split())
        return next(line for line in lines if "fig-quantisation" in line).split()

    assert row()[-4:-2] == ["30", "0"] or row()[-3:-1] == ["30", "0"]
    assert pool.done == []
    pool.stop_after = 3
    run(command)
    capsys.readouterr()
    assert "3" in row()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["table-round"], "the nearest name is 'table-rounds'"),
        ([], 'tables or figures, or "all"'),
        (["all", "--seeds", "0"], "seeds must be 1 or more; got 0"),
        (["all", "--jobs", "0"], "--jobs must be 1 or more; got 0"),
        (["all", "--quick", "--docs", "docs"], "--docs holds the full studies"),
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
