"""The app to copy does what its files say, run without processes."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from signfade.experiments.folder import RunFolder

from .grids import CallingGrid

APP = Path(__file__).parents[3] / "examples" / "flower_app"


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Keys as Flower gives them to an app."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def test_the_app_learns_and_keeps_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(APP))
    project = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    config = flat(project["config"]) | {"folder": str(tmp_path / "run")}
    assert config["signfade.rounds"] == 10
    apps = {}
    for kind, reference in project["components"].items():
        module, name = reference.split(":")
        apps[kind] = getattr(importlib.import_module(module), name)
    contexts = [Context(1, 100 + k, {"partition-id": k}, RecordDict(), config) for k in range(2)]
    grid = CallingGrid(
        {100 + k: lambda message, k=k: apps["clientapp"](message, contexts[k]) for k in range(2)}
    )
    apps["serverapp"](grid, Context(1, 1, {}, RecordDict(), config))

    folder = RunFolder(tmp_path / "run")
    metrics = folder.read_metrics()
    assert folder.finished
    assert [(record["devices"], record["refused"], record["failed"]) for record in metrics] == [
        (2, 0, 0)
    ] * 10
    assert metrics[-1]["train_loss"] < 0.9 * metrics[0]["train_loss"]
    assert metrics[-1]["test_accuracy"] > 0.3  # chance is 0.1
    for name in [name for name in sys.modules if name.partition(".")[0] == "digits_app"]:
        del sys.modules[name]
