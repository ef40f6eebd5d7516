"""The figure of `signfade link`: nothing outside its panels, nothing covered, whatever the links are like."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from signfade.experiments.config import load
from signfade.experiments.link_study import study_link

LINKS = {
    "default": [],
    "rayleigh": ["cell.antennas=4", "cell.fading=rayleigh"],
    "steady": ["cell.fading=none"],
    "sixteen": ["cell.antennas=16"],
    "umi": ["cell.path_loss=umi", "cell.antennas=4"],
    "twelve": ["data.devices=12"],
    "weak": ["cell.snr_db=-20"],
    "strong": ["cell.snr_db=60", "cell.fading=none"],
}


def draw(*changes: str) -> tuple[Figure, dict[str, Axes]]:
    """The figure, laid out without a complaint, and its panels by letter."""
    figure = study_link(load(None, [*changes])).plot()
    assert figure is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # the canvas of a figure without pyplot draws nothing
        figure.draw_without_rendering()
    return figure, {ax.get_title(loc="left")[0]: ax for ax in figure.axes if ax.get_title(loc="left")}


def box(artist: object) -> Bbox:
    return artist.get_window_extent()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("changes", LINKS.values(), ids=LINKS)
def test_numbers_stay_in_their_panels_and_legends_cover_nothing(changes: list[str]) -> None:
    figure, panels = draw(*changes)
    legends = [legend for ax in panels.values() if (legend := ax.get_legend()) is not None]
    for ax in panels.values():
        frame = box(ax)
        for text in ax.texts:
            assert frame.contains(*box(text).min), text
            assert frame.contains(*box(text).max), text
        others = [box(other.title) for other in panels.values()]
        others += [box(other._left_title) for other in panels.values()]  # type: ignore[attr-defined]
        others += [frame]
        for legend in legends:
            assert not any(_overlap(box(legend), other) for other in others), legend.get_texts()
    assert all(figure.bbox.contains(*corner) for one in legends for corner in (box(one).min, box(one).max))
    assert not any(_overlap(box(a), box(b)) for a in legends for b in legends if a is not b)


@pytest.mark.parametrize("changes", LINKS.values(), ids=LINKS)
def test_a_number_stands_beside_its_point(changes: list[str]) -> None:
    _, panels = draw(*changes)
    devices = study_link(load(None, [*changes])).tables.tables["devices"].rows
    if "distance_m" in devices[0]:
        ax = next(ax for ax in panels.values() if ax.get_xlabel() == "distance (m)")
        assert len(ax.texts) == len(devices)
        for text, row in zip(ax.texts, devices):
            spot = (ax.transData - ax.transAxes).transform((row["distance_m"], row["mean_snr_db"]))
            far = np.hypot(*(spot - text.get_position()))  # one of the three that labels may have
            assert min(abs(far - radius) for radius in (0.034, 0.06, 0.085)) < 1e-6


def _overlap(a: Bbox, b: Bbox) -> bool:
    """Whether they share more than an edge: a pixel in both directions."""
    across, up = (min(a.max[i], b.max[i]) - max(a.min[i], b.min[i]) for i in (0, 1))
    return bool(across > 1 and up > 1)


def test_devices_below_the_axis_are_counted() -> None:
    found = study_link(load(None, ["cell.fading=none"]))
    _, panels = draw("cell.fading=none")
    bits = np.array([row["ber"] for row in found.tables.tables["devices"].rows])
    hidden = int((bits < panels["d"].get_ylim()[0]).sum())
    legend = panels["d"].get_legend()
    assert legend is not None
    assert 0 < hidden < 20
    assert f"{hidden} of 20 devices below" in [text.get_text() for text in legend.get_texts()]
    assert len(panels["d"].texts) == 20 - hidden
    _, panels = draw()
    assert panels["d"].get_ylim()[0] == pytest.approx(1e-4)  # no lower than there is something to see


def test_devices_have_whole_numbers_and_names_their_capitals() -> None:
    figure, panels = draw("data.devices=12")
    ticks = panels["f"].get_xticks()
    assert (ticks == np.round(ticks)).all()
    legend = panels["c"].get_legend()
    assert legend is not None
    assert "with Gaussian fading" in [text.get_text() for text in legend.get_texts()]
    assert len(figure.axes) == 7  # six panels and the bar of colours
