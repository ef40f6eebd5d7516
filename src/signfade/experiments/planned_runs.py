"""A planned run: its settings, its folder, and how far it has come there."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from signfade.experiments.config import ConfigError, deciding, differences, resolve
from signfade.experiments.folder import FolderError, RunFolder
from signfade.settings import RunSettings

__all__ = [
    "PlannedRun",
    "Status",
    "check_startable",
    "folder_name",
    "refuse_unfinished",
    "run_folder",
    "status_of",
]

_LONGEST = 200  # bytes of a folder's name; most systems end at 255, and some names are made longer


Status = Literal["new", "unfinished", "finished"]


@dataclass(frozen=True)
class PlannedRun:
    """The settings of a run and its own folder."""

    settings: RunSettings
    folder: Path


def folder_name(text: str) -> str:
    """Return a name for a folder made of what people call a run or a method, no longer than systems allow.

    Example:
        >>> folder_name("rules/mine.py: sbfl"), folder_name("..")
        ('rules-mine.py-sbfl', 'run')
        >>> len(folder_name("x" * 300))
        200
    """
    name = re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "run"
    if len(name.encode()) <= _LONGEST:
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]  # names that begin alike stay apart
    return f"{name.encode()[: _LONGEST - 13].decode(errors='ignore')}-{digest}"


def run_folder(settings: RunSettings) -> Path:
    """Return the folder of a single run: its name, in the folder `out`."""
    return Path(settings.out) / folder_name(settings.name)


def status_of(settings: RunSettings, folder: Path) -> Status:
    """Return how far the run with these settings has come in `folder`; change nothing.

    Raises:
        FolderError: the folder holds a run with another config, or a damaged one.
    """
    run = RunFolder(folder)
    if not run.exists:
        return "new"
    try:
        there = resolve(deciding(run.config()))
    except ConfigError as error:
        raise FolderError(f"{folder} holds a run this version cannot read: {error}") from error
    for key, (old, new) in differences(there, settings).items():
        raise FolderError(
            f"{folder} already holds a run with another config ({key}: {old!r} there, {new!r} here); "
            "choose another name or folder, or remove this one"
        )
    return "finished" if run.finished else "unfinished"


def check_startable(settings: RunSettings, folder: Path, resume: bool) -> Status:
    """Return the status of a run, as `status_of` does, but refuse one that is unfinished and not resumed.

    Raises:
        FolderError: the folder holds something else, or this run unfinished and either another process is at
            it or `resume` is false.
    """
    status = status_of(settings, folder)
    if status == "unfinished":
        run = RunFolder(folder)
        run.check_free()
        if not resume:
            refuse_unfinished(settings, run)
    return status


def refuse_unfinished(settings: RunSettings, run: RunFolder) -> None:
    """Raise `FolderError`: the run is there, unfinished, and nobody asked to continue it."""
    stopped = f"stopped after round {run.whole_rounds()} of {settings.rounds}"
    raise FolderError(f"{run.path} holds this run, {stopped}; add --resume to continue it")
