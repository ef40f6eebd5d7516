"""Several methods on the same data, over the same cell, with the same noise and the same initial weights.

All of that is drawn from streams keyed by the seed alone, so giving every method the seed is enough.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from signfade.device.compressors import COMPRESSORS
from signfade.experiments.config import ConfigError, flatten, overlay, resolve
from signfade.experiments.files import folder_name
from signfade.experiments.group import Group, group_runs
from signfade.experiments.results import load_run
from signfade.experiments.training import PlannedRun, RunFailed, place_run, train
from signfade.experiments.workers import run_pool
from signfade.experiments.workers.job_queue import JobQueue, OnEvent, Outcome
from signfade.registry import is_import_path, load_function
from signfade.server import AGGREGATORS
from signfade.settings import PRESETS, RunSettings

__all__ = [
    "CompareResult",
    "compare",
    "method_folders",
    "method_layer",
    "method_settings",
    "plan",
    "unused_settings",
]

_FIXED = ("seed", "name", "out")  # the same for all methods, or they could not be compared


@dataclass(frozen=True)
class CompareResult:
    """What a comparison left behind."""

    groups: tuple[Group, ...]  # the runs by method, seeds together
    failed: dict[Path, str] = field(default_factory=dict)  # why runs failed, by folder; they are in no table


def _without_preset(settings: RunSettings) -> dict[str, Any]:
    """The settings as tables, with what their preset decided left open again."""
    tree = settings.model_dump(exclude={"variants"})
    decided = PRESETS.get(settings.method.preset or "", {})
    kept = {key: value for key, value in tree["method"].items() if decided.get(key, ...) != value}
    return tree | {"method": kept | {"preset": None}}


def method_layer(settings: RunSettings, name: str) -> dict[str, Any]:
    """Return what a method of a comparison puts on top of the file, with dotted keys and its label.

    A name is looked for among variants, presets, aggregators and compressors in turn; one with a colon is
    the import path of a rule, labelled with the function's name.

    Example:
        >>> method_layer(resolve({}), "qsgd")
        {'method.aggregator': 'ideal', 'method.compressor': 'qsgd', 'label': 'qsgd'}
    """
    rivals = [rival for rival in COMPRESSORS.names() if rival != "auto"]
    if name in settings.variants:
        return {"label": name} | settings.variants[name]
    if name in PRESETS:
        return {"method.preset": name, "label": name}
    if name in AGGREGATORS.names() or is_import_path(name):
        return {"method.aggregator": name, "label": name.rpartition(":")[2]}
    if name in rivals:
        return {"method.aggregator": "ideal", "method.compressor": name, "label": name}
    known = [*settings.variants, *PRESETS, *AGGREGATORS.names(), *rivals]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    raise ConfigError(
        f"unknown method {name!r}; the nearest known one is {near!r}, "
        "your own is package.module:function or file.py:function"
    )


def method_settings(settings: RunSettings, name: str) -> RunSettings:
    """Return the settings of one method of a comparison, labelled with its name and without variants.

    A preset or an aggregator replaces the preset of the file, also where a variant names it; apart from that
    a variant is put on top of the file.

    Example:
        >>> shared = resolve({"server.momentum": 0.5, "variants": {"slow": {"server.momentum": 0.1}}})
        >>> [method_settings(shared, name).server.momentum for name in ("signsgd", "slow")]
        [0.5, 0.1]
    """
    layer = method_layer(settings, name)
    fixed = next((key for key in _FIXED if key in layer), None)
    if fixed is not None:
        raise ConfigError(f"variants.{name} sets {fixed}, which all methods of a comparison share")
    replaced = {"method.preset", "method.aggregator"} & flatten(layer).keys()
    tree = _without_preset(settings) if replaced else settings.model_dump(exclude={"variants"})
    chosen = resolve(overlay(tree, layer, f"variants.{name}: "))
    if is_import_path(chosen.method.aggregator):
        load_function(chosen.method.aggregator)  # report a typing error before the first run, not after it
    return chosen


def method_folders(settings: RunSettings, methods: Sequence[str]) -> dict[str, RunSettings]:
    """Return the settings of the methods of a comparison by the names of their folders, in order."""
    found: dict[str, RunSettings] = {}
    for chosen in (method_settings(settings, name) for name in methods):
        slug = folder_name(chosen.method_label)
        if slug.casefold() in map(str.casefold, found):
            label = chosen.method_label
            raise ConfigError(f"two of the methods are called {label!r}; give one a label of its own")
        found[slug] = chosen
    return found


def plan(settings: RunSettings, methods: Sequence[str], folder: Path, seeds: int = 1) -> list[PlannedRun]:
    """Return the runs of a comparison in their order: all methods of one seed, then the next.

    The methods are named as in `method_settings`, the seeds count from the settings' own on, and a run gets
    the folder `folder/method/seed-N`.

    Example:
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
    return list(dict.fromkeys(notes))


def compare(runs: Sequence[PlannedRun], jobs: int = 1, *, on_event: OnEvent | None = None) -> CompareResult:
    """Do the runs of a plan, each in its folder, and read the results.

    Finished runs are taken as they are, unfinished ones continued. A run that fails does not stop the others;
    `RunFailed` means that all of them failed. One job at a time runs in this process, more run in worker
    processes of one thread each. `on_event` is called with every event.
    """
    outcome = _in_turn(runs, on_event) if jobs == 1 else run_pool.run_all(runs, jobs, on_event=on_event)
    for folder in outcome.refused:
        raise ValueError(outcome.failed[folder])
    if not outcome.finished:
        raise RunFailed(f"every run failed; the first: {next(iter(outcome.failed.values()))}")
    return CompareResult(group_runs([load_run(folder) for folder in outcome.finished]), outcome.failed)


def _in_turn(runs: Sequence[PlannedRun], on_event: OnEvent | None) -> Outcome:
    """Do the runs one after another in this process."""
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
        else:
            queue.settle(index, "finished", "")
    return queue.outcome()
