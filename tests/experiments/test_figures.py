from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest

from signfade.experiments.figures import cell_map, mse_curves
from signfade.experiments.folder import FolderError
from signfade.experiments.group import group_runs
from signfade.experiments.panels import PANELS, curves, draw_panels, group_styles
from signfade.experiments.results import load_run
from signfade.experiments.style import inline_svg, line_style, named_styles, save_figure, swatch_svg


def test_curves_show_the_mean_and_a_band_of_one_deviation(runs: list[Path]) -> None:
    groups = group_runs([load_run(path) for path in runs])
    figure = curves(groups, title="a title with $ and _")
    by_title = {ax.get_title("left") or ax.get_title(): ax for ax in figure.axes}
    ax = by_title["Test accuracy (%)"]
    lines = {line.get_label(): line for line in ax.get_lines()}
    series = groups[1].series("test_accuracy")
    assert np.allclose(lines["sbfl"].get_xdata(), series.rounds)
    assert np.allclose(lines["sbfl"].get_ydata(), 100 * series.mean)
    band = ax.collections[1].get_paths()[0].vertices
    assert np.max(band[:, 1]) == pytest.approx(100 * np.max(series.mean + series.deviation))
    assert set(by_title) >= {panel.title for name, panel in PANELS.items() if not name.startswith("excess")}


def test_the_error_stands_beside_its_prediction_and_the_ideal_has_none(runs: list[Path]) -> None:
    groups = group_runs([load_run(path) for path in runs])
    (ax,) = draw_panels(groups)["error"].axes
    labels = [line.get_label() for line in ax.get_lines()]
    assert "ideal" not in labels
    dashed = [line for line in ax.get_lines() if line.get_label() == "_predicted" and len(line.get_xdata())]
    assert len(dashed) == 1
    assert dashed[0].is_dashed()
    assert dashed[0].get_color() == line_style(1).color
    solid = next(line for line in ax.get_lines() if line.get_label() == "sbfl")
    assert not solid.is_dashed()


def test_uplink_bits_are_per_device_and_logarithmic_when_the_ideal_joins(runs: list[Path]) -> None:
    groups = group_runs([load_run(path) for path in runs])
    (ax,) = draw_panels(groups)["accuracy_bits"].axes
    assert ax.get_xscale() == "log"
    line = next(line for line in ax.get_lines() if line.get_label() == "sbfl")
    assert np.asarray(line.get_xdata())[-1] == pytest.approx(200 * (4810 + 64) / 1e6)
    (ax,) = draw_panels(groups[:2])["accuracy_bits"].axes
    assert ax.get_xscale() == "linear"


def test_regression_shows_excess_loss(tmp_path: Path, make_run: Any) -> None:
    groups = group_runs([load_run(make_run(tmp_path, "sbfl", 1, regression=True))])
    assert {"excess", "excess_bits", "loss", "error", "cosine"} == draw_panels(groups).keys()


def test_long_runs_are_thinned_but_end_where_they_end(tmp_path: Path, make_run: Any) -> None:
    groups = group_runs([load_run(make_run(tmp_path, "sbfl", 1, rounds=700))])
    (ax,) = draw_panels(groups)["loss"].axes
    line = ax.get_lines()[0]
    assert len(np.asarray(line.get_xdata())) <= 300
    assert np.asarray(line.get_xdata())[-1] == 700


def test_runs_shorter_than_the_window_are_not_smoothed_away(tmp_path: Path, make_run: Any) -> None:
    groups = group_runs([load_run(make_run(tmp_path, "sbfl", 1, rounds=3))])
    (ax,) = draw_panels(groups)["loss"].axes
    assert len(np.asarray(ax.get_lines()[0].get_xdata())) == 3


def test_nothing_to_draw_is_refused_and_an_empty_group_takes_no_colour(tmp_path: Path, make_run: Any) -> None:
    empty = load_run(make_run(tmp_path, "signsgd", 1, done=0))
    with pytest.raises(ValueError, match="at least one round"):
        curves(group_runs([empty]))
    groups = group_runs([empty, load_run(make_run(tmp_path, "mine", 1))])
    assert group_styles(groups)[1] == named_styles(["mine"])[0]
    assert "signsgd" not in str([t.get_text() for t in curves(groups).axes[-1].get_legend().get_texts()])


def test_a_method_has_one_line_whatever_stands_beside_it(tmp_path: Path, make_run: Any) -> None:
    known = ["signsgd", "sbfl", "rotated-sbfl", "best"]
    own = dict(zip(known, named_styles(known)))
    assert len(set(own.values())) == len(known)
    draw = np.random.default_rng(1)
    for _ in range(200):
        names = list(draw.permutation([*known, "mine", "yours", "theirs", "blmmse"])[: draw.integers(1, 9)])
        styles = named_styles(names)
        assert len({style.color for style in styles[:6]}) >= min(4, len(names))
        assert len(set(styles)) == len(styles)
        assert all(style == own[name] for name, style in zip(names, styles) if name in own)
    groups = group_runs([load_run(make_run(tmp_path, label, 1)) for label in ("best", "signsgd")])
    assert group_styles(groups) == [own["best"], own["signsgd"]]
    lines = draw_panels(groups)["accuracy"].axes[0].get_lines()
    drawn = {line.get_label(): line.get_color() for line in lines}
    assert drawn["best"] == own["best"].color
    lines = mse_curves([0, 1], {"blmmse": [0.5, 0.4], "sbfl": [0.4, 0.3]}).axes[0].get_lines()
    assert lines[1].get_color() == own["sbfl"].color


