"""The lines of metrics.jsonl: one JSON object a round, its keys in a fixed order."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["BIT_KEYS", "METRIC_KEYS", "metric_line", "plain_json", "scan_metrics"]

# What was sent so far: all of it, what the paper counts of it, and the items (`signfade.learn.cost`).
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


def metric_line(record: Mapping[str, Any]) -> bytes:
    """Return the line of one round: the keys of `METRIC_KEYS` in that order, `seconds` last.

    Absent keys are written as null, further keys stand before `seconds`. JSON has no NaN: a value that is not
    finite is written as null, and its key is listed under `diverged`. Floats are read back exactly.

    Raises:
        ValueError: no `round`, or a value that is neither number, string nor list.

    Example:
        >>> line = metric_line({"round": 3, "train_loss": float("nan"), "seconds": 0.5}).decode()
        >>> line[:31], line[-44:]
        ('{"round": 3, "train_loss": null', '"diverged": ["train_loss"], "seconds": 0.5}\\n')
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
    return (json.dumps(ordered, allow_nan=False) + "\n").encode()


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


def scan_metrics(data: bytes) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the whole records in the bytes of metrics.jsonl, and where they end.

    A line counts once its newline is written: what a kill tore is not a record, nor is a garbled last line.

    Returns:
        The records of rounds 1, 2, ..., and `ends`: `ends[n]` is the length of the first n lines in bytes.

    Raises:
        ValueError: a line before the last is not the round it should be.

    Example:
        >>> scan_metrics(b'{"round": 1}\\n{"round": 2, "tra')
        ([{'round': 1}], [0, 13])
    """
    records: list[dict[str, Any]] = []
    ends = [0]
    *lines, _torn = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        record = _parse(line)
        if record is None and number == len(lines):
            break
        if record is None or record["round"] != number:
            raise ValueError(f"line {number} of metrics.jsonl is not round {number}")
        records.append(record)
        ends.append(ends[-1] + len(line) + 1)
    return records, ends


def _parse(line: bytes) -> dict[str, Any] | None:
    """The record in a line, or None if this is not one."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("round"), int):
        return None
    numbers = (record[key] for key in _NUMBERS & record.keys())
    return record if all(value is None or isinstance(value, int | float) for value in numbers) else None
