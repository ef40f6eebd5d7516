"""What a simulated round costs beside the bare local training in it, measured in turn in one run.

    python benchmarks/round.py [--rounds 15] [--json FILE]

Each line is one method on the paper's network (K = 20, batch 32, random images, metrics on, evaluation
excluded), with one gradient or E local steps: the median over rounds of a whole round's time over that of
the local training alone, with the quartiles; and the same of the CPU time of all threads, the least of the
rounds, which other programs disturb less but which does not see a core that waits. Then private rotations
over a shared one.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import numpy as np
import torch
from harness import arguments, timed, write

from signfade.data import Dataset, split
from signfade.settings import RunSettings
from signfade.simulation import Experiment
from signfade.simulation.allocator import tune_allocator
from signfade.simulation.classify import ClassificationTask
from signfade.simulation.models import build_model
from signfade.simulation.task import one_thread

METHODS: dict[str, dict[str, Any]] = {
    "ideal": {"aggregator": "ideal"},
    "signsgd": {"aggregator": "signsgd"},
    "sbfl": {"aggregator": "sbfl"},
    "sbfl, 4-bit scalars, per layer": {"aggregator": "sbfl", "side_bits": 4, "scales": "layer"},
    "sbfl, rotated": {"aggregator": "sbfl", "rotation": "shared"},
    "best (rotated, joint soft bits)": {"preset": "best"},
    "private rotations": {"preset": "best", "rotation": "private"},
    "best, E = 10": {"preset": "best"},
    "private rotations, E = 10": {"preset": "best", "rotation": "private"},
}
# Private rotations, and the same round with a shared one.
PAIRS = {
    "private rotations": "best (rotated, joint soft bits)",
    "private rotations, E = 10": "best, E = 10",
}


def images(count: int = 6000) -> Dataset:
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(count, 1, 28, 28, generator=rng)
    y = torch.arange(count) % 10
    return Dataset(x, y, x[:100], y[:100], classes=10, name="random")


def experiment(dataset: Dataset, name: str) -> Experiment:
    steps = int(name.partition("E = ")[2] or 1)
    tree = {"rounds": 10**6, "method": METHODS[name], "device": {"local_steps": steps}}
    tree |= {"eval": {"every": 10**6}, "server": {"learning_rate": 1e-5}}
    settings = RunSettings.model_validate(tree)
    who = split(dataset.train_y, settings.data.devices, "iid", seed=0)
    model = build_model("paper-cnn", dataset.input_shape, 10, seed=0)
    task = ClassificationTask(dataset, who, model, 32, seed=0, workers=2, local=settings.device)
    return Experiment(settings, task)


def added(run: Experiment, devices: np.ndarray, rounds: int = 60) -> list[float]:
    """Return the time of a round on the clock and of all cores, its gradients computed before."""
    local = run.task.local_updates(run.weights, devices, run.round)
    run.task.local_updates = lambda *asked, **more: local  # type: ignore[method-assign]
    times = zip(*(timed(run.advance) for _ in range(rounds)))
    return [statistics.quantiles(kind, n=10)[0] for kind in times]


def main() -> None:
    options = arguments(__doc__, rounds=15).parse_args()
    tune_allocator()
    dataset = images()
    runs = {name: experiment(dataset, name) for name in METHODS}
    devices = np.arange(20)

    def bare(run: Experiment) -> None:
        with one_thread():
            run.task.local_updates(run.weights, devices, run.round)

    for run in runs.values():  # compile, and let the allocator settle
        for _ in range(3):
            run.advance()
            bare(run)
    ratios: dict[str, list[float]] = {name: [] for name in runs}
    cpu: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    gradients: list[float] = []
    for _ in range(options.rounds):
        for name, run in runs.items():
            alone = partial(bare, run)
            before, whole, after = timed(alone), timed(run.advance), timed(alone)
            gradients += [] if run.settings.device.trains else [before[0], after[0]]
            ratios[name].append(whole[0] / ((before[0] + after[0]) / 2))
            cpu[name].append((whole[1], before[1]))
    print(f"bare gradients of a round: {1e3 * statistics.median(gradients):.0f} ms (median)")
    table: dict[str, dict[str, Any]] = {}
    for name, values in ratios.items():
        low, middle, high = statistics.quantiles(values, n=4)
        worked = min(pair[0] for pair in cpu[name]) / min(pair[1] for pair in cpu[name])
        table[name] = {"median": middle, "quartiles": [low, high], "cpu": worked}
        print(f"{name:<34} {middle:.3f}   [{low:.3f}, {high:.3f}]   CPU {worked:.3f}")
    print("what a round adds to gradients that are there already, ms (first decile): clock, CPU")
    for name, run in runs.items():
        table[name] |= {"added_ms": [1e3 * part for part in added(run, devices)]}
        print(f"{name:<34} {table[name]['added_ms'][0]:.1f}   {table[name]['added_ms'][1]:.1f}")
    print("whole rounds, CPU time: what they add, and the least time of local training")
    for private, shared in PAIRS.items():
        if private in runs and shared in runs:
            bare_ms = 1e3 * min(before for name in (private, shared) for _, before in cpu[name])
            whole = [bare_ms + table[name]["added_ms"][1] for name in (private, shared)]
            table[private] |= {"over_shared": whole[0] / whole[1], "over_training": whole[0] / bare_ms}
            print(f"{private}: {whole[0] / whole[1]:.3f} of a shared rotation's, ", end="")
            print(f"{whole[0] / bare_ms:.3f} of bare training")
    write(options.json, {"rows": table})


if __name__ == "__main__":
    main()
