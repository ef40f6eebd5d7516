"""A run in a few numbers: summary.json."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from signfade import __version__
from signfade._text import has_controls
from signfade.experiments.metrics import BIT_KEYS, parse_json, plain_json

__all__ = [
    "ACCURACY_GOAL",
    "FALL",
    "LATE",
    "LOSS_GOAL",
    "SMOOTHING",
    "WINDOW",
    "decode_summary",
    "encode_summary",
    "fall_text",
    "late_accuracy",
    "summarise",
    "trailing_mean",
]


_TEXTS = ("name", "method", "version", "smoothing")

WINDOW = 5
LATE = 5
FALL = 0.05
LOSS_GOAL = 1.0
ACCURACY_GOAL = 0.9
SMOOTHING = (
    f"Rounds to training loss {LOSS_GOAL:g}: the first round whose mean over it and the {WINDOW - 1} before "
    f"it is at most {LOSS_GOAL:g}. Rounds to accuracy {ACCURACY_GOAL:g}: the first evaluated round whose "
    f"test accuracy is at least {ACCURACY_GOAL:g}, not smoothed."
)


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

    Args:
        accuracies: of all evaluations, oldest first.

    Example:
        >>> late_accuracy([0.2, 0.6, 0.9]), late_accuracy([0.2, 0.9, 0.5, 0.3])
        (0.9, 0.4)
    """
    if not accuracies:
        return None
    best = max(range(len(accuracies)), key=lambda i: accuracies[i])
    return fmean(accuracies[best + 1 :][-LATE:] or [accuracies[best]])


def fall_text(summary: Mapping[str, Any]) -> str | None:
    """Return a sentence about a run that ended far below its best; None for all others.

    Far is more than 5 points between the best evaluation and `late_accuracy`.

    Args:
        summary: what `summarise` returns.

    Example:
        >>> print(fall_text({"best_accuracy": 0.91, "late_accuracy": 0.55}))
        accuracy fell: 55.0 % on average over the last evaluations, 36.0 points below its best of 91.0 %
        >>> fall_text({"best_accuracy": 0.91, "late_accuracy": 0.88}) is None
        True
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
    """Return what summary.json says about a run.

    How fast: `rounds_to_loss_1` is the first round t >= 5 with mean(train_loss of t-4..t) <= 1;
    `rounds_to_accuracy_09` the first evaluated round with test_accuracy >= 0.9; null if never. The uplink
    bits to each are those of all devices together up to that round.

    Args:
        metrics: the records of metrics.jsonl, oldest first.
        name: what the run is called.
        seed: of the run.
        method: the label of the method.
        parameters: number of weights M.
        devices: number of devices K in the cell.
        version: of the program that ran it.

    Returns:
        The keys of summary.json in order. `median_nmse` is the error of the estimates, squared and over the
        energy of the true sum, and `median_nmse_theory` what was predicted of it. `uplink_bits` is everything
        that the devices sent, `payload_bits` signs and scalars alone, as the paper counts, `bits.*` are the
        items, and `wire_uplink_bits` is what a deployment measured. `late_accuracy` is the mean over the last
        evaluations, see there. `diverged_at` is the first round in which something was not finite.

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
        "last_train_loss": last.get("train_loss"),
        "median_nmse": _median(metrics, "nmse"),
        "median_nmse_theory": _median(metrics, "nmse_theory"),
        "median_cosine": _median(metrics, "cosine"),
        "rounds_to_loss_1": loss_goal and loss_goal["round"],
        "rounds_to_accuracy_09": accuracy_goal and accuracy_goal["round"],
        "uplink_bits_to_loss_1": loss_goal and loss_goal.get("uplink_bits"),
        "uplink_bits_to_accuracy_09": accuracy_goal and accuracy_goal.get("uplink_bits"),
        **{key: last.get(key) for key in BIT_KEYS},
        "wire_uplink_bits": last.get("wire_uplink_bits"),
        "downlink_bits": last.get("downlink_bits"),
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


def encode_summary(summary: Mapping[str, Any]) -> bytes:
    """Return the bytes of summary.json: the summary as JSON can hold it, then a checksum of it.

    Example:
        >>> decode_summary(encode_summary({"rounds": 3, "last_accuracy": None}))
        {'rounds': 3, 'last_accuracy': None}
    """
    plain = plain_json(summary)[0]
    return (json.dumps(plain | {"crc32": _checksum(plain)}, indent=2, allow_nan=False) + "\n").encode()


def decode_summary(data: bytes) -> dict[str, Any]:
    """Return the summary in the bytes of summary.json, without its checksum; older ones have none.

    Raises:
        ValueError: it is not a summary, or not as it was written; the message goes on from the file's name.

    Example:
        >>> decode_summary(b"{}")
        Traceback (most recent call last):
        ValueError: does not say how many rounds there were
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
    known = summarise([], name="", seed=0, method="", parameters=0, devices=0)
    for key in known.keys() & summary.keys():
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
