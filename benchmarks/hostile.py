"""What absent, noisy, private and lying devices cost, and what helps: a figure and a table a switch.

The numbers and figures of docs/radio.md on devices. The runs are kept and continued, so the command may be
stopped and given again.

    python benchmarks/hostile.py --config examples/digits.toml --seeds 3
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from radio import accuracy

from signfade.lab.compare import compare, plan
from signfade.lab.config import load, resolve
from signfade.lab.group import Group
from signfade.lab.style import figure_style, save_figure

FLIPPERS = {"attack.kind": "sign-flip", "attack.fraction": 0.3}
INFLATOR = {"attack.kind": "scale-inflation", "attack.fraction": 0.05, "attack.strength": 1000.0}
NOISE = {"attack.kind": "random-bits", "attack.fraction": 0.3}
JUDGED = {"defence.reliability": True}
BOUND = {"defence.bound_scales": True}
IID = {"data.split": "iid"}
BEST = {"method.preset": "best"}
REGRESSION = {
    "data.name": "regression",
    "data.batch": "none",
    "cell.snr_db": 10.0,
    "method.rotation": "none",
    "rounds": 300,
}

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "presence": {
        "all there": {},
        "30 % drop out": {"presence.dropout": 0.3},
        "30 % late by 3": {"presence.late": 0.3, "presence.staleness": 3},
        "30 % late by 10": {"presence.late": 0.3, "presence.staleness": 10},
        "half at 10 dB less": {"presence.limited": 0.5},
    },
    "feedback": {
        "none": {},
        "feedback": {"method.error_feedback": 1.0},
        "none, a third of the step": {"server.step": 1e-2},
        "feedback, a third of the step": {"method.error_feedback": 1.0, "server.step": 1e-2},
    },
    "sign-noise": {
        "no noise": {},
        "noise 0.5": {"method.sign_noise": 0.5},
        "noise 1": {"method.sign_noise": 1.0},
        "unrotated": {"method.rotation": "none", "server.step": 2e-2},
        "unrotated, noise 0.5": {"method.rotation": "none", "server.step": 2e-2, "method.sign_noise": 0.5},
        "unrotated, noise 1": {"method.rotation": "none", "server.step": 2e-2, "method.sign_noise": 1.0},
    },
    "scales": {
        "a scale a device": {"method.rotation": "none", "server.step": 2e-2},
        "a scale a layer": {"method.rotation": "none", "server.step": 2e-2, "method.scales": "layer"},
        "rotated": {},
    },
    "privacy": {
        "no flips": {},
        "epsilon 2.2 a bit": {"method.flip": 0.1},
        "epsilon 1.1 a bit": {"method.flip": 0.25},
        "epsilon 0.4 a bit": {"method.flip": 0.4},
        "epsilon 0.4, undone": {"method.flip": 0.4, "method.debias": True},
    },
    "inflation": {
        "honest": {},
        "1 of 20 inflates": INFLATOR,
        "the same, bounded": {**INFLATOR, **BOUND},
        "honest, bounded": BOUND,
    },
    "flippers": {
        "honest": {},
        "30 % flip": FLIPPERS,
        "the same, judged": {**FLIPPERS, **JUDGED},
        "honest, judged": JUDGED,
        "best, 30 % flip": {**BEST, **FLIPPERS},
        "best, the same, judged": {**BEST, **FLIPPERS, **JUDGED},
    },
    "flippers-iid": {
        "honest": IID,
        "30 % flip": {**IID, **FLIPPERS},
        "the same, judged": {**IID, **FLIPPERS, **JUDGED},
        "honest, judged": {**IID, **JUDGED},
    },
    "random-bits": {
        "honest": {},
        "30 % random": NOISE,
        "the same, judged": {**NOISE, **JUDGED},
        "30 % collude": {**NOISE, "attack.collude": True},
        "collude, judged": {**NOISE, "attack.collude": True, **JUDGED},
    },
}


def training(switch: str, options: argparse.Namespace) -> tuple[Group, ...]:
    """Train all variants of a switch and print their table."""
    base = load(options.config, [*options.set, f"out={options.out}"])
    tree = base.model_dump(exclude={"variants"})
    settings = resolve(tree | {"name": f"hostile-{base.name}-{switch}", "variants": VARIANTS[switch]})
    runs = plan(settings, list(VARIANTS[switch]), Path(options.out) / settings.name, options.seeds)
    result = compare(runs, on_start=lambda run: print(f"  {run.folder}", flush=True))
    for path, reason in result.failed.items():
        print(f"failed: {path}: {reason}")
    print(f"\n| {switch} | accuracy | rounds to 0.9 |")
    print("|---|---|---|")
    for group in result.groups:
        last = group.values("last_accuracy")
        needed = [run.numbers.get("rounds_to_accuracy_09") for run in group.runs]
        text = ", ".join("never" if n is None else f"{n:.0f}" for n in needed)
        spread = f"{100 * np.mean(last):.1f} ± {100 * np.std(last):.1f} %"
        print(f"| {group.runs[0].label} | {spread} | {text} |", flush=True)
    return result.groups


def regression(options: argparse.Namespace) -> None:
    """The paper's regression: excess loss with and without error feedback, mean of the last 100 rounds."""
    print("\n| step | data | excess loss | with feedback | ratio | rotated | with feedback | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for step in (0.1, 0.2, 0.5, 1.0):
        for mixed in (False, True):
            cells = []
            for rotation in ("none", "hadamard"):
                floors = []
                for keep in (0.0, 1.0):
                    keys = {"server.step": step, "data.heterogeneous": mixed, "method.error_feedback": keep}
                    keys |= {"method.rotation": rotation, "eval.every": 5}
                    name = f"feedback-{step:g}-{mixed}-{rotation}-{keep:g}"
                    settings = resolve({**REGRESSION, **keys, "name": name, "out": options.out})
                    runs = plan(
                        settings.model_copy(update={"variants": {"run": {}}}),
                        ["run"],
                        Path(options.out) / "hostile-regression" / name,
                        options.seeds,
                    )
                    result = compare(runs)
                    series = result.groups[0].series("test_loss")
                    late = np.asarray(series.rounds) > 200
                    floors.append(float(np.mean(np.asarray(series.mean)[late])))
                cells += [f"{floors[0]:.4f}", f"{floors[1]:.4f}", f"{floors[1] / floors[0]:.2f}"]
            print(f"| {step:g}/L | {'mixed' if mixed else 'alike'} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=Path("examples/digits.toml"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", default="runs")
    parser.add_argument("--figures", default="docs/figures")
    parser.add_argument("--only", choices=[*VARIANTS, "regression"], action="append")
    options = parser.parse_args()
    for switch in options.only or [*VARIANTS, "regression"]:
        print(f"\n## {switch}", flush=True)
        if switch == "regression":
            regression(options)
            continue
        with figure_style():
            figure = Figure(figsize=(9, 3.2), layout="constrained")
            left, right = figure.subplots(1, 2)
            accuracy(left, right, training(switch, options))
            left.set_ylim(0, 1)
        for path in save_figure(figure, Path(options.figures) / f"devices-{switch}", ["png"]):
            print(f"wrote {path}", flush=True)


if __name__ == "__main__":
    main()
