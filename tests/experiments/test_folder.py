from __future__ import annotations

import errno
import json
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from signfade.experiments.checkpoint import CheckpointError, decode_checkpoint, encode_checkpoint
from signfade.experiments.folder import FolderError, RunFolder
from signfade.experiments.metrics import METRIC_KEYS, scan_metrics

CONFIG = 'name = "tiny"\nseed = 1\nrounds = 4\nout = "runs"\n[server]\nlearning_rate = 0.01\n'
STATE = {
    "weights": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "count": torch.tensor(7),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "empty": torch.empty(0),
    "mask": torch.tensor([True, False]),
}


def record(round: int, **values: Any) -> dict[str, Any]:
    return {"seconds": 0.5, "round": round, "train_loss": 2.0 / round, **values}


# -- the folder ----------------------------------------------------------------------------------------------


def test_create_writes_the_config_once_and_opens_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a" / "b").create(CONFIG)
    assert folder.config_text() == CONFIG
    assert folder.config()["server"] == {"learning_rate": 0.01}
    folder.append_metrics(record(1))
    again = RunFolder(folder.path).create(CONFIG)
    assert [r["round"] for r in again.read_metrics()] == [1]
    assert not again.finished


def test_spelling_and_keys_without_effect_do_not_make_another_config(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create(CONFIG)
    other = (
        'seed=1 # same\nname = "tiny"\nrounds = 4\nout = "elsewhere"\nthreads = 2\n'
        "server = { learning_rate = 1e-2 }\n"
    )
    RunFolder(folder.path).create(other)
    assert folder.config_text() == CONFIG


def test_another_config_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create(CONFIG)
    folder.append_metrics(record(1))
    before = {p.name: p.read_bytes() for p in folder.path.iterdir() if p.is_file()}
    with pytest.raises(FolderError, match=r"server\.learning_rate: 0\.01 there, 0\.1 here") as caught:
        RunFolder(folder.path).create(CONFIG.replace("0.01", "0.1"))
    assert str(folder.path) in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(FolderError, match=r"server\.clip: 'absent' there, 2 here"):
        RunFolder(folder.path).create(CONFIG + "clip = 2\n")
    assert {p.name: p.read_bytes() for p in folder.path.iterdir() if p.is_file()} == before


def test_a_folder_of_strangers_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FolderError, match="not empty and holds no run"):
        RunFolder(tmp_path).create(CONFIG)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_a_kill_before_the_config_leaves_is_no_stranger(tmp_path: Path) -> None:
    (tmp_path / ".config.toml.tmp").write_text('name = "ti')
    assert RunFolder(tmp_path).create(CONFIG).config_text() == CONFIG


def test_a_run_that_another_process_has_just_made_is_no_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, listing = RunFolder(tmp_path), Path.iterdir

    def late(path: Path) -> Iterator[Path]:
        if not folder.config_path.exists():
            folder.config_path.write_text(CONFIG)
            folder.metrics_path.write_text("")
        return listing(path)

    monkeypatch.setattr(Path, "iterdir", late)
    RunFolder(tmp_path).refuse_strangers()


def test_unwritable_folders_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(
            FolderError, match=r"cannot write to the run folder .*: (Not a directory|File exists)"
        ):
            RunFolder(path).create(CONFIG)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_one_sentence(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create(CONFIG)
    folder.path.chmod(0o500)
    try:
        with pytest.raises(FolderError, match="Permission denied"):
            RunFolder(folder.path).create(CONFIG)
    finally:
        folder.path.chmod(0o700)


def test_folders_that_are_no_runs_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"is not a run folder: it has no config\.toml"):
        RunFolder(tmp_path).config()
    (tmp_path / "config.toml").write_text("name = ")
    with pytest.raises(FolderError, match=r"its config\.toml is not TOML"):
        RunFolder(tmp_path).config()
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(FolderError, match="not UTF-8"):
        RunFolder(tmp_path).config()
    (tmp_path / "summary.json").write_text("[]")
    with pytest.raises(FolderError, match=r"summary\.json is not a JSON object"):
        RunFolder(tmp_path).read_summary()


