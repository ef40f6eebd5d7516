"""The numbers of a run: metrics.jsonl, one JSON object per round, and summary.json, the run in a few of them.

A line of metrics.jsonl ends in a checksum: the CRC-32 of all bytes of the file before it, so it vouches for
the lines before its own as well. Versions that wrote no checksums are read without.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from signfade import __version__
from signfade._text import has_controls

__all__ = [
    "ACCURACY_GOAL",
    "BIT_KEYS",
    "FALL",
    "LATE",
    "LOSS_GOAL",
    "METRIC_KEYS",
    "SMOOTHING",
    "SUMMARY_KEYS",
    "WINDOW",
    "MetricsScan",
    "decode_summary",
    "encode_summary",
    "fall_text",
    "late_accuracy",
    "metric_line",
    "numbers_of",
    "parse_json",
    "scan_metrics",
    "summarise",
    "trailing_mean",
]

# What was sent so far: all of it, what the paper counts of it, and the items (`signfade.uplink.cost`).
_ITEMS = ("signs", "scalars", "header", "pilots", "code", "buffers")
BIT_KEYS = ("uplink_bits", "payload_bits", *(f"bits.{item}" for item in _ITEMS))
_MEASURES = ("train_loss", "test_loss", "test_accuracy", "nmse", "nmse_theory", "cosine")
METRIC_KEYS = ("round", *_MEASURES, *BIT_KEYS, "downlink_bits", "snr_db", "devices", "seconds")
_DEVICES = ("device_mean", "device_min", "device_worst", "device_spread", "models")
_NUMBERS = frozenset((*METRIC_KEYS, "global_train_loss", "nmse_limit", "correlation_mean", *_DEVICES))
_NUMBERS -= {"snr_db"}
_CHECKSUM = b', "crc32": "%08x"}'  # the end of a line
_SIZE = len(_CHECKSUM % 0)

WINDOW = 5  # rounds of the trailing mean
LATE = 5  # evaluations that `late_accuracy` averages
FALL = 0.05  # how far below its best a run may end without a word
LOSS_GOAL = 1.0
ACCURACY_GOAL = 0.9
SMOOTHING = (
    f"Rounds to training loss {LOSS_GOAL:g}: the first round whose mean over it and the {WINDOW - 1} before "
    f"it is at most {LOSS_GOAL:g}. Rounds to accuracy {ACCURACY_GOAL:g}: the first evaluated round whose "
    f"test accuracy is at least {ACCURACY_GOAL:g}, not smoothed."
)
_TEXTS = ("name", "method", "version", "smoothing")


def parse_json(data: bytes | str) -> Any:
    """Return what a JSON text holds; a `ValueError` if it is none, or nested too deeply to be read."""

    def refuse(word: str) -> None:  # Python's own reader would take Infinity and NaN
        raise ValueError(f"{word} is not JSON")

    try:
        return json.loads(data, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _plain(value: Any) -> tuple[Any, bool]:
    """The value as JSON can hold it, and whether all of it is finite."""
    if isinstance(value, list | tuple):
        parts = [_plain(item) for item in value]
        return [item for item, _ in parts], all(finite for _, finite in parts)
    if hasattr(value, "item"):  # a scalar of NumPy or torch
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None, False
    if value is None or isinstance(value, bool | int | float | str):
        return value, True
    raise ValueError(
        f"metrics and summaries hold numbers, strings and lists of them; got {type(value).__name__}"
    )


def metric_line(record: Mapping[str, Any], crc: int = 0) -> bytes:
    """Return the line of one round: the keys of `METRIC_KEYS` in that order, `seconds` last, then `crc32`.

    Absent keys are written as null, further keys stand before `seconds`. JSON has no NaN: a value that is not
    finite is written as null, and its key is listed under `diverged`. `crc` is that of the lines before.

    Example:
        >>> line = metric_line({"round": 3, "train_loss": float("nan"), "seconds": 0.5}).decode()
        >>> line[:31], line[-65:-11]
        ('{"round": 3, "train_loss": null', '"diverged": ["train_loss"], "seconds": 0.5, "crc32": "')
    """
    if not isinstance(record.get("round"), int):
        raise ValueError(f"record must hold the key 'round', an int; got {record.get('round')!r}")
    ordered: dict[str, Any] = dict.fromkeys(METRIC_KEYS[:-1])
    diverged = []
    for key, value in record.items():
        ordered[key], finite = _plain(value)
        # An SNR of -inf dB in a list is a deep fade, not a divergence.
        if not finite and not isinstance(value, list | tuple):
            diverged.append(key)
    if diverged:
        ordered["diverged"] = diverged
    ordered["seconds"] = ordered.pop("seconds", None)
    body = json.dumps(ordered, allow_nan=False).encode().removesuffix(b"}")
    return body + _CHECKSUM % zlib.crc32(body, crc) + b"\n"


@dataclass(frozen=True)
class MetricsScan:
    """What the bytes of metrics.jsonl hold."""

    records: list[dict[str, Any]]  # of rounds 1, 2, ..., as far as they are whole; without their checksums
    ends: list[int]  # ends[n] is the length of the first n lines in bytes
    crc: int  # of the whole lines
    damage: str | None  # what is wrong after them; None if the file just ends there, or in a torn line


def scan_metrics(data: bytes) -> MetricsScan:
    """Return the whole records in the bytes of metrics.jsonl, where they end, and what is wrong after them.

    A line counts once its newline is written: what a kill tore is not a record, nor is a garbled last line.

    Example:
        >>> scan = scan_metrics(b'{"round": 1}\\n{"round": 2, "tra')
        >>> scan.records, scan.ends, scan.damage
        ([{'round': 1}], [0, 13], None)
    """
    records: list[dict[str, Any]] = []
    ends, crc, damage = [0], 0, None
    *lines, _torn = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        record = _parse_record(line)
        if record is None or record["round"] != number:
            if record is not None or number < len(lines):
                damage = f"line {number} of metrics.jsonl is not round {number}"
            break
        older = [*record][-1] in METRIC_KEYS  # a version that wrote no checksums
        if not older and not line.endswith(_CHECKSUM % zlib.crc32(line[:-_SIZE], crc)):
            damage = f"line {number} of metrics.jsonl is not as it was written: its checksum does not match"
            break
        record.pop("crc32", None)
        records.append(record)
        ends.append(ends[-1] + len(line) + 1)
        crc = zlib.crc32(line + b"\n", crc)
    return MetricsScan(records, ends, crc, damage)


def _parse_record(line: bytes) -> dict[str, Any] | None:
    """The record in a line, or None if there is none in it."""
    try:
        record = parse_json(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or type(record.get("round")) is not int:
        return None
    numbers = (record[key] for key in _NUMBERS & record.keys())
    return record if all(value is None or isinstance(value, int | float) for value in numbers) else None


def numbers_of(record: Mapping[str, Any]) -> dict[str, float | int]:
    """Return the numbers of a round by name, those of a list as `key.0`, `key.1`, ...; not its `round`.

    Example:
        >>> numbers_of({"round": 3, "train_loss": 0.5, "nmse": None, "snr_db": [-3.0, None, 9.0]})
        {'train_loss': 0.5, 'snr_db.0': -3.0, 'snr_db.2': 9.0}
    """
    flat: dict[str, Any] = {}
    for key, value in record.items():
        parts = value if isinstance(value, list) else [value]
        names = [f"{key}.{place}" for place in range(len(parts))] if isinstance(value, list) else [key]
        flat |= dict(zip(names, parts))
    return {
        key: value
        for key, value in flat.items()
        if key != "round" and isinstance(value, int | float) and not isinstance(value, bool)
    }


def trailing_mean(values: Sequence[float | None], window: int = WINDOW) -> list[float | None]:
    """Return the mean over each value and the `window - 1` before it.

    None where fewer than `window` values came before or one of them is missing.

    Example:
        >>> trailing_mean([4.0, 2.0, 0.0, None, 1.0], window=2)
        [None, 3.0, 1.0, None, None]
    """
    means: list[float | None] = []
    for end in range(1, len(values) + 1):
        part = [value for value in values[max(0, end - window) : end] if value is not None]
        means.append(sum(part) / window if len(part) == window else None)
    return means


def late_accuracy(accuracies: Sequence[float]) -> float | None:
    """Return the mean over the last five evaluations, of those after the best; the best if it is last.

    Evaluations before the best do not count, so that a run that still rises has not fallen.

    Example:
        >>> late_accuracy([0.2, 0.6, 0.9]), late_accuracy([0.2, 0.9, 0.5, 0.3])
        (0.9, 0.4)
    """
    if not accuracies:
        return None
    best = max(range(len(accuracies)), key=lambda i: accuracies[i])
    return fmean(accuracies[best + 1 :][-LATE:] or [accuracies[best]])


def fall_text(summary: Mapping[str, Any]) -> str | None:
    """Return a sentence about a run that ended more than 5 points below its best; None for all others.

    Example:
        >>> print(fall_text({"best_accuracy": 0.91, "late_accuracy": 0.55}))
        accuracy fell: 55.0 % on average over the last evaluations, 36.0 points below its best of 91.0 %
    """
    best, late = summary.get("best_accuracy"), summary.get("late_accuracy")
    if best is None or late is None or best - late <= FALL:
        return None
    return (
        f"accuracy fell: {100 * late:.1f} % on average over the last evaluations, "
        f"{100 * (best - late):.1f} points below its best of {100 * best:.1f} %"
    )


def summarise(
    metrics: Sequence[Mapping[str, Any]],
    *,
    name: str,
    seed: int,
    method: str,
    parameters: int,
    devices: int,
    version: str = __version__,
) -> dict[str, Any]:
    """Return what summary.json says about a run with these records of metrics.jsonl, oldest first.

    `rounds_to_loss_1` is the first round t >= 5 with mean(train_loss of t-4..t) <= 1, `rounds_to_accuracy_09`
    the first evaluated round with test_accuracy >= 0.9; null if never. The bits to each are those of all
    devices up to that round. `db_above_limit` compares the mean of `nmse` with that of `nmse_limit` over the
    rounds that have both. `last_device_worst` is the mean of the worst tenth of the devices, each on data
    like its own, and `models` how many there are in the end. `uplink_bits` is everything that the devices
    sent, `payload_bits` signs and scalars alone, as the paper counts, and `wire_uplink_bits` what a
    deployment measured. `diverged_at` is the first round in which something was not finite.

    Example:
        >>> metrics = [{"round": t, "train_loss": 3.0 / t, "uplink_bits": 100 * t} for t in range(1, 11)]
        >>> short = summarise(metrics, name="demo", seed=0, method="sbfl", parameters=50, devices=2)
        >>> short["rounds_to_loss_1"], short["uplink_bits_to_loss_1"], short["best_accuracy"]
        (6, 600, None)

    Reference: Sec. VI of the paper counts rounds to these two goals; the smoothing is ours.
    """
    accuracy = [(m, m["test_accuracy"]) for m in metrics if m.get("test_accuracy") is not None]
    excess = [m["test_loss"] for m in metrics if m.get("test_loss") is not None]
    smooth = trailing_mean([m.get("train_loss") for m in metrics])
    loss_goal = next((m for m, mean in zip(metrics, smooth) if mean is not None and mean <= LOSS_GOAL), None)
    accuracy_goal = next((m for m, value in accuracy if value >= ACCURACY_GOAL), None)
    last = metrics[-1] if metrics else {}
    return {
        "name": name,
        "seed": seed,
        "method": method,
        "rounds": len(metrics),
        "best_accuracy": max((value for _, value in accuracy), default=None),
        "last_accuracy": accuracy[-1][1] if accuracy else None,
        "late_accuracy": late_accuracy([value for _, value in accuracy]),
        "best_test_loss": min(excess, default=None),
        "last_test_loss": excess[-1] if excess else None,
        "last_perplexity": last.get("test_perplexity"),
        "last_train_loss": last.get("train_loss"),
        **{f"last_device_{key}": last.get(f"device_{key}") for key in ("mean", "min", "worst", "spread")},
        "models": last.get("models"),
        **{f"median_{key}": _median(metrics, key) for key in ("nmse", "nmse_theory", "cosine")},
        "db_above_limit": _above_limit(metrics),
        "rounds_to_loss_1": loss_goal and loss_goal["round"],
        "rounds_to_accuracy_09": accuracy_goal and accuracy_goal["round"],
        "uplink_bits_to_loss_1": loss_goal and loss_goal.get("uplink_bits"),
        "uplink_bits_to_accuracy_09": accuracy_goal and accuracy_goal.get("uplink_bits"),
        **{key: last.get(key) for key in (*BIT_KEYS, "wire_uplink_bits", "downlink_bits")},
        "parameters": parameters,
        "devices": devices,
        "diverged_at": next((m["round"] for m in metrics if m.get("diverged")), None),
        "seconds": sum(m.get("seconds") or 0.0 for m in metrics),
        "version": version,
        "smoothing": SMOOTHING,
    }


def _median(metrics: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Over rounds: one deep fade can make the error of a single round arbitrarily large."""
    values = [m[key] for m in metrics if m.get(key) is not None]
    return float(median(values)) if values else None


