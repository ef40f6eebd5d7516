"""Many tasks: which of several models a device has, learned from the bits it sends anyway.

`clustered`. Devices share a model until their updates conflict. The products of what is received measure the
correlation r_kj between the updates of devices that have the same model (no uplink bit is spent), and the
scales that devices send tell the updates' energy. A cluster is split into parts when all three hold:

- the parts disagree: the mean of r_kj over the pairs between two parts is negative, and no pair of them
  agrees by three standard errors;
- the devices of a part agree: the mean of their r_kj is positive;
- the conflict lasts: what the devices of a part share, the sum of their `|g_k||g_j| r_kj`, has shrunk slower
  than `1/sqrt(age)` since a time between a quarter and half of the cluster's age.

A mean is positive or negative for sure beyond `sqrt(9 + 2 n ln 2)` standard errors: parts are chosen for what
was measured, and the best of the 2^n ways to part n devices that are alike looks surer than three by chance.

The first two say that the model is stationary because tasks pull against each other: at a stationary point
updates add up to zero, and G groups of equal size that are at odds have `r = -1/(G - 1)` of what they share.
Devices with few classes each conflict as well, but one model fits them all. Where devices share a minimum,
gradient descent on convex losses leaves `|g_k|^2 <= 2 L f_k = O(1/age)`; where tasks conflict it stays. The
square root is halfway. Besides, devices with a class in common agree, which chains them together. Of devices
with the same data nothing is left at a stationary point but noise, in which no part agrees.

A device moves to another cluster when its update points from its own model towards the other's: by a cosine
of 0.1 and three standard errors. Those of devices that are where they belong point away from it.

`related`. Every device has a model, `w_k <- w_k - eta*E[g_k | y_1 ... y_K]`, and models are drawn together as
by `coupling/2 * sum_(k<j) a_kj |w_k - w_j|^2`: a_kj = 1/K is the mean-regularised multi-task learning of
MOCHA, `coupling/2 * sum_k |w_k - mean|^2`. Learned, a_kj is the positive part of r_kj, scaled to the same
mean.

References: Sattler, Müller and Samek, "Clustered federated learning"; Smith et al., "Federated multi-task
learning" (MOCHA); docs/many-tasks.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from signfade.server.optimizer import ModelState
from signfade.server.received import Devices, Received
from signfade.settings import RunSettings

__all__ = ["Broadcast", "TaskState", "Tasks", "couple", "split_cluster"]

Floats = NDArray[np.float64]
Measured = tuple[Floats, Floats, Tensor]  # correlations of updates, their precision, soft values

_KEPT = 0.9  # weight of the past against a new measurement: about 10 rounds count
_SURE = 3.0  # standard errors
_LASTING = 0.5  # power of the age: a conflict that shrinks faster is being resolved
_FIRST_MARK = 12  # age in rounds at which that is first noted; then at twice the age, and so on
_TOWARDS = 0.1  # cosine to the way to another model, of a device that is in the wrong cluster


class Broadcast(NamedTuple):
    """The models that are sent down, `[G, M]`, and which of them each device of a round has, `[K]`."""

    weights: Tensor
    of: NDArray[np.int64]


@dataclass(frozen=True)
class TaskState:
    """Who has which model, and what rounds have taught about N devices."""

    model_of: NDArray[np.int64]  # `[N]`
    agreement: Floats  # running mean of r_kj, `[N, N]`
    evidence: Floats  # one over its variance, at least; zero: never measured since they share a model;
    # of a device with itself: that of a pair of its kind
    energy: Floats  # running mean of a device's squared scale, `[N]`; zero: not received yet
    age: NDArray[np.int64]  # rounds that each model has been trained, before a split as well, `[G]`
    mark: Floats  # inner products of updates when this was last noted, `[N, N]`
    past: Floats  # and when it was noted the time before
    heading: Floats  # running mean of the cosine of an update to (own model - model c), `[N, G]`
    heading_evidence: Floats  # one over its variance, at least


class Tasks:
    """The server's models: who has which, how they are weighed, when they split, how they pull."""

    def __init__(self, settings: RunSettings, population: int) -> None:
        self._settings, self._population = settings.server, population
        self._groups, self._weights = settings.data.groups, settings.method.weights
        kind = settings.server.tasks
        counts = {"one": 1, "clustered": settings.server.max_clusters, "genie": self._groups}
        self.count = min(population, counts.get(kind, population))

    @property
    def many(self) -> bool:
        """Whether there may be more than one model."""
        return self._settings.tasks != "one"

    def init(self) -> TaskState | None:
        """Return the state before the first round."""
        if not self.many:
            return None
        n, kind = self._population, self._settings.tasks
        first = {"related": np.arange(n), "genie": np.arange(n) % self._groups}
        pairs = n if self._learns else 0
        models = self.count if kind == "clustered" else 0
        return TaskState(
            first.get(kind, np.zeros(n, dtype=np.int64)),
            np.zeros((pairs, pairs)),
            np.zeros((pairs, pairs)),
            np.zeros(n),
            np.zeros(models, dtype=np.int64),
            np.zeros((pairs, pairs)),
            np.zeros((pairs, pairs)),
            np.zeros((pairs, models)),
            np.zeros((pairs, models)),
        )

    @property
    def _learns(self) -> bool:
        server = self._settings
        return server.tasks == "clustered" or (server.tasks == "related" and server.relations == "learned")

    def mix(self, state: TaskState | None, devices: Devices, alpha: Tensor) -> Tensor:
        """Return the weight of each device in each model's estimate, `[G, K]`; `alpha` `[K]` for one model.

        An estimate is the mean over a model's devices, weighted by alpha (their sum for weights "sum").
        """
        if state is None:
            return alpha
        mine = torch.from_numpy(state.model_of[devices][None] == np.arange(self.count)[:, None])
        rows = torch.where(mine, alpha, torch.zeros_like(alpha))
        return rows if self._weights == "sum" else rows / rows.sum(dim=1, keepdim=True).clamp_min(1e-30)

    def observe(
        self, state: TaskState, received: Received, models: Tensor, measure: Callable[[Received], Measured]
    ) -> TaskState:
        """Learn from a round's signals who agrees with whom; `models` `[G, M]` are those of the round.

        `measure` is `soft_rule.measure_updates`.
        """
        if not self._learns:
            return state
        devices = received.devices
        measured, precision, rows = measure(received)
        pairs, new = np.ix_(devices, devices), np.outer(precision, precision)
        if self._settings.tasks == "clustered":
            new = new * (state.model_of[devices][:, None] == state.model_of[devices][None])
        agreement, evidence = _averaged(state.agreement, state.evidence, pairs, measured, new)
        power = received.layer_scale.double().square().mean(dim=1).numpy()
        energy, before = state.energy.copy(), state.energy[devices]
        energy[devices] = np.where(before > 0, _KEPT * before + (1 - _KEPT) * power, power)
        state = replace(state, agreement=agreement, evidence=evidence, energy=energy)
        if self._settings.tasks == "related":
            return state
        return self._follow(self._noted(state, devices), received, models, rows)

    def _noted(self, state: TaskState, devices: Devices) -> TaskState:
        """Let the models of a round age, and note what updates share at the marks."""
        used = np.unique(state.model_of[devices])
        age, mark, past = state.age.copy(), state.mark.copy(), state.past.copy()
        age[used] += 1
        marks = {_FIRST_MARK << i for i in range(32)}
        for model in (int(model) for model in used if int(age[model]) in marks):
            pairs = np.ix_(*2 * [np.flatnonzero(state.model_of == model)])
            past[pairs], mark[pairs] = mark[pairs], _shared(state)[pairs]
        return replace(state, age=age, mark=mark, past=past)

    def _follow(self, state: TaskState, received: Received, models: Tensor, rows: Tensor) -> TaskState:
        """Learn where the updates point: towards which other model."""
        used, devices = np.unique(state.model_of), received.devices
        if len(used) < 2:
            return state
        own = models[state.model_of[devices]]
        size = received.encoder.part * math.sqrt(rows.shape[1] / received.encoder.kept)
        cosine = np.zeros((len(devices), self.count))
        evidence = np.zeros_like(cosine)
        explained = rows.square().mean(dim=1).double().numpy() / received.encoder.part  # E[z^2] = E[x z]
        for model in used:
            apart = own - models[model]
            length = torch.linalg.vector_norm(apart, dim=1).double().numpy()
            there = (length > 0) & (explained > 0)
            dots = (rows * apart).sum(dim=1, dtype=torch.float64).numpy()
            cosine[there, model] = dots[there] / (length * explained * size)[there]
            evidence[there, model] = (explained * size**2 / received.encoder.part)[there]
        every = np.ix_(devices, np.arange(self.count))
        found = _averaged(state.heading, state.heading_evidence, every, cosine, evidence)
        return replace(state, heading=found[0], heading_evidence=found[1])

    def regroup(
        self, state: TaskState, models: tuple[ModelState, ...]
    ) -> tuple[TaskState, tuple[ModelState, ...]]:
        """Move devices that are in the wrong cluster, and split clusters whose devices are at odds."""
        if self._settings.tasks != "clustered":
            return state, models
        state = self._moved(state)
        for model in np.unique(state.model_of):
            members = np.flatnonzero(state.model_of == model)
            free = np.setdiff1d(np.arange(self.count), state.model_of)
            if state.age[model] < 2 * _FIRST_MARK or not len(free):
                continue
            pairs = np.ix_(members, members)
            parts = split_cluster(state.agreement[pairs], state.evidence[pairs], len(free) + 1)
            same = (parts[:, None] == parts[None]) & (state.past[pairs] != 0)
            now, then = (float(shared[pairs][same].sum()) for shared in (_shared(state), state.past))
            if parts.max() == 0 or now < then * _since_mark(int(state.age[model])) ** -_LASTING:
                continue
            model_of = state.model_of.copy()
            model_of[members] = np.array([model, *free])[parts]
            new = np.unique(model_of[members])
            models = tuple(models[model] if i in new else one for i, one in enumerate(models))
            age = state.age.copy()
            age[new] = age[model]
            state = _regrouped(replace(state, age=age), model_of)
        return state, models

    def _moved(self, state: TaskState) -> TaskState:
        if len(np.unique(state.model_of)) < 2:
            return state
        error = 1 / np.sqrt(np.maximum(state.heading_evidence, 1e-12))
        sure = np.where(state.heading_evidence > 0, state.heading - _SURE * error, -np.inf)
        wrong = sure.max(axis=1) > _TOWARDS
        if not wrong.any():
            return state
        model_of = np.where(wrong, sure.argmax(axis=1), state.model_of)
        return _regrouped(state, model_of)

    def couple(self, state: TaskState, models: tuple[ModelState, ...], rate: float) -> tuple[ModelState, ...]:
        """Draw the models of related devices together, after a step of this learning rate."""
        strength = rate * self._settings.coupling
        if self._settings.tasks != "related" or strength == 0:
            return models
        drawn = couple(torch.stack([model.weights for model in models]), self.relations(state), strength)
        return tuple(replace(model, weights=row) for model, row in zip(models, drawn))

    def relations(self, state: TaskState) -> Floats:
        """Return the weights a_kj of the pull between models, `[N, N]`, all devices' mean the same."""
        n = self._population
        if not self._learns:
            return np.full((n, n), 1 / n)
        error = 1 / np.sqrt(np.maximum(state.evidence, 1e-12))
        known = np.where(state.evidence > 0, np.maximum(state.agreement, 0.0), 0.0)
        shrunk = known * known**2 / np.maximum(known**2 + error**2, 1e-300)
        np.fill_diagonal(shrunk, 0.0)
        mean = shrunk.sum() / max(1, n * (n - 1))
        return shrunk / (n * mean) if mean > 0 else np.full((n, n), 1 / n)

    def metrics(self, state: TaskState | None) -> dict[str, Any]:
        """Return what a round's record says: who has which model."""
        if state is None or self._settings.tasks == "related":
            return {}
        return {"models": len(np.unique(state.model_of)), "model_of": state.model_of.tolist()}


