"""The front door from Python: the same runs as the command line's, with objects in place of names."""

from __future__ import annotations

import gc
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from torch import Tensor, nn

import signfade as sf
from signfade import api
from signfade.cli.entry import app
from signfade.cli.entry import run as command
from signfade.data import Dataset
from signfade.data import load as load_data
from signfade.experiments.config import ConfigError
from signfade.experiments.files import FolderError
from signfade.simulation import Received

TINY: dict[str, Any] = {"rounds": 3, "eval.every": 2, "model": "linear", "quiet": True}


def numbers(run: Any) -> list[dict[str, Any]]:
    return [record | {"seconds": 0} for record in run._run.metrics]


def average(received: Received) -> Tensor:
    """A rule that can be imported."""
    return received.y.mean(dim=0)


def test_every_command_has_its_call() -> None:
    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    calls = {"theory": "predict_errors"}
    assert {calls.get(name, name) for name in commands - {"data"}} <= set(api.__all__)
    assert set(api.__all__) - {"RunResult", "RunsResult", "TuneResult"} <= set(sf.__all__)
    assert all(hasattr(sf, name) for name in sf.__all__)


def test_a_call_and_the_command_give_the_same_numbers(tmp_path: Path) -> None:
    run = sf.run(data="digits", method="rotated-sbfl", seed=3, **TINY)
    sets = ["rounds=3", "eval.every=2", "model.name=linear", "seed=3", "method.preset=rotated-sbfl"]
    arguments = [word for one in sets for word in ("--set", one)]
    assert command(["run", *arguments, "--out", str(tmp_path)]) == 0
    again = sf.load(tmp_path / "run")
    assert numbers(run) == numbers(again)
    assert run.settings == again.settings.model_copy(update={"out": run.settings.out})


