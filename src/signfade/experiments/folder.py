"""The folder of one run, written so that a kill at any moment leaves something to resume from.

    config.toml       everything that decides the result; written first and never again
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
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from signfade._text import has_controls, printable
from signfade.experiments.checkpoint import Checkpoint, CheckpointStore
from signfade.experiments.config import RENAMED, deciding
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
from signfade.experiments.metrics import MetricsFile
from signfade.experiments.summary import decode_summary, encode_summary
from signfade.experiments.toml import flatten, parse_toml

__all__ = ["FolderError", "RunFolder", "why", "write_atomically"]


class RunFolder:
    """The folder of one run.

    Example:
        >>> import tempfile, torch
        >>> folder = RunFolder(Path(tempfile.mkdtemp()) / "run").create("name = 'tiny'\\nrounds = 2\\n")
        >>> folder.append_metrics({"round": 1, "train_loss": 2.3, "seconds": 0.1})
        >>> folder.save_checkpoint(1, {"weights": torch.zeros(3)}, {})
        >>> folder.append_metrics({"round": 2, "train_loss": 1.9, "seconds": 0.1})  # and here it is killed
        >>> folder = RunFolder(folder.path).create("name = 'tiny'\\nrounds = 2\\n")
        >>> checkpoint = folder.go_back()
        >>> [record["round"] for record in folder.read_metrics()], folder.finished
        ([1], False)
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
        self._metrics = MetricsFile(self.path)
        self._checkpoints = CheckpointStore(self.checkpoints_path)

    # -- the folder and its config ---------------------------------------------------------------------------

    def create(self, config_text: str, *, resume: bool = True) -> RunFolder:
        """Make the folder, or open one that holds the same run; never overwrite another.

        Configs are compared by their content, not their spelling, and keys that cannot change a number of the
        run (`out`, `threads`, ...) do not count: a folder may have been moved.

        Args:
            config_text: the full, resolved config as TOML.
            resume: whether a folder that already holds this run is accepted.

        Returns:
            The folder itself; `finished` and `load_checkpoint()` say how far the run is.

        Raises:
            FolderError: it holds another run, or this one and `resume` is false, or cannot be written to.
        """
        self.refuse_strangers()
        with nullcontext() if self._claimed else self.claimed():
            if self.exists:
                self._refuse_another(config_text, resume)
            with os_errors("write to", self.path):
                if not self.exists:
                    self.refuse_strangers()
                    write_atomically(self.config_path, config_text.encode())
                remove_leftovers(self.path)
                self.checkpoints_path.mkdir(exist_ok=True)
        return self

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run: its config is there."""
        with os_errors("read", self.path):
            return self.config_path.exists()

    def open(self) -> RunFolder:
        """Return the folder if it holds a run with a readable config; raise `FolderError` otherwise."""
        self.config()
        return self

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
        """Return the parsed config.toml."""
        try:
            config = parse_toml(self.config_text())
        except tomllib.TOMLDecodeError as error:
            raise FolderError(f"{self.path} is damaged: its config.toml is not TOML ({error})") from error
        for key, value in flatten(config).items():
            if key in RENAMED:
                raise FolderError(
                    f"{self.path} was written by signfade 0.1, where {RENAMED[key]} was called {key}; "
                    "run it again in another folder"
                )
            if has_controls(f"{key}{value}"):
                what = f"the setting {printable(key)!r} in its config.toml holds control characters"
                raise FolderError(f"{self.path} is damaged: {what}")
        return config

    @property
    def finished(self) -> bool:
        """Whether the run came to its end: its summary is there."""
        return self.summary_path.exists()

    @contextmanager
    def claimed(self) -> Iterator[RunFolder]:
        """Keep other processes from writing the same run meanwhile; a kill gives the claim back.

        The folder is made if it is not there.

        Raises:
            FolderError: another process holds it; the sentence says which, and since when.
        """
        with os_errors("write to", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                lock = acquire(self._lock_path)
            except Held as held:
                raise self._held_by(held) from None
        self._claimed = True
        try:
            yield self
        finally:
            self._claimed = False
            with suppress(OSError):  # the folder may have gone
                release(self._lock_path, lock)

    def check_free(self) -> None:
        """Raise `FolderError`, as `claimed` does, if another process holds the folder; change nothing."""
        try:
            check_free(self._lock_path)
        except Held as held:
            raise self._held_by(held) from None

    def _held_by(self, held: Held) -> FolderError:
        return FolderError(f"another process is writing to the run folder {self.path}: {held}")

    # -- metrics ---------------------------------------------------------------------------------------------

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Append one round to metrics.jsonl: the keys of `METRIC_KEYS` in that order, `seconds` last.

        Absent keys are written as null; so is a value that is not finite, its key being listed in `diverged`.
        A checksum of the file so far ends the line.

        Args:
            record: at least `round`, which follows the last round in the file.

        Raises:
            ValueError: `round` does not follow.
            FolderError: the folder cannot be written to, or the file is damaged.
        """
        self._metrics.append(record)

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the rounds so far, oldest first; a torn last line, left by a kill, is not one of them.

        Raises:
            FolderError: the file is not as `append_metrics` wrote it, or has not all rounds of the summary.
        """
        scan = self._metrics.scan()
        damage, summary = scan.damage, self.read_summary()
        if damage is None and summary is not None and summary["rounds"] != len(scan.records):
            damage = f"its metrics.jsonl has {len(scan.records)} of {summary['rounds']} rounds"
        if damage is not None:
            first = "remove its summary.json, then " if summary is not None else ""
            raise FolderError(f"{self.path} is damaged: {damage}; {first}run it again with --resume")
        return scan.records

    def whole_rounds(self) -> int:
        """Return how many rounds metrics.jsonl holds before its end or the first damage."""
        return len(self._metrics.scan().records)

    def truncate_metrics_after(self, round: int) -> None:
        """Drop the rounds after `round`, the one of the checkpoint to resume from.

        The file is cut in place at the end of a line: what stays is not written again, so a kill cannot hurt.

        Raises:
            FolderError: the file is not whole up to `round`, so the checkpoint cannot belong to it.
        """
        self._metrics.truncate_after(round)

    # -- summary ---------------------------------------------------------------------------------------------

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, which says that the run is finished."""
        with os_errors("write to", self.path):
            self._checkpoints.tidy()
            write_atomically(self.summary_path, encode_summary(summary))

    def read_summary(self) -> dict[str, Any] | None:
        """Return summary.json, without its checksum, or None while the run is unfinished.

        Raises:
            FolderError: it is not as it was written, or not a summary.
        """
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
            log = (
                self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""
            )
        *_, last = log.splitlines() or [""]
        return printable(last.partition(" failed: ")[2]) or None

    # -- checkpoints -----------------------------------------------------------------------------------------

    def save_checkpoint(self, round: int, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        """Write the state after `round` and keep the one before it. Append the metrics of `round` first.

        Checkpoints of later rounds go: they are those that the run fell back from.

        Args:
            round: rounds done so far.
            tensors: everything the next round needs.
            metadata: words beside them.
        """
        with os_errors("write to", self.path):
            self._metrics.sync()
            self._checkpoints.save(round, tensors, metadata)

    def load_checkpoint(self) -> Checkpoint | None:
        """Return the newest undamaged checkpoint, or None; warn of every damaged one on the way to it."""
        with os_errors("read", self.path):
            return self._checkpoints.load(None, "")

    def go_back(self) -> Checkpoint | None:
        """Return the newest checkpoint to go on from, and cut metrics.jsonl back to it; None is the start.

        It is undamaged, and so are the metrics of all its rounds. A warning tells of every later one.
        """
        scan = self._metrics.scan()
        whole = len(scan.records)
        with os_errors("read", self.path):
            damage = scan.damage or f"metrics.jsonl is whole up to round {whole} only"
            checkpoint = self._checkpoints.load(whole, damage)
        self.truncate_metrics_after(0 if checkpoint is None else checkpoint.round)
        return checkpoint

    # -- refusals --------------------------------------------------------------------------------------------

    def refuse_strangers(self) -> None:
        """Raise if the folder has no config, and more than what a kill or a log left there."""
        if self.exists or not self.path.is_dir():
            return
        with os_errors("read", self.path):
            names = {entry.name for entry in self.path.iterdir()} - {"log", ".lock"}
        if not all(name.startswith(".config.toml.") and name.endswith(".tmp") for name in names):
            raise FolderError(f"{self.path} is not empty and holds no run; choose another folder")

    def _refuse_another(self, config_text: str, resume: bool) -> None:
        there, here = deciding(self.config()), deciding(parse_toml(config_text))
        for key in [*there, *here]:
            if there.get(key) != here.get(key):
                values = f"{there.get(key, 'absent')!r} there, {here.get(key, 'absent')!r} here"
                what = f"a run with another config ({key}: {values})"
                raise FolderError(f"{self.path} already holds {what}; choose another folder")
        if not resume:
            state = "finished" if self.finished else "unfinished"
            choice = "resume it or choose another folder"
            raise FolderError(f"{self.path} already holds this run, {state}; {choice}")
