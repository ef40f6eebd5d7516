"""One round of the same job in other simulators: Flower's simulation engine, pfl, and the plain torch loop.

    make bench-peers
    python benchmarks/peers.py [--rounds 15] [--json FILE] [--peers PYTHON]

The job: K = 20 devices, one local step on a batch of 32, the paper's network, federated averaging; all start
from the same weights on the same images, and all must end a round with the same weights. Beside it stand
signfade's rounds with a radio: they do more, as nobody else has an uplink. Every candidate is a process of
its own that runs one round per request; all take turns, so that a busy machine slows all alike.
Ratios are to the plain loop: higher is faster. Peers that are not there are left out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from harness import Row, row, write
from peers_job import BATCH, DEVICES, MARK, STEP, cnn, data, plain_round, serve

HERE = Path(__file__).resolve().parent
SAME_JOB = ["plain torch", "signfade, ideal", "flower", "flower, a core a client", "pfl"]
WITH_RADIO: dict[str, dict[str, Any]] = {
    "signfade, sbfl": {"aggregator": "sbfl"},
    "signfade, sbfl rotated": {"aggregator": "sbfl", "rotation": "hadamard"},
    "signfade, best": {"preset": "best"},
}


def our_round(method: dict[str, Any]) -> Callable[[], Iterable[Any]]:
    """A whole round of signfade, as `signfade run` does it."""
    import numpy as np
    import torch

    from signfade.data import Dataset, Split
    from signfade.settings import RunSettings
    from signfade.simulation import Experiment
    from signfade.simulation.allocator import tune_allocator
    from signfade.simulation.classify import ClassificationTask
    from signfade.simulation.models import build_model

    tune_allocator()
    images, labels = (part.flatten(0, 1) for part in data())
    model = build_model("paper-cnn", (1, 28, 28), 10, seed=0)
    with torch.no_grad():
        for ours, theirs in zip(model.parameters(), cnn().parameters(), strict=True):
            ours.copy_(theirs)
    who = Split(np.arange(DEVICES * BATCH), BATCH * np.arange(DEVICES + 1))
    settings = RunSettings.model_validate(
        {
            "rounds": 10**6,
            "data": {"devices": DEVICES, "batch": "none"},
            "method": {"weights": "share", **method},
            "server": {"learning_rate": STEP},
            "eval": {"every": 10**6},
        }
    )
    dataset = Dataset(images, labels, images[:10], labels[:10], classes=10, name="peers")
    task = ClassificationTask(dataset, who, model, None, seed=0, workers=os.cpu_count() or 1)
    run = Experiment(settings, task)

    def one_round() -> Iterable[Any]:
        run.advance()
        return [run.weights]

    return one_round


def commands(peers: str) -> dict[str, list[str]]:
    """Return how each candidate is started."""
    ours = [sys.executable, str(HERE / "peers.py"), "--serve"]
    found = {name: [*ours, name] for name in ("plain torch", "signfade, ideal", *WITH_RADIO)}
    flower = [sys.executable, str(HERE / "peers_flower.py")]
    found |= {"flower": [*flower, "2"], "flower, a core a client": [*flower, "1"]}
    found["pfl"] = [peers, str(HERE / "peers_pfl.py")]
    return {name: found[name] for name in (*SAME_JOB, *WITH_RADIO)}


class Candidate:
    """A process that runs one round per request."""

    def __init__(self, name: str, command: list[str]) -> None:
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
        # A Ray of its own, whose workers are as urgent as the others.
        quiet |= {"RAY_ADDRESS": "local", "RAY_worker_niceness": "0"}
        paths = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.name = name
        # A pipe that nobody reads would fill and block.
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            env=os.environ | quiet | {"PYTHONPATH": paths},
        )

    def _line(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return line.removeprefix(MARK).strip()
        raise EOFError

    def check(self) -> list[float]:
        """Wait for the warm-up; return what the first round's weights add up to, and their energy."""
        return [float(word) for word in self._line().split()]

    def run_round(self) -> float:
        """Return the seconds of one round."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(self._line())

    def end(self) -> str:
        """End the process; return the last line it complained in."""
        try:
            self._process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return "it did not end"
        self._complaints.seek(0)
        return (self._complaints.read().strip().splitlines() or ["no reason given"])[-1]


def start(peers: str, wanted: list[str]) -> tuple[dict[str, Candidate], dict[str, list[float]]]:
    """Start all candidates one after another, and say who is missing."""
    running, checks = {}, {}
    for name, command in commands(peers).items():
        if name not in wanted:
            continue
        if not Path(command[0]).exists():
            print(f"{name} is left out: there is no {command[0]} (make bench-peers creates it)", flush=True)
            continue
        print(f"starting {name} ...", file=sys.stderr, flush=True)
        candidate = Candidate(name, command)
        try:
            checks[name] = candidate.check()
            running[name] = candidate
        except EOFError:
            print(f"{name} is left out: {candidate.end()}", flush=True)
    return running, checks


def table(seconds: dict[str, list[float]], checks: dict[str, list[float]]) -> dict[str, Row]:
    base = seconds["plain torch"]
    rows = {name: row(times, base) for name, times in seconds.items()}
    print(f"{'':26s} {'ratio':>6s} {'quartiles':>13s} {'of minima':>9s} {'median ms':>9s}  weights")
    for name, r in rows.items():
        ratios = [b / s for b, s in zip(base, seconds[name], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        r |= {"ratio_quartile_low": low, "ratio_quartile_high": high}
        check = " ".join(f"{x:g}" for x in checks[name]) if name in SAME_JOB else "(over the air)"
        print(
            f"{name:26s} {r['ratio']:6.2f} {low:6.2f} {high:6.2f} {r['ratio_of_minima']:9.2f}"
            f" {r['median_ms']:9.1f}  {check}"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peers", default=str(HERE.parent / ".venv-peers/bin/python"), help="has pfl")
    parser.add_argument("--only", nargs="*", help="candidates to run; plain torch always is")
    parser.add_argument("--json")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        method = {"signfade, ideal": {"aggregator": "ideal"}, **WITH_RADIO}.get(options.serve)
        serve(plain_round() if method is None else our_round(method))
        return
    wanted = [*SAME_JOB, *WITH_RADIO] if options.only is None else ["plain torch", *options.only]
    running, checks = start(options.peers, wanted)
    for name in [name for name in running if name in SAME_JOB]:
        if any(abs(a - b) > 2e-3 for a, b in zip(checks[name], checks["plain torch"], strict=True)):
            print(f"{name} did another job: its weights add up to {checks[name]}")
    seconds: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(options.rounds):
        for name, candidate in running.items():
            seconds[name].append(candidate.run_round())
    for candidate in running.values():
        candidate.end()
    print(
        f"K={DEVICES}, batch {BATCH}, {options.rounds} rounds in turn; ratio to plain torch: higher is faster"
    )
    write(options.json, {"rounds": options.rounds, "rows": table(seconds, checks), "checks": checks})


if __name__ == "__main__":
    main()
