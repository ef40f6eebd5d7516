"""The rounds of a deployment, one by one, as the loop over a run folder plays them."""

from __future__ import annotations

import time
from collections.abc import Callable
from logging import INFO
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.supercore import log
from torch import Tensor

from signfade.engines.flower.exchange import Exchange
from signfade.lab.train import RunFailed
from signfade.settings import RunSettings

if TYPE_CHECKING:
    from signfade.engines.flower.strategy import OneBitStrategy

__all__ = ["Rounds"]

_EMPTY_ROUNDS = 3  # in a row, and the run is given up


class Rounds:
    """A strategy and the grid it runs on, played round by round.

    Args:
        strategy: What to ask and what to make of the answers.
        grid: Flower's way to the nodes.
        exchange: The strategy's messages.
        timeout: Seconds a round waits for its devices.
        train_config: Passed on to the devices.
        evaluate_config: Passed on to devices that evaluate.
        evaluate_fn: From round and model to metrics.

    Attributes:
        settings: All of the run.
        round: Number of rounds done.
        warnings: The strategy's sentences about replies that could not be used.
        result: Flower's record of it all.
    """

    def __init__(
        self,
        strategy: OneBitStrategy,
        grid: Grid,
        exchange: Exchange,
        timeout: float,
        train_config: ConfigRecord,
        evaluate_config: ConfigRecord,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> None:
        self.settings: RunSettings = strategy.settings
        self.round = strategy.station.round
        self.warnings = strategy.judge.faults
        self.result = Result()
        self._strategy, self._grid, self._exchange = strategy, grid, exchange
        self._timeout, self._configs, self._evaluate = timeout, (train_config, evaluate_config), evaluate_fn
        self._empty = 0

    @property
    def parameters(self) -> int:
        """Number of weights M."""
        return self._strategy.station.layout.size

    @property
    def devices(self) -> int:
        """Number of devices K."""
        return self.settings.data.devices

    @property
    def done(self) -> bool:
        """Whether all rounds are played."""
        return self.round >= self.settings.rounds

    def advance(self) -> dict[str, Any]:
        """Play one round and return its record for metrics.jsonl.

        Raises:
            RunFailed: The model has diverged, or nobody has answered for some rounds.
        """
        began, strategy, number = time.perf_counter(), self._strategy, self.round + 1
        train_config, evaluate_config = self._configs
        messages = list(strategy.configure_train(number, strategy.arrays(), train_config, self._grid))
        arrays, metrics = strategy.aggregate(self._exchange.send(self._grid, messages, self._timeout))
        self.result.train_metrics_clientapp[number] = metrics
        self.round = strategy.station.round
        self._empty = 0 if metrics["devices"] else self._empty + 1
        if self._empty >= _EMPTY_ROUNDS:
            raise RunFailed(f"round {number}: no device has answered for {_EMPTY_ROUNDS} rounds")
        tested = self._look(number, arrays, evaluate_config)
        heard = strategy.heard
        log(INFO, "%s", self._told(number, tested))
        return {
            "round": number,
            "train_loss": heard.loss,
            "test_loss": tested.get("loss"),
            "test_accuracy": tested.get("accuracy"),
            **strategy.station.sent.record(),
            "wire_uplink_bits": 8 * strategy.judge.uplink_bytes,
            "downlink_bits": 8 * strategy.downlink_bytes,
            "snr_db": heard.snr_db,
            "devices": metrics["devices"],
            **{kind: metrics[kind] for kind in ("refused", "failed", "missing")},
            "seconds": round(time.perf_counter() - began, 6),
        }

    def _told(self, number: int, tested: MetricRecord) -> str:
        """Return a round as a line of Flower's log."""
        train = self.result.train_metrics_clientapp[number]
        words = [f"{train['devices']} of {self.devices} devices"]
        if "train-loss" in train:
            words.append(f"training loss {train['train-loss']:.4g}")
        words += [f"{name} {value:.4g}" for name, value in tested.items() if isinstance(value, float)]
        return f"round {number} of {self.settings.rounds}: {', '.join(words)}"

    def _look(self, number: int, arrays: ArrayRecord, config: ConfigRecord) -> MetricRecord:
        """Evaluate the model where it is time to."""
        when = self.settings.eval
        if not (self.done or number % when.every == 0 or number in when.at):
            return MetricRecord()
        strategy = self._strategy
        messages = list(strategy.configure_evaluate(number, arrays, config, self._grid))
        if messages:
            replies = self._exchange.send(self._grid, messages, self._timeout)
            told = strategy.aggregate_evaluate(number, replies.came.values())
            if told is not None:
                self.result.evaluate_metrics_clientapp[number] = told
        tested = None if self._evaluate is None else self._evaluate(number, arrays)
        if tested is None:
            return MetricRecord()
        self.result.evaluate_metrics_serverapp[number] = tested
        return tested

    def state(self) -> dict[str, Tensor]:
        """Return everything that a continued run needs, by name."""
        return self._strategy.state()

    def restore(self, tensors: dict[str, Tensor], round: int) -> None:
        """Go on from what `state` returned after `round` rounds."""
        self._strategy.restore(tensors, round)
        self.round = round
