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

from signfade.data import Split, count_classes, load, plot_split, split
from signfade.device import rotate
from signfade.experiments.figures import cell_map
from signfade.experiments.studies.drawing import log_axis, new_figure
from signfade.experiments.studies.paper.cells import regression, training
from signfade.experiments.studies.paper.point import settle
from signfade.experiments.studies.paper.printed import words_of
from signfade.experiments.studies.records import Results, Scale, rounded
from signfade.experiments.studies.study import Block, Part, Picture, Table, Text
from signfade.experiments.style import INK, line_style
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

    >>> gaussian, laplacian = ks_distances(np.random.default_rng(0).standard_normal(10_000))
    >>> gaussian < 0.01 < 0.04 < laplacian
    True
    """
    from scipy import stats  # takes half a second to load

    x = values - values.mean()
    if not x.any():
        raise ValueError("values must not all be the same")
    fits = stats.norm(scale=x.std()), stats.laplace(scale=np.abs(x).mean())
    gaussian, laplacian = (stats.kstest(x, fit.cdf, method="asymp").statistic for fit in fits)
    return float(gaussian), float(laplacian)


def _edges(bins: int) -> Array:
    """Ends of the bins of a histogram, in deviations."""
    return np.linspace(-5, 5, bins + 1)


def _histogram(values: Array) -> dict[str, Any]:
    """A histogram in units of the deviation, and how well the priors fit."""
    std, centred = float(values.std()), values - values.mean()
    gaussian, laplacian = ks_distances(values)
    edges = _edges(20 if len(values) < 2000 else 60)
    count, _ = np.histogram(centred / std, edges)
    density = count / len(values) / np.diff(edges)
    return {
        "size": len(values),
        "mean": rounded(float(values.mean())),
        "std": rounded(std, 5),
        "mean_abs": rounded(float(np.abs(centred).mean() / std), 5),
        "gaussian": rounded(gaussian),
        "laplacian": rounded(laplacian),
        "density": [rounded(value) for value in density.tolist()],
    }


def _along(settings: RunSettings, rounds: tuple[int, ...], say: Callable[[str], None]) -> dict[str, Any]:
    """Train, and measure some users' gradients at the start of some rounds, as they are and rotated."""
    experiment = Experiment(settings)
    found: dict[str, Any] = {}
    while experiment.round < max(rounds):
        if experiment.round + 1 in rounds:
            say(f"fig-priors: {settings.data.name}, round {experiment.round + 1} of {max(rounds)}")
            local = experiment.task.local_updates(experiment.weights, np.array(USERS), experiment.round)
            rotated = rotate(local.gradients, stream_key(settings.seed, "rotation", experiment.round))
            for row, user in enumerate(USERS):
                found[f"{experiment.round + 1},{user}"] = {
                    "raw": _histogram(local.gradients[row].double().numpy()),
                    "rotated": _histogram(rotated[row].double().numpy()),
                }
        experiment.advance()
    return found


def _measure(scale: Scale, say: Callable[[str], None]) -> dict[str, Any]:
    numbers, images = (
        regression(scale, "gaussian", heterogeneous=True),
        training(scale, "gaussian", (1e-2, 0.0)),
    )
    found = {"regression": _along(numbers, _ROUNDS["regression"], say)}
    return found | {scale.data: _along(images, _ROUNDS[scale.name], say)}


def _panel(ax: Axes, samples: dict[str, dict[str, Any]], title: str) -> None:
    """Histograms of some gradients, each in units of its own deviation, and the two priors fitted to one."""
    for index, (label, sample) in enumerate(samples.items()):
        density = np.array(sample["density"])
        shown, edges, style = density > 0, _edges(len(density)), line_style(index)
        middle = (edges[1:] + edges[:-1]) / 2
        look: Any = {"color": style.color, "marker": style.marker, "markersize": 2.5, "linewidth": 1.0}
        ax.plot(middle[shown], density[shown], label=label, **look)
    x = np.linspace(-5, 5, 401)
    scale = float(np.mean([sample["mean_abs"] for sample in samples.values()]))
    gaussian, laplacian = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi), np.exp(-np.abs(x) / scale) / (2 * scale)
    ax.plot(x, gaussian, color=INK, linewidth=1.1, label="Gaussian")
    ax.plot(x, laplacian, color=INK, dashes=(3, 1.5), linewidth=1.1, label="Laplacian")
    least = min(value for sample in samples.values() for value in sample["density"] if value > 0)
    ax.set(title=title, yscale="log", ylim=(least / 3, 20), xlim=(-5, 5))
    log_axis(ax.yaxis)
    ax.grid(visible=False, axis="x")


