"""One tuning protocol for every method, the ideal included: the same grid, the same seeds, the same score.

The first seed tries every point of the grid; the best points of each method go on with the other seeds, and
the best over all seeds is chosen. Every run is a run folder, so the same call again continues.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Literal

from signfade.experiments.config import ConfigError
from signfade.experiments.files import FolderError, why, write_atomically
from signfade.experiments.folder import RunFolder
from signfade.experiments.methods import method_folders, method_layer
from signfade.experiments.toml import to_toml
from signfade.experiments.training import PlannedRun, RunFailed, place_run
from signfade.experiments.workers.job_queue import Outcome
from signfade.experiments.workers.run_pool import choose_engine
from signfade.settings import RunSettings

__all__ = [
    "MOMENTA",
    "RATES",
    "WORDS",
    "Point",
    "Protocol",
    "Score",
    "Trial",
    "score",
    "title",
    "tune",
    "write_tuned",
]

RATES = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)  # wide: a vote's are far below those of an estimate
MOMENTA = (0.0, 0.5, 0.9)
# What is tuned, in words.
WORDS = {
    "server.learning_rate": "rate",
    "server.momentum": "momentum",
    "device.learning_rate": "device rate",
}
_FIRST_SEED = 100  # of those to tune on; comparisons begin at 0
_LAST = 6  # evaluations that make a score

Point = dict[str, float]  # dotted settings and their values
Do = Callable[[Sequence[PlannedRun]], Outcome]


@dataclass(frozen=True)
class Protocol:
    """What is tried, on which seeds, and what counts; values are put in order, each once.

    Example:
        >>> Protocol(rates=(0.3, 0.1), momenta=(0.9,)).grid[0]
        {'server.learning_rate': 0.1, 'server.momentum': 0.9}
        >>> Protocol(target=90.0)
        Traceback (most recent call last):
        signfade.experiments.config.ConfigError: target must be a test accuracy above 0 and at most 1; got 90
    """

    rates: tuple[float, ...] = RATES
    momenta: tuple[float, ...] = MOMENTA
    device_rates: tuple[float, ...] = ()  # none: each method's own
    seeds: int = 3
    finalists: int = 3
    target: float | None = None

    def __post_init__(self) -> None:
        for rate in (*self.rates, *self.device_rates):
            if not 0 < rate < inf:
                raise ConfigError(f"learning rates must be greater than 0 and finite; got {rate:g}")
        for momentum in self.momenta:
            if not 0 <= momentum < 1:
                raise ConfigError(f"momenta must be from 0 to below 1; got {momentum:g}")
        if not (self.rates and self.momenta):
            raise ConfigError("the grid is empty; give at least one learning rate and one momentum")
        for name, count in (("seeds", self.seeds), ("finalists", self.finalists)):
            if count < 1:
                raise ConfigError(f"{name} must be 1 or more; got {count}")
        if self.target is not None and not 0 < self.target <= 1:
            raise ConfigError(f"target must be a test accuracy above 0 and at most 1; got {self.target:g}")

    @property
    def axes(self) -> dict[str, tuple[float, ...]]:
        """The settings that are tried, dotted, and their values from small to large."""
        axes = {"server.learning_rate": self.rates, "server.momentum": self.momenta}
        axes |= {"device.learning_rate": self.device_rates} if self.device_rates else {}
        return {key: tuple(sorted(set(values))) for key, values in axes.items()}

    @property
    def grid(self) -> list[Point]:
        """All points."""
        return [dict(zip(self.axes, values)) for values in itertools.product(*self.axes.values())]

    @property
    def tuning_seeds(self) -> tuple[int, ...]:
        """The seeds that tuning uses and a comparison must not."""
        return tuple(range(_FIRST_SEED, _FIRST_SEED + self.seeds))

    def edges(self, point: Point) -> list[str]:
        """Return the settings whose value is the smallest or largest tried; no momentum is below 0.

        Example:
            >>> Protocol().edges({"server.learning_rate": 3.0, "server.momentum": 0.0})
            ['server.learning_rate']
        """
        ends = {key: {values[0], values[-1]} - {0.0} for key, values in self.axes.items() if len(values) > 1}
        return [key for key, value in point.items() if value in ends.get(key, ())]


@dataclass(frozen=True)
class Score:
    """How a run did: the bits to the target, or the accuracy or the loss where it ended; or it failed."""

    kind: Literal["bits", "accuracy", "loss", "failed"]
    value: float = 0.0
    late: float = 0.0  # accuracy at the end, which decides between equal bits

    @property
    def merit(self) -> float:
        """The higher the better among scores of one kind."""
        return self.value if self.kind == "accuracy" else -self.value


@dataclass(frozen=True)
class Trial:
    """A point of a method's grid and its scores, one for each seed that was tried."""

    point: Point
    scores: tuple[Score, ...]

    @property
    def counted(self) -> tuple[Score, ...]:
        """The scores that make the mean: of the runs that reached the target, else of those that finished."""
        reached = tuple(score for score in self.scores if score.kind == "bits")
        return reached or tuple(score for score in self.scores if score.kind != "failed")

    @property
    def mean(self) -> float | None:
        """Mean of the scores that count; None if all runs failed."""
        return fmean(score.value for score in self.counted) if self.counted else None

    @property
    def key(self) -> tuple[float, ...]:
        """To sort by, best last: seeds that reached the target, that finished, then means over those."""
        reached = sum(score.kind == "bits" for score in self.scores)
        finished = sum(score.kind != "failed" for score in self.scores)
        if not self.counted:
            return 0, 0, 0, 0
        means = (fmean(score.merit for score in self.counted), fmean(score.late for score in self.counted))
        return reached, finished, *means


