"""Several methods on the same data, over the same cell, with the same noise and the same initial weights.

All of that is drawn from streams keyed by the seed alone, so giving every method the seed is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from signfade.experiments.config import ConfigError
from signfade.experiments.group import Group, group_runs
from signfade.experiments.methods import method_folders
from signfade.experiments.results import load_run
from signfade.experiments.training import PlannedRun, RunFailed, place_run, train
from signfade.experiments.workers import run_pool
from signfade.experiments.workers.job_queue import JobQueue, OnEvent, Outcome
from signfade.settings import PRESET_TRAINING, PRESETS, RunSettings

__all__ = ["CompareResult", "compare", "plan", "run_in_turn", "unused_settings"]


@dataclass(frozen=True)
class CompareResult:
    """What a comparison left behind."""

    groups: tuple[Group, ...]  # the runs by method, seeds together
    failed: dict[Path, str] = field(default_factory=dict)  # why runs failed, by folder; they are in no table


def plan(settings: RunSettings, methods: Sequence[str], folder: Path, seeds: int = 1) -> list[PlannedRun]:
    """Return the runs of a comparison in their order: all methods of one seed, then the next.

    The methods are named as in `method_settings`, the seeds count from the settings' own on, and a run gets
    the folder `folder/method/seed-N`.

    Example:
        >>> from signfade.experiments.config import resolve
        >>> [run.folder.as_posix() for run in plan(resolve({"seed": 7}), ["sbfl", "ideal"], Path("runs/x"))]
        ['runs/x/sbfl/seed-7', 'runs/x/ideal/seed-7']
    """
    if not methods:
        raise ConfigError("there is nothing to compare: name methods, such as --methods signsgd,sbfl,ideal")
    if seeds < 1:
        raise ConfigError(f"seeds must be 1 or more; got {seeds}")
    folders = method_folders(settings, methods)
    return [
        place_run(one.model_copy(update={"seed": seed}), folder / slug / f"seed-{seed}")
        for seed in range(settings.seed, settings.seed + seeds)
        for slug, one in folders.items()
    ]


def unused_settings(settings: RunSettings, runs: Sequence[PlannedRun]) -> list[str]:
    """Return one sentence for each setting of the method that is given and that no run of the plan has.

    Example:
        >>> from signfade.experiments.config import resolve
        >>> shared = resolve({"method.aggregator": "blmmse"})
        >>> unused_settings(shared, plan(shared, ["best", "ideal"], Path("runs/x")))
        ["method.aggregator = 'blmmse' is not used: each of the methods best, ideal brings its own"]
    """
    method = settings.method
    decided = PRESETS.get(method.preset or "", {})
    names = ", ".join(dict.fromkeys(run.settings.method_label for run in runs))
    notes = []
    for key in [key for preset in PRESETS.values() for key in preset]:
        value = getattr(method, key)
        given = key in method.model_fields_set and decided.get(key, ...) != value
        if given and all(getattr(run.settings.method, key) != value for run in runs):
            notes.append(f"method.{key} = {value!r} is not used: each of the methods {names} brings its own")
    return list(dict.fromkeys(notes)) + _preset_notes(settings, runs)


def _preset_notes(settings: RunSettings, runs: Sequence[PlannedRun]) -> list[str]:
    """Return one sentence for each method whose preset replaces rates or local steps that are given.

    Example:
        >>> from signfade.experiments.config import resolve
        >>> shared = resolve({"device.local_steps": 10})
        >>> _preset_notes(shared, plan(shared, ["best", "low-rate"], Path("runs/x")))
        ['low-rate keeps device.local_steps = 30 of its preset; to change it, write a variant into the file']
    """
    methods: dict[str, list[RunSettings]] = {}
    for run in runs:
        methods.setdefault(run.settings.method_label, []).append(run.settings)
    notes = []
    for label, tried in methods.items():
        preset = tried[0].method.preset or ""
        rate = {key: value for key, value in PRESETS.get(preset, {}).items() if key == "bits_per_weight"}
        kept = [
            f"{section}.{key} = {value}"
            for section, decided in {"method": rate, **PRESET_TRAINING.get(preset, {})}.items()
            for key, value in decided.items()
            if key in (given := getattr(settings, section)).model_fields_set
            and getattr(given, key) != value
            and all(getattr(getattr(one, section), key) == value for one in tried)
        ]
        if kept:
            them = "it" if len(kept) == 1 else "them"
            change = f"to change {them}, write a variant into the file"
            notes.append(f"{label} keeps {', '.join(kept)} of its preset; {change}")
    return notes


def compare(runs: Sequence[PlannedRun], jobs: int = 1, *, on_event: OnEvent | None = None) -> CompareResult:
    """Do the runs of a plan, each in its folder, and read the results.

    Finished runs are taken as they are, unfinished ones continued. A run that fails does not stop the others;
    `RunFailed` means that all of them failed. One job at a time runs in this process, more run in worker
    processes of one thread each. `on_event` is called with every event.
    """
    do = run_in_turn if jobs == 1 else run_pool.run_all
    outcome = do(runs, jobs, on_event=on_event)
    for run in runs:
        if run.folder in outcome.refused:
            raise ValueError(f"{_name(run)}: {outcome.failed[run.folder]}")
    if not outcome.finished:
        first = next(run for run in runs if run.folder in outcome.failed)
        raise RunFailed(f"every run failed; the first, {_name(first)}: {outcome.failed[first.folder]}")
    return CompareResult(group_runs([load_run(folder) for folder in outcome.finished]), outcome.failed)


def _name(run: PlannedRun) -> str:
    return f"{run.settings.method_label}, seed {run.settings.seed}"


def run_in_turn(
    runs: Sequence[PlannedRun], jobs: int | None = None, *, on_event: OnEvent | None = None
) -> Outcome:
    """Do the runs one after another in this process, whatever `jobs` says; a `RunAll` as the others are."""
    queue = JobQueue(runs, on_event)
    while queue.waiting:
        index = queue.next()
        run = runs[index]
        try:
            train(
                run.settings,
                run.folder,
                resume=True,
                on_round=partial(queue.round, index),
                on_note=partial(queue.note, index),
            )
        except RunFailed as error:
            queue.settle(index, "failed", str(error))
        except ValueError as error:
            raise ValueError(f"{_name(run)}: {error}") from error
        else:
            queue.settle(index, "finished", "")
    return queue.outcome()