def test_a_run_has_metrics_a_model_and_a_report_and_leaves_nothing(tmp_path: Path) -> None:
    run = sf.run(data="digits", **TINY)
    assert run.metrics["round"].tolist() == [1, 2, 3]
    assert np.isnan(run.metrics["test_accuracy"][0])
    digits = load_data("digits")
    right = (run.model(digits.test_x).argmax(dim=1) == digits.test_y).double().mean().item()
    assert right == pytest.approx(run.summary["last_accuracy"], abs=0.5 / len(digits.test_y))
    assert run.report(tmp_path / "page.html").read_text().startswith("<!")
    run.plot(tmp_path / "curves.svg")
    assert {path.name for path in tmp_path.iterdir()} == {"page.html", "curves.svg"}
    kept, path = run.keep(tmp_path / "kept"), run.path
    assert (run.folder, kept.folder, path.exists()) == (None, tmp_path / "kept", True)
    del run
    gc.collect()
    assert not path.exists()
    assert len(numbers(kept)) == 3


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"server": {"learning_rat": 1}}, "unknown key 'server.learning_rat'; the nearest known one is"),
        ({"rounds": 0}, "rounds must be greater than or equal to 1; got 0"),
        ({"method": "bets"}, "unknown method 'bets'; the nearest known one is 'best'"),
        ({"model": 3.5}, "model.name must be a string; got 3.5"),
        ({"data": {"batch": "many"}}, "data.batch must be an integer or"),
    ],
)
def test_a_mistake_gets_the_sentence_of_the_command_line(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sf.run(**given)
    assert str(caught.value).startswith(sentence)


def test_keywords_go_on_top_of_a_file_and_a_method_replaces_its_preset(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("rounds = 9\n[method]\npreset = 'low-rate'\nside_bits = 6\n[server]\nmomentum = 0.25\n")
    read = api.inputs.read_inputs

    settings = read(file, {"server": {"learning_rate": np.float64(0.7)}, "eval.at": (1, 2)}).settings
    assert (settings.rounds, settings.server.learning_rate, settings.eval.at) == (9, 0.7, [1, 2])
    assert (settings.server.momentum, settings.method.bits_per_weight) == (0.25, 0.01)
    settings = read(file, {"method": "signsgd"}).settings
    assert (settings.method_label, settings.method.bits_per_weight) == ("signsgd", 1)
    assert (settings.method.side_bits, settings.server.momentum) == (6, 0.25)  # given beside the preset
    low = read(None, {"method": "low-rate", "server.learning_rate": 0.9}).settings
    assert (low.server.learning_rate, low.server.momentum) == (0.9, 0.5)


def test_objects_in_place_of_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digits = load_data("digits")
    shift = 0.5
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def shifted(received: Received) -> Tensor:
        return received.y.mean(dim=0) + shift

    by_name = sf.run(data="digits", **TINY)
    assert numbers(sf.run(data=digits, **TINY)) == numbers(by_name)

    options: dict[str, Any] = TINY | {"data": digits, "model": module, "method": shifted}
    home = tmp_path / "own"
    run = sf.run(folder=home, **options)
    first = (home / "config.toml").read_text().splitlines()[0]
    assert first.startswith("# Handed over as Python objects")
    assert run.settings.method.aggregator.startswith("object:shifted-")
    assert run.summary["method"] == "shifted"
    before = module[1].weight.clone()
    assert not torch.equal(run.model[1].weight, before)
    assert torch.equal(module[1].weight, before)  # the user's own is left alone
    again = sf.run(folder=home, resume=True, **options)
    assert numbers(again) == numbers(run)

    other = Dataset(digits.train_x + 1, digits.train_y, digits.test_x, digits.test_y, 10, "digits")
    with pytest.raises(FolderError, match=r"data\.name: 'object:digits-"):
        sf.run(folder=home, **options | {"data": other})
    with pytest.raises(ConfigError, match="jobs starts other processes, which do not know 'object:shifted-"):
        sf.compare([shifted, "ideal"], jobs=2, **TINY)
    del run, again
    gc.collect()
    capsys.readouterr()
    assert command(["run", str(home / "config.toml"), "--out", str(tmp_path / "else")]) == 2
    assert "is an object that a Python program handed over" in capsys.readouterr().err


def test_there_is_no_one_model_where_devices_have_layers_of_their_own() -> None:
    run = sf.run(data="digits", rounds=2, model={"name": "mlp", "personal": ["head"]}, quiet=True)
    with pytest.raises(ValueError, match=r"every device has its own head; run\.weights has what they share"):
        _ = run.model
    assert len(run.weights) == 65 * 128


def test_a_function_that_can_be_imported_is_recorded_by_its_path() -> None:
    settings = api.inputs.read_inputs(None, {"method": load_data}).settings
    assert settings.method.aggregator == "signfade.data.dataset:load"
    own = api.inputs.read_inputs(None, {"model": lambda shape, classes: nn.Linear(1, 1)}).settings
    assert own.model.name.startswith("object:lambda-")


def test_comparisons_sweeps_and_tuning(tmp_path: Path) -> None:
    tiny: dict[str, Any] = TINY | {"data": "regression", "data.size": 20, "data.devices": 4}
    del tiny["model"]
    both = sf.compare(["ideal", average, {"method": "ideal", "server.momentum": 0.5}], seeds=2, **tiny)
    assert [group.label for group in both.groups] == ["ideal", "average", "ideal, momentum 0.5"]
    assert len(both) == 6
    assert set(both.results["server.momentum"]) == {0.0, 0.5}
    assert "average" in str(both)
    assert both._repr_html_().count("<tr>") == 4
    alone = sf.run(method="ideal", seed=1, **tiny)
    assert numbers(alone) == numbers(both[1])
    assert len(sf.compare([alone, both[0]]).groups) == 1

    found = sf.sweep(
        grid={"server.learning_rate": np.array([0.1, 0.2])}, seeds=[5], out=tmp_path, jobs=1, **tiny
    )
    assert found.folder == tmp_path / "run-sweep"
    assert (found.folder / "results.csv").exists()
    assert list(found.results["server.learning_rate"]) == [0.1, 0.2]

    tuned = sf.tune(["ideal"], rates=[0.1, 0.5], momenta=[0.0], seeds=1, jobs=1, **tiny)
    assert tuned.best.keys() == {"ideal"}
    assert len(tuned.trials["ideal"]) == 2


def test_without_pandas_there_are_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pandas" else find(name))
    metrics = sf.run(data="gaussian", **{key: value for key, value in TINY.items() if key != "model"}).metrics
    assert isinstance(metrics, dict)
    assert {type(column) for column in metrics.values()} == {np.ndarray}


def test_progress_is_shown_unless_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    sf.run(data="gaussian", rounds=2)
    assert "round 2 of 2" in capsys.readouterr().err
    sf.run(data="gaussian", rounds=2, quiet=True)
    assert capsys.readouterr() == ("", "")
