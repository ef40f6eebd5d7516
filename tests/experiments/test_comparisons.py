"""What a comparison runs: which settings a method's name stands for, and in which folders."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from signfade.api.inputs import read_inputs
from signfade.experiments.comparisons import compare, plan, unused_settings
from signfade.experiments.config import ConfigError, load, resolve
from signfade.experiments.folder import FolderError
from signfade.experiments.methods import method_settings
from signfade.experiments.style import PLACES
from signfade.experiments.training import train
from signfade.experiments.workers.job_queue import Event
from signfade.settings import PRESETS, RunSettings, method_name

ROOT = Path(__file__).parents[2]
NAMED = (
    "src/signfade/experiments/demo.toml",
    "examples/digits.toml",
    "examples/mnist.toml",
    "examples/mnist_downlink.toml",
    "examples/regression.toml",
)

TINY = {"rounds": 2, "data.name": "gaussian", "data.size": 32, "data.devices": 2}


def settings(**tables: Any) -> RunSettings:
    return resolve(TINY | tables)


def test_a_variant_is_the_file_with_its_keys_on_top() -> None:
    shared = settings(
        server={"learning_rate": 0.5, "momentum": 0.25},
        variants={"a": {"server.learning_rate": 0.1, "eval.every": 3}},
    )
    found = method_settings(shared, "a")
    assert (found.server.learning_rate, found.server.momentum, found.eval.every) == (0.1, 0.25, 3)
    assert (found.label, found.variants) == ("a", {})


def test_a_variant_wins_over_an_aggregator_of_the_same_name() -> None:
    shared = settings(variants={"signsgd": {"method.aggregator": "signsgd", "server.learning_rate": 1e-3}})
    assert method_settings(shared, "signsgd").server.learning_rate == 1e-3


def test_a_variant_can_name_itself() -> None:
    shared = settings(variants={"a": {"label": "what it is"}})
    assert method_settings(shared, "a").method_label == "what it is"


def test_a_variant_that_names_a_rule_replaces_the_preset_of_the_file() -> None:
    variants = {"rule": {"method.aggregator": "blmmse"}, "paper-rule": {"method.preset": "paper"}}
    shared = settings(method={"preset": "best", "side_bits": 4}, variants=variants)
    for name, same in (("rule", "blmmse"), ("paper-rule", "paper")):
        assert method_settings(shared, name).method == method_settings(shared, same).method
    kept = settings(method={"preset": "best"}, variants={"fast": {"server.learning_rate": 0.5}})
    assert method_settings(kept, "fast").method == kept.method


@pytest.mark.parametrize("name", ["signsgd", "sbfl", "rotated-sbfl", "best", "ideal"])
@pytest.mark.parametrize("file", [None, *NAMED], ids=str)
def test_a_name_is_the_same_method_in_every_file(file: str | None, name: str) -> None:
    """In the README's table, the demo, the examples and without a file: `sbfl` is never the rotated one."""
    found = method_settings(load(None if file is None else ROOT / file), name)
    assert method_name(found.method.model_dump()) == found.method_label == name


