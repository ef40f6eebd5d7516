"""One run from settings to summary: it can be stopped or killed anywhere and continued to the same bytes."""

from __future__ import annotations

import hashlib
import os
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import Tensor

from signfade._text import printable
from signfade.experiments.config import ConfigError, deciding, differences, resolve
from signfade.experiments.environment import record_environment
from signfade.experiments.files import NO_FOLLOW, folder_name, move_aside
from signfade.experiments.folder import FolderError, RunFolder
from signfade.experiments.metrics import summarise
from signfade.experiments.stopping import Interrupted, Stop, on_stop_signal
from signfade.experiments.toml import config_text, user_files
from signfade.experiments.tracking import Ending, Tracking, check_tracker
from signfade.settings import RunSettings
from signfade.simulation.run import Experiment, RunFailed
from signfade.simulation.task import Task

__all__ = [
    "FileChangedError",
    "Interrupted",
    "PlannedRun",
    "RunFailed",
    "Runnable",
    "check_options",
    "check_startable",
    "open_run",
    "place_run",
    "run_folder",
    "run_rounds",
    "status_of",
    "train",
]

OnRound = Callable[[dict[str, Any]], None]
OnNote = Callable[[str], None]
OnWrite = Callable[[], None]
MakeTask = Callable[[RunSettings], Task]
Status = Literal["new", "unfinished", "finished"]
# Of a state, the model; elsewhere NaN may mean "not known yet".
_MODEL = ("server.model.", "server.average", "task.")
_FORMAT = {"format": "2"}  # of a checkpoint; version 0.1 wrote none


class FileChangedError(FolderError):
    """A run folder made with a file of the user's that has changed since."""


@dataclass(frozen=True)
class PlannedRun:
    """The settings of a run and its own folder."""

    settings: RunSettings
    folder: Path


def run_folder(settings: RunSettings) -> Path:
    """Return the folder of a single run: its name, in the folder `out`."""
    return Path(settings.out) / folder_name(settings.name)


def status_of(settings: RunSettings, folder: Path, resume: bool | None = None) -> Status:
    """Return how far the run with these settings has come in `folder`; change nothing.

    A run of fewer rounds is another run, or, with `resume`, this one unfinished. None for `resume` is where
    nobody can ask for it, so that no message names it.

    Raises `FolderError` if the folder holds a run with another config, or a damaged one, and
    `FileChangedError` if a file of the user's that the run was made with has changed since its first round.
    """
    run = RunFolder(folder)
    if not run.exists:
        return "new"
    config = run.config()
    recorded = config.pop("files") if isinstance(config.get("files"), dict) else {}
    try:
        there = resolve(deciding(config))
    except ConfigError as error:
        raise FolderError(f"{folder} holds a run this version cannot read: {error}") from error
    instead = "choose another name or folder (--name, --out), or move this one aside (--force)"
    changed = differences(there, settings)
    more = settings.rounds > there.rounds
    longer = more and resume
    if more and resume is False and [*changed] == ["rounds"]:
        instead = f"add --resume to go on to round {settings.rounds}, or {instead}"
    for key, (old, new) in changed.items():
        if key == "rounds" and longer:
            continue
        values = f"{key}: {old!r} there, {new!r} here"
        raise FolderError(f"{folder} already holds a run with another config ({values}); {instead}")
    for file, digest in user_files(settings).items():
        if recorded.get(file, digest) != digest and run.begun:
            raise FileChangedError(f"{folder} holds this run, but {file} has changed since; {instead}")
    return "finished" if run.finished and not longer else "unfinished"


def place_run(settings: RunSettings, folder: Path) -> PlannedRun:
    """Plan a run in `folder`, or in one beside it where a file of the user's has changed since."""
    try:
        status_of(settings, folder)
    except FileChangedError:
        digest = hashlib.sha256(repr(sorted(user_files(settings).items())).encode()).hexdigest()
        folder = folder.with_name(f"{folder.name}-{digest[:8]}")
        status_of(settings, folder)
    return PlannedRun(settings, folder)


def check_options(resume: bool, force: bool) -> None:
    """Raise if a run is to be continued and moved aside at once."""
    if resume and force:
        raise ConfigError("--resume continues a run and --force moves it aside: choose one of them")


def check_startable(settings: RunSettings, folder: Path, resume: bool) -> Status:
    """Return the status of a run; refuse one that another process is at, or unfinished and not resumed.

    So is one whose tracker is not installed, before anything else is looked at.
    """
    check_tracker(settings)
    status = status_of(settings, folder, resume)
    if status == "unfinished":
        run = RunFolder(folder)
        run.check_free()
        _refuse_unfinished(settings, run, resume)
    return status


