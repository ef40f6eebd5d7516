"""Fig. 7: the same curves when the server sends down nothing but signs."""

from __future__ import annotations

from signfade.lab.reproduce.artefact import Artefact, Study
from signfade.lab.reproduce.document import Block
from signfade.lab.reproduce.fig_accuracy import curves_section
from signfade.lab.reproduce.grid import COLUMNS, grid_wants
from signfade.lab.reproduce.plan import Want
from signfade.lab.reproduce.records import Records
from signfade.lab.reproduce.setups import Scale

__all__ = ["FIG_DOWNLINK"]


def _render(study: Study) -> list[Block]:
    words = (
        "One bit a weight in both directions (Algorithm 2): the server sends the sign of its estimate, every "
        "device steps along it. Each method with the hyper-parameters that are best for it."
    )
    return curves_section(study, "DC", "fig-downlink", words)


def _wants(scale: Scale, records: Records) -> list[Want]:
    return grid_wants(scale, records, tuple(column for column in COLUMNS if column.quantity == "DC"))


FIG_DOWNLINK = Artefact("fig-downlink", "Accuracy with downlink compression", "Fig. 7", _render, wants=_wants)
