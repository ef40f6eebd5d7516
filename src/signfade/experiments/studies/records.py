"""The data of a study: its scale, the runs it wants, and records of finished runs, found by their settings.

The records of all studies are one small JSON file, from which every table and figure of trained models can be
drawn again without the run folders.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from signfade.experiments.config import deciding, plain_defaults
from signfade.experiments.folder import FolderError, why, write_atomically
from signfade.settings import InitialWeights, RunSettings, Tie

__all__ = ["CHANCE", "FULL", "QUICK", "Curve", "Missing", "Record", "Records", "Results", "Scale", "Tier"]
__all__ += [
    "Want",
    "accuracies",
    "curve_of",
    "family_of",
    "paired",
    "read_toml",
    "rounded",
    "run_name",
    "shared_seeds",
    "tail_mean",
]
__all__ += ["write_text"]

Array = NDArray[np.float64]
Curve = tuple[Array, Array, Array]  # rounds, mean and deviation, all [T]
CHANCE = 0.1  # accuracy of a model that has diverged: one class of ten
_STEADY = 0.03
# Defaults and names of settings when records were first named: a record's name must not change with them.
_FIRST_DEFAULTS = {"server.learning_rate": 1e-2, "method.tie": "plus", "method.weights": "sum"}
_FIRST_DEFAULTS |= {"cell.path_loss": "cost231"}
_FIRST_NAMES = {"server.learning_rate": "server.step", "availability.": "presence."}
_FIRST_VALUES = {("method.rotation", "shared"): "hadamard"}
# Not part of what makes two runs one family: a preset is what it stands for, and a loss that is evaluated
# besides changes no other number.
_ASIDE = {"name", "label", "rounds", "seed", "method.preset", "eval.training"}


@dataclass(frozen=True)
class Scale:
    """How large a study is: as published in the docs (full) or small enough to take minutes (quick)."""

    name: Literal["full", "quick"] = "full"
    data: Literal["mnist", "digits"] = "mnist"
    rounds: int = 1000  # of the paper's tables; no training run on images is longer
    seeds: int = 5  # per cell of the paper's tables
    best_seeds: int = 10  # of the best cell of each column, and of the cells that a claim rests on
    figure_seeds: int = 3  # of everything else
    figure_rounds: int = 300  # of the paper's figures that are not taken from its tables
    every: int = 20  # rounds between two evaluations
    regression_rounds: int = 300
    regression_seeds: int = 5
    # What the paper does not say; the part `decide` chooses, and until then these are used.
    devices: int = 20
    bandwidth_hz: float = 1e6
    tie: Tie = "plus"
    standardise: bool = False  # pixels with mean 0 and variance 1, or in [0, 1]
    initial: InitialWeights = "torch"
    model: str = "paper-cnn"
    draws: int = 200_000  # coordinates of a simulated error

    def changed(self, seeds: int | None, rounds: int | None) -> Scale:
        """Return this scale with the given number of seeds for everything, and at most the given rounds."""
        scale = self
        for name, value in (("seeds", seeds), ("rounds", rounds)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be 1 or more; got {value}")
        if seeds is not None:
            scale = replace(scale, seeds=seeds, best_seeds=seeds, figure_seeds=seeds, regression_seeds=seeds)
        if rounds is not None:
            figure, regression = min(rounds, self.figure_rounds), min(rounds, self.regression_rounds)
            scale = replace(scale, rounds=rounds, figure_rounds=figure, regression_rounds=regression)
        return scale

    @property
    def quick(self) -> bool:
        """Whether the data are others, or the rounds fewer, than in the docs."""
        return self.name == "quick"


FULL = Scale()
QUICK = Scale("quick", "digits", 100, 1, 1, 1, 60, 10, 150, 2, draws=20_000)


class Tier(IntEnum):
    """Which runs come first."""

    CALIBRATION = 0
    GRID = 1
    FIGURE = 2
    BEST = 3
    EXTRA = 4


@dataclass(frozen=True)
class Want:
    """A run that is needed, and how urgently: lower tiers first, then lower seeds, the paper's first."""

    settings: RunSettings
    tier: Tier = Tier.GRID
    ours: bool = False
    order: int = 0

    @property
    def rank(self) -> tuple[int, int, bool, int]:
        """Key to sort by."""
        return (self.tier, self.settings.seed, self.ours, self.order)


