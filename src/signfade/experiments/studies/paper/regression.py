"""Fig. 4: the paper's regression as excess over the optimum; and ours: its runs against Theorem 2."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from signfade.experiments.studies.drawing import band, legend_below, log_axis, method_style, new_figure
from signfade.experiments.studies.paper.cells import (
    KINDS,
    METHODS,
    OPTIMUM,
    SIGNSGD,
    STEPS,
    chosen,
    floors,
    floors_text,
    regression,
    regression_runs,
)
from signfade.experiments.studies.paper.point import settle
from signfade.experiments.studies.paper.printed import words_of
from signfade.experiments.studies.records import (
    Missing,
    Records,
    Results,
    Scale,
    Tier,
    Want,
    curve_of,
    rounded,
    shared_seeds,
)
from signfade.experiments.studies.study import Block, Part, Picture, Table, Text
from signfade.experiments.style import MUTED, line_style
from signfade.simulation.run import Experiment
from signfade.simulation.synthetic import RegressionTask
from signfade.theory import corrected_bound, published_bound

__all__ = ["FIG_CONVERGENCE", "FIG_REGRESSION", "bounds"]


def _wants(scale: Scale, records: Records) -> list[Want]:
    return [
        Want(settings, Tier.FIGURE, METHODS[method].group != "printed")
        for method, kind in product(STEPS, KINDS)
        for step in STEPS[method]
        for settings in regression_runs(scale, method, kind, step)
    ]


def _render(results: Results) -> list[Block]:
    with new_figure((8.4, 4.4), 1, 2, sharey=True) as (figure, panels):
        for ax, kind in zip(panels, KINDS):
            for method in list(STEPS)[:-1]:  # the ideal ends at 1e-12: another figure
                curve = curve_of(chosen(results, method, kind)[1], "test_loss")
                label = METHODS[method].label + (" (its best step)" if method in SIGNSGD else "")
                band(ax, curve, method_style(method), label, log=True)
            ax.set(title=f"{kind.capitalize()} devices", xlabel="round", yscale="log")
            log_axis(ax.yaxis)
            ax.grid(visible=False, axis="x")
        panels[0].set_ylabel("excess loss per sample")
        legend_below(figure, panels[0])
    table = _table(results)
    if not table.rows:
        raise Missing
    words = words_of("fig-regression", scale=results.scale, optimum=OPTIMUM)
    about = "Excess loss of the regression over the rounds, homogeneous and heterogeneous devices"
    return [Text(words), Picture(figure, "fig-regression", about), table]


def _below(results: Results, method: str, kind: str) -> str:
    """How far below signSGD with its best step a method ends, for both of its readings, in percent."""
    ours, parts = chosen(results, method, kind)[1], []
    for reading in SIGNSGD:
        both = [floors(records) for records in shared_seeds(ours, chosen(results, reading, kind)[1])]
        ratio = mean(both[0]) / mean(both[1]) if all(both) else math.nan
        parts.append(f"{100 * (1 - ratio):.0f}" if math.isfinite(ratio) else "–")
    return "–" if method in SIGNSGD or set(parts) == {"–"} else f"{' / '.join(parts)} %".replace("-", "−")


def _table(results: Results) -> Table:
    rows = []
    for method in STEPS:
        row = [METHODS[method].label]
        for kind in KINDS:
            step, records = chosen(results, method, kind)
            if floors(records):
                row += [f"{floors_text(records)}, step {step:g}/L", _below(results, method, kind)]
        if len(row) == 1 + 2 * len(KINDS):
            rows.append(row)
    heads = ["method"]
    for kind in KINDS:
        heads += [f"{kind}: excess loss", "below vote / sum"]
    return Table(heads, rows, words_of("fig-regression", "note"))


FIG_REGRESSION = Part("fig-regression", "Regression", "Fig. 4", _render, _wants, settle=settle)

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
        local = task.local_updates(experiment.weights, everyone, experiment.round)
        energy = float(local.gradients.sum(dim=0).double().square().sum())
        nmse = experiment.advance()["nmse"]
        gradient.append(rounded(energy, 6))
        error.append(rounded(energy * nmse, 6))
    return {"gap": gap, "smoothness": task.data.smoothness, "gradient": gradient, "error": error}


def bounds(run: dict[str, Any]) -> tuple[Array, Array, Array]:
    """Return the mean squared gradient norm so far, the printed bound and the corrected one, `[T]` each."""
    error = np.array(run["error"])
    norm = np.cumsum(run["gradient"]) / np.arange(1, len(error) + 1)
    step = 1 / run["smoothness"]
    printed = published_bound(run["gap"], run["smoothness"], step, error)
    return norm, printed, corrected_bound(run["gap"], run["smoothness"], step, error, schedule="sqrt")


def _render_bounds(results: Results) -> list[Block]:
    data, rows = results.measurement("fig-convergence"), []
    with new_figure((8.4, 4.0), 1, 2) as (figure, panels):
        for ax, (start, title) in zip(panels, _STARTS.items()):
            unit = float(np.mean(data[start]["error"]))  # the error of an estimate is a scale that both know
            norm, printed, corrected = (part / unit for part in bounds(data[start]))
            rounds = np.arange(1, len(norm) + 1)
            ax.plot(rounds, corrected, color=line_style(2).color, dashes=(5, 1.6), label="bound, corrected")
            ax.plot(rounds, norm, color=line_style(0).color, label="mean squared gradient of the run")
            ax.plot(rounds, printed, color=line_style(1).color, dashes=(1.5, 1.2), label="bound, as printed")
            broken = np.flatnonzero(norm > printed)
            first = "never" if not len(broken) else f"from round {broken[0] + 1}"
            if len(broken):
                at = float(broken[0] + 1)
                ax.axvline(at, color=MUTED, linewidth=0.8)
                place = {"transform": ax.get_xaxis_transform(), "va": "top", "fontsize": 8, "color": MUTED}
                ax.text(at, 0.99, "  the printed bound is broken", **place)
            held = "yes" if (norm <= corrected * (1 + 1e-9)).all() else "no"
            end = [f"{value:.3g}" for value in (norm[-1], printed[-1], corrected[-1])]
            rows.append([title, *end, first, held])
            ax.set(title=title, xlabel="round", yscale="log", xscale="log")
            ax.grid(visible=False, axis="x")
            log_axis(ax.xaxis)
            low = min(printed.min(), norm[1:].min())  # at the optimum the first gradient is all but zero
            ax.set_ylim(bottom=low / 2)
            log_axis(ax.yaxis, corrected.max() / low)
        panels[0].set_ylabel("mean of |gradient|² so far / mean of |error|²")
        legend_below(figure, panels[0])
    heads = ["run", "mean |gradient|² at the end", "as printed", "corrected"]
    heads += ["printed is broken", "corrected holds"]
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
    settle=settle,
)
