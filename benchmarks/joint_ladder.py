"""Error of every rule on truly Gaussian, correlated gradients: the ladder of docs/bfl.md.

Every device has unit variance and every pair the same correlation, or (in the table of labels) devices hold
two of ten classes each and agree where they share one; links fade as the paper's (h ~ N(0, 1), new in every
round) around one mean SNR. "told" rules know the correlation, "learned" ones take it from the round's own
signals and nothing else.

    python benchmarks/joint_ladder.py --figure docs/figures/bfl_ladder.png --json ladder.json
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from signfade import theory
from signfade.device import sign
from signfade.server import majority_vote, sbfl
from signfade.server.bfl import (
    bfl,
    factor_bfl,
    fit_factor,
    joint_blmmse,
    joint_sbfl,
    learn_correlation,
    private_part,
)
from signfade.uplink import transmit

SCALE = math.sqrt(2 / math.pi)
SWEEPS = {
    "correlation": [
        (20, value, 0.0) for value in (-0.04, -0.03, -0.015, 0.0, 0.03, 0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9)
    ],
    "mean SNR in dB": [(20, 0.3, float(value)) for value in (-10, -5, 0, 5, 10, 15, 20)],
    "devices": [(value, 0.3, 0.0) for value in (5, 10, 20, 50, 100, 200)],
    "devices and dB, two of ten classes each": [
        (devices, math.nan, decibel) for devices in (20, 100) for decibel in (0.0, 10.0)
    ],
}
AXIS = {"correlation": 1, "mean SNR in dB": 2, "devices": 0}
RULES = ("vote", "sbfl, published", "sbfl", "joint blmmse", "joint sbfl", "ep", "factor")


def draw(devices: int, value: float, decibel: float, size: int, seed: int) -> tuple[Tensor, ...]:
    """Gradients, gains, noise variances and received signals of one round."""
    generator = torch.Generator().manual_seed(seed)
    if math.isnan(value):
        member = torch.zeros(devices, 10, dtype=torch.float64)
        for row in member:
            row[torch.randperm(10, generator=generator)[:2]] = 1.0
        correlation = member @ (torch.eye(10) - 0.1).double() @ member.T + 0.5 * torch.eye(devices).double()
        root = correlation.diagonal().rsqrt()
        correlation = correlation * root[:, None] * root[None, :]
    else:
        correlation = value + (1 - value) * torch.eye(devices, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(correlation)
    root = (vectors * values.clamp_min(0).sqrt()).float()
    g = root @ torch.randn(devices, size, generator=generator)
    h = torch.randn(devices, generator=generator)
    sigma2 = torch.full((devices,), 10 ** (-decibel / 10))
    return g, h, sigma2, transmit(sign(g), h, sigma2, generator), correlation


def joint(y: Tensor, h: Tensor, sigma2: Tensor, correlation: Tensor) -> dict[str, Tensor]:
    """The joint rules with a given correlation."""
    zero, scale = torch.zeros(len(h)), torch.full((len(h),), SCALE)
    loading = fit_factor(correlation)
    private = private_part(torch.ones_like(loading), loading)
    return {
        "joint blmmse": joint_blmmse(y, h, sigma2, zero, scale, correlation),
        "joint sbfl": joint_sbfl(y, h, sigma2, zero, scale, correlation),
        "ep": bfl(y, h, sigma2, zero, correlation, method="ep"),
        "factor": factor_bfl(y, h, sigma2, zero, loading, private),
    }


def measure(
    devices: int, value: float, decibel: float, size: int, rounds: int, tried: int
) -> dict[str, float]:
    """Normalised error of every rule, told and learned, averaged over rounds; and what theory predicts."""
    sums: dict[str, float] = {}
    energy = expected = 0.0
    for seed in range(rounds):
        g, h, sigma2, y, correlation = draw(devices, value, decibel, size, seed)
        learned = learn_correlation(y, h, sigma2)  # from all coordinates; the rules are tried on some
        truth, y = g.sum(dim=0)[:tried], y[:, :tried].contiguous()
        zero, scale = torch.zeros(devices), torch.full((devices,), SCALE)
        vote = majority_vote(y, h, tie="plus")
        estimates = {
            "vote": vote * (vote @ truth) / len(truth),
            "sbfl, published": sbfl(y, h, sigma2, zero, scale, form="published"),
            "sbfl": sbfl(y, h, sigma2, zero, scale),
        }
        estimates |= joint(y, h, sigma2, correlation)
        estimates |= {f"{rule}, learned": e for rule, e in joint(y, h, sigma2, learned).items()}
        for rule, estimate in estimates.items():
            sums[rule] = sums.get(rule, 0.0) + float((estimate - truth).square().sum())
        energy += float(truth.square().sum())
        snr, one = h.square() / sigma2, torch.ones(devices)
        for rule, form in (("sbfl", "corrected"), ("sbfl, published", "published")):
            moments = theory.joint_moments("sbfl", snr, one, correlation, form=form)  # type: ignore[arg-type]
            name = f"{rule}, theory"
            sums[name] = sums.get(name, 0.0) + moments.nmse() * moments.energy
        expected += moments.energy
    return {rule: total / (expected if "theory" in rule else energy) for rule, total in sums.items()}


def table(sweep: str, points: list[tuple[int, float, float]], found: list[dict[str, float]]) -> str:
    names = [*RULES[:3], *(f"{rule}{kind}" for rule in RULES[3:] for kind in ("", ", learned"))]
    lines = [f"| {sweep} | " + " | ".join(names) + " |", "|" + "---|" * (len(names) + 1)]
    for point, errors in zip(points, found):
        place = f"{point[AXIS[sweep]]:g}" if sweep in AXIS else f"{point[0]}, {point[2]:g} dB"
        lines.append(f"| {place} | " + " | ".join(f"{errors[name]:.3f}" for name in names) + " |")
    return "\n".join(lines)


def draw_figure(results: dict[str, list[dict[str, float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colours = {
        "vote": "#8c8c8c",
        "sbfl, published": "#c9a227",
        "sbfl": "#d1495b",
        "joint blmmse": "#74b3d8",
        "joint sbfl": "#1d4e89",
        "ep": "#7b2d8b",
        "factor": "#2a9d5c",
    }
    labels = {
        "vote": "majority vote, best-scaled",
        "sbfl, published": "SBFL as published",
        "sbfl": "SBFL corrected",
        "joint blmmse": "joint linear",
        "joint sbfl": "joint SBFL (soft bits)",
        "ep": "joint EP",
        "factor": "joint factor (exact here)",
    }
    titles = {
        "correlation": "20 devices, 0 dB",
        "mean SNR in dB": "20 devices, correlation 0.3",
        "devices": "correlation 0.3, 0 dB",
    }
    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4.8), sharey=True)
    for panel, sweep in zip(axes, AXIS):
        x = np.array([point[AXIS[sweep]] for point in SWEEPS[sweep]])
        for rule in RULES:
            told = np.array([errors[rule] for errors in results[sweep]])
            # One factor cannot make all devices cancel: below zero the factor rule is told nothing useful.
            shown = x >= 0 if rule == "factor" and sweep == "correlation" else np.ones(len(x), bool)
            style = {"lw": 1.8, "ls": (0, (4, 3))} if rule == "factor" else {"lw": 1.8}  # over ep's line
            panel.plot(x[shown], told[shown], color=colours[rule], label=labels[rule], zorder=3, **style)
            if f"{rule}, learned" in results[sweep][0]:
                learned = np.array([errors[f"{rule}, learned"] for errors in results[sweep]])
                panel.plot(
                    x[shown], learned[shown], "o", ms=5, mfc="white", mec=colours[rule], mew=1.4, zorder=4
                )
            if f"{rule}, theory" in results[sweep][0]:
                expected = [errors[f"{rule}, theory"] for errors in results[sweep]]
                panel.plot(x, expected, "+", ms=7, color=colours[rule], mew=1.2, zorder=4)
        panel.set_title(titles[sweep], fontsize=11)
        panel.set_xlabel(sweep)
        panel.set_yscale("log")
        panel.set_ylim(0.035, 2)
        panel.set_yticks([0.05, 0.1, 0.2, 0.5, 1, 2], ["0.05", "0.1", "0.2", "0.5", "1", "2"])
        panel.minorticks_off()
        panel.axhline(1, color="black", lw=0.6, ls=":", zorder=1)
        panel.grid(axis="y", lw=0.4, color="#dddddd", zorder=0)
        panel.spines[["top", "right"]].set_visible(False)
        if sweep == "devices":
            panel.set_xscale("log")
            panel.set_xticks(x, [str(v) for v in x])
            panel.minorticks_off()
    # Stretched around zero, where devices begin to cancel.
    axes[0].set_xscale("function", functions=(lambda x: np.arcsinh(x / 0.04), lambda u: 0.04 * np.sinh(u)))
    ticks = (-0.04, 0.0, 0.03, 0.1, 0.3, 0.9)
    axes[0].set_xlim(-0.06, 1.2)
    axes[0].set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes[0].minorticks_off()
    axes[0].axvline(0, color="#bbbbbb", lw=0.6, zorder=1)
    axes[0].text(0.9, 1.04, "guessing zero", ha="right", va="bottom", fontsize=8)
    axes[0].set_ylabel("normalised error of the sum")
    handles, names = axes[0].get_legend_handles_labels()
    handles.append(pyplot.Line2D([], [], marker="o", ls="", mfc="white", mec="#444444", mew=1.4, ms=5))
    names.append("correlation learned from the air")
    handles.append(pyplot.Line2D([], [], marker="+", ls="", color="#444444", ms=7))
    names.append("theory")
    figure.legend(handles, names, loc="lower center", ncol=5, frameon=False, fontsize=9.5)
    figure.tight_layout(rect=(0, 0.13, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--figure", type=Path, help="where to write the PNG")
    parser.add_argument(
        "--json", type=Path, help="where to write the numbers, or read them from if they exist"
    )
    parser.add_argument("--size", type=int, default=20_000, help="coordinates a round, for learning")
    parser.add_argument("--tried", type=int, default=2000, help="coordinates a round, for the errors")
    parser.add_argument("--rounds", type=int, default=8, help="rounds, each with its own fading")
    arguments = parser.parse_args()
    if arguments.json and arguments.json.exists():
        results = json.loads(arguments.json.read_text())
    else:
        results = {}
        for sweep, points in SWEEPS.items():
            results[sweep] = []
            for devices, value, decibel in points:
                tried = arguments.tried if devices < 100 else arguments.tried // 2
                results[sweep].append(
                    measure(devices, value, decibel, arguments.size, arguments.rounds, tried)
                )
                print(f"{sweep}: {devices} devices, correlation {value}, {decibel} dB", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1))
    for sweep, points in SWEEPS.items():
        print(f"\n{table(sweep, points, results[sweep])}")
    if arguments.figure:
        draw_figure(results, arguments.figure)


if __name__ == "__main__":
    main()
