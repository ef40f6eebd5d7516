"""Do norms and biases need full precision? The error of one round's estimate in them, and what it costs.

    python benchmarks/layers.py                      # resnet8 on CIFAR-10, char-transformer on Shakespeare
    python benchmarks/layers.py --tasks resnet8

Ten of 100 devices train 5 local steps from a model that FedAvg has trained for `--rounds` rounds, and send
their updates at 1 and at 0.01 bit per weight over 1 MHz, as the preset `low-rate` does. An error is the
energy of the estimate's error over that of the true mean update, in the vectors (norms and biases) and in the
other weights. The losses are of 500 test samples after a server step of 0.3: along the estimate, along the
estimate with the true vectors, and along the true mean. `extra` are the bits of the vectors in full over
those of a message.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from harness import arguments, write
from torch import Tensor

TASKS: dict[str, dict[str, Any]] = {
    "resnet8": {"data.name": "cifar10", "data.split": "dirichlet", "device.learning_rate": 0.1},
    "char-transformer": {"data.name": "shakespeare", "data.split": "natural", "device.learning_rate": 0.3},
}
BASE = {"data.devices": 100, "data.participation": 0.1, "data.batch": 16, "device.local_steps": 5}
BASE |= {"cell.bandwidth_hz": 1e6, "eval.every": 10**6, "rounds": 10**6, "server.momentum": 0.0}
STEP = 0.3
RATES = (1.0, 0.01)


def measure(model: str, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each rate."""
    from signfade.data import load
    from signfade.experiments.config import resolve
    from signfade.simulation import Experiment, make_task

    shared = BASE | TASKS[model] | {"model.name": model}
    full = shared | {"method.aggregator": "ideal", "server.learning_rate": 1.0}
    data = load(shared["data.name"])
    few = dataclasses.replace(data, test_x=data.test_x[:500], test_y=data.test_y[:500])
    task: Any = make_task(resolve(full), dataset=few)
    trained = Experiment(resolve(full), task)
    for _ in range(rounds):
        trained.advance()
    start = trained.weights.clone()
    task.initial_weights = start.clone
    vector = torch.cat([torch.full((p.numel(),), p.ndim < 2) for p in task.module(start).parameters()])

    def move(settings: dict[str, Any]) -> tuple[Tensor, float]:
        run = Experiment(resolve(settings), task)
        record = run.advance()
        return run.weights - start, record["uplink_bits"] / record["devices"]

    def loss(way: Tensor) -> float:
        return float(task.evaluate(start + STEP * way).loss)

    true, _ = move(full)
    rows = []
    for bits in RATES:
        method = {"method.preset": "low-rate", "method.bits_per_weight": bits, "server.learning_rate": 1.0}
        found, sent = move(shared | method)
        off = {name: found[part] - true[part] for name, part in (("vectors", vector), ("others", ~vector))}
        rows.append(
            {
                "model": model,
                "bits": bits,
                "weights_share": float(vector.float().mean()),
                "energy_share": float(true[vector].square().sum() / true.square().sum()),
                "error_vectors": float(off["vectors"].square().sum() / true[vector].square().sum()),
                "error_others": float(off["others"].square().sum() / true[~vector].square().sum()),
                "extra": float(32 * vector.sum() / sent),
                "loss_before": loss(torch.zeros_like(true)),
                "loss": loss(found),
                "loss_vectors_exact": loss(torch.where(vector, true, found)),
                "loss_all_exact": loss(true),
            }
        )
    return rows


def main() -> None:
    parser = arguments(__doc__, rounds=4)
    parser.add_argument("--tasks", nargs="*", choices=list(TASKS), default=list(TASKS))
    options = parser.parse_args()
    rows = []
    for model in options.tasks:
        for row in measure(model, options.rounds):
            rows.append(row)
            print(
                "  ".join(f"{k} {v:.6g}" if isinstance(v, float) else f"{v}" for k, v in row.items()),
                flush=True,
            )
    write(options.json, {"rows": rows})


if __name__ == "__main__":
    main()
