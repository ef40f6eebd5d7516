"""Flower's strategy for one-bit learning: what the server asks, and what it makes of the answers."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, replace
from logging import INFO
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log
from torch import Tensor, nn

from signfade.experiments.folder import RunFolder
from signfade.experiments.planned_runs import check_startable
from signfade.experiments.training import RunFailed, run_rounds
from signfade.integrations.flower.client_registry import Roster, keys_of
from signfade.integrations.flower.exchange import Exchange, Patience, Replies
from signfade.integrations.flower.layout import Layout, Start
from signfade.integrations.flower.replies import largest_reply, read_answer, read_presence
from signfade.integrations.flower.reply_validator import Judge
from signfade.integrations.flower.rounds import Rounds
from signfade.integrations.flower.server_core import BaseStation, Heard
from signfade.integrations.flower.wire import (
    ARRAYS,
    RECORD,
    STEP,
    Answer,
    Known,
    Order,
    Presence,
    message_bytes,
    write_order,
)
from signfade.settings import RunSettings
from signfade.simulation.availability import choose_devices
from signfade.uplink.cost import UplinkBits

__all__ = ["OneBitStrategy"]

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
_CONFIG = "config"
_LOOK = 0.5  # seconds between two looks for nodes


class OneBitStrategy(Strategy):
    """Train over Flower's nodes at one bit a weight.

    Devices answer with `reply_with_bits`. Replies are checked, sorted by device, sent through the simulated
    radio if the settings have a cell, aggregated by the settings' rule, and stepped along; the model goes
    down in full or, to devices that kept up, by signs. What is missing, late, failed or malformed is counted
    and named; the round goes on with the rest.

    Args:
        settings: `data.devices` is the number of devices K in the cell, `data.participation` how many of them
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
        station: The server's half of the method: the model and its steps.
        judge: What was wrong with replies: `judge.faults`, sentences, and `judge.counts`, numbers.
        downlink_bytes: Of all messages to devices so far, as Flower serialises them.
        heard: What the last round was like.
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
        self.judge = Judge(Roster(settings.data.devices, lasting=remember_keys))
        self.downlink_bytes = 0
        self.heard = Heard(None, None, None)
        self.station = BaseStation(settings, self._start, most_samples)

    @property
    def settings(self) -> RunSettings:
        """All of the run."""
        return self.station.settings

    def arrays(self) -> ArrayRecord:
        """Return the current model: its whole state dict, as Flower's strategies have it."""
        station = self.station
        if self._model is None:
            return station.layout.record(station.weights, station.buffers)
        station.layout.load(self._model, station.weights, station.buffers)
        return ArrayRecord(self._model.state_dict())

    def summary(self) -> None:
        """Log what will be done."""
        method, layout = self.settings.method, self.station.layout
        link = "perfect links" if self.settings.cell.perfect else "the simulated cell"
        log(INFO, "\t├──> %s over %s, downlink %s", method.aggregator, link, self.settings.server.downlink)
        log(INFO, "\t└──> %d devices, %d weights", self.settings.data.devices, layout.size)

    # -- a round, down ---------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of a round; the model is the strategy's own, `arrays` are not looked at."""
        round = server_round - 1
        if round != self.station.round:
            raise ValueError(
                f"server_round must be {self.station.round + 1}, the next one; got {server_round}"
            )
        self._present = self._wait(grid)
        self._asked = self._choose(grid, round)
        words = ConfigRecord({**config, "server-round": server_round})
        contents: dict[int | None, RecordDict] = {}
        messages = []
        for node in self._asked:
            since = self.judge.roster.has_round(node)
            known = self.station.catch_up(since)
            key = None if known is None else known.since
            if key not in contents:
                contents[key] = self._content(round, words, known)
            messages.append(_message(contents[key], node, MessageType.TRAIN, server_round))
        self.downlink_bytes += sum(map(message_bytes, messages))
        return messages

    def _content(self, round: int, config: ConfigRecord, known: Known | None) -> RecordDict:
        """Return the order of a round with the whole model, or with what is `known` to lead to it."""
        station, content = self.station, RecordDict()
        if known is None:
            content[ARRAYS] = station.layout.record(station.weights, station.buffers)
            known, rest = station.everything()
            if known is not None:
                content[STEP] = ArrayRecord(rest)
        elif station.buffers:
            content[ARRAYS] = Layout({}, station.layout.buffers).record(torch.zeros(0), station.buffers)
        method, exponents = self.settings.method, station.encoder.range.exponents
        order = Order(round, self.settings.seed, method, known=known, exponents=exponents)
        content[RECORD], content[_CONFIG] = write_order(order), config
        return content

    def _wait(self, grid: Grid) -> set[int]:
        """Wait until enough nodes are free: before the first round of a sitting all, later anybody."""
        least, end = 1, time.monotonic() + self._patience.timeout
        if not self._present:
            least = self.settings.data.devices if self._min_devices is None else self._min_devices
            end = time.monotonic() + self._connect_timeout
        while True:
            # Whoever answers late is free again.
            self.judge.late(self._exchange.late(grid), self.station.round)
            keys = keys_of(grid)
            self.judge.roster.meet(keys)
            nodes = self._exchange.free(keys)
            if len(nodes) >= least:
                break
            if time.monotonic() >= end:
                if not nodes:
                    raise RunFailed(f"round {self.station.round + 1}: no device is connected")
                self.judge.say(f"round {self.station.round + 1}: {len(nodes)} of {least} devices are here")
                break
            time.sleep(_LOOK)
        return nodes

    def _choose(self, grid: Grid, round: int) -> list[int]:
        """Return the nodes to ask, in ascending order."""
        data = self.settings.data
        if data.participation >= 1:
            return sorted(self._present)
        self._call_the_roll(grid, round)
        chosen = choose_devices(data.devices, data.participation, self.settings.seed, round)
        nodes = []
        for device in map(int, chosen):
            node = self.judge.roster.node_of(device)
            if node in self._present:
                nodes.append(node)
            else:
                self.judge.counts["missing"] += 1
                self.judge.say(f"round {round + 1}: missing: device {device} was chosen and is not connected")
        return sorted(nodes)

    def _call_the_roll(self, grid: Grid, round: int) -> None:
        """Ask nodes that are new who they are."""
        order = Order(round, self.settings.seed, self.settings.method, presence=True)
        content = RecordDict({RECORD: write_order(order)})
        unknown = sorted(self.judge.roster.unknown(self._present))
        messages = [_message(content, node, MessageType.TRAIN, round + 1) for node in unknown]
        self.downlink_bytes += sum(map(message_bytes, messages))

        def read(reply: Message) -> Presence:
            return read_presence(reply.content, self.settings.data.devices)

        self.judge.read(self.send(grid, messages), read, round)

    def send(self, grid: Grid, messages: Sequence[Message]) -> Replies:
        """Send messages of a round and wait for the replies, which must not be larger than the model's."""
        most = largest_reply(self.station.encoder, self.station.layout)
        return self._exchange.send(grid, messages, self._patience, most)

    # -- a round, up -----------------------------------------------------------------------------------------

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check replies, aggregate them and step; nobody's reply makes no step."""
        came = {reply.metadata.src_node_id: reply for reply in replies}
        return self.aggregate(Replies(came, {}, [node for node in self._asked if node not in came]))

    def aggregate(self, replies: Replies) -> tuple[ArrayRecord, MetricRecord]:
        """Do what `aggregate_train` does, with all that is known about who answered."""
        station = self.station
        before, bytes_before = self.judge.counts.copy(), self.judge.uplink_bytes

        def read(reply: Message) -> Answer:
            devices = self.settings.data.devices
            return read_answer(reply.content, station.encoder, station.layout, devices, station.round)

        good = self.judge.read(replies, read, station.round)
        for node in good:
            self.judge.roster.kept_up(node, station.round)
        answers = sorted(good.values(), key=lambda answer: answer.device)
        self.heard = station.take(answers)
        if self.heard.warning is not None:
            self.judge.say(self.heard.warning)
        since = self.judge.counts - before
        metrics = MetricRecord(
            {"devices": len(answers), "uplink-bytes": self.judge.uplink_bytes - bytes_before}
        )
        metrics.update({kind: since[kind] for kind in ("refused", "failed", "missing")})
        if self.heard.loss is not None:
            metrics["train-loss"] = self.heard.loss
        return self.arrays(), metrics

    # -- evaluation on the devices: none; `evaluate_fn` looks at the model on the server ---------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nobody."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Make nothing of it."""
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
        """Play all rounds, from where the run folder stands.

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
            self._start, self.station = start, BaseStation(settings, start, self._most_samples)
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

    def state(self) -> dict[str, Tensor]:
        """Return everything that a continued run needs, by the simulator's names."""
        measured = [8 * self.judge.uplink_bytes, 8 * self.downlink_bytes]
        bits = torch.tensor([*measured, *astuple(self.station.sent)], dtype=torch.int64)
        judged = {f"judge.{name}": value for name, value in self.judge.state().items()}
        return self.station.state() | judged | {"bits": bits}

    def restore(self, tensors: dict[str, Tensor], round: int) -> None:
        """Go on from what `state` returned after `round` rounds."""
        self.station.restore(tensors, round)
        self.judge.restore({name: tensors[f"judge.{name}"] for name in self.judge.state()})
        up, down, *sent = tensors["bits"].tolist()
        self.judge.uplink_bytes, self.downlink_bytes = up // 8, down // 8
        self.station.sent = UplinkBits(*sent)


def _message(content: RecordDict, node: int, kind: str, server_round: int) -> Message:
    return Message(content, dst_node_id=node, message_type=kind, group_id=str(server_round))
