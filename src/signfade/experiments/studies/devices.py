"""What absent, noisy, private and hostile devices cost, and what helps: one table and figure per switch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean, pstdev

import numpy as np
from matplotlib.axes import Axes

from signfade.device import bit_epsilon
from signfade.experiments.config import resolve
from signfade.experiments.studies.drawing import new_figure
from signfade.experiments.studies.records import (
    Record,
    Records,
    Results,
    Scale,
    Tier,
    Want,
    accuracies,
    shared_seeds,
    tail_mean,
)
from signfade.experiments.studies.study import Block, Part, Study, Table, Text, picture_or_missing
from signfade.experiments.studies.variants import Variants, draw_accuracy, rounds_text
from signfade.experiments.style import INK, draw_line, line_style
from signfade.settings import RunSettings

__all__ = ["DEVICES"]

_VARIANTS = Variants("devices.toml")


def _row(name: str, records: list[Record], first: list[Record]) -> list[str]:
    lost = sorted({record.diverged for record in records if record.diverged is not None})
    finished = [record for record in records if record.diverged is None]
    if not finished:
        return [name, f"diverges in round {' or '.join(map(str, lost))}", "", "never", str(len(records))]
    last = [100 * value for value in accuracies(finished)]
    ours, theirs = map(accuracies, shared_seeds(finished, first))
    apart = f"{100 * (fmean(ours) - fmean(theirs)):+.1f}" if ours and records is not first else ""
    return [
        name,
        f"{fmean(last):.1f} ± {pstdev(last):.1f} %",
        apart,
        rounds_text(finished),
        str(len(finished)),
    ]


def _draw_privacy(axis: Axes, found: Mapping[str, Sequence[Record]]) -> None:
    """Accuracy against the epsilon of a bit."""
    for name, records in found.items():
        changes, last = _VARIANTS.changes[name], accuracies(records)
        if "method.flip" not in changes:
            axis.axhline(fmean(last), color=INK, linewidth=0.8, linestyle=":")
            continue
        marker = "^" if changes.get("method.debias") else "o"
        epsilon = bit_epsilon(changes["method.flip"])
        axis.plot([epsilon] * len(last), last, marker, color=line_style(0).color)
    axis.set(title="Accuracy at the end", xlabel="epsilon of one bit (triangles: debiased)", ylim=(0, 1))


def _part(switch: str) -> Part:
    title, (first, *_) = (_VARIANTS.switches[switch][key] for key in ("title", "variants"))

    def render(results: Results) -> list[Block]:
        found = _VARIANTS.found(results, switch)
        panels = 3 if switch == "privacy" else 2
        with new_figure((4.4 * panels, 3.2), 1, panels) as (figure, axes):
            draw_accuracy(figure, axes[0], axes[1], found, loc="outside lower center", ncols=4)
            if switch == "privacy":
                _draw_privacy(axes[2], found)
        picture = picture_or_missing(figure, f"devices-{switch}", title)
        if first not in found:
            return [picture]
        ended = sorted(found, key=lambda name: all(record.diverged for record in found[name]))
        rows = [_row(name, found[name], found[first]) for name in ended]
        heads = [switch, "accuracy", f"against {first}", "rounds to 0.9", "seeds"]
        return [picture, Table(heads, rows, name=switch)]

    return Part(f"devices-{switch}", title, "ours", render, _VARIANTS.wants(switch))


# -- what error feedback leaves of the regression's excess loss ----------------------------------------------

_STEPS = (0.1, 0.2, 0.5, 1.0)  # in units of 1/L
# Rotation, whether devices differ in the power of their data, step.
_REGRESSIONS = [*product(["none"], (False, True), _STEPS), *product(["shared"], (False, True), [0.2])]
_FEEDBACK = (0.0, 1.0)


def _regression_runs(
    scale: Scale, rotation: str, mixed: bool, step: float, feedback: float
) -> list[RunSettings]:
    tree = {
        "name": "feedback",
        "rounds": scale.regression_rounds,
        "data.name": "regression",
        "data.batch": "none",
        "data.heterogeneous": mixed,
        "cell.path_loss": "cost231",
        "cell.snr_db": 10.0,
        "method.rotation": rotation,
        "method.error_feedback": feedback,
        "method.weights": "sum",
        "server.learning_rate": step,
        "eval.every": 5,
    }
    return [resolve(tree | {"seed": seed}) for seed in range(scale.figure_seeds)]


def _regression_wants(scale: Scale, records: Records) -> list[Want]:
    return [
        Want(run, Tier.EXTRA, ours=True)
        for case, feedback in product(_REGRESSIONS, _FEEDBACK)
        for run in _regression_runs(scale, *case, feedback)
    ]


def _late_losses(records: Sequence[Record]) -> list[float]:
    """Mean excess loss over the last third of the rounds, one per run that did not diverge."""
    return [value for record in records if (value := tail_mean(record, "test_loss", 1 / 3)) is not None]


def _regression(results: Results) -> list[Block]:
    rows, ratios = [], dict[tuple[str, bool, float], float]()
    for case in _REGRESSIONS:
        runs = [_regression_runs(results.scale, *case, feedback) for feedback in _FEEDBACK]
        found = [[r for r in results.records.find_all(one) if r.diverged is None] for one in runs]
        without, fed = map(_late_losses, shared_seeds(*found))
        if not fed:
            continue
        rotation, mixed, step = case
        ratios[case] = fmean(fed) / fmean(without)
        worst = max(ours / theirs for ours, theirs in zip(fed, without))
        numbers = [f"{fmean(without):.3g}", f"{fmean(fed):.3g}", f"{ratios[case]:.2f}", f"{worst:.2f}"]
        rows.append([rotation, "mixed" if mixed else "alike", f"{step:g}/L", *numbers])
    with new_figure((5, 3.2)) as (figure, axis):
        for index, mixed in enumerate((False, True)):
            known = {step: ratios["none", mixed, step] for step in _STEPS if ("none", mixed, step) in ratios}
            if known:
                label = "data of different power" if mixed else "data alike"
                draw_line(axis, np.array([*known]), np.array([*known.values()]), line_style(index), label)
        axis.axhline(0.25, color=INK, linewidth=0.8, linestyle=":")
        axis.set(title="Excess loss, with feedback over without", xscale="log", yscale="log")
        axis.set(xlabel="step, in units of 1/L", ylabel="ratio")
        axis.set_xticks(_STEPS, [f"{step:g}" for step in _STEPS])
        ticks = (0.03, 0.1, 0.25, 1.0, 2.0)
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        if ratios:
            axis.legend(fontsize=8)
    about = "Excess loss with feedback over that without, against the step"
    heads = ["rotation", "data", "step", "excess loss", "with feedback", "ratio", "worst seed"]
    table: Block = Table(heads, rows, name="feedback-regression") if rows else Text("Missing.")
    return [picture_or_missing(figure, "devices-feedback-regression", about), table]


_FEEDBACK_PART = Part(
    "devices-feedback-regression", "Error feedback in the regression", "ours", _regression, _regression_wants
)
_PARTS = (*map(_part, _VARIANTS.switches), _FEEDBACK_PART)
DEVICES = Study("devices", "Devices that are absent, private or hostile", "devices", _PARTS, host="radio.md")
