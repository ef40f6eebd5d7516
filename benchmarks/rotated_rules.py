"""Is the Gaussian prior true after the rotation, and do the predicted errors hold? Measured on MNIST.

    python benchmarks/rotated_rules.py [--rounds 30] [--bandwidth 180e3]

First table: the Kolmogorov-Smirnov distance between a device's standardised gradient and the Gaussian, before
and after the rotation, median and worst over the devices, at the start and after `rounds` rounds of training;
a true Gaussian sample of this length has a median of 0.83/sqrt(M). Second table: measured and predicted
normalised error of every rule, medians over the rounds (for the vote, of the best-scaled vote). Each rule
trains a model of its own, so compare along the rows, not down the columns.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np
import torch
from scipy import stats

from signfade.device import rotate
from signfade.learn import Experiment
from signfade.learn.classify import one_thread
from signfade.settings import RunSettings

RULES: dict[str, dict[str, Any]] = {
    "vote": {"aggregator": "signsgd", "tie": "plus"},
    "sbfl, published": {"aggregator": "sbfl", "form": "published"},
    "sbfl": {"aggregator": "sbfl"},
    "blmmse": {"aggregator": "blmmse"},
    "high_snr": {"aggregator": "high_snr"},
    "zero_forcing": {"aggregator": "zero_forcing"},
    "bfl, linear": {"aggregator": "bfl", "joint": "linear"},
    "bfl, soft": {"aggregator": "bfl", "joint": "soft"},
    "bfl, factor": {"aggregator": "bfl", "joint": "factor"},
    "bfl, ep": {"aggregator": "bfl", "joint": "ep"},
    "best (soft, debiased)": {"preset": "best"},
}


def experiment(method: dict[str, Any], bandwidth: float) -> Experiment:
    tree = {
        "rounds": 10**6,
        "eval": {"every": 10**6},
        "data": {"name": "mnist"},
        "cell": {"bandwidth_hz": bandwidth},
        "method": {"rotation": "hadamard"} | method,
    }
    return Experiment(RunSettings.model_validate(tree))


def distances(g: torch.Tensor) -> list[float]:
    """Kolmogorov-Smirnov distance of each standardised row to the Gaussian."""
    z = ((g - g.mean(1, keepdim=True)) / g.std(1, keepdim=True)).double().numpy()
    return [float(stats.kstest(row, "norm").statistic) for row in z]


def show_fit(run: Experiment, when: str) -> None:
    with one_thread():
        g = run.task.local_gradients(run.weights, np.arange(run.devices), run.round).gradients
    for name, rows in (("as they are", g), ("rotated", rotate(g, 1))):
        found = distances(rows)
        print(f"{when:<18} {name:<12} {statistics.median(found):.4f}  {max(found):.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--bandwidth", type=float, default=180e3)
    options = parser.parse_args()
    run = experiment({"aggregator": "ideal", "rotation": "none"}, options.bandwidth)
    print(f"gradients of K = {run.devices} devices, M = {run.parameters}; distance: median, largest")
    print(f"a Gaussian sample: {0.83 / run.parameters**0.5:.4f}")
    show_fit(run, "round 0")
    for _ in range(options.rounds):
        run.advance()
    show_fit(run, f"round {options.rounds}")
    print(f"\n{'rule':<24} measured  predicted  ratio")
    for name, method in RULES.items():
        run = experiment(method, options.bandwidth)
        records = [run.advance() for _ in range(options.rounds)]
        measured = statistics.median(r["nmse"] for r in records)
        predicted = statistics.median(r["nmse_theory"] for r in records)
        print(f"{name:<24} {measured:8.4f}  {predicted:9.4f}  {predicted / measured:.3f}", flush=True)


if __name__ == "__main__":
    main()
