"""Ours: what the number of devices, which the paper does not give, does to the rounds of Table I."""

from __future__ import annotations

from typing import Literal

from signfade.lab.reproduce.artefact import Artefact, Study
from signfade.lab.reproduce.document import Block, Table, Text
from signfade.lab.reproduce.grid import Pair, pair_text
from signfade.lab.reproduce.paper import read_paper
from signfade.lab.reproduce.plan import Tier, Want
from signfade.lab.reproduce.records import Records
from signfade.lab.reproduce.setups import METHODS, Scale, training
from signfade.lab.reproduce.table_rounds import rounds_to
from signfade.settings import RunSettings

__all__ = ["TABLE_DEVICES"]

PAIR: Pair = (1e-3, 0.0)  # a step so small that no method is unstable: only its size decides
# Devices, and the part of the rounds that is played; in half the paper's slowest method is there.
DEVICES = {20: 1, 60: 2}
# Methods, the heads of the paper's columns, what is sent down.
ROWS: tuple[tuple[str, str, Literal["full", "sign"]], ...] = (
    ("vote", "signsgd", "sign"),
    ("gaussian", "gaussian", "full"),
    ("published", "gaussian", "full"),
    ("laplacian", "laplacian", "full"),
)


def _run(scale: Scale, method: str, downlink: Literal["full", "sign"], devices: int) -> RunSettings:
    rounds = scale.rounds // DEVICES[devices]
    return training(scale, method, PAIR, downlink=downlink, rounds=rounds, data__devices=devices)


def _wants(scale: Scale, records: Records) -> list[Want]:
    return [
        Want(_run(scale, method, downlink, devices), Tier.EXTRA, order=devices)
        for devices in DEVICES
        for method, _, downlink in ROWS
    ]


def _found(study: Study, run: RunSettings) -> str:
    record = study.records.find(run)
    if record is None:
        return "missing"
    (value,) = rounds_to([record], "TL")
    return f"not in {run.rounds}" if value is None else f"{value:.0f}"


def _render(study: Study) -> list[Block]:
    paper = read_paper().rounds.cells
    rows = [
        [
            METHODS[method].label,
            f"{paper[*PAIR, head, 'TL']:.0f}",
            *(_found(study, _run(study.scale, method, downlink, devices)) for devices in DEVICES),
        ]
        for method, head, downlink in ROWS
    ]
    words = (
        "Where our rounds differ from the paper's they mostly differ one way: its SBFL is several times "
        "faster than ours with small steps, its signSGD slower. SBFL steps along a sum over devices, which "
        "grows with their number; a vote's step does not. So the paper may have had more devices than our "
        "20, over worse links than ours (which slow a vote down); it gives neither. And the printed "
        "`tanh(2 h y / sigma2)` makes longer estimates than the corrected form. This table tries the first "
        f"and the last: {pair_text(PAIR)}, full downlink, the budget of this page. Neither can be all of "
        "it: longer estimates would diverge sooner at 1e-2 / 0.9, where the paper's SBFL ends at 0.94 and "
        "ours diverges; with one bit on the downlink the step does not grow with the devices; and worse "
        "links with 20 devices move signSGD away from the paper (calibration)."
    )
    note = "Rounds to training loss 1.0, seed 0."
    if study.scale.name != "quick":
        note += (
            " With 60 devices SBFL is as fast as in the paper or faster, with 20 slower, so a number between "
            "would fit its small steps; signSGD is faster than in the paper with both, which worse links "
            "would explain."
        )
    heads = ["method", "paper", *(f"{devices} devices" for devices in DEVICES)]
    return [Text(words), Table(heads, rows, note)]


TABLE_DEVICES = Artefact("table-devices", "The number of devices", "ours", _render, wants=_wants)
