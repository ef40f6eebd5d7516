from __future__ import annotations

import io

import numpy as np
import pytest
from matplotlib._pylab_helpers import Gcf
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from signfade.data import Split, count_classes, plot_split, split


def drawn(figure: Figure) -> np.ndarray:
    """The numbers behind the colours, [columns, classes]."""
    (mesh,) = (item for item in figure.axes[1].collections if isinstance(item, QuadMesh))
    return np.ma.filled(mesh.get_array(), 0).T


def test_counts_are_those_of_each_device() -> None:
    labels = np.random.default_rng(0).integers(0, 4, 100)
    parts = split(labels, 7, "dirichlet")
    counts = count_classes(labels, parts, 5)
    for k in range(7):
        for c in range(5):
            assert counts[k, c] == sum(labels[i] == c for i in parts.of(k))
    with pytest.raises(ValueError, match="labels must be from 0 to 2; got 0 to 3"):
        count_classes(labels, parts, 3)


def test_few_devices_stand_in_order_with_their_counts() -> None:
    labels = np.repeat(np.arange(10), 60)
    parts = split(labels, 20)
    figure = plot_split(labels, parts, 10)
    assert (drawn(figure) == count_classes(labels, parts, 10)).all()
    assert [text.get_text() for text in figure.axes[1].texts] == ["3"] * 40
    assert [bar.get_height() for bar in figure.axes[0].patches] == [6] * 20
    assert figure.axes[1].get_xlabel() == "device"


def test_many_devices_are_sorted_but_the_same() -> None:
    labels = np.arange(3000) % 5
    parts = split(labels, 200)
    figure = plot_split(labels, parts, 5)
    columns = drawn(figure)
    assert sorted(map(tuple, columns)) == sorted(map(tuple, count_classes(labels, parts, 5)))
    pairs = [tuple(np.flatnonzero(column)) for column in columns]
    assert pairs == sorted(pairs)
    assert not figure.axes[1].texts


def test_very_many_devices_share_columns_without_loss() -> None:
    labels = np.arange(9000) % 10
    parts = split(labels, 2500, "dirichlet")
    figure = plot_split(labels, parts, 10)
    columns = drawn(figure)
    sizes = np.diff(np.append(np.arange(0, 2500, 3), 2500))
    assert columns.shape == (len(sizes), 10)
    assert sizes @ columns == pytest.approx(np.bincount(labels))
    assert "the mean of 3" in figure.axes[1].get_xlabel()


@pytest.mark.parametrize(("devices", "classes"), [(1, 1), (1, 2), (31, 1), (40, 100)])
def test_it_draws_at_the_edges_and_belongs_to_nobody(devices: int, classes: int) -> None:
    labels = np.arange(400) % classes
    figure = plot_split(labels, split(labels, devices, "iid"), classes)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=40)
    assert file.getvalue().startswith(b"\x89PNG")
    assert not Gcf.get_all_fig_managers()


def test_a_device_without_samples_can_be_drawn() -> None:
    figure = plot_split([0, 1], Split(np.array([0, 1]), np.array([0, 2, 2])), 2)
    figure.savefig(io.BytesIO(), format="png", dpi=40)
    assert drawn(figure).tolist() == [[1, 1], [0, 0]]


@pytest.mark.parametrize("devices", [5, 100])
def test_text_is_drawn_by_samples_per_device(devices: int) -> None:
    labels = np.zeros((200, 7), dtype=np.int64)
    parts = split(labels, devices, "natural", clients=np.arange(200) % 130)
    (axes,) = plot_split(labels, parts, 1).axes
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == (parts.counts.tolist() if devices == 5 else sorted(parts.counts.tolist(), reverse=True))
