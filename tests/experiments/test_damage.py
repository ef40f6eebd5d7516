"""Metrics and summaries whose bits were flipped or cut: noticed or harmless, and repaired by playing on."""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from signfade.experiments.config import load
from signfade.experiments.folder import FolderError, RunFolder
from signfade.experiments.metrics import decode_summary, metric_line, scan_metrics
from signfade.experiments.results import load_run
from signfade.experiments.training import Interrupted, train

ROUNDS = 7
SETTINGS = load(
    None,
    [f"rounds={ROUNDS}", "data.name=gaussian", "data.size=16", "data.devices=2", "checkpoint_every=2"],
)


def flips(data: bytes) -> list[bytes]:
    """The bytes with one bit flipped, every bit in turn."""
    damaged = []
    for place in range(8 * len(data)):
        copy = bytearray(data)
        copy[place // 8] ^= 1 << place % 8
        damaged.append(bytes(copy))
    return damaged


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(SETTINGS, folder)
    return RunFolder(folder)


@pytest.fixture
def stopped(tmp_path: Path) -> RunFolder:
    """A run stopped after round 6, with checkpoints of rounds 4 and 6."""

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        train(SETTINGS, tmp_path / "run", on_round=stop)
    return RunFolder(tmp_path / "run")


def resumes_to(whole: RunFolder, folder: RunFolder) -> list[str]:
    """Play to the end, check that nothing differs from the run that was not disturbed; return the notes."""
    notes: list[str] = []
    train(SETTINGS, folder.path, resume=True, on_note=notes.append)
    ours, theirs = (
        [record | {"seconds": 0} for record in one.read_metrics()] for one in (RunFolder(folder.path), whole)
    )
    assert ours == theirs
    last = "round-00000007.safetensors"
    assert (folder.checkpoints_path / last).read_bytes() == (whole.checkpoints_path / last).read_bytes()
    return notes


def test_every_flipped_bit_of_finished_metrics_is_noticed(whole: RunFolder) -> None:
    data = whole.metrics_path.read_bytes()
    records = whole.read_metrics()
    for damaged in flips(data):
        scan = scan_metrics(damaged)
        assert scan.damage is not None or len(scan.records) < ROUNDS  # which the summary tells
        assert scan.records == records[: len(scan.records)]


def test_damaged_metrics_reach_no_result(whole: RunFolder) -> None:
    data = whole.metrics_path.read_bytes()
    try:
        for damaged in (data.replace(b"0", b"1", 1), data[:-40], data[: data.rfind(b"\n", 0, -1) + 1], b""):
            whole.metrics_path.write_bytes(damaged)
            with pytest.raises(
                FolderError, match=r"is damaged: .*remove its summary\.json, then run it again"
            ):
                load_run(whole.path)
    finally:
        whole.metrics_path.write_bytes(data)
    assert len(load_run(whole.path).metrics) == ROUNDS


def test_every_flipped_bit_of_a_summary_is_noticed_or_harmless(whole: RunFolder) -> None:
    summary = whole.read_summary()
    assert summary is not None
    for damaged in flips(whole.summary_path.read_bytes()):
        with suppress(ValueError):
            found = decode_summary(damaged)
            assert {key: found[key] for key in summary} == summary


def test_no_more_is_taken_for_whole_after_a_flip_or_a_cut_than_is(stopped: RunFolder) -> None:
    data = stopped.metrics_path.read_bytes()
    ends = scan_metrics(data).ends
    damages = [(data[:length], length) for length in range(len(data) + 1)]
    damages += [(damaged, place // 8) for place, damaged in enumerate(flips(data))]
    for damaged, first in damages:
        scan = scan_metrics(damaged)
        assert len(scan.records) == sum(end <= first for end in ends[1:])
        assert data.startswith(damaged[: scan.ends[-1]])


@pytest.mark.parametrize(("round", "expected"), [(6, "round 4"), (5, "round 4"), (4, "start"), (1, "start")])
def test_a_flip_takes_the_run_back_to_the_checkpoint_before_it(
    whole: RunFolder, stopped: RunFolder, round: int, expected: str
) -> None:
    data = stopped.metrics_path.read_bytes()
    place = data.index(b'"nmse": ', scan_metrics(data).ends[round - 1]) + 10
    stopped.metrics_path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    notes = resumes_to(whole, stopped)
    assert len(notes) == (1 if expected == "round 4" else 2)
    assert all("cannot be used (line" in note or "cannot be used (metrics" in note for note in notes)
    assert ("falling back to the one before" if expected == "round 4" else "starting over") in notes[-1]


@pytest.mark.parametrize("seed", range(6))
def test_a_cut_below_the_newest_checkpoint_is_no_reason_to_refuse(
    whole: RunFolder, stopped: RunFolder, seed: int
) -> None:
    data = stopped.metrics_path.read_bytes()
    stopped.metrics_path.write_bytes(data[: random.Random(seed).randrange(len(data))])
    notes = resumes_to(whole, stopped)
    assert "metrics.jsonl is whole up to round" in notes[0]


def test_without_metrics_the_run_starts_over(whole: RunFolder, stopped: RunFolder) -> None:
    stopped.metrics_path.unlink()
    assert "starting over" in resumes_to(whole, stopped)[-1]


def test_lines_without_checksums_are_read_and_continued() -> None:
    """Runs of version 0.1.0 have none; what is appended vouches for their lines too."""
    old = b'{"round": 1, "train_loss": 2.0, "seconds": 0.5}\n'
    crc = scan_metrics(old).crc
    data = old + metric_line({"round": 2, "train_loss": 1.0, "seconds": 0.5}, crc)
    assert [record["train_loss"] for record in scan_metrics(data).records] == [2.0, 1.0]
    assert scan_metrics(data.replace(b"2.0", b"3.0")).damage is not None
