"""What only a simulation knows, and what a round's record says."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade import theory
from signfade.device.scale_range import count_saturation
from signfade.kernels.correlations import pair_sums
from signfade.server import Estimate, Received, ServerMemory, Truth
from signfade.server.joint_rule import PAIRED_DEVICES
from signfade.settings import RunSettings

if TYPE_CHECKING:
    from signfade.simulation.clients import Present, Update
    from signfade.simulation.round import Simulation, State

__all__ = [
    "Diverged",
    "LossState",
    "Observer",
    "limit_record",
    "round_record",
    "silent_record",
    "watch_loss",
]

_WINDOW = 5  # rounds over which the loss is averaged


class Diverged(RuntimeError):
    """A gradient is not finite."""


class Observer:
    """Gathers what only a simulation can know while the devices' gradients pass by."""

    def __init__(self, simulation: Simulation, alpha: Tensor, shares: NDArray[np.float64]) -> None:
        self._alpha, self._shares = alpha, shares  # `[K]`, or a row for each model
        self.total = torch.zeros(*alpha.shape[:-1], simulation.task.size)
        self._losses: list[Tensor] = []
        self.rows = slice(0, 0)
        self._gram: Tensor | None = None
        rotated = simulation.settings.method.rotation != "none"
        wanted = simulation.server.sends_bits and (rotated or simulation.server.aggregator.needs_correlation)
        self._paired = wanted and len(shares) <= min(simulation.clients.chunk, PAIRED_DEVICES)

    def add(self, update: Update) -> Tensor:
        """Take a chunk of gradients into the true sum; return the chunk's own."""
        self.rows = slice(self.rows.stop, self.rows.stop + len(update.devices))
        part = self.weighted(update.gradients)
        self.total += part
        if not bool(self.total.isfinite().all()):
            raise Diverged("a gradient is not finite")
        self._losses.append(update.losses.double())
        if self._paired:
            self._gram = pair_sums(update.gradients)
            if not bool(self._gram.isfinite().all()):
                raise Diverged("gradients are too large to be multiplied")
        return part

    def weighted(self, values: Tensor) -> Tensor:
        """Return the weighted sum of the last chunk's rows, `[k, M]` to `[M]`, or one per model."""
        if self._alpha.ndim == 2:
            return (self._alpha[:, self.rows].to(values) @ values).cpu()
        return torch.mv(values.T, self._alpha[self.rows].to(values)).cpu()

    @property
    def loss(self) -> float:
        """The devices' mean training loss, weighted by their shares."""
        return float(torch.cat(self._losses) @ torch.from_numpy(self._shares))

    def correlation(self, mean: Tensor, true_mean: Tensor, size: int) -> Tensor | None:
        """Return the correlation between the devices' gradients about the means they sent."""
        if self._gram is None:
            return None
        return correlation_of(self._gram, mean[:, 0], true_mean[:, 0], size)


def correlation_of(gram: Tensor, mean: Tensor, true_mean: Tensor, size: int) -> Tensor:
    """Return the correlation between the devices' gradients about the means they sent, float64 `[K, K]`.

    With `n` coordinates, sent means `m` and true ones `a` the centred inner products are
    `<g_k, g_j> - n (m_j a_k + m_k a_j - m_k m_j)`; `gram` has the `<g_k, g_j>`, which a rotation leaves as
    they are. A device without a gradient is uncorrelated with all.

    Example:
        >>> zero = torch.zeros(2)
        >>> correlation_of(torch.tensor([[2.0, 1.0], [1.0, 2.0]]), zero, zero, size=10)
        tensor([[1.0000, 0.5000],
                [0.5000, 1.0000]], dtype=torch.float64)
    """
    sent, true = mean.double().numpy(), true_mean.double().numpy()  # NumPy: cheaper on matrices this small
    cross = np.outer(sent, true)
    centred = gram.double().numpy() - size * (cross + cross.T - np.outer(sent, sent))
    power = np.maximum(centred.diagonal(), 0)
    inverse = np.where(power > 0, 1 / np.sqrt(np.maximum(power, 1e-300)), 0.0)
    correlation = np.clip(centred * np.outer(inverse, inverse), -1, 1)
    np.fill_diagonal(correlation, 1.0)
    return torch.from_numpy(correlation)


@dataclass(frozen=True)
class LossState:
    """The last losses, the first, the lowest average so far, and whether a warning was given."""

    recent: list[float] = field(default_factory=list)
    first: float = math.nan
    lowest: float = math.inf
    warned: bool = False


