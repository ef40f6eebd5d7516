"""Fig. 2: where the users of one run are, how well they are heard, and which classes they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from signfade.data import Split, load, plot_split, split
from signfade.data.plot import count_classes
from signfade.lab.figures import cell_map
from signfade.lab.reproduce.artefact import Artefact, Study
from signfade.lab.reproduce.document import Block, Picture, Text
from signfade.lab.reproduce.drawing import note_scale
from signfade.lab.reproduce.setups import Scale, training
from signfade.learn.cell import make_cell

__all__ = ["FIG_SETUP"]


def _measure(scale: Scale, say: Callable[[str], None]) -> dict[str, Any]:
    """Return places and SNRs of the users of seed 0, and how many samples of each class they hold."""
    settings = training(scale, "gaussian", (1e-2, 0.0))
    plan = make_cell(settings.cell, settings.data.devices, settings.seed)
    assert plan.positions_km is not None
    assert plan.mean_snr_db is not None
    dataset = load(settings.data.name)
    who = split(dataset.train_y, settings.data.devices, settings.data.split, seed=settings.seed)
    return {
        "positions_km": plan.positions_km.round(4).tolist(),
        "snr_db": plan.mean_snr_db.round(2).tolist(),
        "counts": count_classes(dataset.train_y, who, dataset.classes).tolist(),
    }


def _render(study: Study) -> list[Block]:
    data = study.measured.get("fig-setup")
    if data is None:
        return [Text("Missing.")]
    places = cell_map(data["positions_km"], data["snr_db"], 1.0)
    places.axes[0].set(xticks=(-1, -0.5, 0, 0.5, 1), yticks=(-1, -0.5, 0, 0.5, 1))
    # The same picture as `signfade data split` draws, from the counts alone.
    counts = np.array(data["counts"])
    devices, classes = counts.shape
    labels = np.repeat(np.tile(np.arange(classes), devices), counts.ravel())
    ends = np.concatenate([[0], np.cumsum(counts.sum(axis=1))])
    holdings = plot_split(labels, Split(np.arange(len(labels)), ends), classes)
    for figure in (places, holdings):
        note_scale(figure, study.scale)
    snr = np.array(data["snr_db"])
    words = (
        f"Seed 0: {devices} users, uniform in a disc of 1 km; their mean SNRs lie between {snr.min():.0f} "
        f"and {snr.max():.0f} dB, half of them below {np.median(snr):.0f} dB. Each holds two classes."
    )
    return [
        Text(words.replace(" -", " −")),
        Picture(places, "fig-setup-cell", "Map of the cell: users by place, their mean SNR as a colour"),
        Picture(holdings, "fig-setup-split", "Which user holds how many samples of which class"),
    ]


FIG_SETUP = Artefact(
    "fig-setup",
    "Heterogeneity of the setup",
    "Fig. 2",
    _render,
    measure=_measure,
    depends=("data", "bandwidth_hz"),
    cost=5.0,
)
