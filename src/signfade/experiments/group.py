"""Runs by method: seeds of one method with the same settings are one row of a table and one curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from signfade.experiments.config import deciding, flatten, plain_defaults
from signfade.experiments.metrics import summarise, trailing_mean
from signfade.server import AGGREGATORS
from signfade.settings import method_name

__all__ = [
    "Group",
    "Run",
    "Series",
    "default_settings",
    "format_value",
    "group_runs",
    "setting_text",
    "settings_that_differ",
]

# not settings of a method: what a run is called, where it lies, which repetition it is, how it was computed
_ASIDE = frozenset({"name", "label", "seed", "out", "threads", "checkpoint_every", "method.preset"})


@cache
def default_settings() -> dict[str, Any]:
    """Return the default of every dotted setting by itself, without those that are not set."""
    return {key: value for key, value in plain_defaults().items() if value is not None}


@dataclass(frozen=True)
class Run:
    """One run folder, read."""

    path: Path
    config_text: str
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any] | None
    failure: str | None = None

    @cached_property
    def flat(self) -> dict[str, Any]:
        """The config with dotted keys."""
        return flatten({key: value for key, value in self.config.items() if key != "variants"})

    @property
    def label(self) -> str:
        """What the method is called."""
        if self.flat.get("label") not in (None, "none"):
            return str(self.flat["label"])
        section = self.config.get("method")
        return method_name(section if isinstance(section, dict) else {})

    @property
    def seed(self) -> Any:
        """The seed, None if the config has none."""
        return self.config.get("seed")

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.summary is not None

    @property
    def settings(self) -> dict[str, Any]:
        """The dotted keys that make the method what it is; settings newer than the run at their defaults."""
        own = default_settings() | deciding(self.flat)
        return {key: value for key, value in own.items() if key not in _ASIDE}

    @property
    def devices(self) -> int:
        """Number of devices K in the cell, as far as it is known; at least 1."""
        known = self.flat.get("data.devices") or max((m.get("devices") or 0 for m in self.metrics), default=0)
        return int(known) if isinstance(known, int | float) and known >= 1 else 1

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """What summary.json says or, of an unfinished run, would say now."""
        name = str(self.config.get("name", ""))
        now = summarise(
            self.metrics, name=name, seed=0, method=self.label, parameters=0, devices=self.devices
        )
        return now | (self.summary or {})


@dataclass(frozen=True)
class Series:
    """A quantity over rounds, mean and deviation over seeds: all `[T]`."""

    rounds: NDArray[np.float64]
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    label: str
    runs: tuple[Run, ...]

    @property
    def finished(self) -> bool:
        """Whether its runs came to their end; a group never mixes."""
        return self.runs[0].finished

    @property
    def ideal(self) -> bool:
        """Whether this is the bound that no radio reaches."""
        flat = self.runs[0].flat
        if flat.get("method.compressor", "auto") != "auto":  # a rival, whose messages lose something
            return False
        rule = flat.get("method.aggregator")
        return rule in AGGREGATORS.names() and AGGREGATORS.find(rule).sends == "values"

    @property
    def seeds(self) -> int:
        """Number of runs."""
        return len(self.runs)

    @property
    def rounds(self) -> tuple[int, int]:
        """The fewest rounds done in a run, and how many there are to do."""
        done = min(len(run.metrics) for run in self.runs)
        asked = self.runs[0].flat.get("rounds")
        return done, asked if isinstance(asked, int) else done

    def series(self, key: str, window: int = 1) -> Series:
        """Return mean and sample deviation over seeds of a metric, at the rounds in which all seeds have it.

        A key of metrics.jsonl, its trailing mean over `window` rounds; or `uplink_mbit`: Mbit so far, per
        device.
        """
        curves = [_curve(run, key, window) for run in self.runs]
        shared = sorted(set.intersection(*map(set, curves)))
        values = np.array([[curve[t] for t in shared] for curve in curves], dtype=np.float64)
        deviation = values.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(shared))
        return Series(np.array(shared, dtype=np.float64), values.mean(axis=0), deviation)

    def values(self, key: str) -> list[float]:
        """Return one number per seed, of the seeds that have it.

        A key of summary.json, or the median over rounds of a key of metrics.jsonl: the median, because one
        deep fade can make the error of a single round arbitrarily large.
        """
        return list(self.by_seed(key).values())

    def by_seed(self, key: str) -> dict[Any, float]:
        """Return the same numbers by the seed of their run."""
        found = {}
        for run in self.runs:
            value = run.numbers[key] if key in run.numbers else _median(run, key)
            if isinstance(value, int | float):
                found[run.seed] = float(value)
        return found


def group_runs(runs: Sequence[Run]) -> tuple[Group, ...]:
    """Group runs that differ only in their seed, in the order in which they come; repeated seeds count once.

    Unfinished runs form groups of their own, so that no mean is taken over runs of different length. Where
    groups share a label, the settings in which they differ are added to it.
    """
    found: dict[tuple[str, str, bool], dict[Any, Run]] = {}
    for run in runs:
        key = (run.label, repr(sorted(run.settings.items())), run.finished)
        found.setdefault(key, {}).setdefault(run.seed, run)
    groups = [tuple(seeds.values()) for seeds in found.values()]
    return tuple(Group(_title(members, groups), members) for members in groups)


def settings_that_differ(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """Return the dotted settings that are not the same in all groups, each with the groups' values."""
    settings = [group.runs[0].settings for group in groups]
    keys = dict.fromkeys(key for one in settings for key in one)
    values = {key: [one.get(key) for one in settings] for key in keys}
    return {key: row for key, row in values.items() if any(value != row[0] for value in row)}


