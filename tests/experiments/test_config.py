"""Settings come back from TOML as they went in, and every mistake is one sentence that names the key."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from signfade.experiments.config import (
    ConfigError,
    differences,
    known_keys,
    load,
    overlay,
    parse_override,
    parse_toml,
    plain_defaults,
    resolve,
)
from signfade.experiments.methods import method_settings
from signfade.experiments.toml import to_toml, toml_value
from signfade.server import AGGREGATORS
from signfade.settings import DEFAULT_PRESET, PRESETS, RunSettings
from signfade.simulation.attacks import ATTACKS

EXAMPLES = Path(__file__).parents[2] / "examples"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


# -- what is read --------------------------------------------------------------------------------------------


def test_no_file_is_the_defaults() -> None:
    assert load(None) == RunSettings()


def test_file_then_set_then_later_set(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        'seed = 4\nrounds = 9\n[server]\nlearning_rate = 0.5\nmomentum = 0.25\n[data]\nname = "gaussian"\n',
    )
    got = load(
        path,
        ["server.learning_rate=2", "rounds=3", "rounds=5", "method.aggregator=signsgd", "cell.snr_db=-3"],
    )
    assert (got.seed, got.rounds, got.server.learning_rate, got.server.momentum) == (4, 5, 2.0, 0.25)
    assert (got.data.name, got.method.aggregator, got.cell.snr_db) == ("gaussian", "signsgd", -3.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("1e-3", 1e-3),
        ("true", True),
        ('"a b"', "a b"),
        ("a b", "a b"),
        ("[1, 2]", [1, 2]),
        ("", ""),
        ("x=y", "x=y"),
        ("1\nother = 2", "1\nother = 2"),
        ("file.py:rule", "file.py:rule"),
    ],
)
def test_values_are_toml_or_bare_words(text: str, value: Any) -> None:
    assert parse_override(f" a.b = {text}") == ("a.b", value)


def test_none_is_null_wherever_null_is_allowed() -> None:
    got = load(
        None, ["data.batch=none", "label=none", "data.folder=none", "method.preset=none", "threads=none"]
    )
    assert (got.data.batch, got.label, got.data.folder, got.method.preset, got.threads) == (None,) * 5
    assert load(None, ["name=none"]).name == "none"  # a name is never null, so the word is a name


def test_cell_none_is_perfect_links_and_a_later_key_brings_the_cell_back(tmp_path: Path) -> None:
    path = written(tmp_path, 'cell = "none"\n')
    assert load(path).cell.perfect
    assert not load(path, ["cell.snr_db=10"]).cell.perfect
    path = written(tmp_path, "[cell]\nperfect = true\n")
    assert not load(path, ["cell.snr_db=10"]).cell.perfect
    assert load(path, ["cell.snr_db=none"]).cell.perfect
    assert load(path, ["cell.snr_db=10", "cell.perfect=true"]).cell.perfect


def test_preset_wins_over_earlier_layers_but_not_over_its_own(tmp_path: Path) -> None:
    path = written(tmp_path, '[method]\naggregator = "signsgd"\nside_bits = 4\n')
    best = load(path, ["method.preset=best"]).method
    assert (best.aggregator, best.rotation, best.side_bits) == ("bfl", "shared", 4)
    for order in (1, -1):
        both = load(path, ["method.aggregator=sbfl", "method.preset=best"][::order]).method
        assert (both.aggregator, both.rotation) == ("sbfl", "shared")
    same = load(written(tmp_path, '[method]\naggregator = "signsgd"\npreset = "best"\n')).method
    assert same.aggregator == "signsgd"


def test_overlay_changes_nothing_it_was_given() -> None:
    tree = {"server": {"learning_rate": 1.0}, "method": {"aggregator": "sbfl"}}
    layer = {"server": {"learning_rate": 2.0}, "method.preset": "best"}
    overlay(tree, layer)
    assert tree == {"server": {"learning_rate": 1.0}, "method": {"aggregator": "sbfl"}}
    assert layer == {"server": {"learning_rate": 2.0}, "method.preset": "best"}


def test_variants_quoted_and_nested_are_the_same(tmp_path: Path) -> None:
    quoted = load(
        written(tmp_path, '[variants.a]\n"server.learning_rate" = 0.5\n"method.aggregator" = "bfl"\n')
    )
    nested = load(
        written(
            tmp_path, '[variants.a]\nserver.learning_rate = 0.5\n[variants.a.method]\naggregator = "bfl"\n'
        )
    )
    assert (
        quoted.variants == nested.variants == {"a": {"server.learning_rate": 0.5, "method.aggregator": "bfl"}}
    )


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "server.learning_rat = 1",
            "unknown key 'server.learning_rat'; the nearest known one is 'server.learning_rate'",
        ),
        ("aggregator = 'sbfl'", "unknown key 'aggregator'; the nearest known one is 'method.aggregator'"),
        ("sede = 1", "unknown key 'sede'; the nearest known one is 'seed'"),
        (
            "[sever]\nlearning_rate = 1",
            "unknown key 'sever.learning_rate'; the nearest known one is 'server.learning_rate'",
        ),
        ("[data.name]\nx = 1", "unknown key 'data.name.x'"),
        ("rounds = 0", "rounds must be greater than or equal to 1; got 0"),
        ("rounds = true", "rounds must be an integer; got True"),
        ("rounds = 1.5", "rounds must be an integer; got 1.5"),
        ("rounds = 2020-01-01", "rounds must be an integer; got datetime.date(2020, 1, 1)"),
        ("data.devices = '3'", "data.devices must be an integer; got '3'"),
        ("data.devices = 16777217", "data.devices must be less than or equal to 16777216; got 16777217"),
        ("data.batch = 'all'", "data.batch must be an integer or \"none\"; got 'all'"),
        ("data = 3", "data must be a table; got 3"),
        (
            'method = "best"',
            "method must be a table; got 'best'; a name goes to method.preset or method.aggregator",
        ),
        ("name = ''", "name must not be empty"),
        ("cell.perfect = 1", "cell.perfect must be true or false; got 1"),
        ("cell.radius_km = nan", "cell.radius_km must be a finite number; got nan"),
        ("cell.snr_db = 'x'", "cell.snr_db must be a number or a list of numbers or \"none\"; got 'x'"),
        ("cell.snr_db = [1, 'a']", "cell.snr_db must be a number or \"none\"; got 'a'"),
        ("cell.snr_db = [1, 2]", "cell.snr_db must have one entry for each of the 20 devices; got 2"),
        ("model.trained = '*.bias'", """model.trained must be a list of names, ["..."]; got '*.bias'"""),
        ("data.name = 'cifar'", "data.name must be one of digits, idx, mnist"),
        ("data.name = 'idx'", "data.folder must name the folder"),
        (
            "method.preset = 'x'",
            "method.preset must be one of paper, corrected, rotated-sbfl, best, low-rate; got 'x'",
        ),
        ("method.aggregator = 'vote'", "method.aggregator must be one of ideal, sbfl"),
        (
            "method.scale_low = 2.0",
            "method.scale_low is no setting any more: the range of the scalars",
        ),
        ("method.mean_limit = 1.0", "method.mean_limit is no setting any more: the range of the scalars"),
        ("server.step = 1.0", "server.step is now server.learning_rate"),
        ("[presence]\ndropout = 0.1", "presence.dropout is now availability.dropout"),
        ("[presence]\nbackoff_db = 3.0", "presence.backoff_db is now availability.backoff_db"),
        ("variants.a.server.step = 1.0", "variants.a: server.step is now server.learning_rate"),
        ("variants = 1", "variants must be tables"),
        ("variants.a = 1", "variants must be tables"),
        ("variants.a.stpe = 1", "variants.a: unknown key 'stpe'; the nearest known one is"),
        ("variants.a.rounds = 0", "variants.a: rounds must be greater than or equal to 1; got 0"),
        ("a = = 1", "is not valid TOML: Invalid value (at line 1, column 5)"),
    ],
)
def test_mistakes_in_a_file(tmp_path: Path, text: str, sentence: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    message = str(caught.value)
    assert sentence in message
    assert message.startswith(str(path))
    assert "\n" not in message


@pytest.mark.parametrize("text", ["rounds", "=3", ""])
def test_set_without_a_value(text: str) -> None:
    with pytest.raises(ConfigError, match="--set takes key=value"):
        load(None, [text])


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such config file"):
        load(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match=r"cannot read .*: Is a directory"):
        load(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(ConfigError, match="not a text file in UTF-8"):
        load(tmp_path / "latin.toml")


# -- what is written -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("comments", [False, True])
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("data.batch=none", "method.preset=best", "server.clip=3", 'label=a "b" \\ é ü'),
        ("cell=none", "method.preset=paper", "method.aggregator=signsgd"),
        ("cell.snr_db=[1,2]", "data.devices=2", "server.learning_rate=1e-17", "seed=9223372036854775807"),
    ],
)
def test_written_settings_read_back_equal(tmp_path: Path, overrides: tuple[str, ...], comments: bool) -> None:
    before = load(None, overrides)
    text = to_toml(before, comments=comments)
    assert load(written(tmp_path, text)) == before
    assert text == to_toml(before, comments=comments)


def test_every_character_reads_back_equal() -> None:
    text = "".join(map(chr, range(0x300))) + "\u2028\ufffd\U0001f4e1"
    assert parse_toml(f"a = {toml_value(text)}") == {"a": text}


def test_variants_read_back_equal() -> None:
    before = resolve(
        {"variants": {"a b": {"server.learning_rate": 0.5, "cell": {"snr_db": [1] * 20}}, "empty": {}}}
    )
    assert resolve(tomllib.loads(to_toml(before))) == before


@settings(max_examples=60, deadline=None)
@given(st.text(), st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**62), 2**62))
def test_any_value_reads_back(text: str, real: float, whole: int) -> None:
    values = [[text], [real], [whole], [True]]
    back = tomllib.loads(f"v = {toml_value(values)}")["v"]
    assert back == values
    assert [type(v[0]) for v in back] == [str, float, int, bool]


def test_commented_defaults_show_every_key_and_its_description() -> None:
    text = to_toml(RunSettings(), comments=True)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    words = " ".join(line.removeprefix("# ").strip() for line in lines)
    for key, field in known_keys().items():
        name = key.rsplit(".")[-1]
        assert field.description, key
        choices = r"(; one of [\w, -]+)?"
        assert re.search(rf"{re.escape(field.description)}{choices} {name} = ", words), key
    for name, rule in AGGREGATORS.items():
        assert f"{name}: {rule.help}" in words
    for name, attack in ATTACKS.items():
        assert f"{name}: {attack.help}" in words


# -- what matters to a result --------------------------------------------------------------------------------


def test_places_and_machines_do_not_matter() -> None:
    here = load(None, ["out=a", "threads=1", "checkpoint_every=3", "data.folder=/x"])
    assert differences(load(None), here) == {}


@pytest.mark.parametrize(
    "override",
    [
        "seed=5",
        "rounds=9",
        "server.learning_rate=0.5",
        "cell.snr_db=1",
        "method.debias=false",
        "eval.every=3",
    ],
)
def test_everything_else_does(override: str) -> None:
    assert list(differences(load(None), load(None, [override]))) == [override.split("=")[0]]


def test_the_folder_of_unknown_data_matters() -> None:
    one, other = (load(None, ["data.name=idx", f"data.folder={name}"]) for name in "ab")
    assert differences(one, other) == {"data.folder": ("a", "b")}


RUNS = [path for path in sorted(EXAMPLES.glob("*.toml")) if path.name != "sweep.toml"]  # many runs


def test_a_sweep_is_no_run() -> None:
    with pytest.raises(ConfigError, match="describes many runs; use: signfade sweep"):
        load(EXAMPLES / "sweep.toml")


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_examples_are_valid(path: Path) -> None:
    load(path)


def test_an_override_need_not_fit_variants_that_nobody_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "file.toml"
    file.write_text('[variants.vote]\n"method.aggregator" = "signsgd"\n')
    settings = load(file, ["method.error_feedback=1"])
    assert settings.method.error_feedback == 1
    assert settings.variants == {"vote": {"method.aggregator": "signsgd"}}
    with pytest.raises(ConfigError, match=r"^availability.dropout must be less than or equal to 1; got 2$"):
        load(file, ["availability.dropout=2"])
    with pytest.raises(ConfigError, match=r"method.error_feedback must be 0 with signsgd"):
        method_settings(settings, "vote")


# -- what a run does that says nothing -----------------------------------------------------------------------


def test_without_a_method_a_run_uses_the_recommended_preset() -> None:
    for run in (load(None), load(None, ["rounds=3"]), load(None, ["method.side_bits=4"])):
        assert run.method.preset == DEFAULT_PRESET
        found = {key: getattr(run.method, key) for key in PRESETS[DEFAULT_PRESET]}
        assert found == PRESETS[DEFAULT_PRESET]
        assert run.method_label == DEFAULT_PRESET


def test_a_named_rule_or_no_preset_is_that_rule_by_itself() -> None:
    for overrides in (["method.aggregator=sbfl"], ["method.preset=none"], ["method.preset=corrected"]):
        method = load(None, overrides).method
        for key in ("aggregator", "rotation", "joint", "debias", "form"):
            assert getattr(method, key) == plain_defaults()[f"method.{key}"]


def test_the_defaults_survive_their_own_file(tmp_path: Path) -> None:
    for overrides in ([], ["method.aggregator=sbfl"], ["method.preset=rotated-sbfl"]):
        before = load(None, overrides)
        assert load(written(tmp_path, to_toml(before))) == before


def test_a_method_is_called_what_it_is() -> None:
    def called(*overrides: str) -> str:
        return load(None, overrides).method_label

    assert called("method.aggregator=sbfl") == "sbfl"
    assert called("method.aggregator=sbfl", "method.rotation=shared") == "rotated-sbfl"
    assert called("method.preset=rotated-sbfl") == "rotated-sbfl"
    assert called("method.preset=best", "method.aggregator=blmmse") == "best (aggregator blmmse)"
    assert called("method.preset=best", "method.debias=false") == "best (debias false)"
    assert called("method.preset=best", "method.aggregator=ideal") == "ideal"
    assert called("method.preset=best", "label=mine") == "mine"


def test_a_protocol_fills_in_what_nobody_said() -> None:
    def read(*overrides: str) -> tuple[int, float, int | None, int]:
        found = load(None, ["protocol=cross-device", *overrides])
        assert load(tomllib.loads(to_toml(found))) == found
        return found.data.devices, found.data.participation, found.device.epochs, found.device.local_steps

    assert read() == (100, 0.1, 10, 1)
    assert read("data.devices=50", "device.local_steps=5") == (50, 0.1, None, 5)
    assert read("method.preset=low-rate") == (100, 0.1, 10, 1)  # not the preset's 30 steps besides
    assert load(None, ["method.preset=low-rate", "device.epochs=2"]).device.local_steps == 1
    with pytest.raises(ConfigError, match=r"protocol must be .*cross-device.*; got 'silo'"):
        load(None, ["protocol=silo"])
