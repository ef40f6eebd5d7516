"""What is kept of a run: its summary and a thin curve, found by the settings that decide its numbers.

The records of all runs of all studies are one small JSON file, from which every table and figure of trained
models can be drawn again without the run folders.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from signfade.experiments.config import deciding, plain_defaults, resolve
from signfade.experiments.folder import FolderError, RunFolder
from signfade.experiments.metrics import WINDOW, summarise, trailing_mean
from signfade.experiments.studies.document import write_text
from signfade.settings import RunSettings

__all__ = [
    "CHANCE",
    "Record",
    "Records",
    "accuracies",
    "family_of",
    "read_folder",
    "run_name",
    "shared_seeds",
]

_STEADY = 0.03
CHANCE = 0.1  # accuracy of a model that has diverged: one class of ten
# Defaults and names of settings when records were first named: a record's name must not change with them.
_FIRST_DEFAULTS: dict[str, Any] = {"server.learning_rate": 1e-2, "method.tie": "plus"}
_FIRST_NAMES = {"server.learning_rate": "server.step", "availability.": "presence."}
_ASIDE = {"name", "label", "rounds", "seed"}  # not part of what makes two runs one family
_KEPT = (
    "last_accuracy",
    "best_accuracy",
    "last_test_loss",
    "last_train_loss",
    "median_nmse",
    "median_nmse_theory",
    "median_cosine",
    "rounds_to_loss_1",
    "rounds_to_accuracy_09",
    "uplink_bits",
    "payload_bits",
    "channel_uses",
    "downlink_bits",
    "parameters",
    "seconds",
    "version",
)


def _deciding(settings: RunSettings) -> dict[str, Any]:
    """The dotted keys that decide a run's numbers; a preset is what it stands for."""
    return {key: value for key, value in deciding(settings.model_dump()).items() if key != "method.preset"}


def _changes(settings: RunSettings) -> dict[str, Any]:
    """What the settings change in the defaults: a new setting with a default leaves old names as they are."""
    unsaid = plain_defaults() | _FIRST_DEFAULTS
    return {_first(key): value for key, value in _deciding(settings).items() if value != unsaid[key]}


def _first(key: str) -> str:
    for new, old in _FIRST_NAMES.items():
        if key.startswith(new):
            return old + key.removeprefix(new)
    return key


def family_of(settings: RunSettings) -> str:
    """Return a key that two runs share if they differ in nothing but their seed and length.

    Example:
        >>> from signfade.experiments.config import load
        >>> short, long = load(None, ["rounds=5", "seed=1"]), load(None, ["rounds=9", "label=x"])
        >>> family_of(short) == family_of(long) != family_of(load(None, ["server.learning_rate=1"]))
        True
    """
    changes = {key: value for key, value in _changes(settings).items() if key not in _ASIDE}
    return hashlib.sha256(json.dumps(changes, sort_keys=True).encode()).hexdigest()[:10]


def run_name(settings: RunSettings) -> str:
    """Return the name of a run's folder: words for people and a key of all that decides its numbers.

    Example:
        >>> from signfade.experiments.config import load
        >>> server = ["server.learning_rate=1e-2", "server.momentum=0.9"]
        >>> method = ["label=SBFL, Gaussian", "method.aggregator=sbfl"]
        >>> run_name(load(None, ["data.name=regression", *method, *server]))
        'regression-SBFL-Gaussian-0.01-0.9-full-180kHz-r200-s0-333c3b740e'
    """
    method = "-".join((settings.label or settings.method.aggregator).replace(",", " ").split())
    server, cell = settings.server, settings.cell
    words = [
        settings.data.name,
        method,
        f"{server.learning_rate:g}",
        f"{server.momentum:g}",
        server.downlink,
        f"{cell.bandwidth_hz / 1e3:g}kHz",
        f"r{settings.rounds}",
        f"s{settings.seed}",
        family_of(settings),
    ]
    return "-".join(words)