def watch_loss(state: LossState, loss: float, round: int) -> tuple[LossState, str | None]:
    """Take the loss of a round, and warn once per run when most of what was learned is lost.

    The loss is averaged over the last five rounds. The line is the mean of the first loss and the lowest
    average so far, once that average has at least halved; before that, ten times the first loss.

    Example:
        >>> state = LossState()
        >>> for round, loss in enumerate([2.3] * 5 + [0.2] * 5 + [2.3] * 5, start=1):
        ...     state, warning = watch_loss(state, loss, round)
        ...     if warning:
        ...         print(warning)
        the training loss rose to 1.46 in round 13 from 0.2: try a smaller server.learning_rate or server.clip
    """
    if math.isnan(loss):
        return state, None
    first = loss if math.isnan(state.first) else state.first
    recent = [*state.recent, loss][-_WINDOW:]
    average = sum(recent) / len(recent)
    lowest = min(state.lowest, average)
    line = (first + lowest) / 2 if lowest < first / 2 else 10 * first
    warning = None
    if average > line and not state.warned:
        warning = (
            f"the training loss rose to {average:.3g} in round {round} from {lowest:.3g}: "
            "try a smaller server.learning_rate or server.clip"
        )
    return LossState(recent, first, lowest, state.warned or warning is not None), warning


def round_record(
    simulation: Simulation,
    state: State,
    after: ServerMemory,
    present: Present,
    observer: Observer,
    value: Tensor,
    estimate: Estimate | None = None,
    truth: Truth | None = None,
    metrics: dict[str, Any] | None = None,
) -> tuple[State, dict[str, Any]]:
    """Return the state after a round and its record, with `warnings` for people."""
    settings, server, clients = simulation.settings, simulation.server, simulation.clients
    encoder, loss = server.encoder(state.server), observer.loss
    errors: dict[str, float | None] = {"nmse": 0.0, "nmse_theory": 0.0, "cosine": 1.0}  # for ideal
    saturation = state.saturation
    warnings: list[str] = []
    if estimate is not None and truth is not None:
        nmse, cosine = error_and_cosine(value, truth.total, scaled=server.aggregator.scaled)
        expected = estimate.predict(truth, 1.0) if clients.predictable else None
        errors = {"nmse": nmse, "nmse_theory": expected, "cosine": cosine}
        if encoder.quantised:
            uses, last = len(present.devices) * len(encoder.segments), after.round >= settings.rounds
            saturated, bits = truth.message.saturated, settings.method.side_bits or 0
            saturation, warnings = count_saturation(saturation, saturated, uses, bits, last)
    elif not torch.equal(value, observer.total):  # what a compressor has lost
        nmse, cosine = error_and_cosine(value, observer.total, scaled=True)
        errors = {"nmse": nmse, "nmse_theory": None, "cosine": cosine}
    monitor, warning = watch_loss(state.loss, loss, after.round)
    before = state.server
    warnings = ([] if warning is None else [warning]) + warnings
    state = replace(state, server=after, task=simulation.task.state(), loss=monitor, saturation=saturation)
    said = dict(metrics or {})
    return state, {
        "round": after.round,
        "train_loss": None if settings.data.name == "gaussian" else loss,  # there is no loss
        **_evaluate(simulation, state),
        **errors,
        **after.sent.record(),
        "downlink_bits": after.downlink_bits,
        **server.downlink_record(after),
        "snr_db": said.pop("snr_db", None),
        "devices": len(present.devices),
        "channel_uses": after.channel_uses,
        **said,
        **_regrouped(simulation, before, after),
        **clients.metrics(present, encoder.size, state.server.round - 1),
        "warnings": warnings,
    }


def _regrouped(simulation: Simulation, before: ServerMemory, after: ServerMemory) -> dict[str, Any]:
    """Return who has which model, in the first round and in those in which that changes."""
    if before.tasks is None or after.tasks is None:
        return {}
    same = np.array_equal(before.tasks.model_of, after.tasks.model_of)
    return {} if same and after.round > 1 else simulation.server.tasks.metrics(after.tasks)


def silent_record(simulation: Simulation, state: State, present: Present) -> tuple[State, dict[str, Any]]:
    """Return the record of a round in which nobody was received: the server made no step."""
    server = state.server
    empty: dict[str, Any] = dict.fromkeys(("train_loss", "nmse", "nmse_theory", "cosine", "snr_db"))
    return state, {
        "round": server.round,
        **empty,
        **_evaluate(simulation, state),
        **server.sent.record(),
        "downlink_bits": server.downlink_bits,
        **simulation.server.downlink_record(server),
        "devices": 0,
        "channel_uses": server.channel_uses,
        **simulation.clients.metrics(present, simulation.server.encoder(server).size, server.round - 1),
        "warnings": [],
    }