def family_of(settings: RunSettings) -> str:
    """Return a key that two runs share if they differ in nothing but their seed and length.

    It is made of what differs from the defaults, so that a new setting leaves old names as they are.

    >>> from signfade.experiments.config import load
    >>> short, long = load(None, ["rounds=5", "seed=1"]), load(None, ["rounds=9", "label=x"])
    >>> family_of(short) == family_of(long) != family_of(load(None, ["server.learning_rate=1"]))
    True
    """
    text = settings.model_dump_json()
    if text not in _FAMILIES:
        _FAMILIES[text] = _family(settings)
    return _FAMILIES[text]


_FAMILIES: dict[str, str] = {}  # a page asks for each of some thousand runs a hundred times


def _family(settings: RunSettings) -> str:
    unsaid = plain_defaults() | _FIRST_DEFAULTS
    decides = {key: value for key, value in deciding(settings.model_dump()).items() if key not in _ASIDE}
    changed = [(key, value) for key, value in decides.items() if value != unsaid[key]]
    changes = {_first_name(key): _FIRST_VALUES.get((key, str(value)), value) for key, value in changed}
    return hashlib.sha256(json.dumps(changes, sort_keys=True).encode()).hexdigest()[:10]


def _first_name(key: str) -> str:
    for new, old in _FIRST_NAMES.items():
        if key.startswith(new):
            return old + key.removeprefix(new)
    return key


def run_name(settings: RunSettings) -> str:
    """Return the name of a run's folder: words for people and a key of all that decides its numbers.

    >>> from signfade.experiments.config import load
    >>> run = ["label=SBFL, Gaussian", "data.name=regression", "method.aggregator=sbfl", "method.weights=sum"]
    >>> run += ["cell.path_loss=cost231", "server.learning_rate=1e-2", "server.momentum=0.9"]
    >>> run_name(load(None, run))
    'regression-SBFL-Gaussian-0.01-0.9-full-180kHz-r200-s0-333c3b740e'
    """
    method = "-".join((settings.label or settings.method.aggregator).replace(",", " ").split())
    server, bandwidth = settings.server, f"{settings.cell.bandwidth_hz / 1e3:g}kHz"
    how = f"{method}-{server.learning_rate:g}-{server.momentum:g}-{server.downlink}-{bandwidth}"
    data = settings.data.name.rpartition(":")[2]  # of your own data the function's name, without its path
    return f"{data}-{how}-r{settings.rounds}-s{settings.seed}-{family_of(settings)}"


def rounded(value: Any, digits: int = 4) -> Any:
    """Return a float with so many significant digits: a test set of 10,000 gives four. Others as they are."""
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


@dataclass(frozen=True)
class Record:
    """One run that finished or diverged."""

    name: str
    family: str
    seed: int
    rounds: int
    summary: Mapping[str, Any]  # some keys of summary.json
    # At evaluated rounds: `round`, `train_loss` (mean over five rounds), `accuracy` or `test_loss`, and
    # `global_train_loss` (over all data) of runs that evaluated it.
    curve: Mapping[str, list[float | None]]
    diverged: int | None = None  # the round in which the model diverged

    @property
    def accuracy(self) -> float | None:
        """Test accuracy at the end; chance for a model that diverged."""
        return CHANCE if self.diverged is not None else self.value("last_accuracy")

    def late_accuracy(self, evaluations: int = 10) -> float:
        """Return the mean test accuracy over the last evaluations; chance for a model that diverged."""
        last = self._last(evaluations)
        return CHANCE if self.diverged is not None or not last else mean(last)

    def _last(self, evaluations: int) -> list[float]:
        return [value for value in self.curve.get("accuracy", [])[-evaluations:] if value is not None]

    def points(self, key: str) -> dict[float, float]:
        """Return a curve as values by round."""
        pairs = zip(self.curve["round"], self.curve.get(key, []))
        return {t: value for t, value in pairs if t is not None and value is not None}

    def first_below(self, key: str, level: float) -> float | None:
        """Return the first evaluated round at which a curve is at `level` or below, None for never."""
        return min((t for t, value in self.points(key).items() if value <= level), default=None)

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
        known = [value for value in curve.get("accuracy", []) if value is not None]
        summary = dict(self.summary) | {"best_accuracy": max(known, default=None)}
        for key in ("accuracy", "test_loss", "train_loss"):
            summary[f"last_{key}"] = curve[key][-1] if curve.get(key) else None
        for key in ("rounds_to_loss_1", "rounds_to_accuracy_09"):
            when = self.summary.get(key)
            summary[key] = when if when is not None and when <= rounds else None
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


