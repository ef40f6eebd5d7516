"""What absent, noisy, private and lying devices cost, and what helps: a figure and a table a switch.

The numbers and figures of docs/radio.md on devices. Runs that several figures share are played once; all are
kept and continued, so the command may be stopped and given again, and shows what there is with --show.

    python benchmarks/hostile.py --config examples/digits.toml --seeds 3 --set threads=1
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from signfade.device import bit_epsilon
from signfade.lab.compare import compare, plan, result_of
from signfade.lab.config import load, resolve
from signfade.lab.group import Group
from signfade.lab.style import INK, figure_style, line_style, save_figure
from signfade.lab.train import PlannedRun, standing

# What all variants start from: rotated SBFL with the step that was best for it without an attack.
METHOD = [
    "method.preset=none",
    "method.aggregator=sbfl",
    "method.rotation=hadamard",
    "server.step=3e-2",
    "server.momentum=0.0",
]
FLIPPERS = {"attack.kind": "sign-flip", "attack.fraction": 0.3}
INFLATOR = {"attack.kind": "scale-inflation", "attack.fraction": 0.05, "attack.strength": 1000.0}
RANDOM = {"attack.kind": "random-bits", "attack.fraction": 0.3}
COLLUDERS = {**RANDOM, "attack.collude": True}
JUDGED = {"defence.reliability": True}
BOUND = {"defence.bound_scales": True}
IID = {"data.split": "iid"}
PLAIN = {"method.rotation": "none", "server.step": 2e-2}
SMALL = {"server.step": 1e-2}
FEEDBACK = {"method.error_feedback": 1.0}
IDEAL = "as assumed"

VARIANTS: dict[str, dict[str, Any]] = {
    IDEAL: {},
    "1 of 20 inflates": INFLATOR,
    "inflates, bounded": {**INFLATOR, **BOUND},
    "honest, bounded": BOUND,
    "30 % flip": FLIPPERS,
    "flip, judged": {**FLIPPERS, **JUDGED},
    "honest, judged": JUDGED,
    "flip 0.1": {"method.flip": 0.1},
    "flip 0.25": {"method.flip": 0.25},
    "flip 0.4": {"method.flip": 0.4},
    "flip 0.4, debiased": {"method.flip": 0.4, "method.debias": True},
    "30 % drop out": {"presence.dropout": 0.3},
    "30 % late by 3": {"presence.late": 0.3, "presence.staleness": 3},
    "30 % late by 10": {"presence.late": 0.3, "presence.staleness": 10},
    "half at 10 dB less": {"presence.limited": 0.5},
    "feedback": FEEDBACK,
    "third of the step": SMALL,
    "third, feedback": {**FEEDBACK, **SMALL},
    "unrotated": PLAIN,
    "unrotated, feedback": {**PLAIN, **FEEDBACK},
    "noise 1": {"method.sign_noise": 1.0},
    "unrotated, noise 1": {**PLAIN, "method.sign_noise": 1.0},
    "unrotated, layers": {**PLAIN, "method.scales": "layer"},
    "30 % random": RANDOM,
    "random, judged": {**RANDOM, **JUDGED},
    "30 % collude": COLLUDERS,
    "collude, judged": {**COLLUDERS, **JUDGED},
    "iid": IID,
    "iid, 30 % flip": {**IID, **FLIPPERS},
    "iid, flip, judged": {**IID, **FLIPPERS, **JUDGED},
}
FIGURES: dict[str, list[str]] = {
    "inflation": [IDEAL, "1 of 20 inflates", "inflates, bounded", "honest, bounded"],
    "flippers": [IDEAL, "30 % flip", "flip, judged", "honest, judged"],
    "privacy": [IDEAL, "flip 0.1", "flip 0.25", "flip 0.4", "flip 0.4, debiased"],
    "presence": [IDEAL, "30 % drop out", "30 % late by 3", "30 % late by 10", "half at 10 dB less"],
    "feedback": [
        IDEAL,
        "feedback",
        "third of the step",
        "third, feedback",
        "unrotated",
        "unrotated, feedback",
    ],
    "sign-noise": [IDEAL, "noise 1", "unrotated", "unrotated, noise 1"],
    "scales": [IDEAL, "unrotated", "unrotated, layers"],
    "random-bits": [IDEAL, "30 % random", "random, judged", "30 % collude", "collude, judged"],
    "flippers-iid": ["iid", "iid, 30 % flip", "iid, flip, judged"],
}
REGRESSION = {
    "data.name": "regression",
    "data.batch": "none",
    "cell.snr_db": 10.0,
    "method.rotation": "none",
    "rounds": 300,
    "eval.every": 5,
    "threads": 1,
}
STEPS = (0.1, 0.2, 0.5, 1.0)


def play(runs: list[PlannedRun], show: bool) -> dict[str, Group]:
    """Play runs, or with `show` only read those that are finished, and return them by label."""
    if show:
        there = [run for run in runs if standing(run.settings, run.folder) == "finished"]
        result = result_of(there, {})
    else:
        places = {id(run): index for index, run in enumerate(runs, 1)}
        result = compare(
            runs, on_start=lambda run: print(f"  {places[id(run)]} of {len(runs)}: {run.folder}", flush=True)
        )
    for path, reason in result.failed.items():
        print(f"failed: {path}: {reason}")
    return {group.runs[0].label: group for group in result.groups if group.finished}


def training(names: list[str], options: argparse.Namespace) -> dict[str, Group]:
    """Train variants on the data of the configuration."""
    base = load(options.config, [*METHOD, *options.set, f"out={options.out}"])
    tree = base.model_dump(exclude={"variants"})
    variants = {name: VARIANTS[name] for name in names}
    settings = resolve(tree | {"name": f"hostile-{base.name}", "variants": variants})
    return play(plan(settings, names, Path(options.out) / settings.name, options.seeds), options.show)


def needed(group: Group) -> list[float | None]:
    """Rounds to an accuracy of 0.9, seed by seed."""
    return [run.numbers.get("rounds_to_accuracy_09") for run in group.runs]


def table(switch: str, groups: dict[str, Group]) -> None:
    """Print accuracy, its distance to the first row over the same seeds, and the rounds to 0.9."""
    rows = [name for name in FIGURES[switch] if name in groups]
    if not rows:
        return
    first = {run.seed: 100 * run.numbers["last_accuracy"] for run in groups[rows[0]].runs}
    print(f"\n| {switch} | accuracy | against {rows[0]} | rounds to 0.9 | seeds |")
    print("|---|---|---|---|---|")
    for name in rows:
        last = 100 * np.asarray(groups[name].values("last_accuracy"))
        text = ", ".join("never" if n is None else f"{n:.0f}" for n in needed(groups[name]))
        pairs = [
            100 * run.numbers["last_accuracy"] - first[run.seed]
            for run in groups[name].runs
            if run.seed in first
        ]
        apart = "" if name == rows[0] or not pairs else f"{np.mean(pairs):+.1f}"
        print(f"| {name} | {last.mean():.1f} ± {last.std():.1f} % | {apart} | {text} | {len(last)} |")
    for name in FIGURES[switch]:
        if name not in groups:
            print(f"| {name} | no run ended | | never | 0 |")
    print(flush=True)


def draw(left: Axes, right: Axes, names: list[str], groups: dict[str, Group]) -> None:
    """Accuracy over rounds, mean of the seeds; rounds to 0.9, a dot a seed."""
    for index, name in enumerate(names):
        style, series = line_style(index), groups[name].series("test_accuracy")
        left.plot(series.rounds, series.mean, color=style.color, dashes=style.dashes, label=name)
        reached = [n for n in needed(groups[name]) if n is not None]
        right.plot(reached, [index] * len(reached), style.marker, color=style.color, alpha=0.8)
        if missing := len(needed(groups[name])) - len(reached):
            place = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "center", "fontsize": 8}
            right.annotate(f"{missing} never", (1, index), **place)
    left.set(title="Accuracy, mean of the seeds", xlabel="round", ylim=(0, 1))
    right.set(title="Rounds to 0.9, each seed", xlabel="round", yticks=range(len(names)))
    right.set_xlim(0, 1.25 * max(run.metrics[-1]["round"] for g in groups.values() for run in g.runs))
    right.set_yticklabels(names)
    right.set_ylim(len(names) - 0.5, -0.5)


def draw_privacy(axis: Axes, groups: dict[str, Group]) -> None:
    """Accuracy against the epsilon of a bit."""
    style = line_style(0)
    for name, group in groups.items():
        flip = VARIANTS[name].get("method.flip", 0.0)
        if flip == 0:
            axis.axhline(np.mean(group.values("last_accuracy")), color=INK, linewidth=0.8, linestyle=":")
            continue
        marker = "^" if VARIANTS[name].get("method.debias") else style.marker
        last = group.values("last_accuracy")
        axis.plot([bit_epsilon(flip)] * len(last), last, marker, color=style.color)
    axis.set(title="Accuracy at the end", xlabel="epsilon of one bit (triangles: debiased)", ylim=(0, 1))


def floors(options: argparse.Namespace, keys: dict[str, Any]) -> tuple[float, float, float]:
    """Mean excess loss of rounds 200 to 300 of the regression without feedback, with it; worst ratio."""
    variants = {"without": {}, "with": FEEDBACK}
    name = "-".join(f"{value:g}" if isinstance(value, float) else str(value) for value in keys.values())
    settings = resolve({**REGRESSION, **keys, "name": f"feedback-{name}", "out": options.out})
    settings = settings.model_copy(update={"variants": variants})
    folder = Path(options.out) / "hostile-regression" / name
    groups = play(plan(settings, list(variants), folder, options.seeds), options.show)
    ends = []
    for label in variants:
        ends.append([])
        for run in groups[label].runs:
            late = [r["test_loss"] for r in run.metrics[200:] if r["test_loss"] is not None]
            ends[-1].append(float(np.mean(late)))
    without, fed = np.asarray(ends[0]), np.asarray(ends[1])
    return float(without.mean()), float(fed.mean()), float((fed / without).max())


def regression(options: argparse.Namespace) -> None:
    """The paper's regression at noise variance 0.1: what error feedback leaves of the excess loss."""
    rows = []
    for rotation in ("none", "hadamard"):
        for mixed in (False, True):
            for step in options.steps if rotation == "none" else (0.2,):
                keys = {"server.step": step, "data.heterogeneous": mixed, "method.rotation": rotation}
                rows.append((rotation, mixed, step, *floors(options, keys)))
    print("\n| rotation | data | step | excess loss | with feedback | ratio | worst seed |")
    print("|---|---|---|---|---|---|---|")
    for rotation, mixed, step, without, fed, worst in rows:
        data = "mixed" if mixed else "alike"
        numbers = f"{without:.3g} | {fed:.3g} | {fed / without:.2f} | {worst:.2f}"
        print(f"| {rotation} | {data} | {step:g}/L | {numbers} |", flush=True)
    with figure_style():
        figure = Figure(figsize=(5, 3.2), layout="constrained")
        axis = figure.subplots()
        for index, mixed in enumerate((False, True)):
            style = line_style(index)
            ratio = [row[4] / row[3] for row in rows if row[0] == "none" and row[1] == mixed]
            label = "data of different power" if mixed else "data alike"
            axis.loglog(
                options.steps, ratio, color=style.color, dashes=style.dashes, marker=style.marker, label=label
            )
        axis.axhline(0.25, color=INK, linewidth=0.8, linestyle=":")
        axis.set(title="Excess loss, with feedback over without", xlabel="step, in units of 1/L")
        axis.set(xticks=options.steps, xticklabels=[f"{step:g}" for step in options.steps])
        ticks = (0.03, 0.1, 0.25, 1.0, 2.0)
        axis.set(yticks=ticks, yticklabels=[f"{tick:g}" for tick in ticks], ylabel="ratio")
        axis.minorticks_off()
        axis.legend(fontsize=8)
    write(figure, "feedback-regression", options)


