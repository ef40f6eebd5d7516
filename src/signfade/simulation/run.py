"""A run: from settings to a task, then the same round again and again, to be stopped and resumed anywhere."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from signfade.data import DATASETS, Dataset, Split, as_dataset, load, make_regression, split, standardised
from signfade.kernels.threads import available_threads
from signfade.keys import stream_key
from signfade.server import Server
from signfade.settings import DataSettings, RunSettings
from signfade.simulation.attacks import Attackers
from signfade.simulation.classify import ClassificationTask
from signfade.simulation.clients import Clients
from signfade.simulation.lora import add_adapters
from signfade.simulation.metrics import Diverged
from signfade.simulation.models import MODELS, build_model
from signfade.simulation.personal import make_groups, personal_parameters
from signfade.simulation.round import Simulation, State, run_round
from signfade.simulation.synthetic import GaussianTask, RegressionTask
from signfade.simulation.task import Task, one_thread
from signfade.state import from_tensors, to_tensors

__all__ = ["Experiment", "RunFailed", "deal", "layer_sizes", "make_task"]


class RunFailed(RuntimeError):
    """The run cannot go on; the message says why in one sentence."""


@one_thread()  # an optimum found by two threads differs in its last digits
def make_task(settings: RunSettings, workers: int = 1, dataset: object = None) -> Task:
    """Load the data, split it over the devices and build the model.

    `workers` are threads and never change a result; `dataset` replaces the labelled set that the settings
    name: a `Dataset`, or anything that `signfade.data.as_dataset` takes.
    """
    data, seed = settings.data, settings.seed
    if data.name == "gaussian":
        if settings.device.trains:
            raise ValueError("device.local_steps must be 1 with data gaussian, which has nothing to train")
        return GaussianTask(data.devices, data.size, seed)
    if data.name == "regression":
        drawn = make_regression(data.devices, data.samples, data.size, data.heterogeneous, seed)
        mean = settings.method.weights != "sum"
        return RegressionTask(drawn, data.batch, seed, mean, workers, settings.device)
    if dataset is None:
        labelled = load(data.name, data.folder)
    else:  # a Dataset has been checked by who made it
        labelled = dataset if isinstance(dataset, Dataset) else as_dataset(dataset, "dataset")
    if data.standardise:
        labelled = standardised(labelled)
    who = deal(labelled, data, seed)
    tokens = not labelled.train_x.is_floating_point()
    model = _model(settings, labelled.input_shape, labelled.classes, tokens)
    if tokens and (settings.model.name == "auto" or MODELS.built_in(settings.model.name)):
        _check_text(labelled)
    if settings.per_device and labelled.train_y.ndim > 1:
        raise ValueError(
            'data.groups must be 1, model.personal empty, server.tasks "one" and eval.per_device false with '
            "labels per position: devices are evaluated by their classes"
        )
    groups = make_groups(data, labelled.classes, seed) if data.groups > 1 else None
    own = settings.model.personal
    place = _place(settings.compute)
    return ClassificationTask(
        labelled, who, model, data.batch, seed, workers, settings.device, own, groups, place
    )


def _check_text(data: Dataset) -> None:
    """Refuse text that the character models cannot read: they tell the next of the same tokens."""
    if data.train_y.ndim == 1:
        raise ValueError(
            f"the character models give scores at every position, and {data.name} has one label per sample: "
            "set model.name to a model of your own"
        )
    if (largest := int(max(data.train_x.max(), data.test_x.max()))) >= data.classes:
        raise ValueError(
            f"the character models read tokens from 0 to {data.classes - 1}, as many as there are classes; "
            f"{data.name} has {largest}: set model.name to a model of your own"
        )


def _place(name: str) -> torch.device:
    """Return the device of torch with this name, or say that there is none."""
    if not {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}[name]:
        raise ValueError(f'compute must be "cpu" here: torch finds no {name} device on this machine')
    return torch.device(name)


def deal(dataset: Dataset, data: DataSettings, seed: int) -> Split:
    """Deal the training samples out to the devices as the settings say."""
    try:
        return split(
            dataset.train_y,
            data.devices,
            data.split,
            data.concentration,
            seed,
            classes_per_device=data.classes_per_device,
            clients=dataset.clients,
        )
    except ValueError as error:
        raise ValueError(f"data.split {data.split} of {dataset.name}: {error}") from error


def _model(settings: RunSettings, shape: tuple[int, ...], classes: int, tokens: bool = False) -> nn.Module:
    """Build the model; where adapters or trained parameters are named, freeze the rest."""
    asked, seed = settings.model, settings.seed
    model = build_model(asked.name, shape, classes, seed, tokens, asked.initial)
    if not (asked.lora_rank or asked.trained):
        return model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_key(seed, "adapters") >> 1)
        return add_adapters(model, asked.lora_rank, asked.lora_targets, asked.trained, asked.lora_alpha)


def layer_sizes(settings: RunSettings) -> tuple[int, ...] | None:
    """Return the lengths of the model's layers without loading data; None where only the data can tell.

    Example:
        >>> layer_sizes(RunSettings.model_validate({"data": {"name": "mnist"}, "model": {"name": "linear"}}))
        (7840, 10)
    """
    source = DATASETS.find(settings.data.name)
    if source.load is None:
        return (settings.data.size,)
    if source.shape is None:
        return None
    model = _model(settings, *source.shape, source.tokens)
    own = personal_parameters(model, settings.model.personal)
    trained = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    return tuple(size for size, mine in zip(trained, own) if not mine)


class Experiment:
    """One model trained over one simulated cell by one method; `warnings` are sentences for people.

    Example:
        >>> tables = {"data": {"name": "gaussian", "size": 1000}, "method": {"aggregator": "sbfl"}}
        >>> settings = RunSettings.model_validate({"rounds": 2} | tables)
        >>> experiment = Experiment(settings)
        >>> record = experiment.advance()
        >>> record["round"], record["devices"], record["uplink_bits"], record["payload_bits"]
        (1, 20, 22880, 21280)
    """

    def __init__(self, settings: RunSettings, task: Task | None = None, dataset: object = None) -> None:
        self.settings = settings
        workers = settings.threads or available_threads()
        self.task = make_task(settings, workers, dataset) if task is None else task
        bits = self.task.extra_bits
        server = Server(settings, self.task.segments, self.task.devices, self.task.step_unit, bits)
        clients = Clients(settings, self.task)
        attackers = Attackers(settings.attack, self.task.devices, settings.seed)
        self._simulation = Simulation(settings, self.task, clients, attackers, server)
        memory = server.init(self.task.initial_weights())
        self._state = self._first = State(memory, clients.init(), self.task.state())
        self.warnings = clients.notes(server.encoder(memory))

    @property
    def round(self) -> int:
        """Number of rounds done."""
        return self._state.server.round

    @property
    def parameters(self) -> int:
        """Number of weights M."""
        return self.task.size

    @property
    def devices(self) -> int:
        """Number of devices K."""
        return self.task.devices

    @property
    def weights(self) -> Tensor:
        """The current model, `[M]`."""
        return self._state.server.weights

    @property
    def trained_weights(self) -> Tensor:
        """What is evaluated and handed out, `[M]`: the running average, if `server.averaging` asks for it."""
        return self._state.server.averaged.weights

    @property
    def models(self) -> Tensor:
        """The current model of every device, `[K, M]`."""
        weights, of = self._simulation.server.broadcast(self._state.server, np.arange(self.devices))
        return weights[of]

    @property
    def done(self) -> bool:
        """Whether all rounds are run."""
        return self.round >= self.settings.rounds

    def advance(self) -> dict[str, Any]:
        """Run one round and return its record for metrics.jsonl, or raise RunFailed."""
        started = time.perf_counter()
        with one_thread():
            try:
                self._state, record = run_round(self._simulation, self._state)
            except Diverged as error:
                raise RunFailed(
                    f"round {self.round + 1}: {error}; the model has diverged, "
                    "try a smaller server.learning_rate, less server.momentum, or server.clip"
                ) from error
            except ValueError as error:
                raise RunFailed(f"round {self.round + 1}: {error}") from error
        self.warnings += record.pop("warnings")
        record["seconds"] = round(time.perf_counter() - started, 6)
        return record

    def state(self) -> dict[str, Tensor]:
        """Return everything that a continued run needs, by name."""
        return to_tensors(self._state)

    def restore(self, tensors: dict[str, Tensor], round: int) -> None:
        """Go on from what `state` returned after `round` rounds, or raise ValueError."""
        if "server.round" not in tensors:
            raise ValueError("the checkpoint is of signfade 0.1, whose runs this version cannot resume")
        state = from_tensors(self._first, tensors)
        if state.server.round != round:
            raise ValueError(f"the checkpoint is of round {state.server.round}, not {round}")
        self._state = state
        self.task.restore(state.task)
