"""The error of the joint rules: on truly Gaussian gradients, and on images beside its prediction."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from signfade import theory
from signfade.device import rotate, sign
from signfade.experiments.config import resolve
from signfade.experiments.studies.drawing import new_figure
from signfade.experiments.studies.records import Results, Scale, rounded
from signfade.experiments.studies.study import Block, Part, Picture, Table, Text
from signfade.experiments.style import INK, MUTED
from signfade.server import majority_vote, sbfl
from signfade.server.joint import (
    bfl,
    factor_bfl,
    fit_factor,
    joint_blmmse,
    joint_sbfl,
    learn_correlation,
    private_part,
)
from signfade.simulation import Experiment
from signfade.simulation.task import one_thread
from signfade.uplink import transmit

__all__ = ["JOINT_LADDER", "JOINT_ROTATED", "draw_round", "measure_errors"]

# -- truly Gaussian, correlated gradients --------------------------------------------------------------------
#
# Every device has unit variance and every pair the same correlation, or (in the table of classes) devices
# hold two of ten classes each and agree where they share one; links fade as the paper's (h ~ N(0, 1), new in
# every round) around one mean SNR. Rules that know the correlation are given it, "learned" ones take it from
# the round's own signals and nothing else.

_KAPPA = math.sqrt(2 / math.pi)
_CLASSES = "devices and dB, two of ten classes each"
# By sweep: devices, correlation (None for classes), mean SNR in dB.
_SWEEPS: dict[str, list[tuple[int, float | None, float]]] = {
    "correlation": [
        (20, value, 0.0) for value in (-0.04, -0.03, -0.015, 0.0, 0.03, 0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9)
    ],
    "mean SNR in dB": [(20, 0.3, float(value)) for value in (-10, -5, 0, 5, 10, 15, 20)],
    "devices": [(value, 0.3, 0.0) for value in (5, 10, 20, 50, 100, 200)],
    _CLASSES: [(devices, None, decibel) for devices in (20, 100) for decibel in (0.0, 10.0)],
}
_PANELS = {
    "correlation": (1, "20 devices, 0 dB"),
    "mean SNR in dB": (2, "20 devices, correlation 0.3"),
    "devices": (0, "correlation 0.3, 0 dB"),
}
# Rules: colour and label in the figure.
_RULES = {
    "vote": ("#8c8c8c", "majority vote, best-scaled"),
    "sbfl, published": ("#c9a227", "SBFL as published"),
    "sbfl": ("#d1495b", "SBFL corrected"),
    "joint blmmse": ("#74b3d8", "joint linear"),
    "joint sbfl": ("#1d4e89", "joint SBFL (soft bits)"),
    "ep": ("#7b2d8b", "joint EP"),
    "factor": ("#2a9d5c", "joint factor (exact here)"),
}


def draw_round(
    devices: int, correlation: float | None, decibel: float, size: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return gradients `[K, M]`, gains, noise variances, received signals and true correlation of a round.

    Every pair has the same correlation; with None devices hold two of ten classes each.
    """
    generator = torch.Generator().manual_seed(seed)
    if correlation is None:
        member = torch.zeros(devices, 10, dtype=torch.float64)
        for row in member:
            row[torch.randperm(10, generator=generator)[:2]] = 1.0
        r = member @ (torch.eye(10) - 0.1).double() @ member.T + 0.5 * torch.eye(devices).double()
        root = r.diagonal().rsqrt()
        r = r * root[:, None] * root[None, :]
    else:
        r = correlation + (1 - correlation) * torch.eye(devices, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(r)
    root = (vectors * values.clamp_min(0).sqrt()).float()
    g = root @ torch.randn(devices, size, generator=generator)
    h = torch.randn(devices, generator=generator)
    sigma2 = torch.full((devices,), 10 ** (-decibel / 10))
    return g, h, sigma2, transmit(sign(g), h, sigma2, generator).y, r


def _joint(y: Tensor, h: Tensor, sigma2: Tensor, correlation: Tensor) -> dict[str, Tensor]:
    """The joint rules with a given correlation."""
    zero, scale = torch.zeros(len(h)), torch.full((len(h),), _KAPPA)
    loading = fit_factor(correlation)
    private = private_part(torch.ones_like(loading), loading)
    return {
        "joint blmmse": joint_blmmse(y, h, sigma2, zero, scale, correlation),
        "joint sbfl": joint_sbfl(y, h, sigma2, zero, scale, correlation),
        "ep": bfl(y, h, sigma2, zero, correlation, method="ep"),
        "factor": factor_bfl(y, h, sigma2, zero, loading, private),
    }


def measure_errors(
    devices: int, correlation: float | None, decibel: float, size: int, rounds: int, tried: int
) -> dict[str, float]:
    """Return the normalised error of every rule, averaged over rounds, and what theory predicts.

    The correlation is learned from all `size` coordinates of a round; the rules are tried on `tried` of them.
    """
    sums: dict[str, float] = {}
    energy = expected = 0.0
    for seed in range(rounds):
        g, h, sigma2, y, r = draw_round(devices, correlation, decibel, size, seed)
        learned = learn_correlation(y, h, sigma2)
        truth, y = g.sum(dim=0)[:tried], y[:, :tried].contiguous()
        zero, scale = torch.zeros(devices), torch.full((devices,), _KAPPA)
        vote = majority_vote(y, h, tie="plus")
        estimates = {
            "vote": vote * (vote @ truth) / len(truth),
            "sbfl, published": sbfl(y, h, sigma2, zero, scale, form="published"),
            "sbfl": sbfl(y, h, sigma2, zero, scale),
        }
        estimates |= _joint(y, h, sigma2, r)
        estimates |= {f"{rule}, learned": e for rule, e in _joint(y, h, sigma2, learned).items()}
        for rule, estimate in estimates.items():
            sums[rule] = sums.get(rule, 0.0) + float((estimate - truth).square().sum())
        energy += float(truth.square().sum())
        snr, one = h.square() / sigma2, torch.ones(devices)
        for rule, form in (("sbfl", "corrected"), ("sbfl, published", "published")):
            moments = theory.joint_moments("sbfl", snr, one, r, form=form)  # type: ignore[arg-type]
            name = f"{rule}, theory"
            sums[name] = sums.get(name, 0.0) + moments.nmse() * moments.energy
        expected += moments.energy
    return {rule: total / (expected if "theory" in rule else energy) for rule, total in sums.items()}


def _measure(scale: Scale, say: Callable[[str], None]) -> dict[str, Any]:
    size, rounds = scale.draws // 10, 2 if scale.quick else 8
    data: dict[str, list[dict[str, float]]] = {}
    for sweep, points in _SWEEPS.items():
        data[sweep] = []
        for devices, correlation, decibel in points:
            say(f"joint-ladder: {sweep}: {devices} devices, correlation {correlation}, {decibel:g} dB")
            tried = size // 10 if devices < 100 else size // 20
            errors = measure_errors(devices, correlation, decibel, size, rounds, tried)
            data[sweep].append({rule: rounded(error, 5) for rule, error in errors.items()})
    return data


def _table(sweep: str, found: list[dict[str, float]]) -> Table:
    names = [name for name in found[0] if "theory" not in name]
    names = [name for rule in _RULES for name in (rule, f"{rule}, learned") if name in names]
    rows = []
    for point, errors in zip(_SWEEPS[sweep], found):
        place = f"{point[0]}, {point[2]:g} dB" if sweep == _CLASSES else f"{point[_PANELS[sweep][0]]:g}"
        rows.append([place, *(f"{errors[name]:.3f}" for name in names)])
    return Table([sweep, *names], rows, name=f"ladder {sweep}")


def _figure(results: Results, data: dict[str, list[dict[str, float]]]) -> Figure:
    with new_figure((13, 4.8), 1, 3, sharey=True) as (figure, axes):
        for panel, (sweep, (axis, title)) in zip(axes, _PANELS.items()):
            x = np.array([point[axis] for point in _SWEEPS[sweep]], dtype=float)
            for rule, (color, label) in _RULES.items():
                found = {
                    kind: np.array([errors[rule + kind] for errors in data[sweep]])
                    for kind in ("", ", learned", ", theory")
                    if rule + kind in data[sweep][0]
                }
                # One factor cannot make all devices cancel: below zero the factor rule has nothing to use.
                shown = x >= 0 if rule == "factor" and sweep == "correlation" else np.full(len(x), True)
                dashes = (4, 3) if rule == "factor" else ()  # drawn over EP's line
                panel.plot(x[shown], found[""][shown], color=color, label=label, dashes=dashes, zorder=3)
                if ", learned" in found:
                    style = {"mfc": "white", "mec": color, "mew": 1.4, "ms": 5}
                    panel.plot(x[shown], found[", learned"][shown], "o", zorder=4, **style)
                if ", theory" in found:
                    panel.plot(x, found[", theory"], "+", ms=7, mew=1.2, color=color, zorder=4)
            panel.set(title=title, xlabel=sweep, yscale="log", ylim=(0.035, 2))
            panel.set_yticks([0.05, 0.1, 0.2, 0.5, 1, 2], ["0.05", "0.1", "0.2", "0.5", "1", "2"])
            panel.axhline(1, color=INK, linewidth=0.6, linestyle=":", zorder=1)
            if sweep == "devices":
                panel.set_xscale("log")
                panel.set_xticks(x, [f"{v:g}" for v in x])
            panel.minorticks_off()
        # Stretched around zero, where devices begin to cancel.
        first = axes[0]
        first.set_xscale("function", functions=(lambda x: np.arcsinh(x / 0.04), lambda u: 0.04 * np.sinh(u)))
        ticks = (-0.04, 0.0, 0.03, 0.1, 0.3, 0.9)
        first.set_xlim(-0.06, 1.2)
        first.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        first.minorticks_off()
        first.axvline(0, color=MUTED, linewidth=0.6, zorder=1)
        first.text(0.9, 1.04, "guessing zero", ha="right", va="bottom", fontsize=8)
        first.set_ylabel("normalised error of the sum")
        handles, names = first.get_legend_handles_labels()
        handles.append(Line2D([], [], marker="o", ls="", mfc="white", mec=MUTED, mew=1.4, ms=5))
        handles.append(Line2D([], [], marker="+", ls="", color=MUTED, ms=7))
        names += ["correlation learned from the air", "theory"]
        figure.legend(handles, names, loc="outside lower center", ncols=5)
    return figure


def _render(results: Results) -> list[Block]:
    data = results.measurement("joint-ladder")
    words = (
        "Truly Gaussian gradients, links that fade as the paper's, normalised error of the sum. Lines know "
        "the correlation; circles learned it from the coordinates of the one round they estimate."
    )
    about = "Normalised error of the sum against correlation, SNR and number of devices"
    tables = [_table(sweep, data[sweep]) for sweep in _SWEEPS]
    return [Text(words), Picture(_figure(results, data), "bfl_ladder", about), *tables]


JOINT_LADDER = Part(
    "joint-ladder",
    "Error of the joint rules",
    "ours",
    _render,
    measure=_measure,
    depends=("name", "draws"),
    cost=1200.0,
)

# -- images: is the Gaussian prior true after the rotation, and do the predicted errors hold? ----------------

_ROTATED_RULES: dict[str, dict[str, Any]] = {
    "vote, best-scaled": {"method.aggregator": "signsgd", "method.tie": "plus"},
    "sbfl, published": {"method.aggregator": "sbfl", "method.form": "published", "method.center": True},
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
    cell = {"cell.path_loss": "cost231", "cell.bandwidth_hz": 180e3}
    tree = {"rounds": 10**6, "eval.every": 10**6, "data.name": scale.data} | cell
    return Experiment(resolve(tree | {"method.rotation": "shared", "method.weights": "sum"} | method))


def _fit(run: Experiment) -> dict[str, list[float]]:
    """Kolmogorov-Smirnov distances of the devices' gradients from the Gaussian: median and worst."""
    from scipy import stats  # takes half a second to load

    with one_thread():
        g = run.task.local_updates(run.weights, np.arange(run.devices), run.round).gradients
    found = {}
    for name, rows in (("as they are", g), ("rotated", rotate(g, 1))):
        samples = [row.double().numpy() for row in rows]
        fits = [stats.norm(sample.mean(), sample.std()).cdf for sample in samples]
        distances = [stats.kstest(*both, method="asymp").statistic for both in zip(samples, fits)]
        found[name] = [rounded(float(value)) for value in (median(distances), max(distances))]
    return found


def _measure_rotated(scale: Scale, say: Callable[[str], None]) -> dict[str, Any]:
    rounds = 5 if scale.quick else 30
    say("joint-rotated: gradients before and after the rotation")
    run = _experiment(scale, {"method.aggregator": "ideal", "method.rotation": "none"})
    fit = {"first round": _fit(run)}
    for _ in range(rounds):
        run.advance()
    fit[f"after {rounds} rounds"] = _fit(run)
    errors = {}
    for name, method in _ROTATED_RULES.items():
        say(f"joint-rotated: {name}, {rounds} rounds")
        experiment = _experiment(scale, method)
        metrics = [experiment.advance() for _ in range(rounds)]
        errors[name] = [median(m[key] for m in metrics) for key in ("nmse", "nmse_theory")]
    return {"parameters": run.parameters, "fit": fit, "errors": errors}


def _render_rotated(results: Results) -> list[Block]:
    data = results.measurement("joint-rotated")
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
    _render_rotated,
    measure=_measure_rotated,
    depends=("name", "data"),
    cost=400.0,
)
