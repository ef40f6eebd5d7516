"""Runs in MLflow: in files under OUT/mlruns, or where MLFLOW_TRACKING_URI says."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from signfade import __version__
from signfade.experiments.files import write_atomically
from signfade.experiments.tracking import Ending, Tracker
from signfade.settings import RunSettings

__all__ = ["open_tracker"]

_STATUS: dict[Ending, str] = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_LONGEST = 500  # characters of a parameter that every store takes


class _MLflow:
    """A run of MLflow whose number is kept in the run folder, so that a continued run is the same one.

    A round that was computed again has the numbers that MLflow has, and is not written twice: `last` is the
    last round there, which is written to a metric `round` after all others.
    """

    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._id = client, run_id
        self.last = max((int(point.step) for point in client.get_metric_history(run_id, "round")), default=0)
        client.update_run(run_id, status="RUNNING")

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Write one point per number."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        points = {**numbers, "round": round}
        self._client.log_batch(
            self._id, [Metric(key, float(value), now, round) for key, value in points.items()]
        )

    def close(self, ending: Ending) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self._id, _STATUS[ending])


def open_tracker(settings: RunSettings, folder: Path, parameters: Mapping[str, str]) -> Tracker:
    """Return the tracker of the run in `folder`; the experiment has its name, the run is its method."""
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # since 3.x MLflow refuses plain files otherwise
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient
    store = os.environ.get("MLFLOW_TRACKING_URI") or (Path(settings.out).absolute() / "mlruns").as_uri()
    client, file = MlflowClient(tracking_uri=store), folder / "mlflow-run"
    if (known := _known(client, file)) is not None:
        return _MLflow(client, known)
    tags = {"signfade.version": __version__, "signfade.folder": str(folder.absolute())}
    name = f"{settings.method_label}, seed {settings.seed}"
    run_id = client.create_run(_experiment(client, settings.name), run_name=name, tags=tags).info.run_id
    for key, value in parameters.items():
        client.log_param(run_id, key, value[:_LONGEST])
    write_atomically(file, f"{run_id}\n".encode())
    return _MLflow(client, run_id)


def _experiment(client: Any, name: str) -> str:
    """The number of the experiment; another process may make it at the same time."""
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name))
        except Exception:
            found = client.get_experiment_by_name(name)
    return str(found.experiment_id)


def _known(client: Any, file: Path) -> str | None:
    """The number of the run that is in the file; None if there is none, or it was deleted."""
    try:
        run = client.get_run(file.read_text().strip())
    except Exception:
        return None
    return str(run.info.run_id) if run.info.lifecycle_stage == "active" else None