def test_the_readme_speaks_of_methods_by_their_names() -> None:
    table = re.findall(r"^\| `([\w-]+)`", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(table) == sorted(["signsgd", "sbfl", "rotated-sbfl", "best", "ideal"])
    assert set(table) - {"ideal"} <= set(PLACES)


def test_the_demo_has_the_steps_that_its_tuning_found() -> None:
    record = json.loads((ROOT / "docs" / "results" / "demo.json").read_text())
    for file in ("src/signfade/experiments/demo.toml", "examples/digits.toml"):
        for name, (chosen, *_) in record["trials"].items():
            server = method_settings(load(ROOT / file), name).server
            found = {"server.learning_rate": server.learning_rate, "server.momentum": server.momentum}
            assert found.items() <= chosen.items()


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_wins_over_the_file(name: str) -> None:
    shared = settings(method={"aggregator": "zero_forcing", "form": "published", "side_bits": 5})
    found = method_settings(shared, name).method
    assert {key: getattr(found, key) for key in PRESETS[name]} == PRESETS[name]
    assert found.side_bits == PRESETS[name].get("side_bits", 5)  # what the preset says nothing about stays


@pytest.mark.parametrize("name", list(PRESETS))
def test_an_aggregator_replaces_the_preset_of_the_file(name: str) -> None:
    shared = settings(method={"preset": name, "side_bits": 5})
    assert method_settings(shared, "blmmse") == method_settings(settings(method={"side_bits": 5}), "blmmse")


def test_presets_do_not_mix() -> None:
    shared = settings(method={"preset": "best"})
    assert method_settings(shared, "paper") == method_settings(settings(), "paper")


def test_your_own_rule_is_called_by_its_function(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def median(received):\n    return received.y.median(dim=0).values\n")
    found = method_settings(settings(), f"{tmp_path}/mine.py:median")
    assert found.method_label == "median"
    assert train(found, tmp_path / "run")["method"] == "median"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("sbfI", "the nearest known one is 'sbfl'"),
        ("quick", "the nearest known one is 'quicker'"),
        ("FedAvg", "it is 'ideal', with device.local_steps for FedAvg"),
        ("absent.py:rule", "no such file"),
        ("math:nothing", "has no function 'nothing'"),
    ],
)
def test_unknown_methods(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        method_settings(settings(variants={"quicker": {}}), name)


@pytest.mark.parametrize("key", ["seed", "name", "out"])
def test_a_variant_cannot_change_what_is_common(key: str) -> None:
    shared = settings(variants={"a": {key: 3 if key == "seed" else "x"}})
    with pytest.raises(ConfigError, match=rf"variants\.a sets {key}"):
        method_settings(shared, "a")


def test_a_plan_goes_seed_by_seed(tmp_path: Path) -> None:
    runs = plan(settings(seed=4), ["sbfl", "ideal"], tmp_path, seeds=2)
    assert [(run.settings.method_label, run.settings.seed) for run in runs] == [
        ("sbfl", 4),
        ("ideal", 4),
        ("sbfl", 5),
        ("ideal", 5),
    ]
    assert [run.folder.relative_to(tmp_path).as_posix() for run in runs] == [
        "sbfl/seed-4",
        "ideal/seed-4",
        "sbfl/seed-5",
        "ideal/seed-5",
    ]
    assert list(tmp_path.iterdir()) == []


def test_more_seeds_later_reuse_the_first(tmp_path: Path) -> None:
    compare(plan(settings(), ["sbfl"], tmp_path))
    events: list[Event] = []
    result = compare(plan(settings(), ["sbfl"], tmp_path, seeds=2), on_event=events.append)
    rounds = [(event.index, event.round) for event in events if event.kind == "round"]
    assert rounds == [(1, 1), (1, 2)]  # those of the second seed only
    assert [(group.label, group.seeds) for group in result.groups] == [("sbfl", 2)]


@pytest.mark.parametrize("labels", [("x", "x"), ("x y", "x/y"), ("X", "x")])
def test_two_methods_cannot_share_a_folder(labels: tuple[str, str], tmp_path: Path) -> None:
    shared = settings(variants={"a": {"label": labels[0]}, "b": {"label": labels[1]}})
    with pytest.raises(ConfigError, match="two of the methods"):
        plan(shared, ["a", "b"], tmp_path)


def test_a_folder_with_another_run_is_found_before_the_first_round(tmp_path: Path) -> None:
    compare(plan(settings(), ["ideal"], tmp_path))
    with pytest.raises(FolderError, match="another config"):
        plan(settings(rounds=3), ["sbfl", "ideal"], tmp_path)


def test_settings_that_no_method_uses_are_named(tmp_path: Path) -> None:
    shared = load(None, ["method.aggregator=blmmse", "method.side_bits=4"])
    (note,) = unused_settings(shared, plan(shared, ["best", "ideal"], tmp_path))
    assert note.startswith("method.aggregator = 'blmmse' is not used: each of the methods best, ideal ")
    assert unused_settings(shared, plan(shared, ["best", "blmmse"], tmp_path)) == []
    for plain in ([], ["method.preset=best"], ["server.momentum=0.5"]):
        assert unused_settings(load(None, plain), plan(load(None, plain), ["sbfl", "ideal"], tmp_path)) == []


def test_what_a_preset_keeps_to_itself_is_said(tmp_path: Path) -> None:
    def notes(*overrides: str, **variant: Any) -> list[str]:
        shared = load(None, overrides)
        shared = shared.model_copy(update={"variants": {"low-rate": variant} if variant else {}})
        return unused_settings(shared, plan(shared, ["best", "low-rate"], tmp_path))

    steps = "device.local_steps=10"
    (note,) = notes(steps, "method.bits_per_weight=0.1")
    assert note.startswith(
        "low-rate keeps method.bits_per_weight = 0.01, device.local_steps = 30 of its preset"
    )
    assert notes("device.local_steps=30") == notes("method.preset=low-rate") == notes() == []
    assert notes(steps, **{"method.preset": "low-rate", "device.local_steps": 10}) == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_is_wrong_names_its_run(tmp_path: Path, jobs: int) -> None:
    runs = plan(load(None, ["rounds=1", "data.devices=9999", "seed=3"]), ["ideal"], tmp_path)
    with pytest.raises(
        ValueError, match=r"^ideal, seed 3: data.split two-chunks of digits: devices must be at most"
    ):
        compare(runs, jobs)


def test_a_vote_has_a_learning_rate_of_its_own_unless_one_is_given() -> None:
    """Its rate is the length of a step in each weight: that of an estimate makes it diverge."""

    def rates(given: dict[str, Any]) -> list[float]:
        shared = resolve(given)
        return [method_settings(shared, name).server.learning_rate for name in ("signsgd", "best", "signsum")]

    assert rates({}) == rates({"method.aggregator": "signsgd"}) == [0.01, 0.6, 0.003]
    assert rates({"server.learning_rate": 0.6}) == [0.6] * 3
    assert rates({"server.learning_rate": 0.01, "method.aggregator": "signsgd"}) == [0.01] * 3
    assert rates({"server.momentum": 0.9, "method.preset": "low-rate"}) == [0.01, 0.6, 0.003]
    assert rates({"data.name": "regression"}) == [0.6] * 3  # in units of 1/L
    for settings in (resolve({"method.aggregator": "signsgd"}), resolve({})):  # again on top of settings
        read = read_inputs(settings, {"method": "signsgd", "rounds": 3}).settings
        assert read.server.learning_rate == 0.01
        assert read_inputs(read, {"method": "best"}).settings.server.learning_rate == 0.6
