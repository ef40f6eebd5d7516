"""The server's step: the paper's momentum rule, or any optimiser of torch, fed with the estimate."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from signfade._check import check_finite
from signfade.device.bits import sign
from signfade.server.update import (
    FULL_PRECISION_BITS,
    ServerState,
    initial_state,
    momentum_update,
    sign_downlink_update,
)
from signfade.settings import ServerSettings

__all__ = ["ModelState", "Optimizer", "TorchState", "make_optimizer"]


@dataclass(frozen=True)
class TorchState:
    """The model `[M]` and what an optimiser of torch remembers."""

    weights: Tensor
    slots: dict[str, Tensor]


ModelState = ServerState | TorchState


class Optimizer:
    """The paper's rule: `m <- momentum * m + estimate`, `w <- w - learning_rate * m`.

    `unit` is what the learning rate is measured in: 1, or 1/L where the smoothness L is known.
    """

    def __init__(self, settings: ServerSettings, unit: float = 1.0) -> None:
        self._settings, self._unit = settings, unit

    def init(self, weights: Tensor) -> ModelState:
        """Start from these weights, `[M]`."""
        return initial_state(weights)

    def apply(self, state: ModelState, estimate: Tensor, round: int) -> ModelState:
        """Step along the estimate of a round, counted from 0."""
        assert isinstance(state, ServerState)
        update = sign_downlink_update if self._settings.downlink == "sign" else momentum_update
        rate, momentum = self.learning_rate(round), self._settings.momentum
        return update(state, self._clipped(estimate), rate, momentum)[0]

    def downlink_bits(self, size: int) -> int:
        """Return the bits that a step of a model of `size` weights sends to every device."""
        return size * (1 if self._settings.downlink == "sign" else FULL_PRECISION_BITS)

    def learning_rate(self, round: int) -> float:
        """Return the learning rate of a round, counted from 0."""
        rate = self._settings.learning_rate * self._unit
        return rate / math.sqrt(round + 1) if self._settings.schedule == "sqrt" else rate

    def _clipped(self, estimate: Tensor) -> Tensor:
        """Shorten the estimate to the largest norm allowed; refuse one that is not finite."""
        check_finite("estimate", estimate)
        limit = self._settings.clip
        if limit is None:
            return estimate
        norm = float(torch.linalg.vector_norm(estimate, dtype=torch.float64))  # float32 squares overflow
        return estimate * (limit / norm) if norm > limit else estimate


class _TorchOptimizer(Optimizer):
    """An optimiser of torch.optim on the flat weights, the estimate standing in for the gradient."""

    def __init__(self, kind: Any, settings: ServerSettings, unit: float) -> None:
        super().__init__(settings, unit)
        self._kind = kind
        self._options = {"momentum": settings.momentum} if settings.momentum > 0 else {}

    def init(self, weights: Tensor) -> ModelState:
        return TorchState(weights, {})

    def apply(self, state: ModelState, estimate: Tensor, round: int) -> ModelState:
        assert isinstance(state, TorchState)
        estimate = self._clipped(estimate)
        if self._settings.downlink == "sign" and not bool(estimate.any()):
            return state  # as in `sign_downlink_update`: no signal, no step
        parameter = torch.nn.Parameter(state.weights.clone())
        parameter.grad = sign(estimate) if self._settings.downlink == "sign" else estimate
        optimizer: Any = self._kind([parameter], lr=self.learning_rate(round), **self._options)
        if state.slots:  # copies: optimisers work in place
            optimizer.state[parameter] = {name: value.clone() for name, value in state.slots.items()}
        optimizer.step()
        slots = optimizer.state[parameter].items()
        kept = {name: torch.as_tensor(value) for name, value in slots if value is not None}
        return TorchState(parameter.detach(), kept)


def make_optimizer(settings: ServerSettings, unit: float = 1.0) -> Optimizer:
    """Return the optimiser that `server.optimizer` names, or raise if a gradient alone cannot drive it."""
    if settings.optimizer == "momentum":
        return Optimizer(settings, unit)
    base, classes = torch.optim.Optimizer, inspect.getmembers(torch.optim, inspect.isclass)
    found = {name.lower(): kind for name, kind in classes if issubclass(kind, base) and kind is not base}
    for needs_more in ("lbfgs", "sparseadam", "muon"):  # a closure, a sparse gradient, matrices
        found.pop(needs_more, None)
    kind = found.get(settings.optimizer.lower())
    if kind is None:
        known = ", ".join(["momentum", *sorted(found)])
        raise ValueError(f"server.optimizer must be one of {known}; got {settings.optimizer!r}")
    if settings.momentum > 0 and "momentum" not in inspect.signature(kind).parameters:
        raise ValueError(f"server.momentum must be 0 with server.optimizer {settings.optimizer!r}")
    return _TorchOptimizer(kind, settings, unit)
