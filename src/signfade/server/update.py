"""What the server does with its estimate: step the model, and tell the devices.

Both updates are pure: a state goes in, a new state and an info for people come out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from signfade._check import check_finite, check_shape
from signfade.device.bits import sign

__all__ = ["ServerState", "UpdateInfo", "initial_state", "momentum_update", "sign_downlink_update"]

FULL_PRECISION_BITS = 32


@dataclass(frozen=True)
class ServerState:
    """The model and its momentum, both `[M]`."""

    weights: Tensor
    momentum: Tensor


class UpdateInfo(NamedTuple):
    """What one update did: the length of its step, and the bits the downlink carried to every device."""

    step_norm: float
    downlink_bits: int


def initial_state(weights: Tensor) -> ServerState:
    """Start from the given weights, `[M]`, at rest."""
    if weights.ndim != 1:
        raise ValueError(f"weights must have shape [M]; got {list(weights.shape)}")
    return ServerState(weights, torch.zeros_like(weights))


def momentum_update(
    state: ServerState, estimate: Tensor, step: float, momentum: float = 0.0
) -> tuple[ServerState, UpdateInfo]:
    """Step along the running sum of estimates and broadcast the new weights.

    `m <- momentum * m + estimate`, then `w <- w - step * m`.

    `estimate` `[M]` is the aggregate of this round, `step` its learning rate, `momentum` in [0, 1) the weight
    of the past. The downlink carries 32 bits per weight.

    Example:
        >>> state = initial_state(torch.tensor([1.0, 1.0]))
        >>> state, info = momentum_update(state, torch.tensor([2.0, -4.0]), step=0.5)
        >>> state.weights, info.downlink_bits
        (tensor([0., 3.]), 64)

    Reference: Algorithm 1, lines 9 to 11.
    """
    check_shape("estimate", estimate, tuple(state.weights.shape))
    check_finite("estimate", estimate)
    if not 0 < step < math.inf:
        raise ValueError(f"step must be positive and finite; got {step}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be in [0, 1); got {momentum}")
    velocity = momentum * state.momentum + estimate
    move = step * velocity
    info = UpdateInfo(float(move.norm()), FULL_PRECISION_BITS * len(move))
    return ServerState(state.weights - move, velocity), info


def sign_downlink_update(
    state: ServerState, estimate: Tensor, step: float, momentum: float = 0.0
) -> tuple[ServerState, UpdateInfo]:
    """Broadcast only the sign of the estimate; every device makes the same step from it.

    `d = sign(estimate)`, then on every device `m <- momentum * m + d`, `w <- w - step * m`.

    One bit has no zero, so `sign(0) = +1`. But an estimate of nothing but zeros, where nothing was received,
    is not broadcast: no signal, no step, and the momentum waits as well. Arguments as in `momentum_update`.

    Example:
        >>> state = initial_state(torch.tensor([1.0, 1.0]))
        >>> state, info = sign_downlink_update(state, torch.tensor([2.0, -4.0]), step=0.5)
        >>> state.weights, info.downlink_bits
        (tensor([0.5000, 1.5000]), 2)

    Reference: Algorithm 2; docs/errata.md for its mixed time indices.
    """
    check_finite("estimate", estimate)  # its sign always is
    moved, info = momentum_update(state, sign(estimate), step, momentum)
    if not bool(estimate.any()):
        return state, UpdateInfo(0.0, 0)
    return moved, info._replace(downlink_bits=len(estimate))
