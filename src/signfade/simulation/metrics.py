"""What a round's record says."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from signfade.device.scale_range import count_saturation
from signfade.server import Estimate, ServerMemory, Truth
from signfade.simulation.availability import Present
from signfade.simulation.loss_monitor import watch_loss
from signfade.simulation.task import Evaluation

if TYPE_CHECKING:
    from signfade.simulation.round import Simulation, State

__all__ = ["error_and_cosine", "round_record", "silent_record"]


def round_record(
    simulation: Simulation,
    state: State,
    after: ServerMemory,
    present: Present,
    loss: float,
    value: Tensor,
    estimate: Estimate | None = None,
    truth: Truth | None = None,
    metrics: dict[str, Any] | None = None,
    total: Tensor | None = None,
) -> tuple[State, dict[str, Any]]:
    """Return the state after a round and its record, with `warnings` for people."""
    settings, server, clients = simulation.settings, simulation.server, simulation.clients
    t, encoder = state.server.round, server.encoder(state.server)
    nmse: float | None = 0.0  # for ideal
    cosine: float | None = 1.0
    expected: float | None = 0.0
    if total is not None and not torch.equal(value, total):  # what a compressor has lost
        expected = None
        nmse, cosine = error_and_cosine(value, total, scaled=True)
    saturation = state.saturation
    warnings: list[str] = []
    if estimate is not None and truth is not None:
        nmse, cosine = error_and_cosine(value, truth.total, scaled=server.aggregator.scaled)
        expected = estimate.predict(truth, 1.0) if clients.predictable else None
        if encoder.quantised:
            uses, last = len(present.devices) * len(encoder.segments), after.round >= settings.rounds
            saturated, bits = truth.message.saturated, settings.method.side_bits or 0
            saturation, warnings = count_saturation(saturation, saturated, uses, bits, last)
    monitor, warning = watch_loss(state.loss, loss, after.round)
    warnings = ([] if warning is None else [warning]) + warnings
    state = replace(state, server=after, task=simulation.task.state(), loss=monitor, saturation=saturation)
    test = _evaluate(simulation, state)
    said = dict(metrics or {})
    return state, {
        "round": after.round,
        "train_loss": None if settings.data.name == "gaussian" else loss,  # there is no loss
        "test_loss": test.loss if test else None,
        "test_accuracy": test.accuracy if test else None,
        "nmse": nmse,
        "nmse_theory": expected,
        "cosine": cosine,
        **after.sent.record(),
        "downlink_bits": after.downlink_bits,
        "snr_db": said.pop("snr_db", None),
        "devices": len(present.devices),
        "channel_uses": after.channel_uses,
        **said,
        **clients.metrics(present, encoder.size, t),
        "warnings": warnings,
    }


def silent_record(simulation: Simulation, state: State, present: Present) -> tuple[State, dict[str, Any]]:
    """Return the record of a round in which nobody was received: the server made no step."""
    test = _evaluate(simulation, state)
    server = state.server
    empty: dict[str, Any] = dict.fromkeys(("train_loss", "nmse", "nmse_theory", "cosine", "snr_db"))
    return state, {
        "round": server.round,
        **empty,
        "test_loss": test.loss if test else None,
        "test_accuracy": test.accuracy if test else None,
        **server.sent.record(),
        "downlink_bits": server.downlink_bits,
        "devices": 0,
        "channel_uses": server.channel_uses,
        **simulation.clients.metrics(present, simulation.server.encoder(server).size, server.round - 1),
        "warnings": [],
    }


def _evaluate(simulation: Simulation, state: State) -> Evaluation | None:
    """Evaluate the model if it is time to."""
    settings, done = simulation.settings, state.server.round
    due = done >= settings.rounds or done % settings.eval.every == 0 or done in settings.eval.at
    return simulation.task.evaluate(state.server.weights) if due else None


def error_and_cosine(estimate: Tensor, total: Tensor, *, scaled: bool) -> tuple[float | None, float | None]:
    """Return the normalised error of an estimate and its cosine to the true sum, `[M]` each.

    The error of a vote, which has no scale, is that of its best multiple.
    """
    truth, guess = total.double(), estimate.double()
    energy, power = float(truth @ truth), float(guess @ guess)
    lengths = math.sqrt(energy) * math.sqrt(power)
    cosine = float(truth @ guess) / lengths if lengths > 0 else None
    if not scaled:
        return None if cosine is None else 1 - cosine**2, cosine
    error = guess - truth
    return float(error @ error) / energy if energy > 0 else None, cosine