def _figure(results: Results, samples: dict[str, Any], kind: str) -> Picture:
    pairs = [tuple(map(int, key.split(","))) for key in samples]
    rounds, users = (sorted(set(numbers)) for numbers in zip(*pairs))
    with new_figure((8.4, 6.0), 2, 2, sharex=True, sharey=True) as (figure, panels):
        for (left, right), (how, name) in zip(panels, (("raw", "as they are"), ("rotated", "rotated"))):
            over_rounds = {f"round {t}": samples[f"{t},{users[0]}"][how] for t in rounds}
            over_users = {f"user {u}": samples[f"{rounds[-1]},{u}"][how] for u in users}
            _panel(left, over_rounds, f"User {users[0]}, {name}")
            _panel(right, over_users, f"Round {rounds[-1]}, {name}")
            left.set_ylabel("density")
        for ax in panels[1]:
            ax.set_xlabel("(element of the gradient − mean) / deviation")
        for ax in panels[0]:
            ax.legend(loc="upper left", fontsize=7.5, borderaxespad=0.1, labelspacing=0.3)
    about = f"Histograms of local gradients on {kind}, as they are and rotated, with fitted priors"
    return Picture(figure, f"fig-priors-{kind}", about)


def _row(kind: str, key: str, raw: dict[str, float], rotated: dict[str, float]) -> list[str]:
    t, user = key.split(",")
    centre = f"{raw['mean'] / raw['std']:+.3f}".replace("-", "−")
    fits = [
        f"{raw['gaussian']:.3f}",
        f"{raw['laplacian']:.3f}",
        f"{raw['mean_abs'] / np.sqrt(2 / np.pi):.2f}",
    ]
    then = [f"{rotated['gaussian']:.4f}", f"{0.6 / np.sqrt(rotated['size']):.4f}"]
    return [f"{kind}, round {t}, user {user}", f"{raw['std']:.3g}", centre, *fits, *then]


def _priors(results: Results) -> list[Block]:
    data = results.measurement("fig-priors")
    rows = [_row(kind, key, **sample) for kind, samples in data.items() for key, sample in samples.items()]
    heads = ["gradient", "deviation", "mean / deviation", "D, Gaussian", "D, Laplacian"]
    heads += ["amplitude, Laplacian / Gaussian", "rotated: D, Gaussian", "of a Gaussian sample"]
    pictures = [_figure(results, samples, kind) for kind, samples in data.items()]
    return [Text(words_of("fig-priors")), *pictures, Table(heads, rows, words_of("fig-priors", "note"))]


FIG_PRIORS = Part(
    "fig-priors",
    "Priors of local gradients",
    "Fig. 3",
    _priors,
    measure=_measure,
    depends=("name", "data", "devices", "bandwidth_hz"),
    cost=120.0,
    settle=settle,
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


def _setup(results: Results) -> list[Block]:
    data = results.measurement("fig-setup")
    places = cell_map(data["positions_km"], data["snr_db"], 1.0)
    places.axes[0].set(xticks=(-1, -0.5, 0, 0.5, 1), yticks=(-1, -0.5, 0, 0.5, 1))
    # The same picture as `signfade data split` draws, from nothing but the counts.
    counts = np.array(data["counts"])
    devices, classes = counts.shape
    labels = np.repeat(np.tile(np.arange(classes), devices), counts.ravel())
    ends = np.concatenate([[0], np.cumsum(counts.sum(axis=1))])
    holdings = plot_split(labels, Split(np.arange(len(labels)), ends), classes)
    snr = np.array(data["snr_db"])
    words = words_of("fig-setup", devices=devices, low=snr.min(), high=snr.max(), middle=np.median(snr))
    return [
        Text(words.replace(" -", " −")),
        Picture(places, "fig-setup-cell", "Map of the cell: users by place, their mean SNR as a colour"),
        Picture(holdings, "fig-setup-split", "Which user holds how many samples of which class"),
    ]


FIG_SETUP = Part(
    "fig-setup",
    "Heterogeneity of the setup",
    "Fig. 2",
    _setup,
    measure=_measure_setup,
    depends=("data", "devices", "bandwidth_hz"),
    cost=5.0,
    settle=settle,
)
