"""Runs followed by a tracker, such as TensorBoard: it is told every round once, and can never break a run.

metrics.jsonl remains the record of a run. A tracker is a copy of it, made while the run goes on, and brought
up to date from it when a run is continued.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from signfade.experiments.config import ConfigError, deciding, flatten
from signfade.experiments.folder import RunFolder
from signfade.experiments.metrics import numbers_of
from signfade.settings import RunSettings

__all__ = ["Ending", "Tracker", "Tracking", "check_tracker"]

Ending = Literal["finished", "failed", "stopped"]
# What `track` can name: the module that has to be there, and ours, whose `open_tracker` makes the tracker.
_TRACKERS = {
    "tensorboard": ("tensorboard", "signfade.integrations.tensorboard_tracker"),
    "mlflow": ("mlflow", "signfade.integrations.mlflow_tracker"),
    "wandb": ("wandb", "signfade.integrations.wandb_tracker"),
}


class Tracker(Protocol):
    """What a tracker must do; it knows the rounds up to `last` already."""

    last: int

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Take the numbers of the next round."""

    def close(self, ending: Ending) -> None:
        """Write what is left; `ending` says how the run ended, for now."""


def check_tracker(settings: RunSettings) -> None:
    """Raise a `ConfigError` if the package of the run's tracker is not installed."""
    if settings.track is not None and importlib.util.find_spec(_TRACKERS[settings.track][0]) is None:
        raise ConfigError(
            f'track = "{settings.track}" needs a package that is not here; in the checkout: '
            "pip install -e '.[tracking]'"
        )


class Tracking:
    """The tracker of a run, or none; its first error is noted and ends the tracking, not the run.

    Args:
        settings: of the run.
        run: its folder.
        records: the rounds so far, of which the tracker gets those that it does not know.
        note: called with what a person should know.
    """

    def __init__(
        self,
        settings: RunSettings,
        run: RunFolder,
        records: Sequence[Mapping[str, Any]],
        note: Callable[[str], None],
    ) -> None:
        self._name, self._note = settings.track, note
        self._tracker: Tracker | None = None
        if settings.track is not None:
            self._guarded(lambda: self._open(settings, run))
        for record in records:
            self.log(record)

    def _open(self, settings: RunSettings, run: RunFolder) -> None:
        module = importlib.import_module(_TRACKERS[settings.track or ""][1])
        parameters = {key: str(value) for key, value in deciding(flatten(settings.model_dump())).items()}
        self._tracker = module.open_tracker(settings, run.path, parameters)

    def log(self, record: Mapping[str, Any]) -> None:
        """Hand a round to the tracker, unless it has it."""
        tracker, round = self._tracker, int(record["round"])
        if tracker is not None and round > tracker.last:
            self._guarded(lambda: tracker.log(round, numbers_of(record)))
            tracker.last = round

    def close(self, ending: Ending) -> None:
        """Close the tracker."""
        if (tracker := self._tracker) is not None:
            self._guarded(lambda: tracker.close(ending))

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # a full disk, a server that has gone, a bug of the tracker
            self._tracker = None
            said = " ".join(str(error).split()) or type(error).__name__
            self._note(f"{self._name} failed ({said}): the run goes on, and its metrics are in metrics.jsonl")