def split_cluster(agreement: Floats, evidence: Floats, most: int) -> NDArray[np.int64]:
    """Return the part, from 0, to which each device of a cluster belongs: all 0 if it holds together.

    `agreement` are measured correlations between the updates of n devices, `[n, n]`, and `evidence` one over
    their variances; its diagonal is a device's with itself, whose correlation is one. Devices that agree for
    sure are in one part. Of the parts, those that agree most surely are joined until the rest disagree for
    sure by the mean over their pairs. A part whose devices do not agree among themselves, and more parts than
    `most`, are joined to what they agree with best.

    Example:
        >>> r = np.kron(np.eye(2), np.ones((2, 2))) * 1.2 - 0.6
        >>> split_cluster(r, np.full((4, 4), 1e3), most=8), split_cluster(r, np.full((4, 4), 1.0), most=8)
        (array([0, 0, 1, 1]), array([0, 0, 0, 0]))
    """
    own = np.eye(len(evidence), dtype=bool)
    pairs, alone = np.where(own, 0.0, evidence), evidence.diagonal()
    # The best of the 2^n ways to part n devices of which nothing is known is as sure as this by chance.
    sure = math.sqrt(_SURE**2 + 2 * math.log(2) * len(evidence))
    agreeing = pairs * np.maximum(agreement, 0.0) ** 2 > _SURE**2
    count, found = connected_components(agreeing, directed=False)
    parts: NDArray[np.int64] = np.asarray(found, dtype=np.int64)
    while count > 1:
        members = np.eye(count)[parts]
        total = np.maximum(members.T @ pairs @ members, 1e-12)
        shared = members.T @ (pairs * agreement) @ members
        mean = shared / total
        # Devices that agree err alike: the noise of their sum over that of as many independent ones.
        alike = np.maximum(1.0, 1 + shared.diagonal() / np.maximum(alone @ members, 1e-12))
        error = np.sqrt(np.outer(alike, alike) / total)
        apart = mean + sure * error < 0
        weak = mean.diagonal() < sure / np.sqrt(total.diagonal() / 2)
        joined = ~apart if (~apart & ~np.eye(count, dtype=bool)).any() else (weak[:, None] | (count > most))
        if not joined.any():
            break
        best = np.where(joined & ~np.eye(count, dtype=bool), mean - sure * error, -np.inf)
        i, j = np.unravel_index(int(best.argmax()), best.shape)
        parts[parts == i] = j
        count, parts = count - 1, np.unique(parts, return_inverse=True)[1]
    return parts