def limit_record(simulation: Simulation, received: Received, truth: Truth) -> dict[str, float]:
    """Return the least error that any scheme could have had, in rounds that are evaluated.

    `nmse_limit` is that of devices which are alike and all correlated by `correlation_mean`, the mean over
    pairs. Where that is negative, or within three deviations of zero, it is that of independent devices,
    `sum_k w_k**2*(1 + gamma_k)**-uses/sum_k w_k**2` with `w_k = alpha_k*std_k`. Only for rotated bits (their
    coordinates are Gaussian) of devices that are received one by one over links with noise.
    """
    settings, encoder, devices = simulation.settings, received.encoder, len(received)
    orthogonal = settings.cell.access == "orthogonal" and not settings.cell.perfect
    one = settings.server.tasks == "one"
    if settings.method.rotation == "none" or truth.correlation is None or not (orthogonal and one):
        return {}
    if not _due(settings, received.round + 1):
        return {}
    snr, size, pairs = received.signals.link.snr, len(truth.total), devices * (devices - 1)
    r = min(1.0, (float(truth.correlation.sum()) - devices) / max(1, pairs))
    uses = encoder.sent * (settings.method.level_bits or 1) / size
    if r > 3 * math.sqrt(2 / (size * max(1, pairs))):
        return {"nmse_limit": float(theory.limit(snr, r, uses)), "correlation_mean": r}
    energy = (received.weights.double() * truth.priors.std[:, 0].double()).square().numpy()
    least = theory.limit(snr[:, None], uses=uses) @ energy / max(float(energy.sum()), 1e-300)
    return {"nmse_limit": float(least), "correlation_mean": r}


def _due(settings: RunSettings, done: int) -> bool:
    return done >= settings.rounds or done % settings.eval.every == 0 or done in settings.eval.at


def _evaluate(simulation: Simulation, state: State) -> dict[str, Any]:
    """Evaluate the model, or every device's, if it is time to."""
    settings, server, tasks = simulation.settings, state.server.averaged, simulation.server.tasks
    if not _due(settings, server.round):
        return {"test_loss": None, "test_accuracy": None}
    devices = device_record(simulation, server) if settings.per_device else {}
    if "test_loss" in devices:
        return devices | tasks.metrics(server.tasks)
    loss, accuracy, perplexity = simulation.task.evaluate(server.weights)
    said = {} if perplexity is None else {"test_perplexity": perplexity}
    if settings.eval.training and (all_data := simulation.task.training_loss(server.weights)) is not None:
        said["global_train_loss"] = all_data
    return {"test_loss": loss, "test_accuracy": accuracy, **said, **devices}


def device_record(simulation: Simulation, server: ServerMemory) -> dict[str, Any]:
    """Return how well every device does on data like its own.

    `device_mean`, `device_min` (the worst), `device_worst` (the mean of the worst tenth) and `device_spread`
    (sample deviation) are of accuracies, of losses where there are no classes. Where devices differ in their
    models or labels, test loss and accuracy are means over devices.
    """
    settings = simulation.settings
    models, of = simulation.server.broadcast(server, np.arange(simulation.task.devices))
    loss, accuracy = simulation.task.evaluate_devices(models, of, server.round - 1)
    score = loss if accuracy is None else accuracy
    ordered = np.sort(score if accuracy is not None else -score)
    worst = abs(float(ordered[: math.ceil(len(score) / 10)].mean()))
    record: dict[str, Any] = {
        "device_mean": float(score.mean()),
        "device_min": abs(float(ordered[0])),
        "device_worst": worst,
        "device_spread": float(score.std(ddof=1)) if len(score) > 1 else 0.0,
        "device_scores": np.round(score, 6).tolist() if len(score) <= PAIRED_DEVICES else None,
    }
    if server.tasks is not None and settings.server.tasks != "related":
        record["model_scores"] = [float(score[of == model].mean()) for model in np.unique(of)]
    if (groups := settings.data.groups) > 1:
        group = simulation.task.groups_of(server.round - 1)
        record["group_scores"] = [round(float(score[group == g].mean()), 6) for g in range(groups)]
        pairs = len(np.unique(np.stack([of, group]), axis=1).T)
        record["groups_recovered"] = pairs == len(np.unique(of)) == len(np.unique(group))
    if settings.server.tasks == "one" and settings.data.groups == 1 and not settings.model.personal:
        return record
    mean = None if accuracy is None else float(accuracy.mean())
    return {"test_loss": float(loss.mean()), "test_accuracy": mean, **record}


def error_and_cosine(estimate: Tensor, total: Tensor, *, scaled: bool) -> tuple[float | None, float | None]:
    """Return the normalised error of an estimate and its cosine to the true sum, `[M]` each.

    The error of a vote, which has no scale, is that of its best multiple.
    """
    truth, guess = total.double().flatten(), estimate.double().flatten()
    energy, power = float(truth @ truth), float(guess @ guess)
    lengths = math.sqrt(energy) * math.sqrt(power)
    cosine = float(truth @ guess) / lengths if lengths > 0 else None
    if not scaled:
        return None if cosine is None else 1 - cosine**2, cosine
    error = guess - truth
    return float(error @ error) / energy if energy > 0 else None, cosine
