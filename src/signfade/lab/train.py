"""One run from settings to summary: start it, stop it, kill it, and go on as if nothing had happened."""

from __future__ import annotations

import re
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Protocol

from torch import Tensor

from signfade.lab.config import ConfigError, differences, resolve, to_toml
from signfade.lab.folder import FolderError, RunFolder
from signfade.lab.summary import summarise
from signfade.learn.run import Experiment, RunFailed
from signfade.learn.task import Task
from signfade.settings import RunSettings

__all__ = [
    "Interrupted",
    "PlannedRun",
    "Playable",
    "RunFailed",
    "folder_name",
    "play",
    "run_folder",
    "standing",
    "train",
    "where_to_begin",
]

OnRound = Callable[[dict[str, Any]], None]
OnNote = Callable[[str], None]
MakeTask = Callable[[RunSettings], Task]


@dataclass(frozen=True)
class PlannedRun:
    """A run to be played: its settings and its own folder."""

    settings: RunSettings
    folder: Path


class Playable(Protocol):
    """What can be played round by round: an `Experiment`, or real devices somewhere else."""

    settings: RunSettings
    round: int
    warnings: list[str]

    @property
    def parameters(self) -> int:
        """Number of weights M."""

    @property
    def devices(self) -> int:
        """Number of devices K."""

    @property
    def done(self) -> bool:
        """Whether all rounds are played."""

    def advance(self) -> dict[str, Any]:
        """Play one round and return its record for metrics.jsonl."""

    def state(self) -> dict[str, Tensor]:
        """Return everything that a continued run needs, by name."""

    def restore(self, tensors: dict[str, Tensor], round: int) -> None:
        """Go on from what `state` returned after `round` rounds."""


class Interrupted(Exception):
    """The run was asked to stop; what it did is saved, and `--resume` goes on from there."""


class _Stop:
    """Whether somebody asked us to stop: while `patient`, the round is finished first."""

    def __init__(self) -> None:
        self.asked = False
        self.patient = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked or not self.patient:  # asked twice: do not wait for the round
            raise Interrupted("stopped at once")
        self.asked = True


@contextmanager
def _listening() -> Iterator[_Stop]:
    """Catch SIGINT and SIGTERM meanwhile; only the main thread can."""
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def folder_name(text: str) -> str:
    """Return a name for a folder made of what people call a run or a method.

    Example:
        >>> folder_name("rules/mine.py: sbfl"), folder_name("..")
        ('rules-mine.py-sbfl', 'run')
    """
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "run"


def run_folder(settings: RunSettings) -> Path:
    """Return the folder of a single run: its name, in the folder `out`."""
    return Path(settings.out) / folder_name(settings.name)


def standing(settings: RunSettings, folder: Path) -> Literal["new", "unfinished", "finished"]:
    """Return how far the run with these settings has come in `folder`; touch nothing.

    Raises:
        FolderError: the folder holds a run with another config, or a damaged one.
    """
    run = RunFolder(folder)
    if not run.config_path.exists():
        return "new"
    try:
        there = resolve(run.config())
    except ConfigError as error:
        raise FolderError(f"{folder} holds a run this version cannot read: {error}") from error
    for key, (old, new) in differences(there, settings).items():
        raise FolderError(
            f"{folder} already holds a run with another config ({key}: {old!r} there, {new!r} here); "
            "choose another name or folder, or remove this one"
        )
    return "finished" if run.finished else "unfinished"


def where_to_begin(
    settings: RunSettings, folder: Path, resume: bool
) -> Literal["new", "unfinished", "finished"]:
    """Return how far the run has come, as `standing` does, but refuse one that is unfinished and not resumed.

    Raises:
        FolderError: the folder holds something else, or this run unfinished and `resume` is false.
    """
    where = standing(settings, folder)
    if where == "unfinished" and not resume:
        done = len(RunFolder(folder).read_metrics())
        stopped = f"stopped after round {done} of {settings.rounds}"
        raise FolderError(f"{folder} holds this run, {stopped}; add --resume to continue it")
    return where