def score(run: PlannedRun, target: float | None = None) -> Score:
    """Return the score of a run.

    Without a target it is the mean test accuracy over the last six evaluations or, where there is none, the
    mean test loss. With one it is the uplink bits of the average device, until an
    evaluation first reached the target; or, if none did, the best accuracy.
    """
    folder = RunFolder(run.folder)
    if not folder.finished:
        return Score("failed")
    records = folder.read_metrics()
    evaluated = [one for one in records if one.get("test_accuracy") is not None]
    if not evaluated:
        losses = [
            one.get("test_loss")
            for one in records
            if one.get("test_loss") is not None or "test_loss" in one.get("diverged", ())
        ]
        last = [loss for loss in losses[-_LAST:] if loss is not None]
        finite = last and len(last) == len(losses[-_LAST:])
        return Score("loss", fmean(last)) if finite else Score("failed")
    accuracies = [one["test_accuracy"] for one in evaluated]
    late = fmean(accuracies[-_LAST:])
    if target is None:
        return Score("accuracy", late, late)
    for one in evaluated:
        if one["test_accuracy"] >= target:
            return Score("bits", one["uplink_bits"] / run.settings.data.devices, late)
    return Score("accuracy", max(accuracies), late)


def tune(
    settings: RunSettings, methods: Sequence[str], protocol: Protocol, folder: Path, do: Do | None = None
) -> dict[str, list[Trial]]:
    """Try every method on the same grid and return its trials, the chosen one first, finalists next.

    Methods are named as in `compare`. A run gets the folder `folder/METHOD/POINT/seed-N`; `do` does runs, by
    default on all cores. The seeds of a comparison, as many from the settings' own on, must stay fresh.
    """
    runs = _plan(settings, methods, protocol, folder)
    do = do or (lambda planned: choose_engine("process")(planned, None))
    failed: dict[Path, str] = {}

    def finish(planned: list[PlannedRun]) -> None:
        outcome = do(planned)
        for refused in outcome.refused:
            raise ValueError(outcome.failed[refused])
        failed.update(outcome.failed)

    def trials(name: str, points: Sequence[int], seeds: int) -> dict[int, Trial]:
        """By the place of the point in the grid, best first; of equals, the first in the grid."""
        tried = {
            i: Trial(grid[i], tuple(score(run, protocol.target) for run in runs[name][i][:seeds]))
            for i in points
        }
        return dict(sorted(tried.items(), key=lambda item: item[1].key, reverse=True))

    grid = protocol.grid
    finish([seeds[0] for points in runs.values() for seeds in points])
    first = {name: trials(name, range(len(grid)), 1) for name in runs}
    for name, tried in first.items():
        if not any(trial.counted for trial in tried.values()):
            reason = failed.get(runs[name][0][0].folder, "its test loss is not finite")
            raise RunFailed(f"every run of {name} failed; the first: {reason}")
    finalists = {name: list(tried)[: protocol.finalists] for name, tried in first.items()}
    if protocol.seeds > 1:
        finish([run for name, points in finalists.items() for i in points for run in runs[name][i][1:]])
    return {
        name: [
            *trials(name, finalists[name], protocol.seeds).values(),
            *(trial for i, trial in tried.items() if i not in finalists[name]),
        ]
        for name, tried in first.items()
    }