def write(figure: Figure, name: str, options: argparse.Namespace) -> None:
    """Save a figure for the page."""
    with figure_style():
        for path in save_figure(figure, Path(options.figures) / f"devices-{name}", ["png"]):
            print(f"wrote {path}", flush=True)


def main() -> None:
    """Play what is asked for, all of it by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=Path("examples/digits.toml"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", default="runs")
    parser.add_argument("--figures", default="docs/figures")
    parser.add_argument("--only", choices=[*FIGURES, "regression"], action="append")
    parser.add_argument("--steps", type=float, nargs="+", default=STEPS, help="of the regression")
    parser.add_argument("--show", action="store_true", help="play nothing, show what is finished")
    options = parser.parse_args()
    wanted = options.only or [*FIGURES, "regression"]
    names = [name for name in VARIANTS if any(name in FIGURES.get(switch, []) for switch in wanted)]
    groups = training(names, options) if names else {}
    extra: dict[str, Callable[[Axes, dict[str, Group]], None]] = {"privacy": draw_privacy}
    for switch in wanted:
        if switch == "regression":
            regression(options)
            continue
        chosen = [name for name in FIGURES[switch] if name in groups]
        table(switch, groups)
        panels = 3 if switch in extra else 2
        with figure_style():
            figure = Figure(figsize=(4.4 * panels, 3.2), layout="constrained")
            axes = figure.subplots(1, panels)
            draw(axes[0], axes[1], chosen, groups)
            if switch in extra:
                extra[switch](axes[2], {name: groups[name] for name in chosen})
            lines, labels = axes[0].get_legend_handles_labels()
            figure.legend(
                lines, labels, loc="outside lower center", ncols=min(len(labels), 4), handlelength=3
            )
        write(figure, switch, options)


if __name__ == "__main__":
    main()
