"""A deployment beside the simulation of the same run: the difference of their weights, and bytes and seconds.

A SuperLink and SuperNodes on this machine, TLS and SuperNode authentication on, links perfect; then the
simulator runs the same settings. `--config examples/mnist.toml` for the paper's model.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.progress import track

from signfade.experiments.config import load
from signfade.experiments.folder import RunFolder
from signfade.integrations.flower.deployment import deploy, deploy_folder
from signfade.simulation.run import Experiment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("examples/digits.toml"))
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", default="runs/flower-same")
    asked = parser.parse_args()
    console = Console(stderr=True)
    changes = [f"rounds={asked.rounds}", f"data.devices={asked.devices}", "cell.perfect=true"]
    changes.append("data.participation=1")
    changes.append("defence.bound_scales=true")  # which a deployment has by default
    settings = load(asked.config, changes).model_copy(update={"out": asked.out})
    folder = RunFolder(deploy_folder(settings))
    deploy(
        settings,
        folder.path,
        tls=True,
        auth=True,
        timeout=1800,
        resume=True,
        on_round=lambda record: console.print(f"round {record['round']}: {record['seconds']:.1f} s"),
        on_note=console.print,
    )
    checkpoint = folder.load_checkpoint()
    assert checkpoint is not None
    simulated = Experiment(settings)
    start = simulated.weights.clone()
    for _ in track(range(asked.rounds), "simulated", console=console):
        simulated.advance()
    deployed = checkpoint.tensors["server.model.weights"]
    metrics = folder.read_metrics()
    found = {
        "weights": simulated.parameters,
        "devices": asked.devices,
        "rounds": asked.rounds,
        "largest difference of weights": float((deployed - simulated.weights).abs().max()),
        "largest move of a weight": float((simulated.weights - start).abs().max()),
        "bytes up, per device and round": metrics[-1]["wire_uplink_bits"] / 8 / asked.devices / asked.rounds,
        "devices that replied": [record["devices"] for record in metrics],
        "seconds per round": [record["seconds"] for record in metrics],
        "accuracy": metrics[-1]["test_accuracy"],
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
