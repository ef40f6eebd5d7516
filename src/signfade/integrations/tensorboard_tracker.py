"""Runs in TensorBoard: event files in the folder `tensorboard` of the run's own."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path

from signfade.experiments.tracking import Ending, Tracker
from signfade.settings import RunSettings

__all__ = ["open_tracker"]


class _TensorBoard:
    """Event files cannot be corrected, so a run that is continued writes them anew: `last` is 0."""

    def __init__(self, folder: Path, parameters: Mapping[str, str]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other people's packages at their import
            from torch.utils.tensorboard import SummaryWriter
        self.last = 0
        shutil.rmtree(folder, ignore_errors=True)
        self._writer = SummaryWriter(str(folder), flush_secs=10)
        rows = "".join(f"| {key} | {value} |\n" for key, value in parameters.items())
        self._writer.add_text("settings", f"| setting | value |\n|---|---|\n{rows}")

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Write one point per number."""
        for key, value in numbers.items():
            self._writer.add_scalar(key, value, round)

    def close(self, ending: Ending) -> None:
        """Write what is left."""
        self._writer.close()


def open_tracker(settings: RunSettings, folder: Path, parameters: Mapping[str, str]) -> Tracker:
    """Return the tracker of the run in `folder`; `tensorboard --logdir OUT` shows all runs in OUT."""
    return _TensorBoard(folder / "tensorboard", parameters)
