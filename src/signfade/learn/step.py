"""The server's step: the paper's momentum rule, or any optimiser of torch, fed with the estimate."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor

from signfade._check import check_finite, check_shape
from signfade.device import sign
from signfade.server import ServerState, initial_state, momentum_update, sign_downlink_update
from signfade.server.update import FULL_PRECISION_BITS
from signfade.settings import ServerSettings

__all__ = ["ServerStep", "make_step"]


class ServerStep:
    """The paper's rule: `m <- momentum * m + estimate`, `w <- w - step * m`; downlink in full or by signs.

    Attributes:
        weights: The current model, `[M]`.
    """

    def __init__(self, settings: ServerSettings, weights: Tensor, step_unit: float = 1.0) -> None:
        self._settings = settings
        self._unit = step_unit
        self._state = initial_state(weights)

    @property
    def weights(self) -> Tensor:
        """The current model, `[M]`."""
        return self._state.weights

    def step_size(self, round: int) -> float:
        """Return the step of a round, counted from 0."""
        step = self._settings.step * self._unit
        return step / math.sqrt(round + 1) if self._settings.schedule == "sqrt" else step

    def clipped(self, estimate: Tensor) -> Tensor:
        """Shorten the estimate to the largest norm allowed; refuse one that is not finite."""
        check_finite("estimate", estimate)
        limit = self._settings.clip
        if limit is None:
            return estimate
        norm = float(torch.linalg.vector_norm(estimate, dtype=torch.float64))  # float32 squares overflow
        return estimate * (limit / norm) if norm > limit else estimate

    def apply(self, estimate: Tensor, round: int) -> int:
        """Step along the estimate; return the bits of the downlink."""
        update = sign_downlink_update if self._settings.downlink == "sign" else momentum_update
        self._state, info = update(
            self._state, self.clipped(estimate), self.step_size(round), self._settings.momentum
        )
        return info.downlink_bits

    def state(self) -> dict[str, Tensor]:
        """Return what must be saved."""
        return {"weights": self._state.weights, "momentum": self._state.momentum}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned.

        Raises:
            ValueError: It is of another model.
        """
        size = tuple(self._state.weights.shape)
        for name in ("weights", "momentum"):
            check_shape(name, state[name], size)
        self._state = ServerState(state["weights"], state["momentum"])


class _OptimizerStep(ServerStep):
    """An optimiser of torch.optim on the flat weight vector, the estimate standing in for the gradient."""

    def __init__(
        self,
        optimizer: type[torch.optim.Optimizer],
        settings: ServerSettings,
        weights: Tensor,
        step_unit: float,
    ) -> None:
        super().__init__(settings, weights, step_unit)
        self._parameter = torch.nn.Parameter(weights.clone())
        options: dict[str, Any] = {"lr": self.step_size(0)}
        if settings.momentum > 0:
            options["momentum"] = settings.momentum
        self._optimizer = optimizer([self._parameter], **options)

    @property
    def weights(self) -> Tensor:
        return self._parameter.detach().clone()

    def apply(self, estimate: Tensor, round: int) -> int:
        estimate = self.clipped(estimate)
        by_sign = self._settings.downlink == "sign"
        if by_sign and not bool(estimate.any()):  # as `sign_downlink_update`: nothing is broadcast
            return 0
        self._parameter.grad = sign(estimate) if by_sign else estimate
        for group in self._optimizer.param_groups:
            group["lr"] = self.step_size(round)
        self._optimizer.step()
        return len(estimate) * (1 if by_sign else FULL_PRECISION_BITS)

    def state(self) -> dict[str, Tensor]:
        saved = {"weights": self.weights}
        for name, value in self._optimizer.state[self._parameter].items():
            if value is not None:  # a copy: optimisers work in place
                saved[f"optimizer.{name}"] = torch.as_tensor(value).clone()
        return saved

    def restore(self, state: dict[str, Tensor]) -> None:
        with torch.no_grad():
            self._parameter.copy_(state["weights"])
        prefix = "optimizer."
        self._optimizer.state[self._parameter] = {
            name.removeprefix(prefix): value.clone()
            for name, value in state.items()
            if name.startswith(prefix)
        }


def make_step(settings: ServerSettings, weights: Tensor, step_unit: float = 1.0) -> ServerStep:
    """Return the step that `server.optimizer` names.

    Raises:
        ValueError: There is no such optimiser, or it cannot be driven by a gradient alone.
    """
    if settings.optimizer == "momentum":
        return ServerStep(settings, weights, step_unit)
    found = {
        name.lower(): value
        for name, value in vars(torch.optim).items()
        if inspect.isclass(value)
        and issubclass(value, torch.optim.Optimizer)
        and value is not torch.optim.Optimizer
    }
    for needs_more in ("lbfgs", "sparseadam", "muon"):  # a closure, a sparse gradient, matrices
        found.pop(needs_more, None)
    optimizer = found.get(settings.optimizer.lower())
    if optimizer is None:
        known = ", ".join(["momentum", *sorted(found)])
        raise ValueError(f"server.optimizer must be one of {known}; got {settings.optimizer!r}")
    if settings.momentum > 0 and "momentum" not in inspect.signature(optimizer).parameters:
        raise ValueError(f"server.momentum must be 0 with server.optimizer {settings.optimizer!r}")
    return _OptimizerStep(optimizer, settings, weights, step_unit)
