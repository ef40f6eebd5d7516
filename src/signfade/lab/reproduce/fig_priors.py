"""Fig. 3: histograms of local gradients with the fitted Gaussian and Laplacian, as they are and rotated.

How good a fit is: the Kolmogorov-Smirnov distance, the largest difference between the share of coordinates
below a value and what the fitted prior says. 0 is perfect; a Gaussian sample of n coordinates with fitted
mean and deviation has about 0.6/sqrt(n).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from scipy.special import ndtr

from signfade.device import rotate
from signfade.keys import stream_key
from signfade.lab.reproduce.artefact import Artefact, Study
from signfade.lab.reproduce.document import Block, Picture, Table, Text
from signfade.lab.reproduce.drawing import log_axis, new_figure
from signfade.lab.reproduce.setups import Scale, regression, training
from signfade.lab.style import INK, figure_style, line_style
from signfade.learn.run import Experiment
from signfade.settings import RunSettings

__all__ = ["FIG_PRIORS", "ks_distances"]

Array = NDArray[np.float64]
USERS = (0, 7, 13)
_ROUNDS = {"regression": (1, 20, 100), "full": (1, 50, 200), "quick": (1, 20, 50)}


def ks_distances(values: Array) -> tuple[float, float]:
    """Return the Kolmogorov-Smirnov distances of a sample from its fitted Gaussian and Laplacian.

    Both are fitted by maximum likelihood about the sample's mean: deviation, and mean absolute deviation.

    Args:
        values: `[n]`.

    Example:
        >>> gaussian, laplacian = ks_distances(np.random.default_rng(0).standard_normal(10_000))
        >>> gaussian < 0.01 < 0.04 < laplacian
        True
    """
    x = np.sort(values - values.mean())
    below = np.arange(len(x) + 1) / len(x)
    std, scale = x.std(), np.abs(x).mean()
    if not scale > 0:
        raise ValueError("values must not all be the same")
    found = []
    tail = 0.5 * np.exp(-np.abs(x) / scale)
    for cdf in (ndtr(x / std), np.where(x < 0, tail, 1 - tail)):
        found.append(float(max(np.abs(cdf - below[:-1]).max(), np.abs(below[1:] - cdf).max())))
    return found[0], found[1]


def _edges(bins: int) -> Array:
    """Ends of the bins of a histogram, in deviations."""
    return np.linspace(-5, 5, bins + 1)


def _look(values: Array) -> dict[str, Any]:
    """A histogram in units of the deviation, and how well the priors fit."""
    std = float(values.std())
    gaussian, laplacian = ks_distances(values)
    edges = _edges(20 if len(values) < 2000 else 60)
    count, _ = np.histogram((values - values.mean()) / std, edges)
    density = count / len(values) / np.diff(edges)
    return {
        "size": len(values),
        "mean": float(f"{values.mean():.4g}"),
        "std": float(f"{std:.5g}"),
        "mean_abs": float(f"{np.abs(values - values.mean()).mean() / std:.5g}"),
        "gaussian": float(f"{gaussian:.4g}"),
        "laplacian": float(f"{laplacian:.4g}"),
        "density": [float(f"{value:.4g}") for value in density],
    }


def _along(settings: RunSettings, rounds: tuple[int, ...], say: Callable[[str], None]) -> dict[str, Any]:
    """Train, and look at some users' gradients at the start of some rounds, as they are and rotated."""
    experiment = Experiment(settings)
    users = np.array(USERS)
    found: dict[str, Any] = {}
    while experiment.round < max(rounds):
        if experiment.round + 1 in rounds:
            say(f"fig-priors: {settings.data.name}, round {experiment.round + 1} of {max(rounds)}")
            local = experiment.task.local_gradients(experiment.weights, users, experiment.round)
            rotated = rotate(local.gradients, stream_key(settings.seed, "rotation", experiment.round))
            for row, user in enumerate(USERS):
                found[f"{experiment.round + 1},{user}"] = {
                    "raw": _look(local.gradients[row].double().numpy()),
                    "rotated": _look(rotated[row].double().numpy()),
                }
        experiment.advance()
    return found


def _measure(scale: Scale, say: Callable[[str], None]) -> dict[str, Any]:
    kinds = {
        "regression": (regression(scale, "gaussian", heterogeneous=True), _ROUNDS["regression"]),
        scale.data: (training(scale, "gaussian", (1e-2, 0.0)), _ROUNDS[scale.name]),
    }
    return {name: _along(settings, rounds, say) for name, (settings, rounds) in kinds.items()}


