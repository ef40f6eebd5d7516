"""Figs. 2 and 3: the users' places and classes; histograms of their gradients with fitted priors.

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

from signfade.data import Split, count_classes, load, plot_split, split
from signfade.device import rotate
from signfade.experiments.figures import cell_map
from signfade.experiments.studies.document import Block, Picture, Table, Text
from signfade.experiments.studies.drawing import log_axis, new_figure, note_scale
from signfade.experiments.studies.paper.printed import words_of
from signfade.experiments.studies.paper.setups import regression, training
from signfade.experiments.studies.study import Part, Results, Scale
from signfade.experiments.style import INK, figure_style, line_style
from signfade.keys import stream_key
from signfade.settings import RunSettings
from signfade.simulation.run import Experiment
from signfade.uplink.radio import make_radio

__all__ = ["FIG_PRIORS", "FIG_SETUP", "USERS", "ks_distances"]

Array = NDArray[np.float64]
USERS = (0, 7, 13)
_ROUNDS = {"regression": (1, 20, 100), "full": (1, 50, 200), "quick": (1, 20, 50)}


def ks_distances(values: Array) -> tuple[float, float]:
    """Return the Kolmogorov-Smirnov distances of a sample `[n]` from its fitted Gaussian and Laplacian.

    Both are fitted by maximum likelihood about the sample's mean: deviation, and mean absolute deviation.

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


def _histogram(values: Array) -> dict[str, Any]:
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
    """Train, and measure some users' gradients at the start of some rounds, as they are and rotated."""
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
                    "raw": _histogram(local.gradients[row].double().numpy()),
                    "rotated": _histogram(rotated[row].double().numpy()),
                }
        experiment.advance()
    return found


def _measure(scale: Scale, say: Callable[[str], None]) -> dict[str, Any]:
    kinds = {
        "regression": (regression(scale, "gaussian", heterogeneous=True), _ROUNDS["regression"]),
        scale.data: (training(scale, "gaussian", (1e-2, 0.0)), _ROUNDS[scale.name]),
    }
    return {name: _along(settings, rounds, say) for name, (settings, rounds) in kinds.items()}


def _panel(ax: Axes, samples: dict[str, dict[str, Any]], title: str) -> None:
    """Histograms of some gradients, each in units of its own deviation, and the two priors fitted to one."""
    for index, (label, sample) in enumerate(samples.items()):
        density = np.array(sample["density"])
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
    scale = float(np.mean([sample["mean_abs"] for sample in samples.values()]))
    ax.plot(
        x,
        np.exp(-np.abs(x) / scale) / (2 * scale),
        color=INK,
        dashes=(3, 1.5),
        linewidth=1.1,
        label="Laplacian",
    )
    least = min(value for sample in samples.values() for value in sample["density"] if value > 0)
    ax.set(title=title, yscale="log", ylim=(least / 3, 20), xlim=(-5, 5))
    log_axis(ax.yaxis)
    ax.grid(visible=False, axis="x")


def _figure(results: Results, data: dict[str, Any], kind: str) -> Picture:
    with figure_style():
        figure = new_figure((8.4, 6.0), results.scale)
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


def _axes(samples: dict[str, Any]) -> tuple[list[int], list[int]]:
    pairs = [tuple(map(int, key.split(","))) for key in samples]
    return sorted({pair[0] for pair in pairs}), sorted({pair[1] for pair in pairs})


def _render(results: Results) -> list[Block]:
    data = results.measured.get("fig-priors")
    if data is None:
        return [Text("Missing.")]
    rows = []
    for kind, samples in data.items():
        for key, sample in samples.items():
            t, user = key.split(",")
            raw, rotated = sample["raw"], sample["rotated"]
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
    table = Table(heads, rows, words_of("fig-priors", "note"))
    return [Text(words_of("fig-priors")), *(_figure(results, data, kind) for kind in data), table]


FIG_PRIORS = Part(
    "fig-priors",
    "Priors of local gradients",
    "Fig. 3",
    _render,
    measure=_measure,
    depends=("name", "data", "bandwidth_hz"),
    cost=120.0,
)

# -- Fig. 2 --------------------------------------------------------------------------------------------------


def _measure_setup(scale: Scale, say: Callable[[str], None]) -> dict[str, Any]:
    """Return places and SNRs of the users of seed 0, and how many samples of each class they hold."""
    settings = training(scale, "gaussian", (1e-2, 0.0))
    plan = make_radio(settings.cell, settings.data.devices, settings.seed)
    assert plan.positions_km is not None
    assert plan.mean_snr_db is not None
    dataset = load(settings.data.name)
    who = split(dataset.train_y, settings.data.devices, settings.data.split, seed=settings.seed)
    return {
        "positions_km": plan.positions_km.round(4).tolist(),
        "snr_db": plan.mean_snr_db.round(2).tolist(),
        "counts": count_classes(dataset.train_y, who, dataset.classes).tolist(),
    }


def _render_setup(results: Results) -> list[Block]:
    data = results.measured.get("fig-setup")
    if data is None:
        return [Text("Missing.")]
    places = cell_map(data["positions_km"], data["snr_db"], 1.0)
    places.axes[0].set(xticks=(-1, -0.5, 0, 0.5, 1), yticks=(-1, -0.5, 0, 0.5, 1))
    # The same picture as `signfade data split` draws, from nothing but the counts.
    counts = np.array(data["counts"])
    devices, classes = counts.shape
    labels = np.repeat(np.tile(np.arange(classes), devices), counts.ravel())
    ends = np.concatenate([[0], np.cumsum(counts.sum(axis=1))])
    holdings = plot_split(labels, Split(np.arange(len(labels)), ends), classes)
    for figure in (places, holdings):
        note_scale(figure, results.scale)
    snr = np.array(data["snr_db"])
    spread = {"low": snr.min(), "high": snr.max(), "middle": np.median(snr)}
    words = words_of("fig-setup", devices=devices, **spread)
    return [
        Text(words.replace(" -", " −")),
        Picture(places, "fig-setup-cell", "Map of the cell: users by place, their mean SNR as a colour"),
        Picture(holdings, "fig-setup-split", "Which user holds how many samples of which class"),
    ]


FIG_SETUP = Part(
    "fig-setup",
    "Heterogeneity of the setup",
    "Fig. 2",
    _render_setup,
    measure=_measure_setup,
    depends=("data", "bandwidth_hz"),
    cost=5.0,
)
