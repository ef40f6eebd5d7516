"""The folder of one run, written so that a kill at any moment leaves something to resume from.

    config.toml       everything that decides the result; written first and never again
    metrics.jsonl     one JSON object a round; only ever appended to or cut at the end of a line
    checkpoints/      the newest two states, safetensors, each written aside and moved into place
    summary.json      written last: a run is finished when it is there
    log               what was said on the way

The order is what makes it safe: the metrics of round t are on disk before the checkpoint of round t appears,
and an old checkpoint goes only after a newer one is there. So the newest checkpoint never knows more than the
metrics, and resuming cuts the metrics back to it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from signfade.lab.checkpoint import Checkpoint, CheckpointError, decode_checkpoint, encode_checkpoint
from signfade.lab.config import deciding
from signfade.lab.metrics import metric_line, plain_json, scan_metrics

if sys.platform != "win32":
    import fcntl

__all__ = ["FolderError", "RunFolder", "why", "write_atomically"]

_CHECKPOINT = re.compile(r"round-(\d{8})\.safetensors")
_KEEP = 2


class FolderError(ValueError):
    """A run folder that cannot be used as asked, said in one sentence that names it."""


class RunFolder:
    """The folder of one run.

    Example:
        >>> import tempfile, torch
        >>> folder = RunFolder(Path(tempfile.mkdtemp()) / "run").create("name = 'tiny'\\nrounds = 2\\n")
        >>> folder.append_metrics({"round": 1, "train_loss": 2.3, "seconds": 0.1})
        >>> folder.save_checkpoint(1, {"weights": torch.zeros(3)}, {})
        >>> folder.append_metrics({"round": 2, "train_loss": 1.9, "seconds": 0.1})  # and here it is killed
        >>> folder = RunFolder(folder.path).create("name = 'tiny'\\nrounds = 2\\n")
        >>> checkpoint = folder.load_checkpoint()
        >>> folder.truncate_metrics_after(checkpoint.round)
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
        self._last_round: int | None = None  # of metrics.jsonl; None: not looked at yet

    # -- the folder and its config ---------------------------------------------------------------------------

    def create(self, config_text: str, *, resume: bool = True) -> RunFolder:
        """Make the folder, or step into one that holds the same run; never overwrite another.

        Configs are compared by their content, not their spelling, and keys that cannot change a number of the
        run (`out`, `threads`, ...) do not count: a folder may have been moved.

        Args:
            config_text: the full, resolved config as TOML.
            resume: whether a folder that already holds this run is welcome.

        Returns:
            The folder itself. Look at `finished` and `load_checkpoint()` to see where it stands.

        Raises:
            FolderError: it holds another run, or this one and `resume` is false, or cannot be written to.
        """
        with self._speaking("write to"):
            if not self.config_path.exists():
                self._refuse_strangers()
                self.path.mkdir(parents=True, exist_ok=True)
                write_atomically(self.config_path, config_text.encode())
            else:
                self._refuse_another(config_text, resume)
            self.checkpoints_path.mkdir(exist_ok=True)
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise FolderError(f"cannot write to the run folder {self.path}: Permission denied")
        return self

    def open(self) -> RunFolder:
        """Return the folder if it holds a run with a readable config; raise `FolderError` otherwise."""
        self.config()
        return self

    def config_text(self) -> str:
        """Return config.toml as it is written."""
        with self._speaking("read"):
            if not self.config_path.is_file():
                raise FolderError(f"{self.path} is not a run folder: it has no config.toml")
            try:
                return self.config_path.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise FolderError(f"{self.path} is damaged: its config.toml is not UTF-8 text") from error

    def config(self) -> dict[str, Any]:
        """Return the parsed config.toml."""
        try:
            return tomllib.loads(self.config_text())
        except tomllib.TOMLDecodeError as error:
            raise FolderError(f"{self.path} is damaged: its config.toml is not TOML ({error})") from error

    @property
    def finished(self) -> bool:
        """Whether the run came to its end: its summary is there."""
        return self.summary_path.exists()

    @contextmanager
    def claimed(self) -> Iterator[RunFolder]:
        """Keep other processes from writing the same run meanwhile; a kill gives the claim back.

        Raises:
            FolderError: another process holds it.
        """
        if sys.platform == "win32":  # no advisory locks on folders there
            yield self
            return
        with self._speaking("open"):
            descriptor = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise FolderError(f"another process is writing to the run folder {self.path}") from error
            except OSError:
                pass  # a file system without locks: the claim is a courtesy, not a need
            yield self
        finally:
            os.close(descriptor)

    # -- metrics ---------------------------------------------------------------------------------------------

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Append one round to metrics.jsonl: the keys of `METRIC_KEYS` in that order, `seconds` last.

        Absent keys are written as null; so is a value that is not finite, its key being listed in `diverged`.

        Args:
            record: at least `round`, which follows the last round in the file.

        Raises:
            ValueError: `round` does not follow.
            FolderError: the folder cannot be written to.
        """
        if self._last_round is None:
            self._cut_metrics(None)
        line = metric_line(record)
        expected = (self._last_round or 0) + 1
        if record["round"] != expected:
            raise ValueError(f"round must be {expected}, the next one; got {record['round']}")
        with self._speaking("write to"):
            self._last_round = None  # should the disk be full, the next call repairs the torn line first
            with open(self.metrics_path, "ab") as file:
                file.write(line)
        self._last_round = int(record["round"])

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the rounds so far, oldest first; a torn last line, left by a kill, is not one of them.

        Raises:
            FolderError: a line before the last is not what `append_metrics` wrote.
        """
        return self._scan_metrics()[0]

    def truncate_metrics_after(self, round: int) -> None:
        """Drop the rounds after `round`, the one of the checkpoint to resume from.

        The file is cut in place at the end of a line: what stays is not written again, so a kill cannot hurt.

        Raises:
            FolderError: the file ends before `round`, so the checkpoint cannot belong to it.
        """
        self._cut_metrics(round)

    def _cut_metrics(self, round: int | None) -> None:
        records, ends = self._scan_metrics()
        keep = len(records) if round is None else round
        if keep > len(records):
            ends_at = f"its metrics.jsonl ends at round {len(records)}"
            raise FolderError(f"{self.path} is damaged: its checkpoint is of round {keep}, {ends_at}")
        with self._speaking("write to"):
            if self.metrics_path.exists():
                with open(self.metrics_path, "r+b") as file:
                    file.truncate(ends[keep])
                    os.fsync(file.fileno())
        self._last_round = keep

    def _scan_metrics(self) -> tuple[list[dict[str, Any]], list[int]]:
        """The whole records, and where each ends: `ends[n]` is the length of the first n lines."""
        with self._speaking("read"):
            data = self.metrics_path.read_bytes() if self.metrics_path.exists() else b""
        try:
            return scan_metrics(data)
        except ValueError as error:
            raise FolderError(f"{self.path} is damaged: {error}") from error

    # -- summary ---------------------------------------------------------------------------------------------

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, which says that the run is finished."""
        text = json.dumps(plain_json(summary)[0], indent=2, allow_nan=False) + "\n"
        with self._speaking("write to"):
            self._tidy()
            write_atomically(self.summary_path, text.encode())

    def read_summary(self) -> dict[str, Any] | None:
        """Return summary.json, or None while the run is unfinished."""
        with self._speaking("read"):
            if not self.summary_path.exists():
                return None
            try:
                summary = json.loads(self.summary_path.read_bytes())
            except ValueError:
                summary = None
        if not isinstance(summary, dict):
            raise FolderError(f"{self.path} is damaged: its summary.json is not a JSON object")
        return summary

    def failure(self) -> str | None:
        """Return why the run failed when it was last played, None if it did not."""
        with self._speaking("read"):
            log = (
                self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""
            )
        *_, last = log.splitlines() or [""]
        return last.partition(" failed: ")[2] or None

    # -- checkpoints -----------------------------------------------------------------------------------------

    def save_checkpoint(self, round: int, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        """Write the state after `round` and keep the one before it. Append the metrics of `round` first.

        Checkpoints of later rounds go: they are damaged ones that the run fell back from.

        Args:
            round: rounds done so far.
            tensors: everything the next round needs.
            metadata: words beside them.
        """
        data = encode_checkpoint(round, tensors, metadata)
        with self._speaking("write to"):
            if self.metrics_path.exists():
                with open(self.metrics_path, "r+b") as file:
                    os.fsync(file.fileno())
            self.checkpoints_path.mkdir(exist_ok=True)
            write_atomically(self.checkpoints_path / f"round-{round:08d}.safetensors", data)
            self._tidy(round)

    def load_checkpoint(self) -> Checkpoint | None:
        """Return the newest undamaged checkpoint, or None; warn of every damaged one on the way to it."""
        with self._speaking("read"):
            found = self._checkpoints()
        for round, path in found.items():
            try:
                checkpoint = decode_checkpoint(path.read_bytes())
                if checkpoint.round == round:
                    return checkpoint
                reason = f"it is of round {checkpoint.round}"
            except (CheckpointError, OSError) as error:
                reason = str(error)
            then = "starting over" if path == [*found.values()][-1] else "falling back to the one before"
            warnings.warn(f"the checkpoint {path} is damaged ({reason}); {then}", stacklevel=2)
        return None

    def _checkpoints(self) -> dict[int, Path]:
        """The checkpoint files by round, newest first."""
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
        for path in self.checkpoints_path.glob(".*.tmp"):
            path.unlink(missing_ok=True)

    # -- refusals --------------------------------------------------------------------------------------------

    def _refuse_strangers(self) -> None:
        """A folder without a config may hold what a kill or a log left there, and nothing else."""
        own = {"log", ".config.toml.tmp"}
        if self.path.is_dir() and any(entry.name not in own for entry in self.path.iterdir()):
            raise FolderError(f"{self.path} is not empty and holds no run; choose another folder")

    def _refuse_another(self, config_text: str, resume: bool) -> None:
        there, here = deciding(self.config()), deciding(tomllib.loads(config_text))
        for key in [*there, *here]:
            if there.get(key) != here.get(key):
                values = f"{there.get(key, 'absent')!r} there, {here.get(key, 'absent')!r} here"
                what = f"a run with another config ({key}: {values})"
                raise FolderError(f"{self.path} already holds {what}; choose another folder")
        if not resume:
            state = "finished" if self.finished else "unfinished"
            choice = "resume it or choose another folder"
            raise FolderError(f"{self.path} already holds this run, {state}; {choice}")

    @contextmanager
    def _speaking(self, verb: str) -> Iterator[None]:
        """Turn what the operating system refuses into one sentence."""
        try:
            yield
        except OSError as error:
            raise FolderError(f"cannot {verb} the run folder {self.path}: {why(error)}") from error


def why(error: OSError) -> str:
    """Return what the operating system said, in words that fit a path that was to be made.

    Example:
        >>> why(FileExistsError(17, "File exists")), why(PermissionError(13, "Permission denied"))
        ('Not a directory', 'Permission denied')
    """
    if isinstance(error, FileExistsError):  # we make folders only: one of them is a file
        return "Not a directory"
    return error.strerror or str(error)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that at every moment its name means the old content or the new, whole and on disk."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    if sys.platform != "win32":  # the move itself lives in the folder
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