def paired(
    value: Callable[[Record], float | None], ours: Iterable[Record], theirs: Iterable[Record]
) -> dict[int, float]:
    """Return ours less theirs by seed, over the seeds of which both have the value."""
    ends = {one.seed: (value(one), value(other)) for one, other in zip(*shared_seeds(ours, theirs))}
    return {seed: a - b for seed, (a, b) in ends.items() if a is not None and b is not None}


def curve_of(records: Sequence[Record], key: str) -> Curve | None:
    """Return mean and sample deviation over seeds of a curve, at the rounds that all of them have.

    None without a number. A record that diverged ends early, and so does the curve.
    """
    curves = [record.points(key) for record in records]
    shared = sorted(set.intersection(*map(set, curves))) if curves else []
    if not shared:
        return None
    values = np.array([[curve[t] for t in shared] for curve in curves], dtype=np.float64)
    deviation = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(len(shared))
    return np.array(shared, dtype=np.float64), values.mean(axis=0), deviation


def tail_mean(record: Record, key: str, part: float = 0.1) -> float | None:
    """Return the mean of a curve over the last part of the rounds; None if the run diverged."""
    values = [value for t, value in record.points(key).items() if t > (1 - part) * record.rounds]
    return float(np.mean(values)) if values and record.diverged is None else None


class Records:
    """All records, found by settings: a longer run of the same family answers for a shorter one."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._by_run: dict[tuple[str, int], Record] = {}
        for record in records:
            self.add(record)

    def __iter__(self) -> Iterator[Record]:
        return iter(sorted(self._by_run.values(), key=lambda record: record.name))

    def add(self, record: Record) -> None:
        """Add a record; of two runs of a family with one seed the longer is kept."""
        key = (record.family, record.seed)
        if key not in self._by_run or self._by_run[key].rounds <= record.rounds:
            self._by_run[key] = record

    def whole(self, settings: RunSettings) -> Record | None:
        """Return the record that answers for these settings, not cut; None if there is none."""
        record = self._by_run.get((family_of(settings), settings.seed))
        if record is None or record.rounds < settings.rounds:
            return None
        lost = record.diverged is not None and record.diverged <= settings.rounds
        evaluated = settings.rounds == record.rounds or settings.rounds in record.curve["round"]
        return record if lost or evaluated else None

    def find(self, settings: RunSettings) -> Record | None:
        """Return the record of a run with these settings, cut to its length; None if there is none."""
        record = self.whole(settings)
        return record and record.until(settings.rounds)

    def find_all(self, runs: Iterable[RunSettings]) -> list[Record]:
        """Return the records that are there, in order."""
        return [record for settings in runs if (record := self.find(settings)) is not None]

    def add_file(self, path: Path) -> None:
        """Add the records of a JSON file, if it is there; `FolderError` if it is not one of ours."""
        if not path.exists():
            return
        try:
            for entry in json.loads(path.read_bytes())["runs"]:
                self.add(Record(**entry))
        except (ValueError, KeyError, TypeError) as error:
            raise FolderError(f"{path} does not hold the records of runs: {error}") from error

    def write(self, path: Path, only: Iterable[Record] | None = None) -> Path:
        """Write the records, one per line, sorted by name; equal records give equal bytes."""
        kept = sorted(self if only is None else only, key=lambda record: record.name)
        lines = [json.dumps(vars(record), separators=(",", ":")) for record in kept]
        return write_text(path, '{"runs":[\n' + ",\n".join(lines) + "\n]}\n")


class Missing(Exception):
    """A number that a table, figure or claim needs is not there yet."""


@dataclass(frozen=True)
class Results:
    """What is known when a part is rendered: records of runs, and what parts measured, by name."""

    scale: Scale
    records: Records
    measured: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def measurement(self, name: str) -> dict[str, Any]:
        """Return what a part measured, or raise `Missing`."""
        if name not in self.measured:
            raise Missing
        return self.measured[name]

    def verdict(self, word: str) -> str:
        """Return a verdict; a quick study uses other data, so its numbers are not compared."""
        return "not compared" if self.scale.quick and word != "missing" else word


@cache
def read_toml(file: str) -> dict[str, Any]:
    """Return what a study's file says; not to be changed by the caller. Paths are from this folder."""
    return tomllib.loads(files(__package__).joinpath(file).read_text(encoding="utf-8"))


def write_text(path: Path, text: str) -> Path:
    """Write a file, and its folder if needed; `FolderError` if that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    except OSError as error:
        raise FolderError(f"cannot write {path}: {why(error)}") from error
    return path