def _refuse_unfinished(settings: RunSettings, run: RunFolder, resume: bool) -> None:
    """Raise unless somebody asked to continue the run, or it failed before its first round was done."""
    if run.begun and not resume:
        stopped = f"stopped after round {run.whole_rounds()} of {settings.rounds}"
        raise FolderError(f"{run.path} holds this run, {stopped}; add --resume to continue it")


def open_run(settings: RunSettings, run: RunFolder) -> None:
    """Write the config of a new run, or of one that gets more rounds; that of a run as it was asked stays."""
    if not (run.exists and run.begun):
        run.create(config_text(settings))
    elif (rounds := run.config().get("rounds")) != settings.rounds:
        run.reopen(int(rounds or 0), config_text(settings))
    else:
        run.create(run.config_text())


class Runnable(Protocol):
    """What can be run round by round: an `Experiment`, or real devices somewhere else."""

    settings: RunSettings
    warnings: list[str]

    @property
    def round(self) -> int:
        """Number of rounds done."""

    @property
    def parameters(self) -> int:
        """Number of weights M."""

    @property
    def devices(self) -> int:
        """Number of devices K."""

    @property
    def done(self) -> bool:
        """Whether all rounds are done."""

    def advance(self) -> dict[str, Any]:
        """Run one round and return its record for metrics.jsonl."""

    def state(self) -> dict[str, Tensor]:
        """Return everything that a continued run needs, by name."""

    def restore(self, tensors: dict[str, Tensor], round: int) -> None:
        """Go on from what `state` returned after `round` rounds."""


def train(
    settings: RunSettings,
    folder: Path,
    *,
    resume: bool = False,
    force: bool = False,
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
    make_task: MakeTask | None = None,
    on_write: OnWrite | None = None,
) -> dict[str, Any]:
    """Run all rounds of a run in `folder`, which is made if needed, and return what summary.json says.

    A run that was stopped, or is to have more rounds, goes on from its newest undamaged checkpoint before its
    end: its metrics (`seconds` aside) and weights are, byte for byte, those of a run that did all rounds at
    once. A finished run is not repeated.
    Raises `RunFailed` if the run cannot go on, `Interrupted` at SIGINT or SIGTERM, when the rounds so far are
    saved, and `ValueError`, before anything is written, for a folder, settings or data that cannot be used.

    Args:
        settings: the run.
        folder: its own folder.
        resume: whether a run that is already there, unfinished or of fewer rounds, is continued; it is
            refused otherwise.
        force: whether a run that is already there, whatever it is, is moved aside by `move_aside`.
        on_round: called with the metrics of each round after they are written.
        on_note: called with sentences that a person should read.
        make_task: builds what is learned, if the data is loaded or the devices are computed elsewhere; the
            numbers are those of the settings' own task all the same.
        on_write: called before every write to the folder; what it raises ends the run there.

    Example:
        >>> import tempfile
        >>> tiny = resolve({"rounds": 3, "data.name": "gaussian", "data.size": 100})
        >>> summary = train(tiny, Path(tempfile.mkdtemp()) / "tiny")
        >>> summary["rounds"], summary["method"], summary["parameters"]
        (3, 'best', 100)
    """
    check_options(resume, force)
    check_tracker(settings)
    clash: FolderError | None = None
    run = RunFolder(folder)
    try:
        if not force and check_startable(settings, folder, resume) == "finished":
            return _finished(run, on_note)
    except FolderError as error:
        clash = error
    stop = Stop()
    with on_stop_signal(stop.ask):
        task = None if make_task is None else make_task(settings)
        experiment = Experiment(settings, task)  # before the folder: bad settings leave no trace
        if clash is not None:  # only now: what is wrong with the settings would be so in any folder
            raise clash
        if force and (aside := move_aside(folder)) is not None and on_note is not None:
            on_note(f"the run in {folder} is now in {aside}")
        return run_rounds(
            experiment, run, stop, resume=resume, on_round=on_round, on_note=on_note, on_write=on_write
        )


def run_rounds(
    experiment: Runnable,
    run: RunFolder,
    stop: Stop | None = None,
    *,
    resume: bool = True,
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
    on_write: OnWrite | None = None,
) -> dict[str, Any]:
    """Continue a run from where its folder is to the end and return the summary; arguments as in `train`.

    The folder is locked before its status is read, so that what another process has just done counts. `stop`
    is asked after every round; without it only the end of the process stops the run.
    """
    settings = experiment.settings
    run.refuse_strangers()
    with run.claimed():
        status = status_of(settings, run.path, resume)
        if status == "finished":
            return _finished(run, on_note)
        if status == "unfinished":
            _refuse_unfinished(settings, run, resume)
        open_run(settings, run)
        return _continue(experiment, run, stop or Stop(), on_round, on_note, on_write or (lambda: None))


