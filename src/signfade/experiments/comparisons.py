"""Several methods on the same data, over the same cell, with the same noise and the same initial weights.

All of that is drawn from streams keyed by the seed alone, so giving every method the seed is enough.
"""

from __future__ import annotations

import difflib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from signfade.device.compressors import COMPRESSORS
from signfade.experiments.config import ConfigError, overlay, resolve
from signfade.experiments.figures import curves
from signfade.experiments.folder import write_atomically
from signfade.experiments.group import Group, group_runs, load_run
from signfade.experiments.html_report import write_report
from signfade.experiments.planned_runs import PlannedRun, folder_name, status_of
from signfade.experiments.style import save_figure
from signfade.experiments.table import comparison_table
from signfade.experiments.toml import flatten
from signfade.experiments.training import RunFailed, train
from signfade.experiments.workers import run_pool
from signfade.experiments.workers.job_queue import JobQueue, OnEvent, Outcome
from signfade.registry import is_import_path, load_function
from signfade.server import AGGREGATORS
from signfade.settings import PRESETS, RunSettings

__all__ = [
    "CompareResult",
    "compare",
    "method_settings",
    "plan",
    "write_comparison",
]

_FIXED = ("seed", "name", "out")  # the same for all methods, or they could not be compared


@dataclass(frozen=True)
class CompareResult:
    """What a comparison left behind.

    Attributes:
        groups: the runs by method, seeds together.
        failed: why runs failed, by folder; they are in no table.
    """

    groups: tuple[Group, ...]
    failed: dict[Path, str] = field(default_factory=dict)


def _without_preset(settings: RunSettings) -> dict[str, Any]:
    """The settings as tables, with what their preset decided left open again."""
    tree = settings.model_dump(exclude={"variants"})
    decided = PRESETS.get(settings.method.preset or "", {})
    kept = {key: value for key, value in tree["method"].items() if decided.get(key, ...) != value}
    return tree | {"method": kept | {"preset": None}}


def method_settings(settings: RunSettings, name: str) -> RunSettings:
    """Return the settings of one method of a comparison.

    A name is looked for among the variants, then the presets, then the aggregators and the compressors; a
    name with a colon is the import path of a rule. A preset or an aggregator replaces the preset of the file,
    also where a variant names it; apart from that a variant is put on top of the file.

    Args:
        settings: what all methods share.
        name: variant, preset, aggregator, compressor, `package.module:function` or `file.py:function`.

    Returns:
        Settings labelled with the name (of an import path: with the function's name), without variants.

    Raises:
        ConfigError: there is no such method, or a variant changes what must be common.

    Example:
        >>> shared = resolve({"server.momentum": 0.5, "variants": {"slow": {"server.momentum": 0.1}}})
        >>> [method_settings(shared, name).server.momentum for name in ("signsgd", "slow")]
        [0.5, 0.1]
        >>> method_settings(shared, "best").method.aggregator
        'bfl'
    """
    label, rivals = name, [rival for rival in COMPRESSORS.names() if rival != "auto"]
    if name in settings.variants:
        layer = settings.variants[name]
        replaced = {"method.preset", "method.aggregator"} & flatten(layer).keys()
        tree = _without_preset(settings) if replaced else settings.model_dump(exclude={"variants"})
        fixed = next((key for key in _FIXED if key in layer), None)
        if fixed is not None:
            raise ConfigError(f"variants.{name} sets {fixed}, which all methods of a comparison share")
        label = layer.get("label", name)
    elif name in PRESETS:
        tree, layer = _without_preset(settings), {"method.preset": name}
    elif name in AGGREGATORS.names() or is_import_path(name):
        tree, layer = _without_preset(settings), {"method.aggregator": name}
        label = name.rpartition(":")[2]
    elif name in rivals:
        tree, layer = _without_preset(settings), {"method.aggregator": "ideal", "method.compressor": name}
    else:
        known = [*settings.variants, *PRESETS, *AGGREGATORS.names(), *rivals]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
        raise ConfigError(
            f"unknown method {name!r}; the nearest known one is {near!r}, your own is package.module:function"
        )
    chosen = resolve(overlay(tree, layer, f"variants.{name}: ") | {"label": label})
    if is_import_path(chosen.method.aggregator):
        load_function(chosen.method.aggregator)  # report a typing error before the first run, not after it
    return chosen


def plan(settings: RunSettings, methods: Sequence[str], folder: Path, seeds: int = 1) -> list[PlannedRun]:
    """Return the runs of a comparison in their order: all methods of one seed, then the next.

    Args:
        settings: what all methods share.
        methods: their names, see `method_settings`.
        folder: of the comparison; a run gets `folder/method/seed-N`.
        seeds: number of seeds, from the settings' own on.

    Raises:
        ConfigError: no method, an unknown one, one twice, or less than one seed.
        FolderError: one of the folders holds another run.

    Example:
        >>> [run.folder.as_posix() for run in plan(resolve({"seed": 7}), ["sbfl", "ideal"], Path("runs/x"))]
        ['runs/x/sbfl/seed-7', 'runs/x/ideal/seed-7']
    """
    if not methods:
        raise ConfigError("there is nothing to compare: name methods, such as --methods signsgd,sbfl,ideal")
    if seeds < 1:
        raise ConfigError(f"seeds must be 1 or more; got {seeds}")
    chosen = [method_settings(settings, name) for name in methods]
    labels = [one.method_label for one in chosen]
    slugs = [folder_name(label) for label in labels]
    for i, slug in enumerate(slugs):
        if slug.casefold() in (other.casefold() for other in slugs[:i]):
            raise ConfigError(f"two of the methods are called {labels[i]!r}; give one a label of its own")
    runs = []
    for seed in range(settings.seed, settings.seed + seeds):
        for one, slug in zip(chosen, slugs):
            run = PlannedRun(one.model_copy(update={"seed": seed}), folder / slug / f"seed-{seed}")
            status_of(run.settings, run.folder)
            runs.append(run)
    return runs


def compare(runs: Sequence[PlannedRun], jobs: int = 1, *, on_event: OnEvent | None = None) -> CompareResult:
    """Do the runs of a plan, each in its folder, and read the results.

    Finished runs are taken as they are, unfinished ones continued. A run that fails does not stop the others.

    Args:
        runs: from `plan`.
        jobs: runs at a time: 1 does them in this process, more in worker processes of one thread each.
        on_event: called with every event.

    Raises:
        RunFailed: all of them failed.
        ValueError: settings or data of a run cannot be used.
        Interrupted: as `train` does; the same call continues.
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


def write_comparison(result: CompareResult, folder: Path, title: str) -> list[Path]:
    """Write `table.txt`, `curves.png` and `report.html` about a comparison to its folder.

    Args:
        result: from `compare`.
        folder: of the comparison.
        title: a line above them.

    Returns:
        The files written.

    Raises:
        FolderError: the folder cannot be written to.
    """
    runs = [run.path for group in result.groups for run in group.runs]
    table = folder / "table.txt"
    with io.StringIO() as text:
        Console(file=text, width=200).print(comparison_table(result.groups, title, 200))
        write_atomically(table, text.getvalue().encode())
    figure = save_figure(curves(result.groups, title), folder / "curves", ["png"])
    return [table, *figure, write_report(runs, folder / "report.html")]
