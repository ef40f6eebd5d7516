"""metrics.jsonl: one JSON object per round, its keys in a fixed order, a checksum at the end of each line.

The checksum is the CRC-32 of all bytes of the file before it, so it vouches for the lines before its own as
well. Lines of versions that wrote none are accepted without.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from signfade.experiments.files import FolderError, os_errors

__all__ = [
    "BIT_KEYS",
    "METRIC_KEYS",
    "MetricsFile",
    "MetricsScan",
    "metric_line",
    "parse_json",
    "plain_json",
    "scan_metrics",
]

# What was sent so far: all of it, what the paper counts of it, and the items (`signfade.uplink.cost`).
BIT_KEYS = (
    "uplink_bits",
    "payload_bits",
    "bits.signs",
    "bits.scalars",
    "bits.header",
    "bits.pilots",
    "bits.code",
    "bits.buffers",
)
METRIC_KEYS = (
    "round",
    "train_loss",
    "test_loss",
    "test_accuracy",
    "nmse",
    "nmse_theory",
    "cosine",
    *BIT_KEYS,
    "downlink_bits",
    "snr_db",
    "devices",
    "seconds",
)
_NUMBERS = frozenset(METRIC_KEYS) - {"snr_db"}
_CHECKSUM = b', "crc32": "%08x"}'  # the end of a line
_SIZE = len(_CHECKSUM % 0)


def metric_line(record: Mapping[str, Any], crc: int = 0) -> bytes:
    """Return the line of one round: the keys of `METRIC_KEYS` in that order, `seconds` last, then `crc32`.

    Absent keys are written as null, further keys stand before `seconds`. JSON has no NaN: a value that is not
    finite is written as null, and its key is listed under `diverged`. Floats are read back exactly.

    Args:
        record: of the round.
        crc: CRC-32 of the lines before it.

    Raises:
        ValueError: no `round`, or a value that is neither number, string nor list.

    Example:
        >>> line = metric_line({"round": 3, "train_loss": float("nan"), "seconds": 0.5}).decode()
        >>> line[:31], line[-65:-22]
        ('{"round": 3, "train_loss": null', '"diverged": ["train_loss"], "seconds": 0.5,')
        >>> line[-22:-11]
        ' "crc32": "'
    """
    if not isinstance(record.get("round"), int):
        raise ValueError(f"record must hold the key 'round', an int; got {record.get('round')!r}")
    ordered: dict[str, Any] = dict.fromkeys(METRIC_KEYS[:-1])
    diverged = []
    for key, value in record.items():
        ordered[key], finite = plain_json(value)
        if not finite and not isinstance(
            value, list | tuple
        ):  # an SNR of -inf dB is a deep fade, not a divergence
            diverged.append(key)
    if diverged:
        ordered["diverged"] = diverged
    ordered["seconds"] = ordered.pop("seconds", None)
    body = json.dumps(ordered, allow_nan=False).encode().removesuffix(b"}")
    return body + _CHECKSUM % zlib.crc32(body, crc) + b"\n"


def plain_json(value: Any) -> tuple[Any, bool]:
    """Return the value as JSON can hold it, and whether all of it is finite.

    Example:
        >>> plain_json({"loss": float("inf"), "round": 2})
        ({'loss': None, 'round': 2}, False)
    """
    if isinstance(value, Mapping):
        items = {str(key): plain_json(item) for key, item in value.items()}
        return {key: item for key, (item, _) in items.items()}, all(ok for _, ok in items.values())
    if isinstance(value, list | tuple):
        parts = [plain_json(item) for item in value]
        return [item for item, _ in parts], all(ok for _, ok in parts)
    if hasattr(value, "item"):  # a scalar of NumPy or torch
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None, False
    if value is None or isinstance(value, bool | int | float | str):
        return value, True
    raise ValueError(
        f"metrics and summaries hold numbers, strings and lists of them; got {type(value).__name__}"
    )


@dataclass(frozen=True)
class MetricsScan:
    """What the bytes of metrics.jsonl hold.

    Attributes:
        records: of rounds 1, 2, ..., as far as they are whole; without their checksums.
        ends: `ends[n]` is the length of the first n lines in bytes.
        crc: CRC-32 of the whole lines.
        damage: what is wrong with the line after them; None if the file just ends there, or in a torn line.
    """

    records: list[dict[str, Any]]
    ends: list[int]
    crc: int
    damage: str | None


def scan_metrics(data: bytes) -> MetricsScan:
    """Return the whole records in the bytes of metrics.jsonl, where they end, and what is wrong after them.

    A line counts once its newline is written: what a kill tore is not a record, nor is a garbled last line.

    Example:
        >>> scan = scan_metrics(b'{"round": 1}\\n{"round": 2, "tra')
        >>> scan.records, scan.ends, scan.damage
        ([{'round': 1}], [0, 13], None)
        >>> data = metric_line({"round": 1, "seconds": 0.5}) + metric_line({"round": 2})
        >>> scan_metrics(data.replace(b"0.5", b"0.7")).damage
        'line 1 of metrics.jsonl is not as it was written: its checksum does not match'
    """
    records: list[dict[str, Any]] = []
    ends, crc, damage = [0], 0, None
    *lines, _torn = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            records.append(_parse(line, number, crc))
        except _Garbled as error:
            damage = str(error) if number < len(lines) else None
            break
        except ValueError as error:
            damage = str(error)
            break
        ends.append(ends[-1] + len(line) + 1)
        crc = zlib.crc32(line + b"\n", crc)
    return MetricsScan(records, ends, crc, damage)


class _Garbled(ValueError):
    """A line that is no record at all."""


def _parse(line: bytes, number: int, crc: int) -> dict[str, Any]:
    """Return the record in a line, or raise what is wrong with it."""
    wrong = f"line {number} of metrics.jsonl is not round {number}"
    try:
        record = parse_json(line)
    except ValueError:
        raise _Garbled(wrong) from None
    if not isinstance(record, dict) or type(record.get("round")) is not int:
        raise _Garbled(wrong)
    if not all(
        record[key] is None or isinstance(record[key], int | float) for key in _NUMBERS & record.keys()
    ):
        raise _Garbled(wrong)
    if record["round"] != number:
        raise ValueError(wrong)
    older = [*record][-1] in METRIC_KEYS  # a version that wrote no checksums
    if not older and not line.endswith(_CHECKSUM % zlib.crc32(line[:-_SIZE], crc)):
        raise ValueError(
            f"line {number} of metrics.jsonl is not as it was written: its checksum does not match"
        )
    record.pop("crc32", None)
    return record


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def parse_json(data: bytes | str) -> Any:
    """Return what a JSON text holds; a `ValueError` if it is none, or nested too deeply to be read.

    Python's own reader would also take `Infinity` and `NaN`.

    Example:
        >>> parse_json("[" * 100_000)
        Traceback (most recent call last):
        ValueError: nested too deeply
    """
    try:
        return json.loads(data, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


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
        with os_errors("write to", self.folder):
            self._last = None  # should the disk be full, the next call repairs the torn line first
            with open(self.path, "ab") as file:
                file.write(line)
        self._last = done + 1, zlib.crc32(line, crc)

    def scan(self) -> MetricsScan:
        """Read the file; what is not there is an empty one."""
        with os_errors("read", self.folder):
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
        with os_errors("write to", self.folder):
            if self.path.exists():
                with open(self.path, "r+b") as file:
                    file.truncate(scan.ends[keep])
                    os.fsync(file.fileno())
                scan = scan_metrics(self.path.read_bytes())
        self._last = keep, scan.crc
