"""Cells of any size: peak memory and the time of a round over the number of devices K.

    python benchmarks/large.py                        # up to 10,000 devices, minutes
    python benchmarks/large.py --full --json FILE     # up to 100,000, half an hour and more

Each line is one run in a process of its own. `gaussian` has no data, which leaves what the simulator itself
costs; `regression` is the paper's, all devices taking part; `cnn` is the paper's network on MNIST (random
images of its size where it is not in the cache), 1 % of the devices taking part. Memory is the largest
resident set of the whole process, torch and compiled code included: 0.4 GB before there is a device. The
first round, which compiles, draws and keeps, stands apart; medians are of the others. CPU time is that of
all threads.
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
LIMIT_GB = 4.0


def settings_of(kind: str, devices: int, method: str) -> dict[str, Any]:
    data: dict[str, Any] = {"devices": devices}
    if kind == "cnn":
        data |= {"name": "mnist", "split": "iid", "participation": 0.01}
    else:
        data |= {"name": kind, "batch": "none", "heterogeneous": True}
    step = {"gaussian": 1.0, "regression": 0.1, "cnn": 1e-3}[kind]
    return {
        "rounds": 10**6,  # the last round is evaluated, and none of ours is the last
        "data": data,
        "model": {"name": "paper-cnn"},
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
    task = make_task(settings, os.cpu_count() or 1, images() if kind == "cnn" else None)
    run = Experiment(settings, task)
    setup = time.perf_counter() - started
    last: dict[str, Any] = {}
    times, cpu = zip(*(timed(lambda: last.update(run.advance())) for _ in range(rounds)))
    present = last["devices"]
    later = statistics.median(cpu[1:] or cpu)
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
        "cpu_us_per_device": 1e6 * later / present,
        "nmse": last["nmse"],
        "nmse_theory": last["nmse_theory"],
    }


HEAD = (
    f"{'':10} {'K':>8} {'received':>8} {'method':>9}  peak GB  setup s  first s  round s    cpu s  us/device"
)
LINE = (
    "{kind:10} {devices:8,} {received:8,} {method:>9} {peak_gb:8.2f} {setup_s:8.1f} {first_round_s:8.2f}"
    " {round_s:8.2f} {round_cpu_s:8.2f} {cpu_us_per_device:10.0f}"
)


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--full", action="store_true", help="up to 100,000 devices")
    parser.add_argument("--kinds", nargs="*", choices=list(SIZES), default=list(SIZES))
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
        for devices in options.devices or (FULL_SIZES if options.full else SIZES)[kind]:
            for method in options.methods:
                command = [sys.executable, __file__, "--rounds", str(options.rounds)]
                command += ["--measure", kind, str(devices), method]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                rows.append(json.loads(done.stdout))
                print(LINE.format(**rows[-1]), flush=True)
    largest = max(row["peak_gb"] for row in rows)
    verdict = "within" if largest <= LIMIT_GB else "ABOVE"
    print(f"largest resident set {largest:.2f} GB: {verdict} {LIMIT_GB:g} GB")
    write(options.json, {"rows": rows})


if __name__ == "__main__":
    main()
