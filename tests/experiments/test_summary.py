from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from signfade.experiments.folder import FolderError
from signfade.experiments.group import Group, Run, group_runs, settings_that_differ
from signfade.experiments.metrics import (
    FALL,
    LATE,
    SMOOTHING,
    WINDOW,
    fall_text,
    late_accuracy,
    summarise,
    trailing_mean,
)
from signfade.experiments.results import find_runs, load_run
from signfade.experiments.table import comparison, comparison_table, spread_text

ABOUT: dict[str, Any] = {"name": "n", "seed": 3, "method": "sbfl", "parameters": 10, "devices": 4}


def rounds(losses: list[float | None], accuracy: dict[int, float] | None = None) -> list[dict[str, Any]]:
    accuracy = accuracy or {}
    return [
        {
            "round": t,
            "train_loss": loss,
            "test_accuracy": accuracy.get(t),
            "uplink_bits": 40 * t,
            "seconds": 0.5,
        }
        for t, loss in enumerate(losses, start=1)
    ]


# -- summary.json --------------------------------------------------------------------------------------------


def fell(*accuracies: float) -> bool:
    metrics = rounds([1.0] * len(accuracies), dict(enumerate(accuracies, start=1)))
    return fall_text(summarise(metrics, **ABOUT)) is not None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_only_what_comes_after_the_best_counts_as_a_fall(values: list[float]) -> None:
    assert not fell(*sorted(values))  # a rise is no fall, however late and steep
    late = late_accuracy(values)
    assert late is not None
    assert min(values) - 1e-12 <= late <= max(values) + 1e-12
    assert not fell(*values, max(values) + 1e-9)  # nor is one that was made up for at the end


@given(st.lists(st.floats(0, 1), max_size=20), st.floats(0, 1))
def test_a_run_that_ends_low_for_long_has_fallen_and_one_that_ends_near_its_best_has_not(
    before: list[float], end: float
) -> None:
    best = max([*before, end])
    assert fell(*before, *[end] * (LATE + 1)) == (best - end > FALL + 1e-9) or abs(best - end - FALL) < 1e-9


def test_the_sentence_about_a_fall() -> None:
    assert late_accuracy([]) is None
    assert fall_text({}) is None
    assert fell(0.3, 0.9, 0.9, 0.5, 0.9, 0.9, 0.9)  # the mean of the last five is 0.82
    assert not fell(0.3, 0.9, 0.5, 0.9, 0.9, 0.9, 0.9, 0.9)
    text = fall_text({"best_accuracy": 0.918, "late_accuracy": 0.517})
    assert text is not None
    assert "51.7 %" in text
    assert "40.1 points below its best of 91.8 %" in text


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30), st.integers(1, 6))
def test_trailing_mean_is_the_mean_of_the_window(values: list[float], window: int) -> None:
    means = trailing_mean(values, window)
    for end, mean in enumerate(means, start=1):
        if end < window:
            assert mean is None
        else:
            assert mean == pytest.approx(sum(values[end - window : end]) / window, abs=1e-12)