def test_the_second_of_two_equal_methods_and_many_unknown_ones_are_told_apart() -> None:
    styles = named_styles(["sbfl", "sbfl", *"abcdefgh"])
    assert len({(style.color, style.dashes) for style in styles}) == len(styles)
    assert len({style.color for style in styles[:6]}) == 6


def test_styles_differ_also_without_colour_and_repeat_late() -> None:
    styles = [line_style(index) for index in range(12)]
    assert len({(s.color, s.dashes) for s in styles}) == 12
    assert len({s.marker for s in styles[:6]}) == 6
    assert len({s.dashes for s in styles[:6]}) == 6
    assert all("<svg" in swatch_svg(style) for style in [*styles, line_style(0, bound=True)])


def test_a_label_that_starts_with_an_underscore_is_still_in_the_legend(tmp_path: Path, make_run: Any) -> None:
    groups = group_runs([load_run(make_run(tmp_path, "_mine $x$", 1))])
    texts = [text.get_text() for text in curves(groups).axes[-1].get_legend().get_texts()]
    assert any("_mine $x$" in text for text in texts)


# -- the cell and its errors ---------------------------------------------------------------------------------


def test_cell_map_places_every_user() -> None:
    positions = np.array([[0.1, 0.2], [-0.9, 0.1], [0.0, -0.4]])
    figure = cell_map(positions, [20.0, 3.0, 9.0], radius_km=1.0)
    ax = figure.axes[0]
    assert np.allclose(ax.collections[0].get_offsets(), positions)
    assert ax.get_aspect() == 1.0
    assert any(getattr(patch, "radius", 0) == 1.0 for patch in ax.patches)
    assert "dB" in figure.axes[1].get_ylabel()
    with pytest.raises(ValueError, match=r"got \[3, 2\] and \[2\]"):
        cell_map(positions, [1.0, 2.0], 1.0)


def test_mse_curves_draw_what_they_are_given() -> None:
    snr = np.linspace(-10, 20, 7)
    ax = mse_curves(snr, {"a": np.full(7, 0.5), "b": 1 / (1 + 10 ** (snr / 10))}).axes[0]
    assert np.allclose(ax.get_lines()[1].get_ydata(), 1 / (1 + 10 ** (snr / 10)))
    assert ax.get_yscale() == "log"
    with pytest.raises(ValueError, match=r"values\['a'\] must have shape \[7\]; got \[2\]"):
        mse_curves(snr, {"a": [1, 2]})


# -- files ---------------------------------------------------------------------------------------------------


def test_files_have_the_same_bytes_each_time_and_no_date(tmp_path: Path) -> None:
    for name in ("one", "two"):
        figure = mse_curves([0.0, 1.0, 2.0], {"sbfl": [1.0, 0.8, 0.6]})
        paths = save_figure(figure, tmp_path / "deep" / name)
        assert [path.name for path in paths] == [f"{name}.png", f"{name}.svg"]
    folder = tmp_path / "deep"
    assert (folder / "one.png").read_bytes() == (folder / "two.png").read_bytes()
    assert (folder / "one.svg").read_bytes() == (folder / "two.svg").read_bytes()
    assert b"dc:date" not in (folder / "one.svg").read_bytes()
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="cannot write the figure"):
        save_figure(figure, tmp_path / "file" / "x")


def test_matplotlib_is_left_as_it_was() -> None:
    before = dict(mpl.rcParams)
    mse_curves([0.0, 1.0], {"a": [1.0, 2.0]})
    assert dict(mpl.rcParams) == before


def test_inline_svg_is_well_formed_and_takes_its_colours_from_the_page(runs: list[Path]) -> None:
    groups = group_runs([load_run(path) for path in runs])
    drawn = [inline_svg(figure, name, "about") for name, figure in draw_panels(groups).items()]
    ids: list[str] = []
    for svg in drawn:
        ElementTree.fromstring(svg.replace("xlink:href", "href"))
        assert not re.search(r"#[0-9a-f]{6}", svg.replace("#ffffff", ""))  # no colour is fixed
        assert "var(--s0)" in svg
        found = re.findall(r'\bid="([^"]+)"', svg)
        for target in re.findall(r'(?:href="|url\()#([^")]+)', svg):
            assert target in found
        ids += found
    assert len(ids) == len(set(ids))


def test_numbers_that_people_read_keep_their_digits_in_a_page() -> None:
    figure = mse_curves([0.0, 1.0], {"sbfl": [2.3061, 2.3084]})
    figure.axes[0].set_yticks([2.306, 2.308], ["2.306", "2.308"])
    svg = inline_svg(figure, "error", "errors")
    assert {"2.306", "2.308"} <= set(re.findall(r">([^<>]+)</text>", svg))
    assert not re.search(r'd="[^"]*\.\d{3}', svg)  # but paths are short


def test_rounds_are_whole_even_if_there_is_one(tmp_path: Path, make_run: Any) -> None:
    groups = group_runs([load_run(make_run(tmp_path, "sbfl", 1, rounds=2))])
    (ax,) = draw_panels(groups)["accuracy"].axes
    assert all(float(tick).is_integer() for tick in ax.get_xticks())
