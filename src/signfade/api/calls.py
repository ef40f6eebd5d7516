"""One function per command. Each takes settings as `signfade config` names them, and returns what was found.

What is heavy is imported late, so that a call loads only what it needs.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from signfade.api.inputs import Config, objects_in, read_inputs, read_methods, spell_out, tables
from signfade.api.progress import Downloads, Progress, print_note
from signfade.api.results import Place, RunResult, RunsResult, TuneResult
from signfade.experiments.config import ConfigError
from signfade.experiments.files import folder_name, move_aside
from signfade.settings import RunSettings

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from signfade.experiments.link_study import LinkStudy
    from signfade.experiments.sweeps import Sweep
    from signfade.experiments.theory_table import Dial, Prediction
    from signfade.experiments.training import PlannedRun
    from signfade.experiments.workers.job_queue import Outcome
    from signfade.experiments.workers.run_pool import RunAll
    from signfade.settings import Fading, Family

__all__ = [
    "compare",
    "config",
    "demo",
    "demo_file",
    "deploy",
    "export",
    "fetch_data",
    "link",
    "load",
    "predict_errors",
    "report",
    "reproduce",
    "run",
    "sweep",
    "tune",
]

StrPath = str | os.PathLike[str]


def run(
    config: Config = None,
    *,
    folder: StrPath | None = None,
    out: StrPath | None = None,
    resume: bool = False,
    force: bool = False,
    shards: int | None = None,
    quiet: bool = False,
    on_round: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> RunResult:
    """Train one model over one cell: `signfade run`.

    Args:
        config: A TOML file, or a dict of settings with dotted or nested keys.
        folder: Where to keep the run; by default it goes when the result does.
        out: Keep it in the folder `out/name` instead.
        resume: Continue the run that is in the folder, if it was stopped or has fewer rounds.
        force: Move a run that is in the folder aside.
        shards: Compute the devices on so many worker processes; never changes a result.
        quiet: Show no progress.
        on_round: Called with the metrics of each round.
        settings: Settings on top of `config`: `rounds=100`, `cell={"bandwidth_hz": 1e6}`. `data`, `model` and
            `method` also take a name or an object: a `Dataset`, an `nn.Module` or a function
            `(input_shape, classes)` that makes one, a rule from `Received` to an estimate `[M]`.

    Example:
        >>> run = run(data="gaussian", method="rotated-sbfl", rounds=3, quiet=True)
        >>> run.summary["rounds"], run.summary["method"], len(run.metrics["nmse"])
        (3, 'rotated-sbfl', 3)
    """
    inputs = read_inputs(config, settings)
    from signfade.experiments.training import train
    from signfade.experiments.workers.shards import sharded

    own = inputs.settings
    place = _place(own.name, folder, out)
    if shards is not None:
        _refuse_objects([own], "shards")
    fetch_data(own)
    workers = nullcontext() if shards is None else sharded(shards)
    with workers as make_task, Progress([own.method_label], [own.rounds], quiet=quiet) as progress:

        def show(record: dict[str, Any]) -> None:
            progress.round(record)
            if on_round is not None:
                on_round(record)

        options: dict[str, Any] = {"resume": resume, "force": force, "make_task": make_task}
        ended = train(own, place.path, on_round=show, on_note=progress.note, **options)
    return RunResult(place.path, place, inputs.objects, ended)


def compare(
    methods: Sequence[Any] = ("signsgd", "sbfl", "best", "ideal"),
    config: Config = None,
    *,
    seeds: int = 1,
    jobs: int = 1,
    folder: StrPath | None = None,
    out: StrPath | None = None,
    force: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> RunsResult:
    """Train by several methods and compare them, or compare runs that exist: `signfade compare`.

    All get the same data, cell, noise and initial weights. Runs that are kept are continued or taken as they
    are by the same call again.

    Args:
        methods: Names as for `signfade compare --methods`, functions, or dicts of settings with a `label`;
            or results of `run`, which are only put together.
        config: A TOML file, or a dict of settings.
        seeds: Repeat everything with so many seeds.
        jobs: Runs at a time, each in a process of one thread.
        folder: Where to keep the runs, with a table, a figure and a report.
        out: Keep them in the folder `out/name-compare` instead.
        force: Move runs that are in the folder aside.
        quiet: Show no progress.
        settings: Settings that all methods share.

    Example:
        >>> both = compare(["sbfl", "ideal"], data="gaussian", rounds=2, quiet=True)
        >>> [group.label for group in both.groups], list(both.results["seed"])
        (['sbfl', 'ideal'], [0, 0])
    """
    if methods and all(isinstance(method, RunResult) for method in methods):
        return RunsResult(tuple(methods), methods[0].place, methods[0].settings.name)
    inputs = read_inputs(config, settings)
    named, names = read_methods(inputs.settings, methods)
    from signfade.experiments.comparisons import compare as do
    from signfade.experiments.comparisons import plan, unused_settings
    from signfade.experiments.html_report import write_comparison
    from signfade.experiments.methods import method_folders

    own = named.settings
    place = _place(f"{own.name}-compare", folder, out)
    fetch_data(own)
    if force and method_folders(own, names) and (aside := move_aside(place.path)) is not None and not quiet:
        print_note(f"the runs in {place.path} are now in {aside}")
    runs = plan(own, names, place.path, seeds)
    if jobs > 1:
        _refuse_objects((one.settings for one in runs), "jobs", data=False)
    for text in unused_settings(own, runs):
        warnings.warn(text, stacklevel=2)
    many = ", seed {}" if seeds > 1 else ""
    titles = [one.settings.method_label + many.format(one.settings.seed) for one in runs]
    with Progress(titles, [one.settings.rounds for one in runs], quiet=quiet) as progress:
        result = do(runs, jobs, on_event=progress.event)
    found = [Path(one.path) for group in result.groups for one in group.runs]
    files = write_comparison(result.groups, place.path, own.name) if place.kept else []
    objects = [*inputs.objects, *named.objects]
    done = tuple(RunResult(path, place, objects) for path in found)
    return RunsResult(done, place, own.name, result.failed, tuple(files))


def demo(*, out: StrPath | None = None, quiet: bool = False, **settings: Any) -> RunsResult:
    """Compare four methods on digits, each with the learning rate that suits it: `signfade demo`."""
    with demo_file() as file:
        own = read_inputs(file, settings).settings
    folder = None if out is None else Path(out) / folder_name(own.name)
    return compare(config=own, folder=folder, quiet=quiet)


def demo_file() -> AbstractContextManager[Path]:
    """Return the settings file of the demo, for as long as the context lasts."""
    from importlib.resources import as_file, files

    return as_file(files("signfade.experiments") / "demo.toml")


def sweep(
    config: Config | Sweep = None,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    runs: Sequence[Mapping[str, Any]] | None = None,
    seeds: int | Sequence[int] | None = None,
    engine: str = "process",
    jobs: int | None = None,
    address: str | None = None,
    out: StrPath | None = None,
    quiet: bool = False,
    **settings: Any,
) -> RunsResult:
    """Try many settings and seeds, on worker processes or Ray: `signfade sweep`.

    Args:
        config: A sweep file or a config file, a dict of settings, or the plan of a sweep.
        grid: Settings to try, dotted, each with its values: `{"server.learning_rate": [0.1, 0.3]}`.
        runs: Settings to try together, each at every point of the grid.
        seeds: How many, or a list of them.
        engine: `process`, or `ray` with the `address` of its cluster.
        jobs: Runs at a time; all cores by default.
        address: Of the Ray cluster.
        out: Keep the runs in the folder `out/name-sweep`, with one table of all results.
        quiet: Show no progress.
        settings: Settings that all runs share.

    A plan, as `signfade.experiments.sweeps` makes it, has its folders already.

    Example:
        >>> found = sweep(grid={"cell.snr_db": [0, 20]}, data="gaussian", method="sbfl", rounds=2, jobs=1,
        ...     quiet=True)
        >>> list(found.results["cell.snr_db"])
        [0.0, 20.0]
    """
    from signfade.experiments.results import gather, write_results
    from signfade.experiments.stopping import Interrupted
    from signfade.experiments.sweeps import Sweep

    place = Place(out)
    objects: list[Callable[..., Any]] = []
    if isinstance(config, Sweep):
        plan = config
    else:
        own = {"grid": grid, "runs": runs, "seeds": list(seeds) if isinstance(seeds, Sequence) else seeds}
        plan, objects = _plan_sweep(config, own, str(place.path), settings)
    place.path = plan.folder
    planned = [one.planned for one in plan.runs]
    do = _engine(planned, engine, jobs, address)
    for one in {repr(one.settings.data): one.settings for one in planned}.values():
        fetch_data(one)
    try:
        with Progress(
            [one.title for one in plan.runs], [one.settings.rounds for one in planned], quiet=quiet
        ) as progress:
            outcome = do(planned, jobs, on_event=progress.event)
    except Interrupted:
        write_results(gather(plan), plan.folder)
        raise
    files = write_results(gather(plan, outcome.failed), plan.folder)
    done = tuple(RunResult(folder, place, objects) for folder in outcome.finished)
    return RunsResult(done, place, plan.name, outcome.failed, tuple(files))


def tune(
    methods: Sequence[Any] = ("signsgd", "sbfl", "best", "ideal"),
    config: Config = None,
    *,
    rates: Sequence[float] | None = None,
    momenta: Sequence[float] | None = None,
    device_rates: Sequence[float] = (),
    seeds: int = 3,
    finalists: int = 3,
    target: float | None = None,
    jobs: int | None = None,
    folder: StrPath | None = None,
    out: StrPath | None = None,
    quiet: bool = False,
    **settings: Any,
) -> TuneResult:
    """Find the learning rate and momentum that suit each method best: `signfade tune`.

    All methods get the same grid, seeds and score: the accuracy over the last six evaluations, or the bits to
    `target`.

    Args:
        methods: As for `compare`.
        config: A TOML file, or a dict of settings.
        rates: Learning rates of the server to try.
        momenta: Momenta of the server to try.
        device_rates: Learning rates of the devices to try; by default only the config's.
        seeds: Seeds to tune on, from 100 on.
        finalists: Points of each method that go on from the first seed to the others.
        target: A test accuracy; the fewest bits to it win.
        jobs: Runs at a time; all cores by default.
        folder: Where to keep the runs, with tuned.toml for `compare`.
        out: Keep them in the folder `out/name-tune` instead.
        quiet: Show no progress.
        settings: Settings that all methods share.
    """
    inputs = read_inputs(config, settings)
    named, names = read_methods(inputs.settings, dict.fromkeys(methods))
    from signfade.experiments import tuning
    from signfade.experiments.comparisons import unused_settings

    own = named.settings
    grid = (tuple(rates or tuning.RATES), tuple(momenta or tuning.MOMENTA), tuple(device_rates))
    protocol = tuning.Protocol(*grid, seeds, finalists, target)
    place = _place(f"{own.name}-tune", folder, out)
    noted: list[str] = []

    def do(runs: Sequence[PlannedRun]) -> Outcome:
        if not noted and not quiet:
            noted.extend(unused_settings(own, runs) or [""])
            for text in filter(None, noted):
                print_note(text)
        for one in {repr(one.settings.data): one.settings for one in runs}.values():
            fetch_data(one)
        titles = [tuning.title(one) for one in runs]
        with Progress(titles, [one.settings.rounds for one in runs], quiet=quiet) as progress:
            return _engine(runs, "process", jobs)(runs, jobs, on_event=progress.event)

    trials = tuning.tune(own, names, protocol, place.path, do)
    files = tuning.write_tuned(trials, own, protocol, place.path)
    return TuneResult(trials, protocol, place, files)


def deploy(
    config: Config = None,
    *,
    devices: int | None = None,
    tls: bool = False,
    auth: bool = False,
    timeout: float = 120.0,
    quorum: float = 1.0,
    deadline: float | None = None,
    folder: StrPath | None = None,
    out: StrPath | None = None,
    resume: bool = False,
    force: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> RunResult:
    """Train on real processes over Flower: `signfade deploy`.

    Args:
        config: A TOML file, or a dict of settings.
        devices: SuperNodes to start; the setting `data.devices`.
        tls: Encrypt connections, by certificates made now.
        auth: Let in only SuperNodes whose keys, made now, are known; turns `tls` on.
        timeout: Seconds a round waits at most.
        quorum: Share of replies that completes a round.
        deadline: Seconds a round that has its quorum waits for the rest; half as long again by default.
        folder: Where to keep the run; by default it goes when the result does.
        out: Keep it in the folder `out/name-deploy` instead.
        resume: Continue the run that is in the folder, if it was stopped or has fewer rounds.
        force: Move a run that is in the folder aside.
        quiet: Show no progress.
        settings: Settings on top of `config`.
    """
    own = read_inputs(config, settings | ({} if devices is None else {"data.devices": devices})).settings
    _refuse_objects([own], "deploy")
    try:
        from signfade.integrations.flower.deployment import deploy as start
        from signfade.integrations.flower.deployment import deployed_settings
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"deploy needs Flower, which is not here ({error}); in the checkout: pip install -e '.[flower]'"
        ) from error
    own = deployed_settings(own)
    place = _place(f"{own.name}-deploy", folder, out)
    fetch_data(own)
    with Progress([own.method_label], [own.rounds], quiet=quiet) as progress:
        options: dict[str, Any] = {"tls": tls, "auth": auth, "timeout": timeout, "quorum": quorum}
        options |= {"deadline": deadline, "resume": resume, "force": force}
        ended = start(own, place.path, on_round=progress.round, on_note=progress.note, **options)
    return RunResult(place.path, place, ended=ended)


def link(
    config: Config = None,
    *,
    weights: int | None = None,
    correlation: float = 0.0,
    target_error: float = 0.1,
    **settings: Any,
) -> LinkStudy:
    """Study the cell of a run without training and without data: `signfade link`.

    The result has the tables of docs/link.md in `tables`, and a figure, `plot()`.

    Args:
        config: As in `run`.
        weights: Number of weights of the model, where the settings alone do not tell it.
        correlation: Between any two devices' gradients, for the limit.
        target_error: Share of wrong bits, and of lost codewords, that a link may have.
        settings: As in `run`.

    Example:
        >>> study = link(cell={"snr_db": 10.0}, data={"devices": 2})
        >>> [round(float(row["ber"]), 4) for row in study.tables.tables["devices"].rows]
        [0.0975, 0.0975]
    """
    from signfade.experiments.link_study import study_link

    options: dict[str, Any] = {"correlation": correlation, "target_error": target_error}
    return study_link(read_inputs(config, settings).settings, weights=weights, **options)


def predict_errors(
    snr_db: ArrayLike, dial: Dial | None = None, *, family: Family = "gaussian", fading: Fading = "none"
) -> Prediction:
    """Predict the error of an estimate at SNRs `[S]`, and how far it is above the limit: `signfade theory`.

    Args:
        snr_db: SNRs in dB, `[S]`.
        dial: Several devices and rates in place of one device at one bit per weight.
        family: Prior of a coordinate.
        fading: What to average over.

    Example:
        >>> rows = predict_errors([0, 10]).rows
        >>> rows["sbfl"].round(3).tolist()
        [0.65, 0.365]
    """
    import numpy as np

    from signfade.experiments.theory_table import predict

    return predict(np.asarray(snr_db, dtype=np.float64), dial, family=family, fading=fading)


def load(folder: StrPath) -> RunResult | RunsResult:
    """Read a run folder, or a folder of run folders, finished or not."""
    from signfade.experiments.results import find_runs

    path, place = Path(folder), Place(folder)
    found = find_runs([path])
    if found == [path]:
        return RunResult(path, place)
    return RunsResult(tuple(RunResult(one, place) for one in found), place, path.name)


def report(folders: StrPath | Iterable[StrPath], output: StrPath = "report.html") -> Path:
    """Write one HTML page about the runs in folders, finished or not: `signfade report`."""
    from signfade.experiments.html_report import write_report

    return write_report(_paths(folders), output)


def export(
    folders: StrPath | Iterable[StrPath], *, csv: StrPath | None = None, parquet: StrPath | None = None
) -> list[Path]:
    """Write the metrics of the runs in folders as one table, one row per run and round: `signfade export`."""
    from signfade.experiments.export import export_metrics

    files = {"csv": None if csv is None else Path(csv), "parquet": None if parquet is None else Path(parquet)}
    return export_metrics(_paths(folders), **files)


def _paths(folders: StrPath | Iterable[StrPath]) -> list[Path]:
    return [Path(one) for one in ([folders] if isinstance(folders, str | os.PathLike) else folders)]


def config(config: Config = None, **settings: Any) -> str:
    """Return all settings and what they mean, as TOML: `signfade config`."""
    from signfade.experiments.toml import to_toml

    return to_toml(read_inputs(config, settings).settings, comments=True)


def reproduce(
    names: Sequence[str],
    *,
    out: StrPath | None = None,
    docs: StrPath | None = None,
    seeds: int | None = None,
    rounds: int | None = None,
    jobs: int | None = None,
    quick: bool = False,
    render: bool = False,
    quiet: bool = False,
) -> tuple[list[Path], dict[Path, str]]:
    """Run the studies behind the docs: `signfade reproduce`.

    Args:
        names: Studies, tables or figures, or `all`.
        out: Folder for runs and pages.
        docs: Folder of the docs whose tables and figures to update.
        seeds: Seeds of everything.
        rounds: Rounds, or at most so many.
        jobs: Runs at a time; all cores by default.
        quick: Small data, few rounds, one seed.
        render: Only write pages, from what is finished.
        quiet: Show no progress.

    Returns:
        The pages and figures that were written, and why runs failed, by folder.
    """
    from signfade.experiments.config import resolve
    from signfade.experiments.studies import catalogue, records
    from signfade.experiments.studies.runner import Runner, estimate_seconds
    from signfade.experiments.workers import run_pool
    from signfade.kernels.threads import available_threads

    if docs is not None and (quick or seeds is not None or rounds is not None):
        raise ValueError("docs holds the full studies; it does not go with quick, seeds or rounds")
    scale = (records.QUICK if quick else records.FULL).changed(seeds, rounds)
    folder = Path(out or ("reproduction-quick" if quick else "reproduction"))
    parts = catalogue.choose(list(names))
    runner, workers = Runner(folder, scale, None if docs is None else Path(docs)), jobs or available_threads()
    failed: dict[Path, str] = {}
    if not render:
        if any(
            "data" in one.depends for part in parts for one in part.members
        ):  # measured here, not in a run
            fetch_data(resolve({"data.name": scale.data}))

        def execute(runs: list[PlannedRun]) -> dict[Path, str]:
            for one in {one.settings.data.name: one for one in runs}.values():
                fetch_data(one.settings)
            titles = [one.folder.name for one in runs]
            each = [one.settings.rounds for one in runs]
            seconds = [max(estimate_seconds([one.settings], runner.records), 1e-3) for one in runs]
            with Progress(titles, each, work=seconds, quiet=quiet) as progress:
                return run_pool.run_all(runs, workers, on_event=progress.event).failed

        failed = runner.run(parts, execute, print_note)
    written = runner.write(catalogue.STUDIES, parts)
    return [*written, *(runner.write_docs(catalogue.STUDIES) if docs else [])], failed


def fetch_data(settings: RunSettings) -> None:
    """Fetch the data of a run if it is not on this machine, and show the progress."""
    from signfade.data import DATASETS, cache_folder

    source = DATASETS.built_in(settings.data.name)
    if source is None or source.fetch is None or source.where is None or settings.data.folder is not None:
        return
    if source.where(cache_folder()) is None:
        with Downloads() as downloads:
            source.fetch(None, progress=downloads.progress, note=downloads.note)


def _place(name: str, folder: StrPath | None, out: StrPath | None) -> Place:
    """A kept folder where `folder` or `out` names one, else a temporary one."""
    if folder is not None and out is not None:
        raise ConfigError("give folder, the run's own, or out, in which it is made; not both")
    return Place(folder if out is None else Path(out) / folder_name(name))


def _refuse_objects(settings: Iterable[RunSettings], option: str, *, data: bool = True) -> None:
    """Raise if other processes would have to know an object of this one."""
    for name in objects_in(settings, data=data):
        raise ConfigError(
            f"{option} starts other processes, which do not know {name!r}; put it into a module or a file "
            "and name it as package.module:function or file.py:function"
        )


def _engine(runs: Sequence[PlannedRun], engine: str, jobs: int | None, address: str | None = None) -> RunAll:
    """What does the runs: this process where objects ask for it, worker processes, or Ray."""
    from signfade.experiments.comparisons import run_in_turn
    from signfade.experiments.workers.run_pool import choose_engine

    settings = [one.settings for one in runs]
    if engine == "process" and jobs in (None, 1) and objects_in(settings):
        return run_in_turn
    _refuse_objects(settings, "jobs" if engine == "process" else "engine", data=engine != "process")
    return choose_engine(engine, address)


def _plan_sweep(
    config: Config, own: Mapping[str, Any], out: str, given: Mapping[str, Any]
) -> tuple[Sweep, list[Callable[..., Any]]]:
    from signfade.experiments.sweeps import plan_sweep, read_sweep

    objects: list[Callable[..., Any]] = []
    layer = spell_out(tables(given, objects))
    named = {key: value for key, value in own.items() if value is not None}
    for key in named.keys() & {"grid", "runs"}:
        many = isinstance(named[key], Mapping)
        rows = [spell_out(tables(one, objects)) for one in ([named[key]] if many else named[key])]
        named[key] = rows[0] if many else rows
    if isinstance(config, str | os.PathLike):
        return read_sweep(Path(config), layer, out, **named), objects
    if isinstance(config, RunSettings):
        raise ConfigError("sweep takes settings as a file, a dict or keywords; got checked settings")
    return plan_sweep(named, base=spell_out(tables(config or {}, objects)), given=layer, out=out), objects
