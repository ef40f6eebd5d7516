"""The file metrics.jsonl: appended to, cut at the end of a line, and read as far as it is whole."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from signfade.experiments.files import FolderError, speaking
from signfade.experiments.metrics import MetricsScan, metric_line, scan_metrics

__all__ = ["MetricsFile"]


class MetricsFile:
    """The metrics of one run, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "metrics.jsonl"
        self._last: tuple[int, int] | None = None  # round and CRC-32 at the file's end; None: not read yet

    def append(self, record: Mapping[str, Any]) -> None:
        """Append one round, which must follow the last one in the file."""
        if self._last is None:
            self._cut(self.scan(), None)
        assert self._last is not None
        done, crc = self._last
        if record.get("round", done + 1) != done + 1:
            raise ValueError(f"round must be {done + 1}, the next one; got {record['round']}")
        line = metric_line(record, crc)
        with speaking("write to", self.folder):
            self._last = None  # should the disk be full, the next call repairs the torn line first
            with open(self.path, "ab") as file:
                file.write(line)
        self._last = done + 1, zlib.crc32(line, crc)

    def scan(self) -> MetricsScan:
        """Read the file; what is not there is an empty one."""
        with speaking("read", self.folder):
            return scan_metrics(self.path.read_bytes() if self.path.exists() else b"")

    def truncate_after(self, round: int) -> None:
        """Drop the rounds after `round`, and whatever else follows it."""
        scan = self.scan()
        if round > len(scan.records):
            ends_at = f"its metrics.jsonl ends at round {len(scan.records)}"
            raise FolderError(f"{self.folder} is damaged: its checkpoint is of round {round}, {ends_at}")
        self._cut(scan, round)

    def sync(self) -> None:
        """Wait until the file is on disk; raises `OSError`."""
        if self.path.exists():
            with open(self.path, "r+b") as file:
                os.fsync(file.fileno())

    def _cut(self, scan: MetricsScan, round: int | None) -> None:
        if round is None and scan.damage is not None:
            raise FolderError(f"{self.folder} is damaged: {scan.damage}")
        keep = len(scan.records) if round is None else round
        with speaking("write to", self.folder):
            if self.path.exists():
                with open(self.path, "r+b") as file:
                    file.truncate(scan.ends[keep])
                    os.fsync(file.fileno())
                scan = scan_metrics(self.path.read_bytes())
        self._last = keep, scan.crc
