"""The job in Flower's simulation engine: a ServerApp with FedAvg, a ClientApp on Ray actors.

One round is one `send_and_receive` of FedAvg with its configuration and aggregation; no evaluation. A client
keeps its model and its data between rounds, which is kinder to Flower than its tutorials.
"""

from __future__ import annotations

import logging
from functools import cache

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from harness import Turns
from peers_job import BATCH, DEVICES, STEP, WARM_UP, cnn, local_step, sums
from torch import nn

client_app, server_app = ClientApp(), ServerApp()


@cache
def client_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = cnn()
    return model, torch.optim.SGD(model.parameters(), lr=STEP)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    model, optimizer = client_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    local_step(model, optimizer, int(context.node_config["partition-id"]))
    arrays, metrics = ArrayRecord(model.state_dict()), MetricRecord({"num-examples": BATCH})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(
        fraction_train=1.0,
        fraction_evaluate=0.0,
        min_train_nodes=DEVICES,
        min_evaluate_nodes=0,
        min_available_nodes=DEVICES,
    )
    arrays = ArrayRecord(cnn().state_dict())
    number = 0

    def one_round() -> None:
        nonlocal arrays, number
        number += 1
        messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
        replies = grid.send_and_receive(messages, timeout=600)
        found, _ = strategy.aggregate_train(number, replies)
        if found is None:
            raise SystemExit("flower lost a round")
        arrays = found

    one_round()
    checks, turns = sums(arrays.to_torch_state_dict().values()), Turns()
    for _ in range(WARM_UP - 1):
        one_round()
    turns.ready(*checks)
    turns.serve(one_round)


def run(cores: int) -> None:
    """Serve rounds; Ray gives every client so many cores, and torch as many threads."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(
        server_app,
        client_app,
        num_supernodes=DEVICES,
        backend_config={"client_resources": {"num_cpus": cores, "num_gpus": 0.0}},
    )


if __name__ == "__main__":
    import sys

    # Under its own name, so that actors import the apps and keep what they cached.
    import peers_flower

    peers_flower.run(int(sys.argv[1]))
