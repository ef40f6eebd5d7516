"""What figures measure themselves is true, and every figure can be drawn, from nothing at all too."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from signfade import theory
from signfade.experiments.studies.catalogue import PAPER as RESULTS
from signfade.experiments.studies.catalogue import TABLES, parts_by_name
from signfade.experiments.studies.drawing import legend_below, method_style, new_figure
from signfade.experiments.studies.paper import errors, gradients
from signfade.experiments.studies.paper import regression as convergence
from signfade.experiments.studies.paper.cells import METHODS, training
from signfade.experiments.studies.paper.curves import median_snr_db
from signfade.experiments.studies.records import FULL, QUICK, Records, Results, curve_of, run_name, tail_mean
from signfade.experiments.studies.runner import Runner
from signfade.experiments.studies.study import Picture, Table, Text
from signfade.experiments.training import PlannedRun

from .conftest import SMALL, record

PARTS = parts_by_name()
PAPER = {part.name for part in RESULTS.parts + TABLES.parts}


@pytest.mark.parametrize("name", PARTS)
def test_from_nothing_no_artefact_claims_anything(name: str) -> None:
    for scale in (FULL, QUICK):
        blocks = PARTS[name].render(Results(scale, Records()))
        assert not any(isinstance(block, Picture) for block in blocks)
        assert name not in PAPER or not blocks  # its page has a line with the command in its place


# At quick scale nothing is decided, so no other point has tables.
@pytest.mark.parametrize(
    "name", sorted(PAPER - {"fig-priors", "fig-convergence", "fig-mse", "table-nearest"})
)
def test_a_quick_part_alone_is_filled_and_says_what_was_run(name: str, tmp_path: Path) -> None:
    """Made-up runs in place of trained ones: the part itself asks for all that it shows."""
    runner = Runner(tmp_path, SMALL)

    def execute(runs: list[PlannedRun]) -> dict[Path, str]:
        for run in runs:
            runner.records.add(record(run.settings, 0.5, 3, 3))
        return {}

    part = PARTS[name]
    for one in part.members:  # measured elsewhere; it takes its time
        if one.name == "fig-priors":
            runner._write_measurement(tmp_path / "measured", one, {})
    runner.run([part], execute, lambda words: None)
    assert runner.complete(part)
    blocks = part.render(runner.results([part]))
    words = blocks[0]
    assert isinstance(words, Text)
    assert words.words.startswith("**quick: ")
    shown = [text.get_text() for b in blocks if isinstance(b, Picture) for text in b.figure.texts]
    if any(isinstance(block, Picture) for block in blocks):
        assert any(text in words.words for text in shown)
    if (wants := part.needs(SMALL, runner.records)) and part.measure is None:
        count = len({run_name(want.settings) for want in wants})
        assert f"{count} of {count} runs" in words.words
    rows = [row for block in blocks if isinstance(block, Table) for row in block.rows]
    assert rows or part.measure is not None
    cells = [cell for row in rows for cell in row[1:]]
    assert "missing" not in cells
    assert "too few runs yet" not in cells or name == "claims"  # claims about gradients are measured


def test_measured_figures_say_how_large_they_are() -> None:
    part = PARTS["fig-setup"]
    assert part.measure is not None
    measured = {part.name: part.measure(SMALL, lambda words: None)}
    blocks = part.render(Results(SMALL, Records(), measured))
    assert blocks[0] == Text(
        "**quick: data digits, devices 20, bandwidth_hz 1000000.0; not to be compared with the docs**"
    )
    blocks = part.render(Results(FULL, Records(), measured))
    pictures = [block for block in blocks if isinstance(block, Picture)]
    assert [picture.figure.get_suptitle() for picture in pictures] == ["", ""]


def test_a_method_has_one_name_and_one_line_in_all_figures() -> None:
    assert len({method.label for method in METHODS.values()}) == len(METHODS)
    styles = {name: method_style(name) for name in METHODS}
    assert len({(s.color, s.dashes, s.marker) for s in styles.values()}) == len(METHODS)
    assert styles["printed-gaussian"].color == styles["gaussian"].color  # one prior


def test_the_distances_are_kolmogorovs() -> None:
    values = np.random.default_rng(0).laplace(0.3, 2.0, size=500)
    centred = values - values.mean()
    gaussian = stats.kstest(centred, "norm", args=(0, centred.std())).statistic
    laplacian = stats.kstest(centred, "laplace", args=(0, np.abs(centred).mean())).statistic
    assert gradients.ks_distances(values) == pytest.approx((gaussian, laplacian), abs=1e-12)
    assert laplacian < gaussian
    with pytest.raises(ValueError, match="must not all be the same"):
        gradients.ks_distances(np.ones(5))


def test_gradients_are_gaussian_once_they_are_rotated() -> None:
    data = gradients._along(training(SMALL, "gaussian", (1e-2, 0.0)), (1, 3), lambda words: None)
    assert set(data) == {f"{t},{user}" for t in (1, 3) for user in gradients.USERS}
    for shown in data.values():
        size = shown["rotated"]["size"]
        # 1.36/sqrt(n): exceeded by one sample in twenty of a known distribution, by far fewer of a fitted one
        assert shown["rotated"]["gaussian"] < 1.36 / math.sqrt(size)
        assert shown["raw"]["gaussian"] > 5 * shown["rotated"]["gaussian"]
        width = 10 / len(shown["raw"]["density"])
        assert sum(shown["rotated"]["density"]) * width == pytest.approx(1, abs=0.01)


def test_simulated_errors_are_the_predicted_ones() -> None:
    """Of squared errors of unit Gaussians the standard error is at most a few hundredths over sqrt(n)."""
    found = errors._errors_single(1.0, 40_000, seed=0)
    for name, (rule, form) in errors._SINGLE.items():
        assert found[name] == pytest.approx(theory.mse(rule, 1.0, form=form), abs=4 * 2.5 / math.sqrt(40_000))
    together = errors._errors_of_sum(1.0, 8_000, seed=0)
    predicted = errors._theory_of_sum(np.array([0.0]))
    for name, value in predicted.items():
        assert together[name] == pytest.approx(value[0], rel=0.08)
    assert together["EP"] < together["joint soft (best)"] * 1.05 < together["joint linear"] * 1.05


def test_the_corrected_bound_holds_and_the_printed_one_is_broken_at_the_optimum() -> None:
    runs = convergence._measure(SMALL, lambda words: None)
    for start, run in runs.items():
        mean, printed, corrected = convergence.bounds(run)
        assert (mean <= corrected * (1 + 1e-9)).all()
        assert (mean[1:] > printed[1:]).all() == (start == "optimum")
    assert runs["optimum"]["gap"] < 1e-6 * runs["far"]["gap"]


def test_the_setup_is_that_of_the_runs() -> None:
    data = gradients._measure_setup(SMALL, lambda words: None)
    counts = np.array(data["counts"])
    assert counts.shape == (20, 10)
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert max(math.hypot(*place) for place in data["positions_km"]) <= 1
    blocks = PARTS["fig-setup"].render(Results(SMALL, Records(), {"fig-setup": data}))
    assert sum(isinstance(block, Picture) for block in blocks) == 2


def test_curves_are_means_over_the_rounds_that_all_seeds_have() -> None:
    runs = [training(FULL, "gaussian", (1e-3, 0.9), seed=seed, rounds=60) for seed in (0, 1)]
    curve = curve_of([record(runs[0], 0.6), record(runs[1], 0.9).until(40)], "accuracy")
    assert curve is not None
    rounds, mean, deviation = curve
    assert rounds.tolist() == [20, 40]
    assert mean == pytest.approx([(0.2 + 0.3) / 2, (0.4 + 0.6) / 2])
    assert deviation == pytest.approx([0.1 / math.sqrt(2), 0.2 / math.sqrt(2)])
    assert curve_of([], "accuracy") is None


def test_the_tail_is_the_last_tenth() -> None:
    one = record(training(FULL, "gaussian", (1e-3, 0.9)), 0.9)
    assert tail_mean(one, "accuracy") == pytest.approx(0.9 * np.mean([920, 940, 960, 980, 1000]) / 1000)
    assert tail_mean(one, "test_loss") is None


def test_a_wider_channel_is_a_lower_snr() -> None:
    assert median_snr_db(180e3) - median_snr_db(10e6) == pytest.approx(10 * math.log10(10e6 / 180e3))


@pytest.mark.parametrize("words", ["short", "a name of more than thirty letters"])
def test_a_legend_below_is_no_wider_than_its_figure(words: str) -> None:
    with new_figure((6.4, 4.0)) as (figure, ax):
        for place in range(6):
            ax.plot([0, 1], [0, place], label=f"{place} {words}")
        legend_below(figure, ax)
        (legend,) = figure.legends
        assert 0 < legend.get_window_extent().width <= figure.bbox.width