def _above_limit(metrics: Sequence[Mapping[str, Any]]) -> float | None:
    """How far the mean error is above the mean limit in dB, over the rounds that have both."""
    both = [(m["nmse"], m["nmse_limit"]) for m in metrics if m.get("nmse") and m.get("nmse_limit")]
    if not both:
        return None
    error, least = (fmean(values) for values in zip(*both))
    return 10 * math.log10(error / least)


SUMMARY_KEYS = tuple(summarise([], name="", seed=0, method="", parameters=0, devices=0))


def encode_summary(summary: Mapping[str, Any]) -> bytes:
    """Return the bytes of summary.json: the summary as JSON can hold it, then a checksum of it."""
    plain = {key: _plain(value)[0] for key, value in summary.items()}
    return (json.dumps(plain | {"crc32": _checksum(plain)}, indent=2, allow_nan=False) + "\n").encode()


def decode_summary(data: bytes) -> dict[str, Any]:
    """Return the summary in the bytes of summary.json, without its checksum; older ones have none.

    The message of a `ValueError` goes on from the name of the file.

    Example:
        >>> decode_summary(encode_summary({"rounds": 3, "last_accuracy": None}))
        {'rounds': 3, 'last_accuracy': None}
    """
    try:
        summary = parse_json(data)
    except ValueError:
        summary = None
    if not isinstance(summary, dict):
        raise ValueError("is not a JSON object")
    if summary.pop("crc32", None) not in (None, _checksum(summary)):
        raise ValueError("is not as it was written: its checksum does not match")
    if type(summary.get("rounds")) is not int:
        raise ValueError("does not say how many rounds there were")
    for key in summary.keys() & set(SUMMARY_KEYS):
        value = summary[key]
        if key in _TEXTS and (not isinstance(value, str) or has_controls(value)):
            raise ValueError(f"has no text that can be printed under {key!r}")
        if key not in _TEXTS and not (value is None or isinstance(value, int | float)):
            raise ValueError(f"has no number under {key!r}")
    if (summary.get("last_accuracy") is None) != (summary.get("best_accuracy") is None):
        raise ValueError("has one of 'last_accuracy' and 'best_accuracy' without the other")
    return summary


def _checksum(summary: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(summary).encode()):08x}"
