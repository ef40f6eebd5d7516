"""A run that was stopped, killed or damaged ends in the same bytes as one that was not."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from signfade.experiments import training as module
from signfade.experiments.config import load
from signfade.experiments.folder import FolderError, RunFolder
from signfade.experiments.metrics import fall_text
from signfade.experiments.results import load_run
from signfade.experiments.training import Interrupted, RunFailed, run_folder, status_of, train
from signfade.settings import RunSettings

ROUNDS = 12
TINY = (f"rounds={ROUNDS}", "data.name=gaussian", "data.size=64", "data.devices=3", "checkpoint_every=5")
# An optimiser with a memory, a schedule and a small model: all kinds of state that a checkpoint must hold.
DIGITS = (
    f"rounds={ROUNDS}",
    "data.devices=4",
    "data.batch=8",
    "data.participation=0.5",
    "server.optimizer=adam",
    "server.schedule=sqrt",
    "checkpoint_every=5",
    "eval.every=3",
)


def tiny(*overrides: str) -> RunSettings:
    return load(None, [*TINY, *overrides])


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    """The metrics without the one number that is never the same."""
    return [
        {k: v for k, v in record.items() if k != "seconds"} for record in RunFolder(folder).read_metrics()
    ]


def final_state(folder: Path) -> bytes:
    return max((folder / "checkpoints").iterdir()).read_bytes()


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def same(folder: Path, undisturbed: Path) -> None:
    assert rounds_of(folder) == rounds_of(undisturbed)
    assert final_state(folder) == final_state(undisturbed)
    one, other = RunFolder(folder).read_summary(), RunFolder(undisturbed).read_summary()
    assert one is not None
    assert other is not None
    assert one | {"seconds": 0} == other | {"seconds": 0}


class Stop:
    """Sends this process a signal after some round."""

    def __init__(self, number: int, round: int) -> None:
        self.number, self.at, self.seen = number, round, 0

    def __call__(self, record: dict[str, Any]) -> None:
        self.seen = record["round"]
        if self.seen == self.at:
            os.kill(os.getpid(), self.number)


# -- an undisturbed run ------------------------------------------------------------------------------------


def test_a_run_folder_holds_everything(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    summary = train(tiny("name=a"), tmp_path / "a", on_round=heard.append)
    run = RunFolder(tmp_path / "a")
    assert [record["round"] for record in run.read_metrics()] == list(range(1, ROUNDS + 1))
    assert [record["round"] for record in heard] == list(range(1, ROUNDS + 1))
    assert run.read_summary() == summary
    assert (summary["name"], summary["rounds"], summary["parameters"], summary["devices"]) == (
        "a",
        ROUNDS,
        64,
        3,
    )
    checkpoint = run.load_checkpoint()
    assert checkpoint is not None
    assert checkpoint.round == ROUNDS
    assert load(run.config_path) == tiny("name=a")
    assert "finished" in run.log_path.read_text()


def test_variants_are_not_part_of_a_run(tmp_path: Path) -> None:
    settings = tiny().model_copy(update={"variants": {"a": {"seed": 3}}})
    train(settings, tmp_path / "a")
    assert load(tmp_path / "a" / "config.toml").variants == {}


def test_the_folder_is_the_name_inside_out() -> None:
    assert run_folder(tiny("out=x", "name=my run/3")) == Path("x/my-run-3")


# -- stopped and resumed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at", [1, 5, 7])
def test_a_signal_finishes_the_round_saves_and_stops(tmp_path: Path, number: int, at: int) -> None:
    before = signal.getsignal(number)
    stop = Stop(number, at)
    with pytest.raises(Interrupted, match=f"after round {at} of {ROUNDS}"):
        train(tiny(), tmp_path / "a", on_round=stop)
    assert stop.seen == at
    assert signal.getsignal(number) is before
    checkpoint = RunFolder(tmp_path / "a").load_checkpoint()
    assert checkpoint is not None
    assert checkpoint.round == at
    assert status_of(tiny(), tmp_path / "a") == "unfinished"
    train(tiny(), tmp_path / "a", resume=True)
    train(tiny(), tmp_path / "b")
    same(tmp_path / "a", tmp_path / "b")


def test_a_signal_in_the_last_round_is_too_late_to_stop(tmp_path: Path) -> None:
    assert train(tiny(), tmp_path / "a", on_round=Stop(signal.SIGINT, ROUNDS))["rounds"] == ROUNDS


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    def twice(record: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("went on after the second signal")

    with pytest.raises(Interrupted):
        train(tiny(), tmp_path / "a", on_round=twice)
    train(tiny(), tmp_path / "a", resume=True)
    train(tiny(), tmp_path / "b")
    same(tmp_path / "a", tmp_path / "b")


def test_a_signal_while_preparing_stops_at_once_without_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(settings: RunSettings, task: None) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("went on preparing")

    monkeypatch.setattr(module, "Experiment", prepare)
    with pytest.raises(Interrupted):
        train(tiny(), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_run_in_a_thread_leaves_signals_alone(tmp_path: Path) -> None:
    done: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: done.append(train(tiny(), tmp_path / "a")))
    thread.start()
    thread.join()
    assert done[0]["rounds"] == ROUNDS


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("method.preset=best",),
        ("method.side_bits=2", "method.scales=layer"),
        ("server.downlink=sign", "server.optimizer=momentum", "server.momentum=0.5"),
    ],
)
def test_every_kind_of_state_survives(tmp_path: Path, changes: tuple[str, ...]) -> None:
    settings = load(None, [*DIGITS, *changes])
    for at in (2, 9):
        with pytest.raises(Interrupted):
            train(settings, tmp_path / "a", resume=True, on_round=Stop(signal.SIGINT, at))
    train(settings, tmp_path / "a", resume=True)
    train(settings, tmp_path / "b")
    same(tmp_path / "a", tmp_path / "b")


def test_places_threads_and_checkpoints_may_change_in_between(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(tiny("threads=1"), tmp_path / "a", on_round=Stop(signal.SIGINT, 3))
    train(tiny("threads=2", "out=elsewhere", "checkpoint_every=2"), tmp_path / "a", resume=True)
    train(tiny(), tmp_path / "b")
    same(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("damaged", [1, 2])
def test_damaged_checkpoints_are_skipped_with_a_note(tmp_path: Path, damaged: int) -> None:
    with pytest.raises(Interrupted):
        train(tiny(), tmp_path / "a", on_round=Stop(signal.SIGINT, 7))
    files = sorted((tmp_path / "a" / "checkpoints").iterdir())  # of rounds 5 and 7
    for path in files[-damaged:]:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    notes: list[str] = []
    first: list[int] = []
    train(
        tiny(), tmp_path / "a", resume=True, on_note=notes.append, on_round=lambda r: first.append(r["round"])
    )
    assert first[0] == (6 if damaged == 1 else 1)
    assert len([text for text in notes if "damaged" in text]) == damaged
    assert "damaged" in (tmp_path / "a" / "log").read_text()
    train(tiny(), tmp_path / "b")
    same(tmp_path / "a", tmp_path / "b")


def test_killed_between_the_last_checkpoint_and_the_summary(tmp_path: Path) -> None:
    train(tiny(), tmp_path / "a")
    (tmp_path / "a" / "summary.json").unlink()
    train(tiny(), tmp_path / "a", resume=True, on_round=lambda record: pytest.fail("played a round again"))
    train(tiny(), tmp_path / "b")
    same(tmp_path / "a", tmp_path / "b")


def wait_for_rounds(process: BaseProcess, metrics: Path, rounds: int) -> bool:
    """Wait until so many rounds are written; False if the run has ended."""
    while process.is_alive():
        if metrics.exists() and metrics.read_bytes().count(b"\n") >= rounds:
            return True
        time.sleep(0.001)
    return False


def test_killed_five_times_at_random_rounds(tmp_path: Path) -> None:
    rounds = 40
    settings = load(
        None, [f"rounds={rounds}", "data.devices=4", "checkpoint_every=4", "server.momentum=0.5", "threads=1"]
    )
    folder = tmp_path / "killed"
    fresh = multiprocessing.get_context("forkserver")  # new processes that need not import torch each time
    fresh.set_forkserver_preload(["signfade.experiments.training", "sklearn.datasets"])
    draw = random.Random(5)
    for target in sorted(draw.sample(range(2, rounds - 1), 5)):
        process = fresh.Process(target=train, args=(settings, folder), kwargs={"resume": True})
        process.start()
        assert wait_for_rounds(process, folder / "metrics.jsonl", target), (
            "it ended before it could be killed"
        )
        time.sleep(draw.uniform(0, 0.02))  # somewhere within a round
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert status_of(settings, folder) == "unfinished"
    train(settings, folder, resume=True)
    train(settings, tmp_path / "undisturbed")
    same(folder, tmp_path / "undisturbed")


# -- refused -----------------------------------------------------------------------------------------------


def test_a_finished_run_is_not_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = train(tiny(), tmp_path / "a")
    before = content(tmp_path / "a")
    monkeypatch.setattr(module, "Experiment", lambda settings: pytest.fail("began again"))
    notes: list[str] = []
    assert train(tiny(), tmp_path / "a", on_note=notes.append) == summary
    assert notes == [f"{tmp_path / 'a'} is already finished"]
    assert content(tmp_path / "a") == before


def test_an_unfinished_run_is_continued_only_if_asked(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(tiny(), tmp_path / "a", on_round=Stop(signal.SIGINT, 3))
    before = content(tmp_path / "a")
    with pytest.raises(FolderError, match=f"stopped after round 3 of {ROUNDS}; add --resume"):
        train(tiny(), tmp_path / "a")
    assert content(tmp_path / "a") == before


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("override", ["seed=1", "server.learning_rate=0.5", "label=b", "cell.snr_db=3"])
def test_another_run_is_never_overwritten(tmp_path: Path, override: str, resume: bool) -> None:
    train(tiny("rounds=1"), tmp_path / "a")
    before = content(tmp_path / "a")
    with pytest.raises(FolderError, match=f"another config \\({override.split('=')[0]}: "):
        train(tiny("rounds=1", override), tmp_path / "a", resume=resume)
    if resume:  # more rounds are not what is wrong
        with pytest.raises(FolderError, match=f"another config \\({override.split('=')[0]}: "):
            train(tiny("rounds=2", override), tmp_path / "a", resume=True)
    assert content(tmp_path / "a") == before


def test_a_config_of_another_version_is_named_as_such(tmp_path: Path) -> None:
    train(tiny("rounds=1"), tmp_path / "a")
    with open(tmp_path / "a" / "config.toml", "a") as file:
        file.write("\n[future]\nkey = 1\n")
    with pytest.raises(FolderError, match=r"cannot read: unknown key 'future\.key'"):
        train(tiny("rounds=1"), tmp_path / "a", resume=True)


def test_bad_settings_leave_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        train(load(None, ["data.devices=100000"]), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(tiny(), tmp_path / "a", on_round=Stop(signal.SIGINT, 3))
    with RunFolder(tmp_path / "a").claimed(), pytest.raises(FolderError, match="another process"):
        train(tiny(), tmp_path / "a", resume=True)


# -- failed ------------------------------------------------------------------------------------------------


class Broken(module.Experiment):
    """Fails in its fourth round."""

    def advance(self) -> dict[str, Any]:
        if self.round == 3:
            raise RunFailed("round 4: the gradients are not finite")
        self.warnings.append(f"warned in round {self.round + 1}")
        return super().advance()


def test_a_failed_run_keeps_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Experiment", Broken)
    notes: list[str] = []
    with pytest.raises(RunFailed, match="not finite"):
        train(tiny(), tmp_path / "a", on_note=notes.append)
    run = RunFolder(tmp_path / "a")
    assert [record["round"] for record in run.read_metrics()] == [1, 2, 3]
    assert notes == [f"warned in round {n}" for n in (1, 2, 3)]  # each once
    assert not run.finished
    assert "failed: round 4" in run.log_path.read_text()


def test_a_full_disk_is_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = RunFolder.append_metrics

    def full(self: RunFolder, record: dict[str, Any]) -> None:
        if record["round"] == 4:
            raise FolderError("cannot write to the run folder: No space left on device")
        append(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append_metrics", full)
        with pytest.raises(RunFailed, match="No space left"):
            train(tiny(), tmp_path / "a")
    train(tiny(), tmp_path / "a", resume=True)
    train(tiny(), tmp_path / "b")
    same(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("what", ["other numbers", "another size"])
def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, what: str) -> None:
    with pytest.raises(Interrupted):
        train(tiny(), tmp_path / "a", on_round=Stop(signal.SIGINT, 3))
    folder = RunFolder(tmp_path / "a")
    checkpoint = folder.load_checkpoint()
    assert checkpoint is not None
    tensors = {"bits": torch.zeros(2, dtype=torch.int64)}
    if what == "another size":
        tensors = checkpoint.tensors | {
            "server.model.weights": torch.zeros(7),
            "server.model.momentum": torch.zeros(7),
        }
    folder.save_checkpoint(3, tensors, checkpoint.metadata)
    with pytest.raises(FolderError, match="does not fit the model"):
        train(tiny(), tmp_path / "a", resume=True)


def test_what_version_0_1_wrote_is_refused(tmp_path: Path) -> None:
    """Its checkpoints by their format, its folders by the settings that have another name now."""
    with pytest.raises(Interrupted):
        train(tiny(), tmp_path / "a", on_round=Stop(signal.SIGINT, 3))
    folder = RunFolder(tmp_path / "a")
    checkpoint = folder.load_checkpoint()
    assert checkpoint is not None
    folder.save_checkpoint(3, checkpoint.tensors, {})
    with pytest.raises(FolderError, match="its checkpoint was written by another version of signfade"):
        train(tiny(), tmp_path / "a", resume=True)
    text = folder.config_path.read_text()
    folder.config_path.write_text(text.replace("learning_rate =", "step ="))
    sentence = "written by signfade 0.1, where server.learning_rate was called server.step; run it again"
    with pytest.raises(FolderError, match=sentence):
        train(tiny(), tmp_path / "a", resume=True)
    with pytest.raises(FolderError, match=sentence):
        load_run(tmp_path / "a")


@pytest.mark.parametrize("spoilt", ["server.model.weights", "server.model.momentum"])
def test_a_model_that_is_not_finite_is_not_saved(
    tmp_path: Path, spoilt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = module.Experiment.state

    def spoil(experiment: module.Experiment) -> dict[str, torch.Tensor]:
        tensors = state(experiment)
        if experiment.round > 5:
            tensors[spoilt] = torch.full_like(tensors[spoilt], torch.nan)
        return tensors

    monkeypatch.setattr(module.Experiment, "state", spoil)
    with pytest.raises(RunFailed, match=f"round 10: the model has diverged, {spoilt} is not finite"):
        train(tiny(), tmp_path / "a")
    checkpoint = RunFolder(tmp_path / "a").load_checkpoint()
    assert checkpoint is not None
    assert checkpoint.round == 5


def test_the_first_command_of_the_readme_trains_steadily(tmp_path: Path) -> None:
    """`signfade run` without arguments, with a seed that no step was tuned on."""
    folder = tmp_path / "run"
    summary = train(load(None, ["seed=300"]), folder)
    assert summary["last_accuracy"] > 0.9
    assert fall_text(summary) is None
    late = [m["test_accuracy"] for m in RunFolder(folder).read_metrics() if m["round"] > 130]
    assert min(value for value in late if value is not None) > 0.89  # 360 digits: two deviations below 0.92


# -- more rounds, and moved aside --------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [(), ("eval.every=5", "method.side_bits=1", "checkpoint_every=3")])
def test_a_run_that_gets_more_rounds_is_a_run_of_that_many(tmp_path: Path, changes: tuple[str, ...]) -> None:
    """Its old end, evaluated for being the end, leaves nothing behind; nor does a kill on the way."""
    longer = tiny(*changes, f"rounds={ROUNDS + 4}")
    train(longer, tmp_path / "b")
    train(tiny(*changes), tmp_path / "a")
    with pytest.raises(FolderError, match="another config"):
        train(longer, tmp_path / "a")
    with pytest.raises(Interrupted):
        train(longer, tmp_path / "a", resume=True, on_round=Stop(signal.SIGINT, ROUNDS - 1))
    assert not RunFolder(tmp_path / "a").finished
    train(longer, tmp_path / "a", resume=True)
    same(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "config.toml").read_bytes() == (tmp_path / "b" / "config.toml").read_bytes()
    with pytest.raises(FolderError, match=f"rounds: {ROUNDS + 4} there, {ROUNDS} here"):
        train(tiny(*changes), tmp_path / "a", resume=True)  # fewer rounds are another run


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("rounds", [ROUNDS, ROUNDS + 2])
def test_a_kill_while_a_run_gets_more_rounds(tmp_path: Path, steps: int, rounds: int) -> None:
    """After one or two of the three steps of `reopen` it can be continued to the old end or the new one."""
    train(tiny(f"rounds={rounds}", "eval.every=5"), tmp_path / "whole")
    train(tiny("eval.every=5"), tmp_path / "a")
    (tmp_path / "a" / "summary.json").unlink()
    if steps == 2:
        (tmp_path / "a" / "checkpoints" / f"round-{ROUNDS:08d}.safetensors").unlink()
    train(tiny(f"rounds={rounds}", "eval.every=5"), tmp_path / "a", resume=True)
    same(tmp_path / "a", tmp_path / "whole")


def test_a_run_moved_aside_is_whole_and_what_is_wrong_comes_first(tmp_path: Path) -> None:
    train(tiny(), tmp_path / "a")
    before = {path.removeprefix(str(tmp_path / "a")): data for path, data in content(tmp_path / "a").items()}
    for force in (False, True):
        with pytest.raises(ValueError, match="samples"):
            train(load(None, ["data.devices=100000"]), tmp_path / "a", force=force)
    with pytest.raises(ValueError, match="choose one"):
        train(tiny("seed=1"), tmp_path / "a", resume=True, force=True)
    notes: list[str] = []
    train(tiny("seed=1"), tmp_path / "a", force=True, on_note=notes.append)
    train(tiny("seed=2"), tmp_path / "a", force=True)
    assert notes == [f"the run in {tmp_path / 'a'} is now in {tmp_path / 'a.1'}"]
    assert {
        path.removeprefix(str(tmp_path / "a.1")): d for path, d in content(tmp_path / "a.1").items()
    } == before
    assert [load(tmp_path / name / "config.toml").seed for name in ("a.1", "a.2", "a")] == [0, 1, 2]
