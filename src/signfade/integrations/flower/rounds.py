"""The rounds of a deployment, one by one, for the loop over a run folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from logging import INFO
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.supercore import log
from torch import Tensor

from signfade.experiments.training import RunFailed
from signfade.integrations.flower.exchange import Exchange, Patience
from signfade.settings import RunSettings

if TYPE_CHECKING:
    from signfade.integrations.flower.strategy import OneBitStrategy

__all__ = ["Rounds"]

_EMPTY_ROUNDS = 3  # in a row after which the run fails
_REFUSED_ROUNDS = 3  # in a row in which most replies were refused


class Rounds:
    """A strategy and the grid it runs on, round by round.

    Args:
        strategy: What to ask, and what to do with the replies.
        grid: Flower's way to the nodes.
        exchange: The strategy's messages.
        patience: How long devices that evaluate are waited for.
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
        patience: Patience,
        train_config: ConfigRecord,
        evaluate_config: ConfigRecord,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> None:
        self.settings: RunSettings = strategy.settings
        self.round = strategy.server.round
        self.warnings = strategy.validator.faults
        self.result = Result()
        self._strategy, self._grid, self._exchange = strategy, grid, exchange
        self._patience, self._evaluate_fn = patience, evaluate_fn
        self._configs = (train_config, evaluate_config)
        self._empty, self._refused = 0, 0

    @property
    def parameters(self) -> int:
        """Number of weights M."""
        return self._strategy.server.layout.size

    @property
    def devices(self) -> int:
        """Number of devices K."""
        return self.settings.data.devices

    @property
    def done(self) -> bool:
        """Whether all rounds are done."""
        return self.round >= self.settings.rounds

    def advance(self) -> dict[str, Any]:
        """Run one round and return its record for metrics.jsonl.

        Raises:
            RunFailed: The model has diverged, nobody answers, or most replies are refused.
        """
        began, strategy, number = time.perf_counter(), self._strategy, self.round + 1
        train_config, evaluate_config = self._configs
        before = replace(strategy.validator.totals)
        messages = list(strategy.configure_train(number, strategy.arrays(), train_config, self._grid))
        arrays, metrics = strategy.aggregate(strategy.send(self._grid, messages))
        self.result.train_metrics_clientapp[number] = metrics
        self.round = strategy.server.round
        totals = strategy.validator.totals
        self._check_replies(number, totals.good - before.good, totals.refused - before.refused)
        tested = self._evaluate(number, arrays, evaluate_config)
        log(INFO, "%s", self._line(number, tested))
        memory = strategy.server.state.server
        return {
            "round": number,
            "train_loss": strategy.last_round.loss,
            "test_loss": tested.get("loss"),
            "test_accuracy": tested.get("accuracy"),
            **memory.sent.record(),
            "wire_uplink_bits": 8 * totals.uplink_bytes,
            "downlink_bits": 8 * strategy.downlink_bytes,
            "devices": metrics["devices"],
            "channel_uses": memory.channel_uses,
            **strategy.last_round.metrics,
            **{kind: metrics[kind] for kind in ("refused", "failed", "missing")},
            "seconds": round(time.perf_counter() - began, 6),
        }

    def _check_replies(self, number: int, good: int, refused: int) -> None:
        """Raise if a run without most of its replies would go on, or end, as if it were a good one."""
        self._empty = 0 if good else self._empty + 1
        self._refused = self._refused + 1 if refused > good else 0
        totals = self._strategy.validator.totals
        if self._refused >= _REFUSED_ROUNDS:
            what = f"more than half of the replies were refused in {_REFUSED_ROUNDS} rounds in a row"
        elif self._empty >= _EMPTY_ROUNDS:
            raise RunFailed(f"round {number}: no device has answered for {_EMPTY_ROUNDS} rounds")
        elif self.done and totals.refused > totals.good:
            what = f"{totals.refused} of {totals.refused + totals.good} replies of the run were refused"
        else:
            return
        raise RunFailed(f"round {number}: {what}; the last one: {self._last_refused()}")

    def _last_refused(self) -> str:
        """Return the sentence about the reply that was refused last."""
        return next((text for text in reversed(self.warnings) if ": refused: " in text), "see the log")

    def _line(self, number: int, tested: MetricRecord) -> str:
        """Return a round as a line of Flower's log."""
        train = self.result.train_metrics_clientapp[number]
        words = [f"{train['devices']} of {self.devices} devices"]
        if "train-loss" in train:
            words.append(f"training loss {train['train-loss']:.4g}")
        words += [f"{name} {value:.4g}" for name, value in tested.items() if isinstance(value, float)]
        return f"round {number} of {self.settings.rounds}: {', '.join(words)}"

    def _evaluate(self, number: int, arrays: ArrayRecord, config: ConfigRecord) -> MetricRecord:
        """Evaluate the model where it is time to."""
        when = self.settings.eval
        if not (self.done or number % when.every == 0 or number in when.at):
            return MetricRecord()
        strategy = self._strategy
        messages = list(strategy.configure_evaluate(number, arrays, config, self._grid))
        if messages:
            replies = self._exchange.send(self._grid, messages, self._patience)
            found = strategy.aggregate_evaluate(number, replies.came.values())
            if found is not None:
                self.result.evaluate_metrics_clientapp[number] = found
        tested = None if self._evaluate_fn is None else self._evaluate_fn(number, arrays)
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