def format_value(value: Any) -> str:
    """Return a setting as TOML would spell it, a missing one as a dash.

    Example:
        >>> format_value(True), format_value(0.01), format_value(None)
        ('true', '0.01', '–')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list) and len(value) > 6:
        return f"{len(value)} values"
    if isinstance(value, list):
        return "[" + ", ".join(map(format_value, value)) + "]"
    return str(value)


def setting_text(key: str, value: Any) -> str:
    """Return a setting in two words, the section left out where the last word is enough.

    Example:
        >>> setting_text("server.learning_rate", 0.01), setting_text("data.name", "mnist")
        ('learning rate 0.01', 'data mnist')
    """
    if key.startswith("files."):  # the SHA-256 of a file of the user's
        return f"{key.removeprefix('files.')} {format_value(value)[:8]}"
    section, _, last = key.rpartition(".")
    words = {"name": section, "every": "eval every", "perfect": "perfect links"}
    return f"{words.get(last, last.replace('learning_rate', 'learning rate'))} {format_value(value)}"


def _title(members: tuple[Run, ...], groups: Sequence[tuple[Run, ...]]) -> str:
    """The label, with what sets this group apart from others of the same label."""
    run = members[0]
    others = [other[0].settings for other in groups if other[0].label == run.label]
    keys = [key for key in run.settings if any(other.get(key) != run.settings[key] for other in others)]
    parts = [setting_text(key, run.settings[key]) for key in keys]
    parts += [] if run.finished else ["unfinished" if run.failure is None else "failed"]
    return run.label + (f" ({', '.join(parts)})" if parts else "")


def _curve(run: Run, key: str, window: int) -> Mapping[int, float]:
    """Round -> value where there is one."""
    if key == "uplink_mbit":
        return {
            m["round"]: m["uplink_bits"] / run.devices / 1e6
            for m in run.metrics
            if m.get("uplink_bits") is not None
        }
    values = trailing_mean([m.get(key) for m in run.metrics], window)
    return {m["round"]: value for m, value in zip(run.metrics, values) if value is not None}


def _median(run: Run, key: str) -> float | None:
    values = list(_curve(run, key, 1).values())
    return float(median(values)) if values else None
