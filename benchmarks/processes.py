"""Runs per hour of two worker processes beside one: short runs of examples/mnist.toml, taking turns.

python benchmarks/processes.py [--rounds 60] [--repeat 3] [--json FILE]
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from harness import arguments, timed, write

from signfade.experiments.config import load
from signfade.experiments.training import PlannedRun
from signfade.experiments.workers.run_pool import run_all

EXAMPLE = Path(__file__).parent.parent / "examples" / "mnist.toml"
METHOD = "method.preset=rotated-sbfl"


def seconds(jobs: int, rounds: int) -> float:
    """Return how long two runs take on so many processes, from the start of the processes to their end."""
    with tempfile.TemporaryDirectory() as home:
        runs = []
        for seed in range(2):
            settings = load(EXAMPLE, [METHOD, f"rounds={rounds}", f"seed={seed}", f"eval.every={rounds}"])
            runs.append(PlannedRun(settings, Path(home) / f"seed-{seed}"))
        failed: dict[Path, str] = {}
        took, _ = timed(lambda: failed.update(run_all(runs, jobs).failed))
        if failed:
            raise SystemExit(f"a run failed: {next(iter(failed.values()))}")
        return took


def main() -> None:
    parser = arguments(__doc__, rounds=60)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(options.repeat):
        for jobs, measured in times.items():
            measured.append(seconds(jobs, options.rounds))
    gain = statistics.median(one / two for one, two in zip(times[1], times[2], strict=True))
    for jobs, measured in times.items():
        each = statistics.median(measured)
        print(f"{jobs} process{'es' * (jobs > 1)}: {each:.1f} s for two runs of {options.rounds} rounds")
    best = min(times[2]) / 2
    print(f"two processes give {gain:.2f} times the runs per hour of one")
    print(f"about {3600 / (best * 1000 / options.rounds):.0f} runs of 1000 rounds per hour, evaluation aside")
    write(options.json, {"seconds": times, "gain": gain})


if __name__ == "__main__":
    main()