def _finished(run: RunFolder, on_note: OnNote | None) -> dict[str, Any]:
    summary = run.read_summary() or {}
    if on_note is not None:
        on_note(f"{run.path} is already finished")
    return summary


def _continue(
    experiment: Runnable,
    run: RunFolder,
    stop: Stop,
    on_round: OnRound | None,
    on_note: OnNote | None,
    on_write: OnWrite,
) -> dict[str, Any]:
    settings = experiment.settings

    def note(text: str) -> None:
        _log(run, text)
        if on_note is not None:
            on_note(text)

    def save() -> int:
        on_write()
        run.save_checkpoint(experiment.round, _finite(experiment), _FORMAT)
        return experiment.round

    on_write()
    saved = _restore(experiment, run, note)
    if (elsewhere := record_environment(run.environment_path, saved)) is not None:
        note(elsewhere)
    _log(run, f"round {experiment.round} of {settings.rounds} is done, going on")
    stop.patient = True
    noted = 0
    ending: Ending = "failed"
    tracking = Tracking(settings, run, run.read_metrics(), note)
    try:
        while not experiment.done and not stop.asked:
            record = experiment.advance()
            on_write()
            run.append_metrics(record)
            tracking.log(record)
            for text in experiment.warnings[noted:]:
                note(text)
            noted = len(experiment.warnings)
            if experiment.done or experiment.round % settings.checkpoint_every == 0:
                saved = save()
            if on_round is not None:
                on_round(record)
        if not experiment.done:
            if saved != experiment.round:
                save()
            ending = "stopped"
            _log(run, f"interrupted after round {experiment.round}")
            raise Interrupted(f"stopped after round {experiment.round} of {settings.rounds}")
        summary = summarise(
            run.read_metrics(),
            name=settings.name,
            seed=settings.seed,
            method=settings.method_label,
            parameters=experiment.parameters,
            devices=experiment.devices,
        )
        on_write()
        run.write_summary(summary)
        ending = "finished"
    except RunFailed as error:
        _log(run, *_traceback(error), f"failed: {error}")
        raise
    except FolderError as error:  # it was writable at first: the disk is full, or the folder has gone
        raise RunFailed(str(error)) from error
    finally:
        tracking.close(ending)
    _log(run, "finished")
    return summary


def _finite(experiment: Runnable) -> dict[str, Tensor]:
    """The state to save; a model that is not finite must not take the place of a good one."""
    state = experiment.state()
    for name, value in state.items():
        if name.startswith(_MODEL) and not bool(value.isfinite().all()):
            raise RunFailed(
                f"round {experiment.round}: the model has diverged, {name} is not finite; no checkpoint is "
                "written, those of earlier rounds are whole"
            )
    return state


def _restore(experiment: Runnable, run: RunFolder, note: OnNote) -> int:
    """Take the run back to the newest checkpoint to go on from; return its round, 0 for none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checkpoint = run.go_back()
    for warning in caught:
        note(str(warning.message))
    if checkpoint is None:
        return 0
    if checkpoint.metadata != _FORMAT:
        raise FolderError(
            f"{run.path} cannot be continued: its checkpoint was written by another version of signfade; "
            "run it again in another folder"
        )
    try:
        experiment.restore(checkpoint.tensors, checkpoint.round)
    except (KeyError, RuntimeError, ValueError) as error:
        raise FolderError(
            f"{run.path} cannot be continued: its checkpoint does not fit the model, which must have changed"
        ) from error
    return checkpoint.round


def _traceback(error: BaseException) -> list[str]:
    """Where the user's own code failed, line by line; nothing if it was not that (see `user_code`)."""
    cause = error.__cause__ and error.__cause__.__cause__
    return [] if cause is None else "".join(traceback.format_exception(cause, chain=False)).splitlines()


def _log(run: RunFolder, *texts: str) -> None:
    """Write lines to the run's log; a log that cannot be written is no reason to stop."""
    with suppress(OSError), open(run.log_path, "a", encoding="utf-8", opener=_no_follow) as file:
        for text in texts:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {printable(text)}\n")


def _no_follow(path: str, flags: int) -> int:
    return os.open(path, flags | NO_FOLLOW, 0o666)
