"""Runs in Weights & Biases: offline, in the run's own folder, unless WANDB_MODE says otherwise."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from signfade.experiments.files import write_atomically
from signfade.experiments.tracking import Ending, Tracker
from signfade.settings import RunSettings

__all__ = ["open_tracker"]


class _WandB:
    """A run of W&B; `last` is the last round that it has, 0 offline, where files are written anew."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self.last = 0 if run.offline else max(0, run.step - 1)

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Write one point per number."""
        self._run.log(dict(numbers), step=round)

    def close(self, ending: Ending) -> None:
        """Write what is left; W&B knows finished runs and failed ones."""
        self._run.finish(exit_code=0 if ending == "finished" else 1)


def open_tracker(settings: RunSettings, folder: Path, parameters: Mapping[str, str]) -> Tracker:
    """Return the tracker of the run in `folder`; `wandb sync folder/wandb/offline-run-*` uploads it later."""
    import wandb

    mode = os.environ.get("WANDB_MODE", "offline")
    if mode == "offline":
        shutil.rmtree(folder / "wandb", ignore_errors=True)
    file = folder / "wandb-run"  # a continued run is the same run
    if not file.exists():
        write_atomically(file, f"{uuid.uuid4().hex[:8]}\n".encode())
    run = wandb.init(
        project=settings.name,
        name=f"{settings.method_label}, seed {settings.seed}",
        id=file.read_text().strip(),
        resume="allow" if mode == "online" else None,
        mode=mode,  # type: ignore[arg-type]
        dir=folder,
        config=dict(parameters),
        settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True),
    )
    return _WandB(run)