def test_one_lucky_round_is_not_yet_a_loss_of_one() -> None:
    losses: list[float | None] = [3.0, 0.1, 3.0, 3.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    short = summarise(rounds(losses), **ABOUT)
    assert short["rounds_to_loss_1"] == 10  # the first whose last five are 1 each
    assert short["uplink_bits_to_loss_1"] == 400
    assert str(WINDOW - 1) in SMOOTHING


def test_a_loss_that_was_not_finite_never_counts() -> None:
    losses: list[float | None] = [0.5] * 4 + [None] + [0.5] * 4
    assert summarise(rounds(losses), **ABOUT)["rounds_to_loss_1"] is None
    assert summarise(rounds([*losses, 0.5]), **ABOUT)["rounds_to_loss_1"] == 10


def test_accuracy_counts_where_it_was_evaluated() -> None:
    metrics = rounds([1.0] * 12, {3: 0.5, 6: 0.9, 9: 0.97, 12: 0.93})
    short = summarise(metrics, **ABOUT)
    assert (short["best_accuracy"], short["last_accuracy"]) == (0.97, 0.93)
    assert (short["rounds_to_accuracy_09"], short["uplink_bits_to_accuracy_09"]) == (6, 240)
    assert summarise(rounds([1.0], {1: 0.8999}), **ABOUT)["rounds_to_accuracy_09"] is None


def test_the_keys_and_what_an_empty_run_says() -> None:
    short = summarise([], **ABOUT)
    must = {"name", "seed", "method", "rounds", "best_accuracy", "last_accuracy", "last_train_loss"}
    must |= {
        "rounds_to_loss_1",
        "rounds_to_accuracy_09",
        "uplink_bits_to_loss_1",
        "uplink_bits_to_accuracy_09",
    }
    must |= {"uplink_bits", "downlink_bits", "parameters", "devices", "seconds", "version", "smoothing"}
    assert must <= short.keys()
    assert (short["rounds"], short["best_accuracy"], short["seconds"]) == (0, None, 0)
    json.dumps(short, allow_nan=False)


def test_totals_and_divergence() -> None:
    metrics = rounds([2.0, None, None])
    metrics[1]["diverged"] = ["train_loss"]
    short = summarise(metrics, **ABOUT)
    assert (short["seconds"], short["uplink_bits"], short["diverged_at"]) == (1.5, 120, 2)
    assert (short["seed"], short["method"], short["parameters"], short["devices"]) == (3, "sbfl", 10, 4)


# -- groups --------------------------------------------------------------------------------------------------


def run(label: str = "sbfl", seed: int = 0, finished: bool = True, **settings: Any) -> Run:
    metrics = [
        {"round": t, "train_loss": float(t + seed), "uplink_bits": 10**7 * t} for t in range(1, 9 + seed)
    ]
    config = {
        "name": "n",
        "label": label,
        "seed": seed,
        "rounds": 9,
        "data": {"devices": 5},
        "method": {"aggregator": "sbfl"},
        "server": settings,
    }
    return Run(Path(f"{label}-{seed}"), "", config, metrics, {"version": "0"} if finished else None)


def test_seeds_of_one_method_are_one_group_and_a_seed_counts_once() -> None:
    groups = group_runs([run(seed=1), run("vote"), run(seed=2), run(seed=1)])
    assert [(group.label, group.seeds) for group in groups] == [("sbfl", 2), ("vote", 1)]


def test_a_series_is_mean_and_sample_deviation_where_all_seeds_have_a_value() -> None:
    (group,) = group_runs([run(seed=0), run(seed=2)])
    series = group.series("train_loss")
    assert list(series.rounds) == list(range(1, 9))  # seed 2 went on to round 10
    assert list(series.mean) == [t + 1.0 for t in range(1, 9)]
    assert series.deviation == pytest.approx([2**0.5] * 8)  # of two values 2 apart
    assert list(group.series("uplink_mbit").mean) == [2.0 * t for t in range(1, 9)]
    assert list(group.series("train_loss", window=3).mean) == [t + 1.0 for t in range(2, 8)]
    assert len(group.series("cosine").rounds) == 0


def test_other_settings_are_another_group_and_say_so() -> None:
    groups = group_runs([run(learning_rate=0.1), run(learning_rate=0.01), run("vote", learning_rate=0.1)])
    labels = ["sbfl (learning rate 0.1)", "sbfl (learning rate 0.01)", "vote"]
    assert [group.label for group in groups] == labels
    assert settings_that_differ(groups) == {"server.learning_rate": [0.1, 0.01, 0.1]}


def test_finished_and_unfinished_runs_do_not_mix() -> None:
    groups = group_runs([run(seed=1), run(seed=2, finished=False)])
    assert [group.label for group in groups] == ["sbfl", "sbfl (unfinished)"]


def test_one_deep_fade_does_not_speak_for_all_rounds() -> None:
    metrics = [{"round": t, "nmse": 0.5 if t != 7 else 1e9} for t in range(1, 12)]
    (group,) = group_runs([Run(Path("x"), "", {"seed": 1}, metrics, None)])
    assert group.values("nmse") == [0.5]


def test_label_falls_back_to_preset_and_aggregator() -> None:
    plain = Run(Path("x"), "", {"method": {"aggregator": "blmmse"}}, [], None)
    assert plain.label == "blmmse"
    preset = Run(Path("x"), "", {"method": {"aggregator": "bfl", "preset": "best"}}, [], None)
    assert preset.label == "best"
    assert Run(Path("x"), "", {}, [], None).label == "run"


def test_folders_are_found_inside_folders_each_once(runs: list[Path], tmp_path: Path) -> None:
    root = runs[0].parent
    assert find_runs([root]) == sorted(runs)
    assert find_runs([runs[3], root])[0] == runs[3]
    assert len(find_runs([runs[3], root, root / "." / runs[0].name])) == len(runs)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FolderError, match=r"holds no run: there is no config\.toml"):
        find_runs([tmp_path / "empty"])


# -- tables --------------------------------------------------------------------------------------------------


