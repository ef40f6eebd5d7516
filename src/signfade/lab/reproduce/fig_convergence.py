"""Ours: regression runs against Theorem 2, as printed and corrected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from signfade.lab.reproduce.artefact import Artefact, Study
from signfade.lab.reproduce.document import Block, Picture, Table, Text
from signfade.lab.reproduce.drawing import legend_below, log_axis, new_figure
from signfade.lab.reproduce.setups import Scale, regression
from signfade.lab.style import MUTED, figure_style, line_style
from signfade.learn.run import Experiment
from signfade.learn.synthetic import RegressionTask
from signfade.theory import corrected_bound, published_bound

__all__ = ["FIG_CONVERGENCE"]

Array = NDArray[np.float64]
STARTS = {"far": "From a Gaussian start", "optimum": "From the optimum"}


def _measure(scale: Scale, say: Callable[[str], None]) -> dict[str, Any]:
    """Return, by start, the squared norms of gradient and error in each round, and what the bounds need."""
    say("fig-convergence: two runs of the regression")
    return {start: _run(scale, at_optimum=start == "optimum") for start in STARTS}


def _run(scale: Scale, *, at_optimum: bool) -> dict[str, Any]:
    experiment = Experiment(regression(scale, "gaussian", heterogeneous=True, server__schedule="sqrt"))
    task = experiment.task
    assert isinstance(task, RegressionTask)
    if at_optimum:
        experiment.restore(experiment.state() | {"step.weights": task.data.optimum.float()}, 0)
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


def _render(study: Study) -> list[Block]:
    data = study.measured.get("fig-convergence")
    if data is None:
        return [Text("Missing.")]
    rows = []
    with figure_style():
        figure = new_figure((8.4, 4.0), study.scale)
        panels = figure.subplots(1, 2)
        for ax, (start, title) in zip(panels, STARTS.items()):
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
    words = (
        "SBFL (Gaussian) on the heterogeneous regression, steps `1/(L sqrt(t + 1))` without momentum as in "
        "Theorem 2. Both bounds are given the errors of the estimates that occurred. The printed one takes "
        "the estimate as unbiased and has lost a division by the step ([errata](errata.md)), so that the "
        "error hardly counts: far from the optimum this does not show, at the optimum, where the devices' "
        "gradients do not vanish and the error drives the model away, the run breaks it at once."
    )
    heads = [
        "run",
        "mean |gradient|² at the end",
        "as printed",
        "corrected",
        "printed is broken",
        "corrected holds",
    ]
    about = "Mean squared gradient norm of two regression runs against the printed and the corrected bound"
    note = "In units of the mean squared error of an estimate in that run."
    return [Text(words), Picture(figure, "fig-convergence", about), Table(heads, rows, note)]


FIG_CONVERGENCE = Artefact(
    "fig-convergence",
    "Runs against their bounds",
    "ours; Theorem 2",
    _render,
    measure=_measure,
    depends=("regression_rounds", "bandwidth_hz"),
    cost=15.0,
)