def train(
    settings: RunSettings,
    folder: Path,
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
    make_task: MakeTask | None = None,
) -> dict[str, Any]:
    """Play all rounds of a run in `folder` and return its summary.

    A run that was stopped goes on from its newest undamaged checkpoint: its metrics (`seconds` aside) and
    weights are, byte for byte, those of a run that was never stopped. A finished run is not played again.

    Args:
        settings: the run.
        folder: its own folder; made if it is not there.
        resume: whether a run that is already there, unfinished, is continued; it is refused otherwise.
        on_round: told the metrics of each round after they are written.
        on_note: told, in sentences, what a person should know.
        make_task: builds what is learned, if the data is loaded or the devices are computed elsewhere; the
            numbers are those of the settings' own task all the same.

    Returns:
        What summary.json says.

    Raises:
        FolderError: the folder holds something else, or cannot be written.
        ValueError: settings or data that cannot be used; nothing has been written then.
        RunFailed: the run cannot go on.
        Interrupted: SIGINT or SIGTERM; the rounds so far are saved.

    Example:
        >>> import tempfile
        >>> from signfade.lab.config import load
        >>> tiny = load(None, ["rounds=3", "data.name=gaussian", "data.size=100"])
        >>> summary = train(tiny, Path(tempfile.mkdtemp()) / "tiny")
        >>> summary["rounds"], summary["method"], summary["parameters"]
        (3, 'best', 100)
    """
    note = on_note or (lambda text: None)
    where = where_to_begin(settings, folder, resume)
    run = RunFolder(folder)
    if where == "finished":
        note(f"{folder} is already finished")
        return run.read_summary() or {}
    with _listening() as stop:
        task = None if make_task is None else make_task(settings)
        experiment = Experiment(settings, task)  # before the folder: bad settings leave no trace
        return play(experiment, run, stop, on_round=on_round, on_note=note)


def play(
    experiment: Playable,
    run: RunFolder,
    stop: _Stop | None = None,
    *,
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
) -> dict[str, Any]:
    """Go on from wherever the folder is, to the end, and return the summary; the folder is made if needed.

    Args:
        experiment: what is played.
        run: its folder.
        stop: asked after every round whether to stop there; without one only the end of the process does.
        on_round: as in `train`.
        on_note: as in `train`.

    Raises:
        FolderError, RunFailed, Interrupted: as in `train`.
    """
    own = experiment.settings.model_copy(update={"variants": {}})
    run.create(run.config_text() if run.config_path.exists() else to_toml(own))
    with run.claimed():
        return _continue(experiment, run, stop or _Stop(), on_round or (lambda record: None), on_note)


def _continue(
    experiment: Playable, run: RunFolder, stop: _Stop, on_round: OnRound, on_note: OnNote | None
) -> dict[str, Any]:
    settings = experiment.settings

    def note(text: str) -> None:
        _log(run, text)
        if on_note is not None:
            on_note(text)

    saved = _restore(experiment, run, note)
    _log(run, f"round {experiment.round} of {settings.rounds} is done, going on")
    stop.patient = True
    told = 0
    try:
        while not experiment.done and not stop.asked:
            record = experiment.advance()
            run.append_metrics(record)
            for text in experiment.warnings[told:]:
                note(text)
            told = len(experiment.warnings)
            if experiment.done or experiment.round % settings.checkpoint_every == 0:
                run.save_checkpoint(experiment.round, experiment.state(), {})
                saved = experiment.round
            on_round(record)
        if not experiment.done:
            if saved != experiment.round:
                run.save_checkpoint(experiment.round, experiment.state(), {})
            _log(run, f"interrupted after round {experiment.round}")
            raise Interrupted(f"stopped after round {experiment.round} of {settings.rounds}")
    except RunFailed as error:
        _log(run, f"failed: {error}")
        raise
    except FolderError as error:  # it was writable at first: the disk is full, or the folder has gone
        raise RunFailed(str(error)) from error
    summary = summarise(
        run.read_metrics(),
        name=settings.name,
        seed=settings.seed,
        method=settings.method_label,
        parameters=experiment.parameters,
        devices=experiment.devices,
    )
    run.write_summary(summary)
    _log(run, "finished")
    return summary


def _restore(experiment: Playable, run: RunFolder, note: OnNote) -> int:
    """Take the run back to its newest undamaged checkpoint; return its round, 0 for none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checkpoint = run.load_checkpoint()
    for warning in caught:
        note(str(warning.message))
    if checkpoint is None:
        run.truncate_metrics_after(0)
        return 0
    run.truncate_metrics_after(checkpoint.round)
    try:
        experiment.restore(checkpoint.tensors, checkpoint.round)
    except (KeyError, RuntimeError, ValueError) as error:
        raise FolderError(
            f"{run.path} cannot be continued: its checkpoint does not fit the model, which must have changed"
        ) from error
    return checkpoint.round


def _log(run: RunFolder, text: str) -> None:
    """Write a line to the run's log; a log that cannot be written is no reason to stop."""
    with suppress(OSError), open(run.log_path, "a", encoding="utf-8") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