@pytest.mark.skipif(sys.platform == "win32", reason="no advisory locks there")
def test_one_claim_at_a_time(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create(CONFIG)
    with (
        folder.claimed(),
        pytest.raises(FolderError, match="another process is writing"),
        RunFolder(folder.path).claimed(),
    ):
        pass
    with RunFolder(folder.path).claimed():
        pass


# -- metrics -------------------------------------------------------------------------------------------------


def test_lines_hold_the_keys_in_order_and_floats_exactly(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create(CONFIG)
    loss = 0.1 + 0.2
    folder.append_metrics(
        record(1, train_loss=torch.tensor(loss, dtype=torch.float64), snr_db=[-1.5, 2.0, 9.0])
    )
    line = folder.metrics_path.read_text()
    assert line.endswith("}\n")
    assert line.count("\n") == 1
    assert list(json.loads(line)) == [*METRIC_KEYS, "crc32"]
    assert list(folder.read_metrics()[0]) == list(METRIC_KEYS)
    assert folder.read_metrics()[0]["train_loss"] == loss
    assert folder.read_metrics()[0]["test_accuracy"] is None


def test_what_is_not_finite_becomes_null_and_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create(CONFIG)
    folder.append_metrics(record(1, nmse=float("inf"), cosine=float("nan"), snr_db=[float("-inf"), 1.0, 2.0]))
    (got,) = folder.read_metrics()
    assert (got["nmse"], got["cosine"], got["snr_db"]) == (None, None, [None, 1.0, 2.0])
    assert got["diverged"] == ["nmse", "cosine"]
    assert [*got][-1] == "seconds"


def test_rounds_follow_each_other(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create(CONFIG)
    folder.append_metrics(record(1))
    for wrong in (1, 3):
        with pytest.raises(ValueError, match=f"round must be 2, the next one; got {wrong}"):
            folder.append_metrics(record(wrong))
    with pytest.raises(ValueError, match="must hold the key 'round'"):
        folder.append_metrics({"train_loss": 1.0})
    with pytest.raises(ValueError, match="got complex"):
        folder.append_metrics(record(2, cosine=1j))
    RunFolder(folder.path).append_metrics(record(2))
    assert len(folder.read_metrics()) == 2


def test_every_tear_of_the_file_leaves_the_whole_lines_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # slow, and no part of this
    folder = RunFolder(tmp_path / "run").create(CONFIG)
    for number in (1, 2, 3):
        folder.append_metrics(record(number))
    data = folder.metrics_path.read_bytes()
    for length in range(len(data) + 1):
        folder.metrics_path.write_bytes(data[:length])
        whole = data[:length].count(b"\n")
        assert [r["round"] for r in folder.read_metrics()] == [1, 2, 3][:whole]
        RunFolder(folder.path).append_metrics(record(whole + 1))
        assert folder.metrics_path.read_bytes().startswith(data[: data.find(b"\n") + 1] if whole else b"{")
        assert len(folder.read_metrics()) == whole + 1


def test_damage_before_the_last_line_is_not_guessed_away(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create(CONFIG)
    for number in (1, 2, 3):
        folder.append_metrics(record(number))
    first, second, third = folder.metrics_path.read_bytes().splitlines(keepends=True)
    for damaged in (first + b"{]\n" + third, first + third, second, first + b'{"round": "2"}\n' + third):
        folder.metrics_path.write_bytes(damaged)
        with pytest.raises(FolderError, match=r"line \d of metrics\.jsonl is not round") as caught:
            folder.read_metrics()
        assert str(folder.path) in str(caught.value)
    folder.metrics_path.write_bytes(first + b"\0\0\0\n")
    assert len(folder.read_metrics()) == 1


def test_truncation_keeps_the_bytes_before_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create(CONFIG)
    for number in (1, 2, 3):
        folder.append_metrics(record(number))
    lines = folder.metrics_path.read_bytes().splitlines(keepends=True)
    with pytest.raises(FolderError, match=r"checkpoint is of round 4, its metrics\.jsonl ends at round 3"):
        folder.truncate_metrics_after(4)
    folder.truncate_metrics_after(2)
    assert folder.metrics_path.read_bytes() == lines[0] + lines[1]
    folder.append_metrics(record(3))
    assert folder.metrics_path.read_bytes() == b"".join(lines)
    folder.truncate_metrics_after(0)
    assert folder.metrics_path.read_bytes() == b""


def test_a_full_disk_is_one_sentence_and_repaired_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "run").create(CONFIG)
    folder.append_metrics(record(1))

    class Full:
        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None: ...

        def write(self, data: bytes) -> None:
            with folder.metrics_path.open("ab") as file:
                file.write(data[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("builtins.open", lambda *_, **__: Full())
    with pytest.raises(FolderError, match=os.strerror(errno.ENOSPC)):
        folder.append_metrics(record(2))
    monkeypatch.undo()
    folder.append_metrics(record(2))
    assert [r["round"] for r in folder.read_metrics()] == [1, 2]


@given(st.binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_garbage_is_a_record_or_refused_never_a_crash(data: bytes) -> None:
    scan = scan_metrics(data)
    assert len(scan.ends) == len(scan.records) + 1
    assert scan.ends[-1] <= len(data)
    assert scan.damage is None or "metrics.jsonl" in scan.damage


# -- checkpoints ---------------------------------------------------------------------------------------------


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor)


def test_checkpoints_come_back_and_only_two_stay(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create(CONFIG)
    assert folder.load_checkpoint() is None
    for number in (1, 2, 3):
        folder.append_metrics(record(number))
        folder.save_checkpoint(
            number, STATE | {"count": torch.tensor(number)}, {"optimizer": "adam", "ü": "é"}
        )
    names = sorted(p.name for p in folder.checkpoints_path.iterdir())
    assert names == ["round-00000002.safetensors", "round-00000003.safetensors"]
    found = folder.load_checkpoint()
    assert found is not None
    assert found.round == 3
    assert found.metadata == {"optimizer": "adam", "ü": "é"}
    assert_same(found.tensors, STATE | {"count": torch.tensor(3)})


def test_tensors_that_share_memory_or_have_gradients_are_saved() -> None:
    flat = torch.arange(6.0, requires_grad=True)
    views = {"a": flat[:3], "b": flat[1:], "c": flat.reshape(2, 3).T}
    found = decode_checkpoint(encode_checkpoint(0, views, {})).tensors
    assert_same(found, {name: view.detach().clone() for name, view in views.items()})
    found["a"][0] = 9.0  # the caller may change what was loaded
    assert flat[0] == 0


def test_equal_states_give_equal_bytes() -> None:
    words = {f"key{n}": str(n) for n in range(8)}
    backwards = dict(reversed(words.items()))
    assert encode_checkpoint(5, STATE, words) == encode_checkpoint(
        5, dict(reversed(STATE.items())), backwards
    )


def test_every_truncation_and_every_flipped_byte_is_noticed() -> None:
    data = encode_checkpoint(3, {"w": torch.arange(4.0)}, {"a": "b"})
    for length in range(len(data)):
        with pytest.raises(CheckpointError):
            decode_checkpoint(data[:length])
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x01
        with pytest.raises(CheckpointError):
            decode_checkpoint(bytes(damaged))


@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty", "flipped", "another"])
def test_a_damaged_newest_falls_back_with_a_warning(tmp_path: Path, damage: str) -> None:
    folder = RunFolder(tmp_path / "run").create(CONFIG)
    for number in (1, 2):
        folder.append_metrics(record(number))
        folder.save_checkpoint(number, {"w": torch.full((9,), float(number))}, {})
    newest = folder.checkpoints_path / "round-00000002.safetensors"
    data = newest.read_bytes()
    newest.write_bytes(
        {
            "truncated": data[:-5],
            "garbage": os.urandom(100),
            "empty": b"",
            "flipped": data[:-1] + bytes([data[-1] ^ 1]),
            "another": (folder.checkpoints_path / "round-00000001.safetensors").read_bytes(),
        }[damage]
    )
    with pytest.warns(UserWarning, match=r"round-00000002\.safetensors is damaged .*; falling back"):
        found = folder.load_checkpoint()
    assert found is not None
    assert found.round == 1
    assert torch.equal(found.tensors["w"], torch.ones(9))
    # once the run has gone on, the damaged one is out of the way
    folder.truncate_metrics_after(1)
    folder.save_checkpoint(1, found.tensors, {})
    assert [p.name for p in folder.checkpoints_path.iterdir()] == ["round-00000001.safetensors"]


def test_metrics_and_tensors_are_on_disk_before_the_checkpoint_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "run").create(CONFIG)
    folder.append_metrics(record(1))
    events: list[Any] = []
    replace = os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append(os.fstat(descriptor).st_ino))

    def moved(source: Path, target: Path) -> None:
        events.append(("moved", Path(source).stat().st_ino))
        replace(source, target)

    monkeypatch.setattr(os, "replace", moved)
    folder.save_checkpoint(1, STATE, {})
    metrics, checkpoints = folder.metrics_path.stat().st_ino, folder.checkpoints_path.stat().st_ino
    tensors = (folder.checkpoints_path / "round-00000001.safetensors").stat().st_ino
    assert events == [metrics, tensors, ("moved", tensors), checkpoints]


def test_all_damaged_is_none_and_the_caller_starts_over(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create(CONFIG)
    folder.save_checkpoint(0, STATE, {})
    (folder.checkpoints_path / "round-00000000.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match="starting over"):
        assert folder.load_checkpoint() is None


def test_metadata_and_round_are_checked() -> None:
    with pytest.raises(ValueError, match="round must be 0 or more; got -1"):
        encode_checkpoint(-1, STATE, {})
    with pytest.raises(ValueError, match="strings to strings"):
        encode_checkpoint(1, STATE, {"round": 1})  # type: ignore[dict-item]


# -- a kill at any line --------------------------------------------------------------------------------------

ROUNDS = 3
TRACED = ("folder.py", "files.py", "lock.py", "metrics.py", "metrics_file.py", "checkpoint.py")
TRACED += ("checkpoint_store.py", "summary.py")


def train(path: Path) -> None:
    """A run in the small: resume, then a round, its metrics, its checkpoint, and the summary at the end."""
    folder = RunFolder(path).create(CONFIG)
    if folder.finished:
        return
    checkpoint = folder.go_back()
    done, weights = (checkpoint.round, checkpoint.tensors["w"]) if checkpoint else (0, torch.ones(3))
    for number in range(done + 1, ROUNDS + 1):
        weights = weights * 1.5 + number
        folder.append_metrics({"round": number, "train_loss": float(weights.sum())})
        folder.save_checkpoint(number, {"w": weights}, {"note": "x"})
    folder.write_summary({"rounds": ROUNDS})


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def killed_after(path: Path, lines: int) -> bool:
    """Run `train` in a fork that kills itself at its n-th line of folder.py; say whether it came that far."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons dislike a fork beside threads
        child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        return os.WIFSIGNALED(status)
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if Path(frame.f_code.co_filename).name not in TRACED:
            return None
        count += event == "line"
        if count == lines:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    try:
        sys.settrace(trace)
        train(path)
        sys.settrace(None)
        os._exit(0)
    except BaseException:
        os._exit(1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_kill_at_any_line_is_resumed_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # guards against a power cut, not a kill, and is slow
    train(tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    assert len(expected) == 5  # config, metrics, summary, two checkpoints
    lines = 1
    while killed_after(path := tmp_path / f"killed-{lines}", lines):
        train(path)
        assert contents(path) == expected, f"killed at line {lines}"
        lines += 1 if lines < 120 else 5  # the rounds repeat their lines
    assert lines > 150  # the kills did reach into the loop
    assert contents(path) == expected  # and the last fork was not killed
