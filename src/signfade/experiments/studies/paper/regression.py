"""Fig. 4: the paper's regression as excess over the optimum; and ours: its runs against Theorem 2."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from signfade.experiments.studies.document import Block, Picture, Table, Text, picture_or_missing
from signfade.experiments.studies.drawing import (
    band,
    curve_of,
    legend_below,
    log_axis,
    method_style,
    new_figure,
    tail_mean,
)
from signfade.experiments.studies.paper.printed import words_of
from signfade.experiments.studies.paper.setups import METHODS, regression
from signfade.experiments.studies.records import Record, Records, shared_seeds
from signfade.experiments.studies.study import Part, Results, Scale, Tier, Want
from signfade.experiments.style import MUTED, figure_style, line_style
from signfade.experiments.table import spread_text
from signfade.settings import RunSettings
from signfade.simulation.run import Experiment
from signfade.simulation.synthetic import RegressionTask
from signfade.theory import corrected_bound, published_bound

__all__ = [
    "FIG_CONVERGENCE",
    "FIG_REGRESSION",
    "OPTIMUM",
    "SIGNSGD",
    "STEPS",
    "bounds",
    "chosen",
    "floors",
    "part_below",
]

# In units of 1/L. The paper's step is 1/L, which a sign of size one cannot use: the gradient has hundreds. So
# signSGD may choose, by how it ends. Steps stand close: too short a step does not arrive in time; a longer
# one ends higher in proportion.
STEPS: dict[str, tuple[float, ...]] = {
    "vote": (200.0, 300.0, 400.0, 500.0, 700.0, 1000.0),
    "signsum": (20.0, 30.0, 40.0, 50.0, 70.0, 100.0),
    "gaussian": (1.0,),
    "laplacian": (1.0,),
    "published": (1.0,),
    "rotated": (1.0,),
    "best": (1.0,),
    "ideal": (1.0,),
}
SIGNSGD = ("vote", "signsum")
OPTIMUM = 0.85  # least loss a sample, about 1 - M/(K N)
KINDS = {"homogeneous": False, "heterogeneous": True}


def _runs(scale: Scale, method: str, kind: str, step: float) -> list[RunSettings]:
    return [
        regression(scale, method, heterogeneous=KINDS[kind], step=step, seed=seed)
        for seed in range(scale.regression_seeds)
    ]


def _wants(scale: Scale, records: Records) -> list[Want]:
    return [
        Want(settings, Tier.FIGURE, not METHODS[method].paper)
        for method, steps in STEPS.items()
        for kind in KINDS
        for step in steps
        for settings in _runs(scale, method, kind, step)
    ]


def floors(records: list[Record]) -> list[float]:
    """Return the mean excess loss over the last tenth of the rounds, one per seed."""
    return [value for record in records if (value := tail_mean(record, "test_loss")) is not None]


def chosen(results: Results, method: str, kind: str) -> tuple[float, list[Record]]:
    """Return the step with which a method ends lowest, and its records."""
    found = {}
    for step in STEPS[method]:
        records = results.records.find_all(_runs(results.scale, method, kind, step))
        if values := floors(records):
            found[step] = (mean(values), records)
    if not found:
        return STEPS[method][0], []
    step = min(found, key=lambda step: found[step][0])
    return step, found[step][1]


def part_below(results: Results, method: str, kind: str, reading: str) -> float | None:
    """Return by which part a method's excess loss is below signSGD's with its best step; None if unknown.

    Over the seeds that both have, for one reading of signSGD.
    """
    pair = shared_seeds(chosen(results, method, kind)[1], chosen(results, reading, kind)[1])
    ours, theirs = map(floors, pair)
    return 1 - mean(ours) / mean(theirs) if ours and theirs else None


def _render(results: Results) -> list[Block]:
    with figure_style():
        figure = new_figure((8.4, 4.4), results.scale)
        panels = figure.subplots(1, 2, sharey=True)
        for ax, kind in zip(panels, KINDS):
            for method in STEPS:
                _, records = chosen(results, method, kind)
                curve = curve_of(records, "test_loss")
                if curve is None or method == "ideal":  # the ideal ends at 1e-12: another figure
                    continue
                label = METHODS[method].label + (" (its best step)" if method in SIGNSGD else "")
                band(ax, curve, method_style(method), label, log=True)
            ax.set(title=f"{kind.capitalize()} devices", xlabel="round", yscale="log")
            log_axis(ax.yaxis)
            ax.grid(visible=False, axis="x")
        panels[0].set_ylabel("excess loss per sample")
        legend_below(figure, panels[0])
    words = words_of("fig-regression", scale=results.scale, optimum=OPTIMUM)
    about = "Excess loss of the regression over the rounds, homogeneous and heterogeneous devices"
    return [Text(words), picture_or_missing(figure, "fig-regression", about), _table(results)]


def _table(results: Results) -> Table:
    rows = []
    for method in STEPS:
        row = [METHODS[method].label]
        for kind in KINDS:
            step, records = chosen(results, method, kind)
            values = floors(records)
            if not values:
                row += ["missing", "missing"]
                continue
            parts = [None if method in SIGNSGD else part_below(results, method, kind, r) for r in SIGNSGD]
            text = " / ".join("–" if part is None else f"{100 * part:.0f}" for part in parts)
            text = text + " %" if any(parts) else "–"
            row += [f"{spread_text(values)} ({len(values)}), step {step:g}/L", text.replace("-", "−")]
        rows.append(row)
    heads = ["method"]
    for kind in KINDS:
        heads += [f"{kind}: excess loss", "below vote / sum"]
    return Table(heads, rows, words_of("fig-regression", "note"))


FIG_REGRESSION = Part("fig-regression", "Regression", "Fig. 4", _render, wants=_wants)

# -- runs against Theorem 2 ----------------------------------------------------------------------------------

Array = NDArray[np.float64]
_STARTS = {"far": "From a Gaussian start", "optimum": "From the optimum"}


def _measure(scale: Scale, say: Callable[[str], None]) -> dict[str, Any]:
    """Return, by start, the squared norms of gradient and error in each round, and what the bounds need."""
    say("fig-convergence: two runs of the regression")
    return {start: _bound_run(scale, at_optimum=start == "optimum") for start in _STARTS}


def _bound_run(scale: Scale, *, at_optimum: bool) -> dict[str, Any]:
    experiment = Experiment(regression(scale, "gaussian", heterogeneous=True, server__schedule="sqrt"))
    task = experiment.task
    assert isinstance(task, RegressionTask)
    if at_optimum:
        experiment.restore(experiment.state() | {"server.model.weights": task.data.optimum.float()}, 0)
    gap = task.data.excess_loss(experiment.weights)
    everyone = np.arange(task.devices)
    gradient, error = [], []
    while not experiment.done:
        local = task.local_gradients(experiment.weights, everyone, experiment.round)
        energy = float(local.gradients.sum(dim=0).double().square().sum())
        nmse = experiment.advance()["nmse"]
        gradient.append(float(f"{energy:.6g}"))
        error.append(float(f"{energy * nmse:.6g}"))
    return {"gap": gap, "smoothness": task.data.smoothness, "gradient": gradient, "error": error}


def bounds(run: dict[str, Any]) -> tuple[Array, Array, Array]:
    """Return the mean squared gradient norm so far, the printed bound and the corrected one, `[T]` each."""
    error = np.array(run["error"])
    mean = np.cumsum(run["gradient"]) / np.arange(1, len(error) + 1)
    step = 1 / run["smoothness"]
    printed = published_bound(run["gap"], run["smoothness"], step, error)
    return mean, printed, corrected_bound(run["gap"], run["smoothness"], step, error, schedule="sqrt")


def _render_bounds(results: Results) -> list[Block]:
    data = results.measured.get("fig-convergence")
    if data is None:
        return [Text("Missing.")]
    rows = []
    with figure_style():
        figure = new_figure((8.4, 4.0), results.scale)
        panels = figure.subplots(1, 2)
        for ax, (start, title) in zip(panels, _STARTS.items()):
            unit = float(np.mean(data[start]["error"]))  # the error of an estimate is a scale that both know
            mean, printed, corrected = (part / unit for part in bounds(data[start]))
            rounds = np.arange(1, len(mean) + 1)
            ax.plot(rounds, corrected, color=line_style(2).color, dashes=(5, 1.6), label="bound, corrected")
            ax.plot(rounds, mean, color=line_style(0).color, label="mean squared gradient of the run")
            ax.plot(rounds, printed, color=line_style(1).color, dashes=(1.5, 1.2), label="bound, as printed")
            broken = np.flatnonzero(mean > printed)
            first = "never" if not len(broken) else f"from round {broken[0] + 1}"
            if len(broken):
                at = float(broken[0] + 1)
                ax.axvline(at, color=MUTED, linewidth=0.8)
                place = {"transform": ax.get_xaxis_transform(), "va": "top", "fontsize": 8, "color": MUTED}
                ax.text(at, 0.99, "  the printed bound is broken", **place)
            held = "yes" if (mean <= corrected * (1 + 1e-9)).all() else "no"
            end = [f"{value:.3g}" for value in (mean[-1], printed[-1], corrected[-1])]
            rows.append([title, *end, first, held])
            ax.set(title=title, xlabel="round", yscale="log", xscale="log")
            ax.grid(visible=False, axis="x")
            log_axis(ax.xaxis)
            low = min(printed.min(), mean[1:].min())  # at the optimum the first gradient is all but zero
            ax.set_ylim(bottom=low / 2)
            log_axis(ax.yaxis, corrected.max() / low)
        panels[0].set_ylabel("mean of |gradient|² so far / mean of |error|²")
        legend_below(figure, panels[0])
    heads = [
        "run",
        "mean |gradient|² at the end",
        "as printed",
        "corrected",
        "printed is broken",
        "corrected holds",
    ]
    about = "Mean squared gradient norm of two regression runs against the printed and the corrected bound"
    table = Table(heads, rows, words_of("fig-convergence", "note"))
    return [Text(words_of("fig-convergence")), Picture(figure, "fig-convergence", about), table]


FIG_CONVERGENCE = Part(
    "fig-convergence",
    "Runs against their bounds",
    "ours; Theorem 2",
    _render_bounds,
    measure=_measure,
    depends=("regression_rounds", "bandwidth_hz"),
    cost=15.0,
)
