"""One round of the same job in other simulators: Flower's simulation engine, pfl, and the plain torch loop.

    make bench-peers
    python benchmarks/peers.py [--rounds 15] [--json FILE] [--peers PYTHON]

The job: K = 20 devices, one local step on a batch of 32, the paper's network, federated averaging; all start
from the same weights on the same images, and all must end a round with the same weights. Beside it stand
signfade's rounds with a radio: they do more, as nobody else has an uplink. Every candidate is a process of
its own that runs one round per turn. Ratios are to the plain loop: higher is faster. Peers that are not there
are left out.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from harness import Candidate, Turns, arguments, show, take_turns, write
from peers_job import BATCH, DEVICES, STEP, WARM_UP, cnn, data, plain_round, sums

HERE = Path(__file__).resolve().parent
SAME_JOB = ["plain torch", "signfade, ideal", "flower", "flower, one core per client", "pfl"]
WITH_RADIO: dict[str, dict[str, Any]] = {
    "signfade, sbfl": {"aggregator": "sbfl"},
    "signfade, sbfl rotated": {"aggregator": "sbfl", "rotation": "shared"},
    "signfade, best": {"preset": "best"},
}
# Quiet engines, and a Ray of its own whose workers are as urgent as the others.
ENGINES = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
ENGINES |= {"RAY_ADDRESS": "local", "RAY_worker_niceness": "0"}


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


def serve(name: str) -> None:
    """Be a candidate."""
    method = {"signfade, ideal": {"aggregator": "ideal"}, **WITH_RADIO}.get(name)
    one_round, turns = plain_round() if method is None else our_round(method), Turns()
    checks = sums(one_round())
    for _ in range(WARM_UP - 1):
        one_round()
    turns.ready(*checks)
    turns.serve(one_round)


def commands(peers: str) -> dict[str, list[str]]:
    """Return how each candidate is started."""
    ours = [sys.executable, str(HERE / "peers.py"), "--serve"]
    found = {name: [*ours, name] for name in ("plain torch", "signfade, ideal", *WITH_RADIO)}
    flower = [sys.executable, str(HERE / "peers_flower.py")]
    found |= {"flower": [*flower, "2"], "flower, one core per client": [*flower, "1"]}
    found["pfl"] = [peers, str(HERE / "peers_pfl.py")]
    return {name: found[name] for name in (*SAME_JOB, *WITH_RADIO)}


def start(peers: str, wanted: list[str]) -> tuple[dict[str, Candidate], dict[str, list[float]]]:
    """Start all candidates one after another, and say who is missing."""
    running, checks = {}, {}
    paths = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    for name, command in commands(peers).items():
        if name not in wanted:
            continue
        if not Path(command[0]).exists():
            print(f"{name} is left out: there is no {command[0]} (make bench-peers creates it)", flush=True)
            continue
        print(f"starting {name} ...", file=sys.stderr, flush=True)
        candidate = Candidate(command, ENGINES | {"PYTHONPATH": paths})
        try:
            checks[name] = candidate.numbers()
            running[name] = candidate
        except EOFError:
            print(f"{name} is left out: {candidate.end()}", flush=True)
    return running, checks


def main() -> None:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--peers", default=str(HERE.parent / ".venv-peers/bin/python"), help="has pfl")
    parser.add_argument("--only", nargs="*", help="candidates to run; plain torch always is")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    wanted = [*SAME_JOB, *WITH_RADIO] if options.only is None else ["plain torch", *options.only]
    running, checks = start(options.peers, wanted)
    for name in (name for name in running if name in SAME_JOB):
        if any(abs(a - b) > 2e-3 for a, b in zip(checks[name], checks["plain torch"], strict=True)):
            print(f"{name} did another job: its weights add up to {checks[name]}")
    rows = take_turns(running, options.rounds, "plain torch")
    last = {name: f"weights {checks[name]}" if name in SAME_JOB else "(over the air)" for name in rows}
    show(f"K={DEVICES}, batch {BATCH}; ratio to plain torch: higher is faster", rows, last)
    write(options.json, {"rounds": options.rounds, "rows": rows, "checks": checks})


if __name__ == "__main__":
    main()
