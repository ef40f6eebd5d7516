"""A run: the same round again and again, with everything needed to stop it anywhere and go on."""

from __future__ import annotations

import math
import time
from dataclasses import astuple
from typing import Any

import numpy as np
import torch
from torch import Tensor

from signfade.kernels.threads import available_threads
from signfade.learn.cell import CellPlan, make_cell
from signfade.learn.classify import one_thread
from signfade.learn.conduct import make_conduct
from signfade.learn.cost import UplinkBits, uplink_bits
from signfade.learn.defence import make_defence
from signfade.learn.encode import Encoder
from signfade.learn.estimate import Estimator, rule_of
from signfade.learn.round import Diverged, Uplink, choose_devices, collect
from signfade.learn.scale_range import SaturationWatch
from signfade.learn.step import make_step
from signfade.learn.task import Evaluation, Task
from signfade.learn.tasks import make_task
from signfade.learn.watch import LossWatch
from signfade.settings import VOTES, RunSettings

__all__ = ["Experiment", "RunFailed", "snr_quantiles"]


class RunFailed(RuntimeError):
    """The run cannot go on; the message says why in one sentence."""


class Experiment:
    """One model trained over one simulated cell by one method.

    Args:
        settings: All of the run.
        task: What to learn; made from the settings if None.

    Attributes:
        round: Number of rounds done.
        warnings: What a person should know, in sentences.

    Example:
        >>> tables = {"data": {"name": "gaussian", "size": 1000}, "method": {"aggregator": "sbfl"}}
        >>> settings = RunSettings.model_validate({"rounds": 2} | tables)
        >>> experiment = Experiment(settings)
        >>> record = experiment.advance()
        >>> record["round"], record["devices"], record["uplink_bits"], record["payload_bits"]
        (1, 20, 26240, 21280)
    """

    def __init__(self, settings: RunSettings, task: Task | None = None) -> None:
        self.settings = settings
        self.round = 0
        self.warnings: list[str] = []
        self._workers = settings.threads or available_threads()
        rule = rule_of(settings.method, settings.defence.assumed)
        self.task = make_task(settings, self._workers) if task is None else task
        self.cell: CellPlan = make_cell(settings.cell, self.task.devices, settings.seed)
        self._encoder = Encoder(settings.method, self.task.segments)
        defence = make_defence(settings, self._encoder, self.task.devices)
        self._estimate = Estimator(rule, self._encoder, self.task.devices, settings.seed, self.cell, defence)
        self._conduct = make_conduct(settings, self.task, self._encoder)
        self._step = make_step(settings.server, self.task.initial_weights(), self.task.step_unit)
        self._sent = UplinkBits()
        self._downlink_bits = 0
        self._watch = LossWatch()
        self._saturation = SaturationWatch(settings.method.side_bits or 0)
        if self._conduct is not None:
            self.warnings += self._conduct.notes()

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
        return self._step.weights

    @property
    def done(self) -> bool:
        """Whether all rounds are played."""
        return self.round >= self.settings.rounds

    def advance(self) -> dict[str, Any]:
        """Play one round and return its record for metrics.jsonl.

        Raises:
            RunFailed: The model has diverged, or a user's rule returned nonsense.
        """
        started = time.perf_counter()
        with one_thread():
            try:
                record = self._advance()
            except Diverged as error:
                raise RunFailed(
                    f"round {self.round + 1}: {error}; the model has diverged, "
                    "try a smaller server.step, less server.momentum, or server.clip"
                ) from error
            except ValueError as error:
                raise RunFailed(f"round {self.round + 1}: {error}") from error
        record["seconds"] = round(time.perf_counter() - started, 6)
        return record

    def _advance(self) -> dict[str, Any]:
        settings, t = self.settings, self.round
        devices = choose_devices(self.task.devices, settings.data.participation, settings.seed, t)
        if self._conduct is not None:
            devices = self._conduct.heard(devices, self._step.weights, t)
            if len(devices) == 0:
                return self._silence(t)
        uplink = collect(
            self.task,
            self._encoder,
            self.cell,
            self._step.weights,
            devices=devices,
            round=t,
            seed=settings.seed,
            gram=settings.method.rotation != "none" or self._estimate.joint is not None,
            conduct=self._conduct,
        )
        sent = uplink_bits(self._encoder, self.cell.settings, self.task.extra_bits)  # the range moves below
        estimate, expected = self._estimate(uplink, t)
        if self._conduct is not None and not self._conduct.predictable:
            expected = None
        nmse, cosine = self._errors(uplink, estimate)
        self._downlink_bits += self._step.apply(estimate, t) + self._encoder.range_bits
        self._sent += sent.times(len(devices))
        self.round += 1
        test = self._look()
        if (warning := self._watch.look(uplink.loss, self.round)) is not None:
            self.warnings.append(warning)
        if self._encoder.quantised and uplink.sent is not None:
            uses = len(devices) * len(self._encoder.segments)
            self.warnings += self._saturation.look(uplink.sent.saturated, uses, self.done)
        return {
            "round": self.round,
            "train_loss": None if settings.data.name == "gaussian" else uplink.loss,  # nothing to lose
            "test_loss": test.loss if test else None,
            "test_accuracy": test.accuracy if test else None,
            "nmse": nmse,
            "nmse_theory": expected,
            "cosine": cosine,
            **self._sent.record(),
            "downlink_bits": self._downlink_bits,
            "snr_db": snr_quantiles(uplink, self.cell),
            "devices": len(devices),
            **self._estimate.record,
            **({} if self._conduct is None else self._conduct.record(devices, t)),
        }

    def _look(self) -> Evaluation | None:
        """Evaluate the model if it is time to."""
        at = self.settings.eval
        looked = self.done or self.round % at.every == 0 or self.round in at.at
        return self.task.evaluate(self._step.weights) if looked else None

    def _silence(self, t: int) -> dict[str, Any]:
        """Play a round in which nobody is heard: the server makes no step."""
        assert self._conduct is not None
        self.round += 1
        test = self._look()
        record: dict[str, Any] = dict.fromkeys(("train_loss", "nmse", "nmse_theory", "cosine", "snr_db"))
        return {
            "round": self.round,
            **record,
            "test_loss": test.loss if test else None,
            "test_accuracy": test.accuracy if test else None,
            **self._sent.record(),
            "downlink_bits": self._downlink_bits,
            "devices": 0,
            **self._conduct.record(np.arange(0), t),
        }

    def _errors(self, uplink: Uplink, estimate: Tensor) -> tuple[float | None, float | None]:
        """Return the normalised error of the estimate and its cosine to the true sum."""
        if uplink.received is None:
            return 0.0, 1.0
        truth, guess = uplink.truth.double(), estimate.double()
        energy, power = float(truth @ truth), float(guess @ guess)
        lengths = math.sqrt(energy) * math.sqrt(power)
        cosine = float(truth @ guess) / lengths if lengths > 0 else None
        if self.settings.method.aggregator in VOTES:
            return None if cosine is None else 1 - cosine**2, cosine
        error = guess - truth
        return float(error @ error) / energy if energy > 0 else None, cosine

    def _parts(self) -> dict[str, Any]:
        """Everything with a state of its own."""
        parts = {"step": self._step, "task": self.task, "watch": self._watch, **self._estimate.parts()}
        if self._encoder.quantised:
            parts["saturation"] = self._saturation
        return parts if self._conduct is None else {**parts, **self._conduct.parts()}

    def state(self) -> dict[str, Tensor]:
        """Return everything that a continued run needs, by name."""
        bits = torch.tensor([self._downlink_bits, *astuple(self._sent)], dtype=torch.int64)
        parts = {name: part.state() for name, part in self._parts().items()}
        named = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
        return {**named, "bits": bits}

    def restore(self, tensors: dict[str, Tensor], round: int) -> None:
        """Go on from what `state` returned after `round` rounds."""

        def part(prefix: str) -> dict[str, Tensor]:
            return {
                name.removeprefix(f"{prefix}."): value
                for name, value in tensors.items()
                if name.startswith(f"{prefix}.")
            }

        for name, keeper in self._parts().items():
            keeper.restore(part(name))
        self._downlink_bits, *sent = tensors["bits"].tolist()
        self._sent = UplinkBits(*sent)
        self.round = round


def snr_quantiles(uplink: Uplink, cell: CellPlan) -> list[float] | None:
    """Return the smallest, median and largest SNR of a round in dB; None for perfect links."""
    if uplink.received is None or cell.mean_snr_db is None:
        return None
    snr = uplink.received.link.snr.double().numpy()
    with np.errstate(divide="ignore"):
        snr_db = 10 * np.log10(snr)
    ordered = np.sort(snr_db)  # many times faster than np.quantile
    return [round(float(ordered[place]), 4) for place in (0, round((len(ordered) - 1) / 2), -1)]
