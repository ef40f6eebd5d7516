"""Flower's strategy for one-bit learning: what the server asks of devices, and what it does with replies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from logging import INFO
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log
from torch import Tensor, nn

from signfade.experiments.folder import RunFolder
from signfade.experiments.training import check_startable, run_rounds
from signfade.integrations.flower.client_registry import ClientRegistry
from signfade.integrations.flower.exchange import Exchange, Patience, Replies, message_bytes
from signfade.integrations.flower.messages import RECORD, Order, Start
from signfade.integrations.flower.reply_validator import ReplyFormat, ReplyValidator
from signfade.integrations.flower.server_core import DeployedServer, DeployedState, RoundSummary
from signfade.server.scheduling import choose_devices
from signfade.settings import RunSettings
from signfade.simulation.run import RunFailed
from signfade.state import from_tensors, to_tensors

__all__ = ["OneBitStrategy"]

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
_FAULTS = ("refused", "failed", "missing")
_POLL = 0.5  # seconds between two checks for nodes


class OneBitStrategy(Strategy):
    """Train over Flower's nodes at one bit per weight.

    Devices answer with `reply_with_bits`. Replies are checked, sorted by device, sent through the simulated
    radio if the settings have a cell, and aggregated by the settings' rule; the server steps, and the model
    goes down in full or, to devices that kept up, by signs. What is missing, late, failed or malformed is
    counted and named (`validator`); the round goes on with the rest.

    Args:
        settings: `data.devices` is the number of devices in the cell, `data.participation` how many of them
            are asked; sections `method`, `server`, `cell` and `eval` are as in the simulator.
        model: What is trained, with its initial weights.
        folder: Where to keep the run; one that is there unfinished is continued. None keeps nothing.
        min_devices: How many nodes the first round waits for; all by default.
        connect_timeout: Seconds it waits for them; after that it begins with those that are there.
        quorum: Share of the devices asked whose replies are enough to close a round, in (0, 1].
        deadline: Seconds until which a round that has a quorum waits for the others; see `Patience`.
        most_samples: What a device's number of samples, that of its first reply, counts for at most, in
            medians of the devices'.
        remember_keys: Whether checkpoints keep to which keys device numbers belong. Without SuperNode
            authentication a SuperNode that is started again has another key and would be refused: say False
            where they are started again together with the server.
    """

    _grid: Grid  # this and the next three are the arguments and the result of `start`
    _configs: tuple[ConfigRecord, ConfigRecord]
    _evaluate_fn: Evaluate | None
    _result: Result

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
        self.settings = settings
        self._start = Start.of_model(model) if isinstance(model, nn.Module) else model
        self._folder = None if folder is None else RunFolder(folder)
        self._min_devices = settings.data.devices if min_devices is None else min_devices
        self._connect_timeout = connect_timeout
        self._patience = Patience(3600.0, quorum, deadline)
        self._most_samples, self._remember_keys = most_samples, remember_keys
        self._exchange = Exchange()
        self._asked: list[int] = []
        self._present: set[int] = set()
        self.registry = ClientRegistry(settings.data.devices)
        self.validator = ReplyValidator(self.registry)
        self.warnings = self.validator.faults
        self.downlink_bytes = 0
        self.last_round = RoundSummary()
        self.server = DeployedServer(settings, self._start, most_samples)

    def summary(self) -> None:
        """Log what will be done."""
        rule, down = self.settings.method.aggregator, self.settings.server.downlink
        link = "perfect links" if self.settings.cell.perfect else "the simulated cell"
        log(INFO, "\t├──> %s over %s, downlink %s", rule, link, down)
        log(INFO, "\t└──> %d devices, %d weights", self.devices, self.parameters)

    def arrays(self) -> ArrayRecord:
        """Return the current model, averaged if asked for: its whole state dict."""
        return self._start.arrays(self.server.state.server.averaged.weights, self.server.buffers)

    # -- a round, to the devices -----------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of a round; the model is the strategy's own, `arrays` are not used."""
        if server_round != self.round + 1:
            raise ValueError(f"server_round must be {self.round + 1}, the next one; got {server_round}")
        self._present = self._wait(grid)
        self._asked = self._choose(grid)
        config = ConfigRecord({**config, "server-round": server_round})
        contents: dict[int | None, RecordDict] = {}
        wanted = {}
        for node in self._asked:
            missed = self.server.catch_up(self.registry.rounds.get(node))
            since = None if missed is None else missed.since
            if since not in contents:
                contents[since] = self.server.order(missed)
                contents[since]["config"] = config
            wanted[node] = contents[since]
        return self._messages(wanted)

    def _messages(self, contents: dict[int, RecordDict]) -> list[Message]:
        """Return the messages to some nodes, and count their bytes."""
        group = str(self.round + 1)
        messages = [
            Message(content, dst_node_id=node, message_type=MessageType.TRAIN, group_id=group)
            for node, content in contents.items()
        ]
        self.downlink_bytes += sum(map(message_bytes, messages))
        return messages

    def _wait(self, grid: Grid) -> set[int]:
        """Wait until enough nodes are free: all of them before the first round, later one."""
        least, seconds = 1, self._patience.timeout
        if not self._present:
            least, seconds = self._min_devices, self._connect_timeout
        end = time.monotonic() + seconds
        waiting = "waiting %.0f s at most: %d devices are connected, signfade.data.devices asks for %d"
        known = -1
        while True:
            # A node whose late answer has come is free again.
            self.validator.drop_late(self._exchange.late(grid), self.round)
            nodes = self._exchange.free(self.registry.connect(grid))
            if len(nodes) >= least:
                return nodes
            if time.monotonic() >= end:
                break
            if len(nodes) != known and least > 1:
                log(INFO, waiting, end - time.monotonic(), len(nodes), least)
            known = len(nodes)
            time.sleep(_POLL)
        if not nodes:
            raise RunFailed(f"round {self.round + 1}: no device is connected")
        self.validator.warn(f"round {self.round + 1}: {len(nodes)} of {least} devices are connected")
        return nodes

    def _choose(self, grid: Grid) -> list[int]:
        """Return the nodes to ask, in ascending order."""
        data = self.settings.data
        if data.participation >= 1:
            return sorted(self._present)
        self._identify(grid)
        nodes = []
        for device in choose_devices(data.devices, data.participation, self.settings.seed, self.round):
            node = self.registry.node_of(int(device))
            if node in self._present:
                nodes.append(node)
            else:
                self.validator.counts["missing"] += 1
                why = f"device {device} was chosen and is not connected"
                self.validator.warn(f"round {self.round + 1}: missing: {why}")
        return sorted(nodes)

    def _identify(self, grid: Grid) -> None:
        """Ask nodes that are new which devices they are."""
        order = Order(self.round, self.settings.seed, self.settings.method, identify=True)
        unknown = [node for node in sorted(self._present) if self.registry.device_of(node) is None]
        messages = self._messages(dict.fromkeys(unknown, RecordDict({RECORD: order.record()})))
        self.validator.read(self._send(grid, messages), self._format().read_identity, self.round)

    def _format(self) -> ReplyFormat:
        server = self.server
        bits = server.core.sends_bits
        return ReplyFormat(server.encoder, server.layout, self.devices, server.round, bits)

    def _send(self, grid: Grid, messages: Sequence[Message]) -> Replies:
        """Send messages of a round and wait for the replies, which must not be larger than the model's."""
        return self._exchange.send(grid, messages, self._patience, self._format().largest())

    # -- a round, from the devices ---------------------------------------------------------------------------

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check replies, aggregate them and step; without a good reply there is no step."""
        came = {reply.metadata.src_node_id: reply for reply in replies}
        return self._aggregate(Replies(came, {}, [node for node in self._asked if node not in came]))

    def _aggregate(self, replies: Replies) -> tuple[ArrayRecord, MetricRecord]:
        """Do what `aggregate_train` does, with everything that is known about who answered."""
        validator = self.validator
        before, bytes_before = validator.counts.copy(), validator.totals.uplink_bytes
        good = validator.read(replies, self._format().read, self.round)
        self.registry.rounds |= dict.fromkeys(good, self.round)
        self.last_round = self.server.aggregate(sorted(good.values(), key=lambda answer: answer.device))
        if self.last_round.warnings:
            validator.warn("; ".join(self.last_round.warnings))
        new = validator.counts - before
        uplink_bytes = validator.totals.uplink_bytes - bytes_before
        metrics = MetricRecord({"devices": len(good), "uplink-bytes": uplink_bytes})
        metrics.update({kind: new[kind] for kind in _FAULTS})
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
        """Run all rounds, from where the run folder stands; return the final model and all metrics.

        Arguments are as in Flower's strategies. Initial weights and number of rounds are by default those of
        the model and of the settings. A round waits `timeout` seconds for its devices at most. `evaluate_fn`
        is called when section `eval` says so, and after the last round; of the metrics it returns, `accuracy`
        and `loss` are kept in metrics.jsonl.

        Raises:
            FolderError: The folder holds another run.
            RunFailed: The model has diverged, nobody is there, or most replies are refused.
        """
        rounds = self.settings.rounds if num_rounds is None else num_rounds
        if initial_arrays is not None or rounds != self.settings.rounds:
            self.settings = self.settings.model_copy(update={"rounds": rounds})
            self._start = self._start if initial_arrays is None else self._start.at(initial_arrays)
            self.server = DeployedServer(self.settings, self._start, self._most_samples)
        self._patience = replace(self._patience, timeout=timeout)
        self._grid, self._evaluate_fn, self._result = grid, evaluate_fn, Result()
        self._configs = (train_config or ConfigRecord(), evaluate_config or ConfigRecord())
        log(INFO, "Starting %s:", type(self).__name__)
        self.summary()
        if self._folder is None:
            while not self.done:
                self.advance()
        elif check_startable(self.settings, self._folder.path, resume=True) == "finished":
            if (last := self._folder.load_checkpoint()) is not None:
                self.restore(last.tensors, last.round)
            log(INFO, "%s is already finished", self._folder.path)
        else:
            run_rounds(self, self._folder)
        self._result.arrays = self.arrays()
        return self._result

    @property
    def round(self) -> int:
        """Number of rounds done."""
        return self.server.round

    @property
    def parameters(self) -> int:
        """Number of weights M."""
        return self.server.layout.size

    @property
    def devices(self) -> int:
        """Number of devices K."""
        return self.settings.data.devices

    @property
    def done(self) -> bool:
        """Whether all rounds are done."""
        return self.round >= self.settings.rounds

    def advance(self) -> dict[str, Any]:
        """Run one round, once `start` was called, and return its record for metrics.jsonl."""
        began, number, validator = time.perf_counter(), self.round + 1, self.validator
        before = replace(validator.totals)
        messages = self.configure_train(number, self.arrays(), self._configs[0], self._grid)
        arrays, metrics = self._aggregate(self._send(self._grid, list(messages)))
        self._result.train_metrics_clientapp[number] = metrics
        validator.check_round(number, before, last=self.done)
        tested = self._evaluate(number, arrays)
        words = [f"{metrics['devices']} of {self.devices} devices"]
        if "train-loss" in metrics:
            words.append(f"training loss {metrics['train-loss']:.4g}")
        words += [f"{name} {value:.4g}" for name, value in tested.items() if isinstance(value, float)]
        log(INFO, "round %d of %d: %s", number, self.settings.rounds, ", ".join(words))
        memory = self.server.state.server
        return {
            "round": number,
            "train_loss": self.last_round.loss,
            "test_loss": tested.get("loss"),
            "test_accuracy": tested.get("accuracy"),
            **({"test_perplexity": tested["perplexity"]} if "perplexity" in tested else {}),
            **memory.sent.record(),
            "wire_uplink_bits": 8 * validator.totals.uplink_bytes,
            "downlink_bits": 8 * self.downlink_bytes,
            "devices": metrics["devices"],
            "channel_uses": memory.channel_uses,
            **self.last_round.metrics,
            **{kind: metrics[kind] for kind in _FAULTS},
            "seconds": round(time.perf_counter() - began, 6),
        }

    def _evaluate(self, number: int, arrays: ArrayRecord) -> MetricRecord:
        """Evaluate the model where it is time to."""
        when, result = self.settings.eval, self._result
        if not (self.done or number % when.every == 0 or number in when.at):
            return MetricRecord()
        messages = list(self.configure_evaluate(number, arrays, self._configs[1], self._grid))
        if messages:
            replies = self._exchange.send(self._grid, messages, self._patience)
            found = self.aggregate_evaluate(number, replies.came.values())
            if found is not None:
                result.evaluate_metrics_clientapp[number] = found
        tested = None if self._evaluate_fn is None else self._evaluate_fn(number, arrays)
        if tested is None:
            return MetricRecord()
        result.evaluate_metrics_serverapp[number] = tested
        return tested

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
        """Go on from what `state` returned after `round` rounds."""
        tree = from_tensors(self._tree(), tensors)
        self.registry.owners = tree.pop("owners")
        self.validator.totals, self.downlink_bytes = tree.pop("replies"), tree.pop("downlink_bytes")
        state = DeployedState(**tree)
        if state.server.round != round:
            raise ValueError(f"the checkpoint is of round {state.server.round}, not {round}")
        self.server.restore(state)
