"""The Flower app that `signfade deploy` submits: every node is one device of the simulator's own task."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from signfade.experiments.config import resolve
from signfade.integrations.flower.device import Local, answer, device_number
from signfade.integrations.flower.messages import Buffers, Layout, Order, Start
from signfade.integrations.flower.strategy import OneBitStrategy
from signfade.settings import RunSettings
from signfade.simulation.run import make_task
from signfade.simulation.task import Task

__all__ = ["client_app", "evaluation", "server_app", "train_on"]

# The simulator's shares are sent as whole numbers of samples; only their ratios matter.
_ALL_SAMPLES = 1 << 48

client_app = ClientApp()
server_app = ServerApp()


def _settings(context: Context) -> RunSettings:
    return resolve(tomllib.loads(str(context.run_config["settings"])))


@client_app.train()
def _train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    return train_on(message, context, _settings(context))


def train_on(message: Message, context: Context, settings: RunSettings, task: Task | None = None) -> Message:
    """Answer for the device whose number the node's configuration has; the task is the settings' own."""
    device = device_number(context)
    if device >= settings.data.devices:
        raise ValueError(
            f"partition-id must be less than data.devices, {settings.data.devices}; got {device}"
        )
    own = make_task(settings) if task is None else task

    def compute(weights: Tensor, buffers: Buffers, order: Order) -> Local:
        own.restore(buffers)
        local = own.local_updates(weights, np.array([device]), order.round)
        own.end_round()
        return Local(local.gradients[0], float(local.losses[0]), dict(own.state()))

    samples = max(1, round(float(own.shares[device]) * _ALL_SAMPLES))
    return answer(message, context, Layout.of_task(own), compute, device=device, examples=samples)


@server_app.main()
def _main(grid: Grid, context: Context) -> None:
    settings, config = _settings(context), context.run_config
    Path(str(config["pid-file"])).write_text(f"{os.getpid()}\n")
    torch.set_num_threads(1)
    task = make_task(settings)
    timeout, deadline = float(config["timeout"]), float(config["deadline"])
    strategy = OneBitStrategy(
        settings,
        Start.of_task(task),
        folder=str(config["folder"]),
        connect_timeout=max(timeout, 180.0),
        quorum=float(config["quorum"]),
        deadline=None if deadline < 0 else deadline,
        remember_keys=bool(config["remember-keys"]),
    )
    strategy.start(grid, timeout=timeout, evaluate_fn=evaluation(task))


def evaluation(task: Task) -> Callable[[int, ArrayRecord], MetricRecord]:
    """Return a function that evaluates a model on the task's own test set, on the server."""
    layout = Layout.of_task(task)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        task.restore(layout.read_buffers(arrays))
        found = task.evaluate(layout.weights(arrays))._asdict()
        return MetricRecord({name: value for name, value in found.items() if value is not None})

    return evaluate