def couple(weights: Tensor, relations: Floats, strength: float) -> Tensor:
    """Draw models `[K, M]` together: the minimiser of half the squared distance to them plus the pull.

    `argmin_V |V - W|^2/2 + strength/2 * sum_(k<j) a_kj |v_k - v_j|^2 = (I + strength*L)^-1 W`, with L the
    Laplacian of a: stable however strong the pull. Fixed points of gradient steps are those of the objective.

    Example:
        >>> couple(torch.tensor([[1.0], [3.0]]), np.full((2, 2), 0.5), strength=1e9).T
        tensor([[2., 2.]])
    """
    symmetric = (relations + relations.T) / 2
    laplacian = np.diag(symmetric.sum(axis=1)) - symmetric
    system = torch.from_numpy(np.eye(len(weights)) + strength * laplacian)
    drawn: Tensor = torch.linalg.solve(system, weights.double()).to(weights)
    return drawn


def _averaged(
    mean: Floats, evidence: Floats, at: Any, new: Floats, precision: Floats
) -> tuple[Floats, Floats]:
    """Take measurements into running means; what is not measured (precision 0) stays as it is."""
    mean, evidence = mean.copy(), evidence.copy()
    past = np.where(precision > 0, _KEPT, 1.0) * evidence[at]
    total = past + precision
    mean[at] = (past * mean[at] + precision * new) / np.maximum(total, 1e-300)
    evidence[at] = total
    return mean, evidence


def _regrouped(state: TaskState, model_of: NDArray[np.int64]) -> TaskState:
    """Give devices other models: what is known of pairs and ways that no longer are is forgotten."""
    apart = model_of[:, None] != model_of[None]
    evidence, mark, past = (np.where(apart, 0.0, old) for old in (state.evidence, state.mark, state.past))
    heading = state.heading_evidence.copy()
    heading[model_of != state.model_of] = 0.0
    heading[:, np.setdiff1d(model_of, state.model_of)] = 0.0
    state = replace(state, model_of=model_of, evidence=evidence, mark=mark, past=past)
    return replace(state, heading_evidence=heading)


def _since_mark(age: int) -> float:
    """Return a model's age over that at the mark before the last: from 2 up to 4."""
    return age * 2 / (_FIRST_MARK << (age // _FIRST_MARK).bit_length() - 1)


def _shared(state: TaskState) -> Floats:
    """Inner products of the devices' updates without those with themselves, which are mostly noise."""
    known = np.where(state.evidence > 0, state.agreement, 0.0)
    shared: Floats = known * np.sqrt(np.outer(state.energy, state.energy))
    np.fill_diagonal(shared, 0.0)
    return shared
