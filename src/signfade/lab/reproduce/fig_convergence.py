"""Ours: a regression run against Theorem 2, as printed and corrected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from signfade.lab.reproduce.artefact import Artefact, Study
from signfade.lab.reproduce.document import Block, Picture, Table, Text
from signfade.lab.reproduce.drawing import new_figure
from signfade.lab.reproduce.setups import METHODS, Scale, regression
from signfade.lab.style import MUTED, figure_style, line_style
from signfade.learn.run import Experiment
from signfade.learn.synthetic import RegressionTask
from signfade.theory import corrected_bound, published_bound

__all__ = ["FIG_CONVERGENCE"]

METHODS_SHOWN = ("gaussian", "rotated")


def _measure(scale: Scale, say: Callable[[str], None]) -> dict[str, Any]:
    """Return, by method, the squared norms of gradient and error in each round, and what the bounds need."""
    say("fig-convergence: two runs of the regression")
    runs: dict[str, Any] = {}
    for method in METHODS_SHOWN:
        settings = regression(scale, method, heterogeneous=True, server__schedule="sqrt")
        experiment = Experiment(settings)
        task = experiment.task
        assert isinstance(task, RegressionTask)
        gap = task.data.excess_loss(experiment.weights)
        everyone = np.arange(task.devices)
        gradient, error = [], []
        while not experiment.done:
            truth = task.local_gradients(experiment.weights, everyone, experiment.round).gradients.sum(dim=0)
            energy = float(truth.double().square().sum())
            record = experiment.advance()
            gradient.append(float(f"{energy:.5g}"))
            error.append(float(f"{energy * record['nmse']:.5g}"))
        runs[method] = {"gap": gap, "smoothness": task.data.smoothness, "gradient": gradient, "error": error}
    return runs


def _bounds(run: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean squared gradient norm so far, the printed bound, and the corrected one, `[T]` each."""
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
        figure = new_figure((8.4, 3.9), study.scale)
        panels = figure.subplots(1, 2, sharey=True)
        for ax, method in zip(panels, METHODS_SHOWN):
            mean, printed, corrected = _bounds(data[method])
            rounds = np.arange(1, len(mean) + 1)
            ax.plot(rounds, mean, color=line_style(0).color, label="mean squared gradient, this run")
            ax.plot(rounds, corrected, color=line_style(2).color, dashes=(5, 1.6), label="bound, corrected")
            ax.plot(rounds, printed, color=line_style(1).color, dashes=(1.5, 1.2), label="bound, as printed")
            ax.set(title=METHODS[method].label, xlabel="round", yscale="log", xscale="log")
            ax.grid(visible=False, axis="x")
            broken = np.flatnonzero(mean > printed)
            first = "never" if not len(broken) else f"round {broken[0] + 1}"
            if len(broken):
                ax.axvline(broken[0] + 1, color=MUTED, linewidth=0.8)
            held = "yes" if (mean <= corrected * (1 + 1e-9)).all() else "no"
            end = [f"{value:.3g}" for value in (mean[-1], printed[-1], corrected[-1])]
            rows.append([METHODS[method].label, *end, first, held])
        panels[0].set_ylabel("mean of |gradient|² over the rounds so far")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, handlelength=3.4)
    words = (
        "The heterogeneous regression, steps `1/(L sqrt(t + 1))` without momentum as in Theorem 2. Both "
        "bounds are given the errors of the estimates that occurred. The printed one takes the estimate as "
        "unbiased and has lost a division by the step ([errata](errata.md)): where "
        "a vertical line stands it has fallen below the run itself."
    )
    heads = [
        "method",
        "mean |gradient|² at the end",
        "as printed",
        "corrected",
        "printed bound broken",
        "corrected held",
    ]
    about = "Mean squared gradient norm of a regression run against the printed and the corrected bound"
    return [Text(words), Picture(figure, "fig-convergence", about), Table(heads, rows)]


FIG_CONVERGENCE = Artefact(
    "fig-convergence", "A run against its bounds", "ours; Theorem 2", _render, measure=_measure, cost=15.0
)
