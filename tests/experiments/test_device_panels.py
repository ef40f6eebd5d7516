"""Who shares a model, and how devices end, as the report shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from signfade.experiments.device_panels import draw_device_panels
from signfade.experiments.group import group_runs
from signfade.experiments.html_report import render_report
from signfade.experiments.results import load_run
from signfade.experiments.style import MUTED, SERIES
from signfade.experiments.table import comparison
from signfade.experiments.training import train

from ..runs import settings


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("runs")
    for tasks in ("one", "genie"):
        train(settings(data__groups=2, label=tasks, server__tasks=tasks, threads=1), folder / tasks)
    return group_runs([load_run(folder / tasks) for tasks in ("one", "genie")])


def test_a_row_of_bars_per_device_and_a_line_per_method(groups: Any) -> None:
    drawn = draw_device_panels(groups)
    assert {name: title for name, (title, _) in drawn.items()} == {
        "models1": "Who shares a model: genie, seed 0",
        "devices": "Devices at the end, from the worst to the best",
    }
    bars = drawn["models1"][1].axes[0].collections
    assert len(bars) == 6  # none of the six devices ever changes its model
    colours = [tuple(bar.get_facecolor()[0]) for bar in bars]
    assert colours[::2] == [colours[0]] * 3
    assert colours[1::2] == [colours[1]] * 3
    assert len({*colours}) == 2 <= len(SERIES)
    assert MUTED not in SERIES
    assert len(drawn["devices"][1].axes[0].lines) == 2
    assert "Who shares a model: genie, seed 0" in render_report(groups)


def test_tables_have_the_devices_mean_worst_tenth_and_spread(groups: Any) -> None:
    words = comparison(groups)
    row = dict(zip(words.headers, words.rows[1]))
    scores = sorted(groups[1].runs[0].metrics[-1]["device_scores"])
    assert row["mean of devices (%)"] == f"{100 * sum(scores) / 6:.1f}"
    assert row["worst tenth of devices (%)"] == f"{100 * scores[0]:.1f}"
    assert row["models"] == "2"