def test_spread_text() -> None:
    assert spread_text([1.0, 3.0], 2) == "2.00 ± 1.41"
    assert spread_text([5.0, 5.0], 1) == "5.0"
    assert spread_text([-0.25], 2) == "−0.25"
    assert spread_text([1.2e-7], 3) == "1.20e−07"
    assert spread_text([3.4e9], 1) == "3.40e+09"
    assert spread_text([0.0], 2) == "0.00"
    assert spread_text([665373.157], 3) == "665373"
    assert spread_text([123.456], 3) == "123.5"
    assert spread_text([0.0109], 2) == "0.011"


def columns(groups: tuple[Group, ...]) -> dict[str, list[str]]:
    words = comparison(groups)
    assert all(len(row) == len(words.headers) for row in words.rows)
    return {header: [row[j] for row in words.rows] for j, header in enumerate(words.headers)}


def test_the_table_says_what_the_runs_say(runs: list[Path]) -> None:
    groups = group_runs([load_run(path) for path in runs])
    table = columns(groups)
    assert table["method"] == ["signsgd", "sbfl", "ideal"]
    assert table["seeds"] == ["2", "2", "2"]
    last = [load_run(path).metrics[-1]["test_accuracy"] for path in runs[2:4]]
    mean, half = sum(last) / 2, abs(last[0] - last[1]) / 2**0.5
    assert table["accuracy, last (%)"][1] == f"{100 * mean:.1f} ± {100 * half:.1f}"
    assert table["rounds to 90 %"][0] == "never"
    assert table["uplink per device (Mbit)"] == ["0.97", "0.97", "30.80"]  # 200 rounds of 4810 bits or floats
    assert table["error, predicted"][0] == "–"
    assert "rounds done" not in table


def test_seeds_that_never_arrive_are_counted(runs: list[Path]) -> None:
    loaded = [load_run(path) for path in runs[2:4]]
    assert loaded[0].summary is not None
    loaded[0].summary["rounds_to_accuracy_09"] = None
    table = columns(group_runs(loaded))
    assert table["rounds to 90 %"][0].endswith("(1 of 2 seeds)")


def test_unfinished_and_regression_runs(tmp_path: Path, make_run: Any) -> None:
    paths = [make_run(tmp_path, "sbfl", 1, done=50), make_run(tmp_path, "signsgd", 1, done=0)]
    table = columns(group_runs([load_run(path) for path in paths]))
    assert table["method"] == ["sbfl (unfinished)", "signsgd (unfinished)"]
    assert table["rounds done"] == ["50/200", "0/200"]
    assert table["rounds to 90 %"] == ["not yet", "–"]
    paths = [make_run(tmp_path / "regression", "sbfl", 1, regression=True)]
    table = columns(group_runs([load_run(path) for path in paths]))
    assert "accuracy, last (%)" not in table
    assert table["excess loss, last"] == [f"{load_run(paths[0]).metrics[-1]['test_loss']:.3f}"]


def test_divergence_is_a_note(tmp_path: Path, make_run: Any) -> None:
    loaded = load_run(make_run(tmp_path, "sbfl", 7, done=3))
    loaded.metrics[1]["diverged"] = ["train_loss"]
    (note,) = comparison(group_runs([loaded])).notes
    assert note == "sbfl (unfinished), seed 7: not finite in round 2."


def test_the_terminal_shows_every_method_in_80_columns(
    runs: list[Path], tmp_path: Path, make_run: Any
) -> None:
    paths = [*runs, make_run(tmp_path / "more", "[red]odd[/red]", 1), make_run(tmp_path / "more", "odd", 1)]
    console = Console(width=80, record=True, file=(tmp_path / "out").open("w"))
    with console.file:
        console.print(comparison_table(group_runs([load_run(path) for path in paths[:6]]), title="[b]all"))
        text = console.export_text(clear=False)
        assert all(len(line.rstrip()) <= 80 for line in text.splitlines())
        assert "94." in text
        assert "…" not in text
        console.print(comparison_table(group_runs([load_run(path) for path in paths[6:]])))
    assert "[b]all" in text
    assert "[red]odd" in console.export_text()


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_narrow_terminal_has_fewer_columns_and_all_methods(runs: list[Path], width: int) -> None:
    groups = group_runs([load_run(path) for path in runs])
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(comparison_table(groups, width=width))
    text = console.export_text()
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    for group in groups:
        assert re.search(rf"^{group.label} +\d", text, re.MULTILINE)
    assert ("theory" in text) == (width >= 80)
