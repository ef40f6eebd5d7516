"""One run from settings to summary: it can be stopped or killed anywhere and continued to the same bytes."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from signfade._text import printable
from signfade.experiments.config import to_toml
from signfade.experiments.environment import record_environment
from signfade.experiments.files import NO_FOLLOW
from signfade.experiments.folder import FolderError, RunFolder
from signfade.experiments.planned_runs import check_startable, refuse_unfinished, status_of
from signfade.experiments.stopping import Interrupted, Stop, on_stop_signal
from signfade.experiments.summary import summarise
from signfade.settings import RunSettings
from signfade.simulation.run import Experiment, RunFailed
from signfade.simulation.task import Task

__all__ = ["Interrupted", "RunFailed", "Runnable", "run_rounds", "train"]

OnRound = Callable[[dict[str, Any]], None]
OnNote = Callable[[str], None]
OnWrite = Callable[[], None]
MakeTask = Callable[[RunSettings], Task]
_MODEL = ("server.model.", "task.")  # the model in a state; elsewhere NaN may mean "not known yet"
_FORMAT = {"format": "2"}  # of a checkpoint; version 0.1 wrote none


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
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
    make_task: MakeTask | None = None,
    on_write: OnWrite | None = None,
) -> dict[str, Any]:
    """Run all rounds of a run in `folder` and return its summary.

    A run that was stopped goes on from its newest undamaged checkpoint: its metrics (`seconds` aside) and
    weights are, byte for byte, those of a run that was never stopped. A finished run is not repeated.

    Args:
        settings: the run.
        folder: its own folder; made if it is not there.
        resume: whether a run that is already there, unfinished, is continued; it is refused otherwise.
        on_round: called with the metrics of each round after they are written.
        on_note: called with sentences that a person should read.
        make_task: builds what is learned, if the data is loaded or the devices are computed elsewhere; the
            numbers are those of the settings' own task all the same.
        on_write: called before every write to the folder; what it raises ends the run there.

    Returns:
        What summary.json says.

    Raises:
        FolderError: the folder holds something else, or cannot be written.
        ValueError: settings or data that cannot be used; nothing has been written then.
        RunFailed: the run cannot go on.
        Interrupted: SIGINT or SIGTERM; the rounds so far are saved.

    Example:
        >>> import tempfile
        >>> from signfade.experiments.config import load
        >>> tiny = load(None, ["rounds=3", "data.name=gaussian", "data.size=100"])
        >>> summary = train(tiny, Path(tempfile.mkdtemp()) / "tiny")
        >>> summary["rounds"], summary["method"], summary["parameters"]
        (3, 'best', 100)
    """
    note = on_note or (lambda text: None)
    status = check_startable(settings, folder, resume)
    run = RunFolder(folder)
    if status == "finished":
        return _finished(run, note)
    stop = Stop()
    with on_stop_signal(stop.ask):
        task = None if make_task is None else make_task(settings)
        experiment = Experiment(settings, task)  # before the folder: bad settings leave no trace
        return run_rounds(
            experiment, run, stop, resume=resume, on_round=on_round, on_note=note, on_write=on_write
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
    """Continue a run from where its folder is to the end and return the summary; make the folder if needed.

    The folder is locked before its status is read, so that what another process has just done counts.

    Args:
        experiment: what is run.
        run: its folder.
        stop: asked after every round whether to stop there; without one only the end of the process does.
        resume: as in `train`.
        on_round: as in `train`.
        on_note: as in `train`.
        on_write: as in `train`.

    Raises:
        FolderError, RunFailed, Interrupted: as in `train`.
    """
    settings = experiment.settings
    run.refuse_strangers()
    with run.claimed():
        status = status_of(settings, run.path)
        if status == "finished":
            return _finished(run, on_note or (lambda text: None))
        if status == "unfinished" and not resume:
            refuse_unfinished(settings, run)
        own = settings.model_copy(update={"variants": {}})
        run.create(run.config_text() if run.exists else to_toml(own))
        return _continue(experiment, run, stop or Stop(), on_round, on_note, on_write or (lambda: None))


def _finished(run: RunFolder, note: OnNote) -> dict[str, Any]:
    summary = run.read_summary() or {}
    note(f"{run.path} is already finished")
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
    try:
        while not experiment.done and not stop.asked:
            record = experiment.advance()
            on_write()
            run.append_metrics(record)
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
    except RunFailed as error:
        _log(run, f"failed: {error}")
        raise
    except FolderError as error:  # it was writable at first: the disk is full, or the folder has gone
        raise RunFailed(str(error)) from error
    _log(run, "finished")
    return summary


def _finite(experiment: Runnable) -> dict[str, Tensor]:
    """Return the state to save; a model that is not finite must not take the place of a good one.

    Raises:
        RunFailed: The weights, the optimiser's state or the model's buffers hold NaN or infinity.
    """
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


def _log(run: RunFolder, text: str) -> None:
    """Write a line to the run's log; a log that cannot be written is no reason to stop."""
    with suppress(OSError), open(run.log_path, "a", encoding="utf-8", opener=_no_follow) as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {printable(text)}\n")


def _no_follow(path: str, flags: int) -> int:
    return os.open(path, flags | NO_FOLLOW, 0o666)
