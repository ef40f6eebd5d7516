"""The folder of one run, written so that a kill at any moment leaves something to resume from.

    config.toml       everything that decides the result; once a round is done, only `rounds` may grow
    environment.json  the CPU and the versions it was computed with, from which round on
    metrics.jsonl     one JSON object per round with a checksum; only appended to or cut at the end of a line
    checkpoints/      the newest two states, safetensors, each written aside and moved into place
    summary.json      written last: a run is finished when it is there
    log               notes and failures
    .lock             who is writing, while somebody is

The order is what makes it safe: the metrics of round t are on disk before the checkpoint of round t appears,
and an old checkpoint goes only after a newer one is there. So the newest checkpoint never knows more than the
metrics, and resuming cuts the metrics back to it. Where metrics were damaged since, the run goes back to the
newest checkpoint before the damage, at worst to the start.
"""

from __future__ import annotations

import os
import re
import tomllib
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from signfade._text import has_controls, printable
from signfade.experiments.checkpoint import Checkpoint, CheckpointError, decode_checkpoint, encode_checkpoint
from signfade.experiments.config import RENAMED, deciding, flatten, parse_toml
from signfade.experiments.files import (
    FolderError,
    Held,
    acquire,
    check_free,
    os_errors,
    release,
    remove_leftovers,
    why,
    write_atomically,
)
from signfade.experiments.metrics import (
    MetricsScan,
    decode_summary,
    encode_summary,
    metric_line,
    scan_metrics,
)

__all__ = ["FolderError", "OldRunError", "RunFolder", "why", "write_atomically"]

_CHECKPOINT = re.compile(r"round-([0-9]{8,})\.safetensors")  # more digits from round 100,000,000 on
_KEEP = 2  # checkpoints


