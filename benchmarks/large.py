"""Cells of any size: peak memory and the time of a round over the number of devices K.

    python benchmarks/large.py                        # up to 10,000 devices, minutes
    python benchmarks/large.py --full --json FILE     # up to 100,000, half an hour and more
    python benchmarks/large.py --kinds wide --methods rotated    # 20 million weights, 20 devices
    python benchmarks/large.py --kinds clients --methods best    # 10,000 clients, 1 %, 10 local steps

Each line is one run in a process of its own. `gaussian` has no data, which leaves what the simulator itself
costs; `regression` is the paper's, all devices taking part; `cnn` is the paper's network on MNIST (random
images of its size where it is not in the cache), 1 % of the devices taking part; `clients` is the same with
10 local steps; `wide` is a perceptron of 20 million weights on the same images, 10 local steps. Memory is the
largest resident set of the whole process, torch and compiled code included: 0.4 GB before there is a device.
The first round, which compiles, draws and keeps, stands apart; medians are of the others. CPU time is that of
all threads; `radio` is what is not spent on gradients: rotation, bits, uplink, posterior, step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from harness import arguments, peak_resident, timed, write

METHODS: dict[str, dict[str, Any]] = {
    "sbfl": {},
    "rotated": {"rotation": "shared"},
    "best": {"preset": "best"},
}
SIZES = {"gaussian": [1000, 10_000], "regression": [1000, 10_000], "cnn": [100, 1000]}
FULL_SIZES = {kind: [*sizes, 10 * sizes[-1]] for kind, sizes in SIZES.items()}
MORE_SIZES = {"clients": [10_000], "wide": [20]}  # only where asked for by name
LIMITS_GB = {"wide": 8.0}
LIMIT_GB = 4.0


def wide(input_shape: tuple[int, ...], classes: int) -> Any:
    """Return a perceptron with two hidden layers of 4,096 units: 20 million weights for 28x28 images."""
    import math

    from torch import nn

    first, second = nn.Linear(math.prod(input_shape), 4096), nn.Linear(4096, 4096)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), nn.Linear(4096, classes))


def settings_of(kind: str, devices: int, method: str) -> dict[str, Any]:
    data: dict[str, Any] = {"devices": devices}
    if kind in ("cnn", "clients", "wide"):
        data |= {"name": "mnist", "split": "iid", "participation": 1.0 if kind == "wide" else 0.01}
    else:
        data |= {"name": kind, "batch": "none", "heterogeneous": True}
    step = {"gaussian": 1.0, "regression": 0.1}.get(kind, 1e-3)
    steps = 10 if kind in ("clients", "wide") else 1
    return {
        "rounds": 10**6,  # the last round is evaluated, and none of ours is the last
        "data": data,
        "model": {"name": f"{__file__}:wide" if kind == "wide" else "paper-cnn"},
        "device": {"local_steps": steps, "learning_rate": 0.01},
        "method": METHODS[method],
        "server": {"learning_rate": step},
        "eval": {"every": 10**6},
    }


def images() -> Any:
    """Return MNIST from the cache, or random images of its size."""
    import torch

    from signfade.data import Dataset, load

    try:
        return load("mnist", download=False)
    except ValueError:
        rng = torch.Generator().manual_seed(0)
        x, y = torch.rand(70_000, 1, 28, 28, generator=rng), torch.arange(70_000) % 10
        return Dataset(x[:60_000], y[:60_000], x[60_000:], y[60_000:], classes=10, name="random")


def data_free(kind: str) -> bool:
    """Tell whether the task makes its own data."""
    return kind in ("gaussian", "regression")


def watch(task: Any) -> list[float]:
    """Count the CPU seconds of all threads that the task spends on gradients; return the running sum."""
    spent, updates = [0.0], task.local_updates

    def counted(*given: Any) -> Any:
        found: list[Any] = []
        spent[0] += timed(lambda: found.append(updates(*given)))[1]
        return found[0]

    task.local_updates = counted
    return spent


def measure(kind: str, devices: int, method: str, rounds: int) -> dict[str, Any]:
    """Run some rounds here and return what they took."""
    import os

    from signfade.settings import RunSettings
    from signfade.simulation import Experiment
    from signfade.simulation.allocator import tune_allocator
    from signfade.simulation.run import make_task

    tune_allocator()
    settings = RunSettings.model_validate(settings_of(kind, devices, method))
    started = time.perf_counter()
    task = make_task(settings, os.cpu_count() or 1, None if data_free(kind) else images())
    spent = watch(task)
    run = Experiment(settings, task)
    setup = time.perf_counter() - started
    last: dict[str, Any] = {}
    times, cpu, gradients = [], [], []
    for _ in range(rounds):
        before = spent[0]
        clock, all_threads = timed(lambda: last.update(run.advance()))
        times.append(clock)
        cpu.append(all_threads)
        gradients.append(spent[0] - before)
    present = last["devices"]
    later, learned = (statistics.median(found[1:] or found) for found in (cpu, gradients))
    return {
        "kind": kind,
        "devices": devices,
        "received": present,
        "method": method,
        "peak_gb": peak_resident() / 1e9,
        "setup_s": setup,
        "first_round_s": times[0],
        "round_s": statistics.median(times[1:] or times),
        "round_cpu_s": later,
        "gradient_cpu_s": learned,
        "radio_cpu_s": later - learned,
        "cpu_us_per_device": 1e6 * later / present,
        "nmse": last["nmse"],
        "nmse_theory": last["nmse_theory"],
    }


HEAD = (
    f"{'':10} {'K':>8} {'received':>8} {'method':>9}  peak GB  setup s  first s  round s    cpu s  gradients"
    "    radio  us/device"
)
LINE = (
    "{kind:10} {devices:8,} {received:8,} {method:>9} {peak_gb:8.2f} {setup_s:8.1f} {first_round_s:8.2f}"
    " {round_s:8.2f} {round_cpu_s:8.2f} {gradient_cpu_s:10.2f} {radio_cpu_s:8.2f} {cpu_us_per_device:10.0f}"
)


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--full", action="store_true", help="up to 100,000 devices")
    parser.add_argument("--kinds", nargs="*", choices=[*SIZES, *MORE_SIZES], default=list(SIZES))
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--devices", type=int, nargs="*", help="other numbers of devices")
    parser.add_argument("--measure", nargs=3, metavar=("KIND", "K", "METHOD"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        kind, devices, method = options.measure
        print(json.dumps(measure(kind, int(devices), method, options.rounds)))
        return
    print(HEAD)
    rows = []
    for kind in options.kinds:
        for devices in options.devices or (MORE_SIZES | (FULL_SIZES if options.full else SIZES))[kind]:
            for method in options.methods:
                command = [sys.executable, __file__, "--rounds", str(options.rounds)]
                command += ["--measure", kind, str(devices), method]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                rows.append(json.loads(done.stdout))
                print(LINE.format(**rows[-1]), flush=True)
    for kind in options.kinds:
        found = [row for row in rows if row["kind"] == kind]
        largest, limit = max(row["peak_gb"] for row in found), LIMITS_GB.get(kind, LIMIT_GB)
        verdict = "within" if largest <= limit else "ABOVE"
        print(f"{kind}: largest resident set {largest:.2f} GB, {verdict} {limit:g} GB")
        if kind in MORE_SIZES:
            parts = [row["radio_cpu_s"] / row["gradient_cpu_s"] for row in found]
            less = "less" if max(parts) < 1 else "MORE"
            print(f"{kind}: the radio part costs {less} than the gradients, {max(parts):.2f} times as much")
    write(options.json, {"rows": rows})


if __name__ == "__main__":
    main()
