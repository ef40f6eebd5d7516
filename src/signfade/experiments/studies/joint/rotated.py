"""Is the Gaussian prior true after the rotation, and do the predicted errors hold? Measured on images."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from signfade.device import rotate
from signfade.experiments.config import resolve
from signfade.experiments.studies.document import Block, Table, Text
from signfade.experiments.studies.paper.gradients import ks_distances
from signfade.experiments.studies.study import Part, Results, Scale
from signfade.simulation import Experiment
from signfade.simulation.task import one_thread

__all__ = ["JOINT_ROTATED"]

_RULES: dict[str, dict[str, Any]] = {
    "vote, best-scaled": {"method.aggregator": "signsgd", "method.tie": "plus"},
    "sbfl, published": {"method.aggregator": "sbfl", "method.form": "published"},
    "sbfl": {"method.aggregator": "sbfl"},
    "blmmse": {"method.aggregator": "blmmse"},
    "high_snr": {"method.aggregator": "high_snr"},
    "zero_forcing": {"method.aggregator": "zero_forcing"},
    "bfl, linear": {"method.aggregator": "bfl", "method.joint": "linear"},
    "bfl, soft": {"method.aggregator": "bfl", "method.joint": "soft"},
    "bfl, factor": {"method.aggregator": "bfl", "method.joint": "factor"},
    "bfl, ep": {"method.aggregator": "bfl", "method.joint": "ep"},
    "best (soft, debiased)": {"method.preset": "best"},
}


def _experiment(scale: Scale, method: dict[str, Any]) -> Experiment:
    tree = {"rounds": 10**6, "eval.every": 10**6, "data.name": scale.data, "cell.bandwidth_hz": 180e3}
    return Experiment(resolve(tree | {"method.rotation": "hadamard"} | method))


def _fit(run: Experiment) -> dict[str, list[float]]:
    """Kolmogorov-Smirnov distances of the devices' gradients from the Gaussian: median and worst."""
    with one_thread():
        g = run.task.local_gradients(run.weights, np.arange(run.devices), run.round).gradients
    found = {}
    for name, rows in (("as they are", g), ("rotated", rotate(g, 1))):
        distances = [ks_distances(row.double().numpy())[0] for row in rows]
        found[name] = [float(f"{value:.4g}") for value in (median(distances), max(distances))]
    return found


def _measure(scale: Scale, say: Callable[[str], None]) -> dict[str, Any]:
    rounds = 5 if scale.quick else 30
    say("joint-rotated: gradients before and after the rotation")
    run = _experiment(scale, {"method.aggregator": "ideal", "method.rotation": "none"})
    fit = {"first round": _fit(run)}
    for _ in range(rounds):
        run.advance()
    fit[f"after {rounds} rounds"] = _fit(run)
    errors = {}
    for name, method in _RULES.items():
        say(f"joint-rotated: {name}, {rounds} rounds")
        experiment = _experiment(scale, method)
        metrics = [experiment.advance() for _ in range(rounds)]
        errors[name] = [median(m[key] for m in metrics) for key in ("nmse", "nmse_theory")]
    return {"parameters": run.parameters, "fit": fit, "errors": errors}


def _render(results: Results) -> list[Block]:
    data = results.measured.get("joint-rotated")
    if data is None:
        return [Text("Missing.")]
    digits = {"as they are": 3, "rotated": 4}
    rows = [
        [when, *(", ".join(f"{value:.{digits[name]}f}" for value in fit[name]) for name in digits)]
        for when, fit in data["fit"].items()
    ]
    fit = Table(["", *digits], rows, name="rotated fit")
    rows = [[name, *(f"{value:.3g}" for value in pair)] for name, pair in data["errors"].items()]
    errors = Table(["rule, rotated, 180 kHz", "measured", "predicted"], rows, name="rotated errors")
    words = (
        "Kolmogorov-Smirnov distance between a device's standardised gradient and the Gaussian, median and "
        "worst over the devices; a true Gaussian sample of this length, its deviation fitted as well, has a "
        f"median of about {0.6 / data['parameters'] ** 0.5:.4f}. Then measured and predicted normalised "
        "error of every rule, medians over the rounds. Each rule trains a model of its own, so compare along "
        "the rows, not down the columns."
    )
    return [Text(words), fit, errors]


JOINT_ROTATED = Part(
    "joint-rotated",
    "Is it Gaussian, and do the predictions hold?",
    "ours",
    _render,
    measure=_measure,
    depends=("name", "data"),
    cost=400.0,
)