@dataclass(frozen=True)
class Record:
    """One run that finished or diverged.

    Attributes:
        name: of its folder.
        family: key of its settings without seed and rounds.
        seed: of the run.
        rounds: number of rounds.
        summary: some keys of summary.json.
        curve: `round`, `train_loss` (mean over five rounds), and `accuracy` or `test_loss`, at evaluated
            rounds.
        diverged: the round in which the model diverged, None for a run that finished.
    """

    name: str
    family: str
    seed: int
    rounds: int
    summary: Mapping[str, Any]
    curve: Mapping[str, list[float | None]]
    diverged: int | None = None

    @property
    def accuracy(self) -> float | None:
        """Test accuracy at the end; chance for a model that diverged."""
        if self.diverged is not None:
            return CHANCE
        value = self.summary.get("last_accuracy")
        return None if value is None else float(value)

    def late_accuracy(self, evaluations: int = 10) -> float:
        """Return the mean test accuracy over the last evaluations; chance for a model that diverged."""
        last = self._last(evaluations)
        return CHANCE if self.diverged is not None or not last else mean(last)

    def _last(self, evaluations: int) -> list[float]:
        return [value for value in self.curve.get("accuracy", [])[-evaluations:] if value is not None]

    def at(self, key: str, rounds: float) -> float | None:
        """Return the value of a curve at an evaluated round, None if there is none."""
        return dict(zip(self.curve["round"], self.curve.get(key, []))).get(rounds)

    @property
    def unsteady(self) -> bool:
        """Whether accuracy goes up and down over the last ten evaluations: noise of more than 3 points.

        Taken from the differences of neighbours, so that a steady rise is not noise.
        """
        steps = [after - before for before, after in pairwise(self._last(10))]
        return self.diverged is None and len(steps) > 1 and stdev(steps) / math.sqrt(2) > _STEADY

    def value(self, key: str) -> float | None:
        """Return a number of the summary, None if it has none."""
        found = self.summary.get(key)
        return None if found is None else float(found)

    def until(self, rounds: int) -> Record:
        """Return the record as that of a shorter run, up to an evaluated round; errors and bits stay."""
        if rounds >= self.rounds:
            return self
        keep = [i for i, t in enumerate(self.curve["round"]) if t is not None and t <= rounds]
        curve = {key: [values[i] for i in keep] for key, values in self.curve.items()}

        def last(key: str) -> float | None:
            return curve[key][-1] if curve.get(key) else None

        def reached(key: str) -> Any:
            when = self.summary.get(key)
            return when if when is not None and when <= rounds else None

        accuracies = [value for value in curve.get("accuracy", []) if value is not None]
        summary = dict(self.summary) | {
            "last_accuracy": last("accuracy"),
            "best_accuracy": max(accuracies, default=None),
            "last_test_loss": last("test_loss"),
            "last_train_loss": last("train_loss"),
            "rounds_to_loss_1": reached("rounds_to_loss_1"),
            "rounds_to_accuracy_09": reached("rounds_to_accuracy_09"),
        }
        lost = self.diverged if self.diverged is not None and self.diverged <= rounds else None
        return replace(self, rounds=rounds, summary=summary, curve=curve, diverged=lost)


def accuracies(records: Iterable[Record]) -> list[float]:
    """Return the accuracies that are known, one per seed."""
    return [value for record in records if (value := record.accuracy) is not None]


