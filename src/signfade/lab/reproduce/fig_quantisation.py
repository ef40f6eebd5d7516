"""Fig. 6: how many bits the two scalars of a device need."""

from __future__ import annotations

from typing import Any

from signfade.lab.reproduce.artefact import Artefact, Study
from signfade.lab.reproduce.document import Block, Table, Text, picture
from signfade.lab.reproduce.drawing import method_style, new_figure, points
from signfade.lab.reproduce.grid import Pair, pair_text
from signfade.lab.reproduce.plan import Tier, Want
from signfade.lab.reproduce.records import Record, Records, accuracies
from signfade.lab.reproduce.setups import METHODS, Scale, training
from signfade.lab.reproduce.table_accuracy import ours_text
from signfade.lab.style import figure_style
from signfade.settings import RunSettings

__all__ = ["FIG_QUANTISATION", "at_bits"]

BITS = (1, 2, 4, 8)
PRIORS = ("gaussian", "laplacian")
PAIR: Pair = (1e-3, 0.9)  # the paper's best for both priors


def _wants(scale: Scale, records: Records) -> list[Want]:
    wants = []
    for place, prior in enumerate(PRIORS):
        for bits in (None, *BITS):
            order = (bits or 0) * 10 + place
            wants += [Want(settings, Tier.FIGURE, order=order) for settings in _runs(scale, prior, bits)]
    return wants


def _runs(scale: Scale, prior: str, bits: int | None) -> list[RunSettings]:
    more: dict[str, Any] = {} if bits is None else {"method__side_bits": bits}
    return [
        training(scale, prior, PAIR, seed=seed, rounds=scale.figure_rounds, **more)
        for seed in range(scale.figure_seeds)
    ]


def at_bits(study: Study, prior: str, bits: int | None) -> list[Record]:
    """Return the records with so many bits a scalar, None for full precision."""
    return study.records.find_all(_runs(study.scale, prior, bits))


def _grid(study: Study) -> str:
    """Return which grid the scales of the runs at hand were on; older records do not tell payload bits."""
    found = [record for prior in PRIORS for bits in BITS for record in at_bits(study, prior, bits)]
    if any(record.value("payload_bits") is None for record in found):
        return (
            "the scale uniformly in its logarithm from 1e-6 to 1 (runs of an older version, whose range did "
            "not follow the gradients)"
        )
    return "the scale uniformly in its logarithm over a range that follows the gradients"


def _render(study: Study) -> list[Block]:
    places = [*BITS, None]
    with figure_style():
        figure = new_figure((5.6, 3.6), study.scale)
        ax = figure.add_subplot()
        for shift, prior in zip((-0.06, 0.06), PRIORS):
            beside = [x + shift for x in range(len(places))]
            values = [accuracies(at_bits(study, prior, bits)) for bits in places]
            points(ax, beside, values, method_style(prior), METHODS[prior].label)
        ax.set_xticks(range(len(places)), [*map(str, BITS), "32 (float)"])
        ax.set_xlim(-0.3, len(places) - 0.7)
        ax.set(xlabel="bits a scalar", ylabel=f"test accuracy after {study.scale.figure_rounds} rounds (%)")
        ax.grid(visible=False, axis="x")
        if ax.get_legend_handles_labels()[0]:
            figure.legend(loc="outside upper center", ncols=2)
    rows = [
        ["32 (float)" if bits is None else str(bits), *(ours_text(at_bits(study, p, bits)) for p in PRIORS)]
        for bits in places
    ]
    words = (
        f"Mean and scale of a device, quantised: {_grid(study)}, the mean uniformly from −1 to 1 in units of "
        "the decoded scale (the paper's quantisers are uniform, their ranges are not told). The unit "
        "matters: what a mean is rounded by is added to every weight, so its step must shrink with the "
        f"gradients. {pair_text(PAIR)}, full downlink."
    )
    note = f"Test accuracy after {study.scale.figure_rounds} rounds; mean ± deviation over seeds."
    about = "Test accuracy against the bits for each scalar, for both priors"
    heads = ["bits a scalar", *(METHODS[prior].label for prior in PRIORS)]
    return [Text(words), picture(figure, "fig-quantisation", about), Table(heads, rows, note)]


FIG_QUANTISATION = Artefact("fig-quantisation", "Bits for the scalars", "Fig. 6", _render, wants=_wants)