def _panel(ax: Axes, looks: dict[str, dict[str, Any]], title: str) -> None:
    """Histograms of some gradients, each in units of its own deviation, and the two priors fitted to one."""
    for index, (label, look) in enumerate(looks.items()):
        density = np.array(look["density"])
        shown = density > 0
        edges = _edges(len(density))
        middle = (edges[1:] + edges[:-1]) / 2
        ax.plot(
            middle[shown],
            density[shown],
            color=line_style(index).color,
            marker=line_style(index).marker,
            markersize=2.5,
            linewidth=1.0,
            label=label,
        )
    x = np.linspace(-5, 5, 401)
    ax.plot(x, np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi), color=INK, linewidth=1.1, label="Gaussian")
    scale = float(np.mean([look["mean_abs"] for look in looks.values()]))
    ax.plot(
        x,
        np.exp(-np.abs(x) / scale) / (2 * scale),
        color=INK,
        dashes=(3, 1.5),
        linewidth=1.1,
        label="Laplacian",
    )
    least = min(value for look in looks.values() for value in look["density"] if value > 0)
    ax.set(title=title, yscale="log", ylim=(least / 3, 20), xlim=(-5, 5))
    log_axis(ax.yaxis)
    ax.grid(visible=False, axis="x")


def _figure(study: Study, data: dict[str, Any], kind: str) -> Picture:
    with figure_style():
        figure = new_figure((8.4, 6.0), study.scale)
        panels = figure.subplots(2, 2, sharex=True, sharey=True)
        rounds, users = _axes(data[kind])
        for row, how in enumerate(("raw", "rotated")):
            name = "as they are" if how == "raw" else "rotated"
            over_rounds = {f"round {t}": data[kind][f"{t},{users[0]}"][how] for t in rounds}
            over_users = {f"user {u}": data[kind][f"{rounds[-1]},{u}"][how] for u in users}
            _panel(panels[row, 0], over_rounds, f"User {users[0]}, {name}")
            _panel(panels[row, 1], over_users, f"Round {rounds[-1]}, {name}")
            panels[row, 0].set_ylabel("density")
        for ax in panels[1]:
            ax.set_xlabel("(element of the gradient − mean) / deviation")
        for ax in panels[0]:
            ax.legend(loc="upper left", fontsize=7.5, borderaxespad=0.1, labelspacing=0.3)
    about = f"Histograms of local gradients on {kind}, as they are and rotated, with fitted priors"
    return Picture(figure, f"fig-priors-{kind}", about)


def _axes(looks: dict[str, Any]) -> tuple[list[int], list[int]]:
    pairs = [tuple(map(int, key.split(","))) for key in looks]
    return sorted({pair[0] for pair in pairs}), sorted({pair[1] for pair in pairs})


def _render(study: Study) -> list[Block]:
    data = study.measured.get("fig-priors")
    if data is None:
        return [Text("Missing.")]
    words = (
        "Elements of single users' gradients during training by SBFL (Gaussian, step 1/L and 1e-2), each "
        "less their mean and in units of its own deviation. D is the Kolmogorov-Smirnov distance from the "
        "prior fitted by maximum likelihood: 0 is a perfect fit. The network's gradients are far from "
        "Gaussian and nearer to Laplacian; rotated, they can hardly be told from Gaussian samples. The "
        "regression's 300 elements are too few to tell much. The amplitude of an estimate is "
        "`sqrt(2/pi) nu` with the Gaussian prior and `lambda` with the Laplacian: as the gradients grow "
        "heavier tails the Laplacian's steps become the shorter ones (their ratio is in the table), which "
        "alone makes it slower at equal step sizes."
    )
    rows = []
    for kind, looks in data.items():
        for key, look in looks.items():
            t, user = key.split(",")
            raw, rotated = look["raw"], look["rotated"]
            rows.append(
                [
                    f"{kind}, round {t}, user {user}",
                    f"{raw['std']:.3g}",
                    f"{raw['mean'] / raw['std']:+.3f}".replace("-", "−"),
                    f"{raw['gaussian']:.3f}",
                    f"{raw['laplacian']:.3f}",
                    f"{raw['mean_abs'] / np.sqrt(2 / np.pi):.2f}",
                    f"{rotated['gaussian']:.4f}",
                    f"{0.6 / np.sqrt(rotated['size']):.4f}",
                ]
            )
    heads = ["gradient", "deviation", "mean / deviation", "D, Gaussian", "D, Laplacian"]
    heads += ["amplitude, Laplacian / Gaussian", "rotated: D, Gaussian", "of a Gaussian sample"]
    note = "The last column is what a truly Gaussian sample of that size has, about 0.6/sqrt(n)."
    return [Text(words), *(_figure(study, data, kind) for kind in data), Table(heads, rows, note)]


FIG_PRIORS = Artefact(
    "fig-priors",
    "Priors of local gradients",
    "Fig. 3",
    _render,
    measure=_measure,
    depends=("name", "data", "bandwidth_hz"),
    cost=120.0,
)