def _plan(
    settings: RunSettings, methods: Sequence[str], protocol: Protocol, folder: Path
) -> dict[str, list[list[PlannedRun]]]:
    """The runs by method, point and seed, each as `compare` would do it with the point as a variant."""
    if not methods:
        raise ConfigError("there is nothing to tune: name methods, such as --methods signsgd,best,ideal")
    fresh = range(settings.seed, settings.seed + protocol.seeds)
    used = protocol.tuning_seeds
    if not set(fresh).isdisjoint(used):
        raise ConfigError(
            f"tuning uses the seeds {used[0]} to {used[-1]}, so the comparison cannot use {fresh[0]} to "
            f"{fresh[-1]}; set seed to {used[-1] + 1} or more"
        )
    for own in method_folders(settings, methods).values():
        if own.data.name == "gaussian":
            raise ConfigError(
                "there is nothing to tune on data gaussian, which is not learned; set data.name"
            )
        if own.data.name == "regression" and protocol.target is not None:
            raise ConfigError("target is a test accuracy, and data regression has none; leave target out")
        if protocol.device_rates and not own.device.trains:
            raise ConfigError(
                "device rates need local training; set device.local_steps to 2 or more, or device.epochs"
            )
    runs: dict[str, list[list[PlannedRun]]] = {name: [] for name in methods}
    for point in protocol.grid:
        chosen = method_folders(_tuned(settings, dict.fromkeys(methods, point)), methods)
        where = "-".join(f"{WORDS[key].replace(' ', '-')}-{value!r}" for key, value in point.items())
        for name, (slug, own) in zip(methods, chosen.items()):
            seeds = [own.model_copy(update={"seed": seed}) for seed in used]
            runs[name].append([place_run(one, folder / slug / where / f"seed-{one.seed}") for one in seeds])
    return runs


def _tuned(settings: RunSettings, points: dict[str, Point]) -> RunSettings:
    """The settings with each method at its point as a variant of the method's name."""
    variants = {name: method_layer(settings, name) | point for name, point in points.items()}
    for name, layer in variants.items():
        if layer["label"] == name:
            del layer["label"]
    return settings.model_copy(update={"variants": settings.variants | variants})


def title(run: PlannedRun) -> str:
    """Return what a run of tuning is called in a table of progress."""
    settings = run.settings
    rate, momentum = settings.server.learning_rate, settings.server.momentum
    return f"{settings.method_label}, rate {rate:g}, momentum {momentum:g}, seed {settings.seed}"


def write_tuned(
    trials: dict[str, list[Trial]], settings: RunSettings, protocol: Protocol, folder: Path
) -> tuple[Path, Path]:
    """Write tuned.toml, the config with every method at its chosen point, and trials.json, all scores.

    `signfade compare` reads tuned.toml. Its name gets `-tuned` at the end, so that its folder is its own.
    """
    tuned = _tuned(settings, {name: found[0].point for name, found in trials.items()})
    tuned = tuned.model_copy(update={"name": f"{settings.name}-tuned"})
    used = protocol.tuning_seeds
    head = f"# By signfade tune: the best of one grid for every method, seeds {used[0]} to {used[-1]}.\n"
    record = {
        "protocol": asdict(protocol),
        "trials": {
            name: [
                trial.point | {"scores": [{one.kind: one.value} for one in trial.scores]} for trial in found
            ]
            for name, found in trials.items()
        },
    }
    config, scores = folder / "tuned.toml", folder / "trials.json"
    try:
        write_atomically(config, (head + to_toml(tuned, given=True)).encode())
        write_atomically(scores, (json.dumps(record, indent=1) + "\n").encode())
    except OSError as error:
        raise FolderError(f"cannot write the results to {folder}: {why(error)}") from error
    return config, scores