def shared_seeds(one: Iterable[Record], other: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """Return the records of the seeds that both have, in the order of the seeds."""
    first, second = ({record.seed: record for record in records} for records in (one, other))
    seeds = sorted(set(first) & set(second))
    return [first[seed] for seed in seeds], [second[seed] for seed in seeds]


def read_folder(path: Path, settings: RunSettings | None = None) -> Record | None:
    """Return the record of a run folder; None while the run has not finished or diverged."""
    folder = RunFolder(path)
    if not folder.config_path.exists():
        return None
    summary, failure = folder.read_summary(), folder.failure()
    lost = summary is None and failure is not None and "diverged" in failure
    if summary is None and not lost:
        return None
    if settings is None:
        settings = resolve(deciding(folder.config()))
    metrics = folder.read_metrics()
    if summary is None:
        summary = summarise(metrics, name="", seed=0, method="", parameters=0, devices=0)
    summary |= {"channel_uses": metrics[-1].get("channel_uses") if metrics else None}
    smooth = trailing_mean([m.get("train_loss") for m in metrics], min(WINDOW, max(1, len(metrics))))
    at = [i for i, m in enumerate(metrics) if m.get("test_loss") is not None]  # evaluated
    curve: dict[str, list[float | None]] = {"round": [metrics[i]["round"] for i in at]}
    for name, values in (
        ("accuracy", [m.get("test_accuracy") for m in metrics]),
        ("train_loss", smooth),
        ("test_loss", [m.get("test_loss") for m in metrics]),
    ):
        if any(values[i] is not None for i in at) and not (name == "test_loss" and "accuracy" in curve):
            curve[name] = [_short(values[i]) for i in at]
    kept = {key: _short(summary.get(key)) for key in _KEPT if key != "channel_uses" or summary[key]}
    end = len(metrics) + 1 if lost else None
    return Record(path.name, family_of(settings), settings.seed, settings.rounds, kept, curve, end)


def _short(value: Any) -> Any:
    """Four significant figures are as many as a test set of 10,000 gives, and more than a curve can show."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


class Records:
    """All records, found by settings: a longer run of the same family answers for a shorter one."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._by_run: dict[tuple[str, int], Record] = {}
        for record in records:
            self.add(record)

    def __len__(self) -> int:
        return len(self._by_run)

    def __iter__(self) -> Iterator[Record]:
        return iter(sorted(self._by_run.values(), key=lambda record: record.name))

    def add(self, record: Record) -> None:
        """Add a record; of two runs of a family with one seed the longer is kept."""
        key = (record.family, record.seed)
        if key not in self._by_run or self._by_run[key].rounds <= record.rounds:
            self._by_run[key] = record

    def find(self, settings: RunSettings) -> Record | None:
        """Return the record of a run with these settings, cut to its length; None if there is none."""
        record = self._by_run.get((family_of(settings), settings.seed))
        if record is None or record.rounds < settings.rounds:
            return None
        lost = record.diverged is not None and record.diverged <= settings.rounds
        if settings.rounds < record.rounds and not lost and settings.rounds not in record.curve["round"]:
            return None  # that round was not evaluated
        return record.until(settings.rounds)

    def whole(self, settings: RunSettings) -> Record | None:
        """Return the record that answers for these settings, not cut."""
        return None if self.find(settings) is None else self._by_run[family_of(settings), settings.seed]

    def find_all(self, runs: Iterable[RunSettings]) -> list[Record]:
        """Return the records that are there, in order."""
        return [record for settings in runs if (record := self.find(settings)) is not None]

    def add_folder(self, path: Path) -> None:
        """Add all runs in the folders inside `path` that finished or diverged."""
        if not path.is_dir():
            return
        for inside in sorted(path.iterdir()):
            if (record := read_folder(inside)) is not None:
                self.add(record)

    def add_file(self, path: Path) -> None:
        """Add the records of a JSON file, if it is there.

        Raises:
            FolderError: the file is not one of ours.
        """
        if not path.exists():
            return
        try:
            for entry in json.loads(path.read_bytes())["runs"]:
                self.add(Record(**entry))
        except (ValueError, KeyError, TypeError) as error:
            raise FolderError(f"{path} does not hold the records of runs: {error}") from error

    def write(self, path: Path, only: Iterable[Record] | None = None) -> Path:
        """Write the records, one per line, sorted by name; equal records give equal bytes.

        Raises:
            FolderError: the place cannot be written to.
        """
        kept = sorted(self if only is None else only, key=lambda record: record.name)
        lines = [json.dumps(vars(record), separators=(",", ":")) for record in kept]
        return write_text(path, '{"runs":[\n' + ",\n".join(lines) + "\n]}\n")
