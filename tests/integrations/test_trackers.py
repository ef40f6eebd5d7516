"""A tracker is told every round once, never changes a result and never breaks a run."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from signfade.experiments import tracking, training
from signfade.experiments.config import ConfigError, load
from signfade.experiments.folder import RunFolder
from signfade.experiments.metrics import numbers_of
from signfade.experiments.training import Interrupted, train
from signfade.settings import RunSettings

ROUNDS = 6
NAMES = ["tensorboard", "mlflow", "wandb"]
Points = dict[str, list[tuple[int, float]]]
TINY = ("data.name=gaussian", "data.size=64", "data.devices=3", "checkpoint_every=4")


def tiny(out: Path, *changes: str, rounds: int = ROUNDS) -> RunSettings:
    return load(None, [*TINY, f"rounds={rounds}", *changes]).model_copy(update={"out": str(out)})


def read_tensorboard(out: Path) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [file] = (out / "run" / "tensorboard").iterdir()
    events = EventAccumulator(str(file), size_guidance={"scalars": 0}, purge_orphaned_data=False)
    events.Reload()
    return {key: [(e.step, e.value) for e in events.Scalars(key)] for key in events.Tags()["scalars"]}


def read_mlflow(out: Path) -> Points:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(out / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("run")
    [run] = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status, run.data.params["data.devices"]) == (
        "best, seed 0",
        "FINISHED",
        "3",
    )
    history = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
    del history["round"]  # ours, to know where to go on
    return {key: [(point.step, point.value) for point in points] for key, points in history.items()}


def read_wandb(out: Path) -> Points:
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    [file] = (out / "run" / "wandb").glob("offline-run-*/*.wandb")
    store, points = DataStore(), Points()
    store.open_for_scan(str(file))
    while (data := store.scan_data()) is not None:
        record = Record()
        record.ParseFromString(data)
        items = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
        for key, value in items.items():
            if not key.startswith("_"):  # W&B's own
                points.setdefault(key, []).append((record.history.step.num, float(value)))
    return points


READERS = {"tensorboard": read_tensorboard, "mlflow": read_mlflow, "wandb": read_wandb}


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip("the extra tracking is not installed")
    return str(request.param)


def stop_at(round: int) -> Any:
    return lambda record: os.kill(os.getpid(), signal.SIGINT) if record["round"] == round else None


@pytest.mark.filterwarnings("ignore")  # of the trackers' own packages
def test_stopped_killed_and_extended_it_has_each_point_once(tmp_path: Path, name: str) -> None:
    # MLflow cannot take back that the old last round was evaluated: there it is evaluated anyway
    every = "eval.every=3" if name == "mlflow" else "eval.every=4"
    train(tiny(tmp_path / "plain", every, rounds=ROUNDS + 2), tmp_path / "plain" / "run")
    out, folder = tmp_path / "out", tmp_path / "out" / "run"
    tracked = [f"track={name}", every]
    with pytest.raises(Interrupted):
        train(tiny(out, *tracked), folder, on_round=stop_at(5))
    max((folder / "checkpoints").iterdir()).unlink()  # as if killed before: round 5 is computed again
    train(tiny(out, *tracked), folder, resume=True)
    train(tiny(out, *tracked, rounds=ROUNDS + 2), folder, resume=True)

    records = RunFolder(folder).read_metrics()
    plain = RunFolder(tmp_path / "plain" / "run").read_metrics()
    assert [r | {"seconds": 0} for r in records] == [r | {"seconds": 0} for r in plain]
    points = READERS[name](out)
    expected: Points = {}
    for record in records:
        for key, value in numbers_of(record).items():
            expected.setdefault(key, []).append((record["round"], value))
    assert points.keys() == expected.keys()
    for key, series in expected.items():
        again = points[key]
        if key == "seconds":  # of the first time that a round was computed
            again = [(step, value) for (step, _), (_, value) in zip(again, series, strict=True)]
        assert again == [(step, pytest.approx(value, rel=1e-6)) for step, value in series], key  # float32


def test_a_tracker_that_fails_is_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        last = 0

        def log(self, round: int, numbers: dict[str, float]) -> None:
            raise OSError("no space left")

    class Module:
        @staticmethod
        def open_tracker(*arguments: Any) -> Broken:
            return Broken()

    monkeypatch.setattr(training, "check_tracker", lambda settings: None)
    monkeypatch.setattr(tracking.importlib, "import_module", lambda name: Module)
    notes: list[str] = []
    summary = train(tiny(tmp_path, "track=mlflow"), tmp_path / "run", on_note=notes.append)
    assert summary["rounds"] == ROUNDS
    assert notes == ["mlflow failed (no space left): the run goes on, and its metrics are in metrics.jsonl"]


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_package_is_one_sentence_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    with pytest.raises(ConfigError, match=rf"^track = \"{name}\" needs .* -e '\.\[tracking\]'$"):
        train(tiny(tmp_path, f"track={name}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
