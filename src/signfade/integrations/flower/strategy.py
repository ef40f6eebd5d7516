"""Flower's strategy for one-bit learning: what the server asks of devices, and what it does with replies."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from logging import INFO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log
from torch import Tensor, nn

from signfade.experiments.folder import RunFolder
from signfade.experiments.planned_runs import check_startable
from signfade.experiments.training import RunFailed, run_rounds
from signfade.integrations.flower.client_registry import ClientRegistry, keys_of
from signfade.integrations.flower.exchange import Exchange, Patience, Replies
from signfade.integrations.flower.layout import Layout, Start
from signfade.integrations.flower.reply_validator import ReplyFormat, ReplyValidator, read_identity
from signfade.integrations.flower.rounds import Rounds
from signfade.integrations.flower.server_core import DeployedServer, DeployedState, RoundSummary
from signfade.integrations.flower.wire import (
    ARRAYS,
    RECORD,
    STEP,
    CatchUp,
    Order,
    message_bytes,
    write_order,
)
from signfade.settings import RunSettings
from signfade.simulation.clients import choose_devices
from signfade.state import from_tensors, to_tensors

__all__ = ["OneBitStrategy"]

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
_CONFIG = "config"
_POLL = 0.5  # seconds between two checks for nodes


class OneBitStrategy(Strategy):
    """Train over Flower's nodes at one bit per weight.

    Devices answer with `reply_with_bits`. Replies are checked, sorted by device, sent through the simulated
    radio if the settings have a cell, and aggregated by the settings' rule; the server steps, and the model
    goes down in full or, to devices that kept up, by signs. What is missing, late, failed or malformed is
    counted and named; the round goes on with the rest.

    Args:
        settings: `data.devices` is the number of devices in the cell, `data.participation` how many of them
            are asked; sections `method`, `server`, `cell` and `eval` are as in the simulator.
        model: What is trained, with its initial weights.
        folder: Where to keep the run (config.toml, metrics.jsonl, checkpoints, summary.json); a run that is
            there unfinished is continued. None keeps nothing.
        min_devices: How many nodes the first round waits for; all by default.
        connect_timeout: Seconds it waits for them; after that it begins with those that are there.
        quorum: Share of the devices asked whose replies are enough to close a round, in (0, 1].
        deadline: Seconds, from its start, until which a round waits for the others once it has a quorum; by
            default half as long again as the quorum took.
        most_samples: What a device's number of samples counts for at most, in medians of the devices'; it is
            the number in the device's first reply.
        remember_keys: Whether checkpoints keep to which keys device numbers belong. Without SuperNode
            authentication a SuperNode that is started again has another key and would be refused: say False
            where they are started again together with the server.

    Attributes:
        server: The model and its steps.
        registry: Which node is which device.
        validator: What was wrong with replies: sentences in `validator.faults`, numbers in
            `validator.counts`.
        downlink_bytes: Of all messages to devices so far, as Flower serialises them.
        last_round: Loss, metrics and warnings of the last round.
    """

    def __init__(
        self,
        settings: RunSettings,
        model: nn.Module | Start,
        *,
        folder: str | Path | None = None,
        min_devices: int | None = None,
        connect_timeout: float = 600.0,
        quorum: float = 1.0,
        deadline: float | None = None,
        most_samples: float = 4.0,
        remember_keys: bool = True,
    ) -> None:
        self._model = copy.deepcopy(model) if isinstance(model, nn.Module) else None
        self._start = Start.of_model(model) if isinstance(model, nn.Module) else model
        self._folder = None if folder is None else RunFolder(folder)
        self._min_devices = min_devices
        self._connect_timeout = connect_timeout
        self._patience = Patience(3600.0, quorum, deadline)
        self._most_samples = most_samples
        self._exchange = Exchange()
        self._asked: list[int] = []
        self._present: set[int] = set()
        self._remember_keys = remember_keys
        self.registry = ClientRegistry(settings.data.devices)
        self.validator = ReplyValidator(self.registry)
        self.downlink_bytes = 0
        self.last_round = RoundSummary()
        self.server = DeployedServer(settings, self._start, most_samples)

    @property
    def settings(self) -> RunSettings:
        """All of the run."""
        return self.server.settings

    def arrays(self) -> ArrayRecord:
        """Return the current model: its whole state dict, as Flower's strategies have it."""
        server = self.server
        if self._model is None:
            return server.layout.record(server.weights, server.buffers)
        server.layout.load(self._model, server.weights, server.buffers)
        return ArrayRecord(self._model.state_dict())

    def summary(self) -> None:
        """Log what will be done."""
        method, layout = self.settings.method, self.server.layout
        link = "perfect links" if self.settings.cell.perfect else "the simulated cell"
        log(INFO, "\t├──> %s over %s, downlink %s", method.aggregator, link, self.settings.server.downlink)
        log(INFO, "\t└──> %d devices, %d weights", self.settings.data.devices, layout.size)

    # -- a round, to the devices -----------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of a round; the model is the strategy's own, `arrays` are not used."""
        round = self.server.round
        if server_round != round + 1:
            raise ValueError(f"server_round must be {round + 1}, the next one; got {server_round}")
        self._present = self._wait(grid)
        self._asked = self._choose(grid, round)
        own_config = ConfigRecord({**config, "server-round": server_round})
        contents: dict[int | None, RecordDict] = {}
        messages = []
        for node in self._asked:
            missed = self.server.catch_up(self.registry.has_round(node))
            since = None if missed is None else missed.since
            if since not in contents:
                contents[since] = self._content(own_config, missed)
            messages.append(_message(contents[since], node, MessageType.TRAIN, server_round))
        self.downlink_bytes += sum(map(message_bytes, messages))
        return messages

    def _content(self, config: ConfigRecord, missed: CatchUp | None) -> RecordDict:
        """Return the order of a round with the steps that were `missed`, or else with the whole model."""
        server, content = self.server, RecordDict()
        if missed is None:
            content[ARRAYS] = server.layout.record(server.weights, server.buffers)
            if self.settings.server.downlink == "sign":  # devices make the next steps themselves
                missed = server.catch_up(server.round)
                content[STEP] = ArrayRecord(server.optimizer_state())
        elif server.buffers:
            content[ARRAYS] = Layout({}, server.layout.buffers).record(torch.zeros(0), server.buffers)
        order = Order(
            server.round,
            self.settings.seed,
            self.settings.method,
            server.sends,
            catch_up=missed,
            exponents=server.encoder.exponents,
        )
        content[RECORD], content[_CONFIG] = write_order(order), config
        return content

    def _wait(self, grid: Grid) -> set[int]:
        """Wait until enough nodes are free: all of them before the first round, later one."""
        least, end = 1, time.monotonic() + self._patience.timeout
        if not self._present:
            least = self.settings.data.devices if self._min_devices is None else self._min_devices
            end = time.monotonic() + self._connect_timeout
        while True:
            # A node whose late answer has come is free again.
            self.validator.drop_late(self._exchange.late(grid), self.server.round)
            keys = keys_of(grid)
            self.registry.add_keys(keys)
            nodes = self._exchange.free(keys)
            if len(nodes) >= least:
                break
            if time.monotonic() >= end:
                if not nodes:
                    raise RunFailed(f"round {self.server.round + 1}: no device is connected")
                self.validator.warn(
                    f"round {self.server.round + 1}: {len(nodes)} of {least} devices are connected"
                )
                break
            time.sleep(_POLL)
        return nodes

    def _choose(self, grid: Grid, round: int) -> list[int]:
        """Return the nodes to ask, in ascending order."""
        data = self.settings.data
        if data.participation >= 1:
            return sorted(self._present)
        self._identify(grid, round)
        chosen = choose_devices(data.devices, data.participation, self.settings.seed, round)
        nodes = []
        for device in map(int, chosen):
            node = self.registry.node_of(device)
            if node in self._present:
                nodes.append(node)
            else:
                self.validator.counts["missing"] += 1
                why = f"device {device} was chosen and is not connected"
                self.validator.warn(f"round {round + 1}: missing: {why}")
        return sorted(nodes)

    def _identify(self, grid: Grid, round: int) -> None:
        """Ask nodes that are new which devices they are."""
        order = Order(round, self.settings.seed, self.settings.method, identify=True)
        content = RecordDict({RECORD: write_order(order)})
        unknown = sorted(self.registry.unknown(self._present))
        messages = [_message(content, node, MessageType.TRAIN, round + 1) for node in unknown]
        self.downlink_bytes += sum(map(message_bytes, messages))
        devices = self.settings.data.devices
        self.validator.read(self.send(grid, messages), lambda reply: read_identity(reply, devices), round)

    def _reply_format(self) -> ReplyFormat:
        server, devices = self.server, self.settings.data.devices
        return ReplyFormat(server.encoder, server.layout, devices, server.round, server.sends != "values")

    def send(self, grid: Grid, messages: Sequence[Message]) -> Replies:
        """Send messages of a round and wait for the replies, which must not be larger than the model's."""
        return self._exchange.send(grid, messages, self._patience, self._reply_format().largest())

    # -- a round, from the devices ---------------------------------------------------------------------------

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check replies, aggregate them and step; without a good reply there is no step."""
        came = {reply.metadata.src_node_id: reply for reply in replies}
        return self.aggregate(Replies(came, {}, [node for node in self._asked if node not in came]))

    def aggregate(self, replies: Replies) -> tuple[ArrayRecord, MetricRecord]:
        """Do what `aggregate_train` does, with everything that is known about who answered."""
        server, validator = self.server, self.validator
        before, bytes_before = validator.counts.copy(), validator.totals.uplink_bytes
        good = validator.read(replies, self._reply_format().read, server.round)
        for node in good:
            self.registry.set_round(node, server.round)
        answers = sorted(good.values(), key=lambda answer: answer.device)
        self.last_round = server.aggregate(answers)
        if self.last_round.warnings:
            validator.warn("; ".join(self.last_round.warnings))
        new = validator.counts - before
        uplink_bytes = validator.totals.uplink_bytes - bytes_before
        metrics = MetricRecord({"devices": len(answers), "uplink-bytes": uplink_bytes})
        metrics.update({kind: new[kind] for kind in ("refused", "failed", "missing")})
        if self.last_round.loss is not None:
            metrics["train-loss"] = self.last_round.loss
        return self.arrays(), metrics

    # -- evaluation on the devices: none; `evaluate_fn` evaluates the model on the server --------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nobody."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Ignore the replies."""
        return None

    # -- all rounds ------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run all rounds, from where the run folder stands.

        Args:
            grid: Flower's way to the nodes.
            initial_arrays: Weights to begin with; the model's own by default.
            num_rounds: Number of rounds; the settings' by default.
            timeout: Seconds a round waits for its devices at most.
            train_config: Passed on to the devices, with the key `server-round`.
            evaluate_config: Passed on to devices that a subclass asks to evaluate.
            evaluate_fn: From round and model to metrics, of which `accuracy` and `loss` are kept in
                metrics.jsonl; called when section `eval` says so, and after the last round.

        Returns:
            The final model and all metrics.

        Raises:
            FolderError: The folder holds another run.
            RunFailed: The model has diverged, nobody is there, or most replies are refused.
        """
        settings = self.settings
        if num_rounds is not None and num_rounds != settings.rounds:
            settings = settings.model_copy(update={"rounds": num_rounds})
        start = self._start
        if initial_arrays is not None:
            start = self._loaded(initial_arrays)
        if start is not self._start or settings is not self.settings:
            self._start, self.server = start, DeployedServer(settings, start, self._most_samples)
        self._patience = replace(self._patience, timeout=timeout)
        log(INFO, "Starting %s:", type(self).__name__)
        self.summary()
        configs = (train_config or ConfigRecord(), evaluate_config or ConfigRecord())
        rounds = Rounds(self, grid, self._exchange, self._patience, *configs, evaluate_fn)
        if self._folder is None:
            while not rounds.done:
                rounds.advance()
        elif check_startable(settings, self._folder.path, resume=True) == "finished":
            if (last := self._folder.load_checkpoint()) is not None:
                rounds.restore(last.tensors, last.round)
            log(INFO, "%s is already finished", self._folder.path)
        else:
            run_rounds(rounds, self._folder)
        rounds.result.arrays = self.arrays()
        return rounds.result

    def _loaded(self, arrays: ArrayRecord) -> Start:
        if self._model is None:
            layout, unit = self._start.layout, self._start.step_unit
            return Start(layout, layout.weights(arrays), layout.read_buffers(arrays), unit)
        self._model.load_state_dict(arrays.to_torch_state_dict())
        return Start.of_model(self._model)

    def _tree(self) -> dict[str, Any]:
        """Return everything that a checkpoint holds."""
        owners = self.registry.owners
        return {
            **vars(self.server.state),
            "owners": owners if self._remember_keys else np.zeros_like(owners),
            "replies": self.validator.totals,
            "downlink_bytes": self.downlink_bytes,
        }

    def state(self) -> dict[str, Tensor]:
        """Return everything that a continued run needs, by the simulator's names."""
        return to_tensors(self._tree())

    def restore(self, tensors: dict[str, Tensor], round: int) -> None:
        """Go on from what `state` returned after `round` rounds.

        Raises:
            ValueError: It is the state of another run, or of another round.
        """
        tree = from_tensors(self._tree(), tensors)
        self.registry.owners = tree.pop("owners")
        self.validator.totals, self.downlink_bytes = tree.pop("replies"), tree.pop("downlink_bytes")
        state = DeployedState(**tree)
        if state.server.round != round:
            raise ValueError(f"the checkpoint is of round {state.server.round}, not {round}")
        self.server.restore(state)


def _message(content: RecordDict, node: int, kind: str, server_round: int) -> Message:
    return Message(content, dst_node_id=node, message_type=kind, group_id=str(server_round))