def _with_path_loss(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a run with the path loss that was the only one before there was a choice."""
    cell = config.get("cell")
    if not isinstance(cell, dict) or "path_loss" in cell:
        return config
    unset = {"base_m": 70.0, "shadowing_db": 0.0}
    auto = {key: "auto" for key, value in unset.items() if cell.get(key) == value}
    return config | {"cell": cell | auto | {"path_loss": "cost231"}}


class OldRunError(FolderError):
    """A run folder of a version whose settings had other names."""


class RunFolder:
    """The folder of one run.

    Example:
        >>> import tempfile, torch
        >>> folder = RunFolder(Path(tempfile.mkdtemp()) / "run").create("name = 'tiny'\\nrounds = 2\\n")
        >>> folder.append_metrics({"round": 1, "train_loss": 2.3, "seconds": 0.1})
        >>> folder.save_checkpoint(1, {"weights": torch.zeros(3)}, {})
        >>> folder.append_metrics({"round": 2, "train_loss": 1.9, "seconds": 0.1})  # and here it is killed
        >>> folder.go_back().round, len(folder.read_metrics()), folder.finished
        (1, 1, False)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.toml"
        self.metrics_path = self.path / "metrics.jsonl"
        self.summary_path = self.path / "summary.json"
        self.checkpoints_path = self.path / "checkpoints"
        self.log_path = self.path / "log"
        self.environment_path = self.path / "environment.json"
        self._lock_path = self.path / ".lock"
        self._claimed = False
        self._last: tuple[int, int] | None = (
            None  # round and CRC-32 at the end of the metrics; None: not read
        )

    # -- the folder and its config ---------------------------------------------------------------------------

    def create(self, config_text: str) -> RunFolder:
        """Make the folder, or open one that holds the same run; never overwrite another that has a round.

        Configs are compared by their content, not their spelling, and keys that cannot change a number of the
        run (`out`, `threads`, ...) do not count: a folder may have been moved.
        """
        self.refuse_strangers()
        with nullcontext() if self._claimed else self.claimed():
            known = self.exists
            another = self._differs(config_text) if known else None
            if another is not None and self.begun:
                raise FolderError(f"{self.path} already holds {another}; choose another folder")
            with os_errors("write to", self.path):
                if not known or another is not None:
                    self.refuse_strangers()
                    write_atomically(self.config_path, config_text.encode())
                remove_leftovers(self.path)
                self.checkpoints_path.mkdir(exist_ok=True)
        return self

    def reopen(self, last: int, config_text: str) -> None:
        """Take back the end of a run of `last` rounds, and give it a config of more rounds.

        The last round is evaluated because it is the last, so the state after it goes too. In this order a
        kill leaves a run that can be continued, either to the old end or to the new one.
        """
        with nullcontext() if self._claimed else self.claimed(), os_errors("write to", self.path):
            self.summary_path.unlink(missing_ok=True)
            if (end := self._checkpoints().get(last)) is not None:
                end.unlink()
            write_atomically(self.config_path, config_text.encode())

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run: its config is there."""
        with os_errors("read", self.path):
            return self.config_path.exists()

    @property
    def begun(self) -> bool:
        """Whether there is something to lose: a round, a checkpoint, or the ruins of one."""
        scan = self._scan()
        return bool(scan.records or scan.damage or self._checkpoints()) or self.finished

    @property
    def finished(self) -> bool:
        """Whether the run came to its end: its summary is there."""
        return self.summary_path.exists()

    def config_text(self) -> str:
        """Return config.toml as it is written."""
        with os_errors("read", self.path):
            if not self.config_path.is_file():
                raise FolderError(f"{self.path} is not a run folder: it has no config.toml")
            try:
                return self.config_path.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise FolderError(f"{self.path} is damaged: its config.toml is not UTF-8 text") from error

    def config(self) -> dict[str, Any]:
        """Return the parsed config.toml; `FolderError` if it is missing, damaged, or of another version."""
        try:
            config = parse_toml(self.config_text())
        except tomllib.TOMLDecodeError as error:
            raise FolderError(f"{self.path} is damaged: its config.toml is not TOML ({error})") from error
        for key, value in flatten(config).items():
            if key in RENAMED:
                raise OldRunError(
                    f"{self.path} was written by signfade 0.1, where {RENAMED[key]} was called {key}; "
                    "run it again in another folder"
                )
            if has_controls(f"{key}{value}"):
                what = f"the setting {printable(key)!r} in its config.toml holds control characters"
                raise FolderError(f"{self.path} is damaged: {what}")
        return _with_path_loss(config)

    @contextmanager
    def claimed(self) -> Iterator[RunFolder]:
        """Keep other processes from writing the same run meanwhile; a kill gives the claim back.

        The folder is made if it is not there. The `FolderError` of a folder that is held says by whom.
        """
        with os_errors("write to", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            with self._held_errors():
                lock = acquire(self._lock_path)
        self._claimed = True
        try:
            yield self
        finally:
            self._claimed = False
            with suppress(OSError):  # the folder may have gone
                release(self._lock_path, lock)

    def check_free(self) -> None:
        """Raise `FolderError`, as `claimed` does, if another process holds the folder; change nothing."""
        with self._held_errors():
            check_free(self._lock_path)

    @contextmanager
    def _held_errors(self) -> Iterator[None]:
        try:
            yield
        except Held as held:
            raise FolderError(f"another process is writing to the run folder {self.path}: {held}") from None

    def refuse_strangers(self) -> None:
        """Raise if the folder has no config, and more than what a kill or a log left there."""
        if self.exists or not self.path.is_dir():
            return
        with os_errors("read", self.path):
            names = {entry.name for entry in self.path.iterdir()} - {"log", ".lock"}
        left = all(name.startswith(".config.toml.") and name.endswith(".tmp") for name in names)
        if not left and not self.exists:  # asked again: another process may have made its run since
            raise FolderError(f"{self.path} is not empty and holds no run; choose another folder")

    def _differs(self, config_text: str) -> str | None:
        """How the run in the folder differs from this one, None if it is the same."""
        there, here = deciding(self.config()), deciding(_with_path_loss(parse_toml(config_text)))
        for key in [*there, *here]:
            if there.get(key) != here.get(key):
                values = f"{there.get(key, 'absent')!r} there, {here.get(key, 'absent')!r} here"
                return f"a run with another config ({key}: {values})"
        return None

    # -- metrics and summary ---------------------------------------------------------------------------------

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Append one round, which must follow the last one, to metrics.jsonl as `metric_line` writes it."""
        if self._last is None:
            scan = self._scan()
            if scan.damage is not None:
                raise FolderError(f"{self.path} is damaged: {scan.damage}")
            self._cut(scan, len(scan.records))
        assert self._last is not None
        done, crc = self._last
        if record.get("round", done + 1) != done + 1:
            raise ValueError(f"round must be {done + 1}, the next one; got {record['round']}")
        line = metric_line(record, crc)
        with os_errors("write to", self.path):
            self._last = None  # should the disk be full, the next call repairs the torn line first
            with open(self.metrics_path, "ab") as file:
                file.write(line)
        self._last = done + 1, zlib.crc32(line, crc)

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the rounds so far, oldest first; a torn last line, left by a kill, is not one of them.

        Raises `FolderError` if the file is damaged, or has not all rounds of the summary.
        """
        scan = self._scan()
        damage, summary = scan.damage, self.read_summary()
        if damage is None and summary is not None and summary["rounds"] != len(scan.records):
            damage = f"its metrics.jsonl has {len(scan.records)} of {summary['rounds']} rounds"
        if damage is not None:
            first = "remove its summary.json, then " if summary is not None else ""
            raise FolderError(f"{self.path} is damaged: {damage}; {first}run it again with --resume")
        return scan.records

    def whole_rounds(self) -> int:
        """Return how many rounds metrics.jsonl holds before its end or the first damage."""
        return len(self._scan().records)

    def truncate_metrics_after(self, round: int) -> None:
        """Drop the rounds after `round`, the one of the checkpoint to resume from.

        The file is cut in place at the end of a line: what stays is not written again, so a kill cannot hurt.
        """
        scan = self._scan()
        if round > len(scan.records):
            ends_at = f"its metrics.jsonl ends at round {len(scan.records)}"
            raise FolderError(f"{self.path} is damaged: its checkpoint is of round {round}, {ends_at}")
        self._cut(scan, round)

    def _scan(self) -> MetricsScan:
        with os_errors("read", self.path):
            return scan_metrics(self.metrics_path.read_bytes() if self.metrics_path.exists() else b"")

    def _cut(self, scan: MetricsScan, round: int) -> None:
        with os_errors("write to", self.path):
            if self.metrics_path.exists():
                with open(self.metrics_path, "r+b") as file:
                    file.truncate(scan.ends[round])
                    os.fsync(file.fileno())
                scan = scan_metrics(self.metrics_path.read_bytes())
        self._last = round, scan.crc

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, which says that the run is finished."""
        with os_errors("write to", self.path):
            self._tidy()
            write_atomically(self.summary_path, encode_summary(summary))

    def read_summary(self) -> dict[str, Any] | None:
        """Return summary.json, without its checksum, or None while the run is unfinished."""
        with os_errors("read", self.path):
            if not self.summary_path.exists():
                return None
            data = self.summary_path.read_bytes()
        try:
            return decode_summary(data)
        except ValueError as error:
            again = "remove it and run again with --resume"
            raise FolderError(f"{self.path} is damaged: its summary.json {error}; {again}") from error

    def failure(self) -> str | None:
        """Return why the run failed when it last ran, None if it did not."""
        with os_errors("read", self.path):
            if not self.log_path.exists():
                return None
            log = self.log_path.read_text(encoding="utf-8", errors="replace")
        *_, last = log.splitlines() or [""]
        return printable(last.partition(" failed: ")[2]) or None

    # -- checkpoints -----------------------------------------------------------------------------------------

    def save_checkpoint(self, round: int, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        """Write the state after `round` and keep the one before it. Append the metrics of `round` first.

        Checkpoints of later rounds go: they are those that the run fell back from.
        """
        with os_errors("write to", self.path):
            if self.metrics_path.exists():
                with open(self.metrics_path, "r+b") as file:
                    os.fsync(file.fileno())
            self.checkpoints_path.mkdir(exist_ok=True)
            path = self.checkpoints_path / f"round-{round:08d}.safetensors"
            write_atomically(path, encode_checkpoint(round, tensors, metadata))
            self._tidy(round)

    def load_checkpoint(self) -> Checkpoint | None:
        """Return the newest undamaged checkpoint, or None; warn of every damaged one on the way to it."""
        return self._load(None, "")

    def go_back(self) -> Checkpoint | None:
        """Return the newest checkpoint to go on from, and cut metrics.jsonl back to it; None is the start.

        It is undamaged, and so are the metrics of all its rounds. Every later one is named in a warning.
        """
        scan = self._scan()
        whole = len(scan.records)
        checkpoint = self._load(whole, scan.damage or f"metrics.jsonl is whole up to round {whole} only")
        self.truncate_metrics_after(0 if checkpoint is None else checkpoint.round)
        return checkpoint

    def _load(self, at_most: int | None, reason: str) -> Checkpoint | None:
        """The newest undamaged checkpoint up to that round; `reason` says why a later one cannot be used."""
        found = self._checkpoints()
        for round, path in found.items():
            what = "is damaged"
            try:
                checkpoint = decode_checkpoint(path.read_bytes())
                if checkpoint.round != round:
                    problem = f"it is of round {checkpoint.round}"
                elif at_most is not None and round > at_most:
                    what, problem = "cannot be used", reason
                else:
                    return checkpoint
            except (CheckpointError, OSError) as error:
                problem = str(error)
            then = "starting over" if path == [*found.values()][-1] else "falling back to the one before"
            warnings.warn(f"the checkpoint {path} {what} ({problem}); {then}", stacklevel=3)
        return None

    def _checkpoints(self) -> dict[int, Path]:
        """The checkpoint files by round, newest first."""
        with os_errors("read", self.path):
            if not self.checkpoints_path.is_dir():
                return {}
            matches = [(_CHECKPOINT.fullmatch(path.name), path) for path in self.checkpoints_path.iterdir()]
        return dict(sorted(((int(m[1]), path) for m, path in matches if m), reverse=True))

    def _tidy(self, round: int | None = None) -> None:
        """Remove all but the newest checkpoints up to `round`, and what a kill left half written."""
        found = self._checkpoints()
        kept = [number for number in found if round is None or number <= round][:_KEEP]
        for path in (path for number, path in found.items() if number not in kept):
            path.unlink(missing_ok=True)
        remove_leftovers(self.checkpoints_path)
