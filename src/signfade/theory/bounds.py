"""How far gradient descent gets with estimated gradients, and what error feedback adds.

The bounds are on the mean squared gradient norm over the first T rounds of `w <- w - step_t*ghat_t`, without
momentum, for an L-smooth loss F, from the total error `E|ghat_t - grad F(w_t)|**2` of each round (`M` times
the error per coordinate of the sum over devices): one number per round, `[T]`, or one for all together with
`rounds`. They return `[T]`: entry t - 1 is the bound after t rounds.
"""

from __future__ import annotations

import math
from typing import get_args

import numpy as np

from signfade._check import check_choice
from signfade.settings import Schedule
from signfade.theory.rules import Array, Numbers, non_negative

__all__ = ["corrected_bound", "feedback_limit", "feedback_ratio", "published_bound", "step_sizes"]

_GAUSSIAN = 2 / math.pi  # part of a Gaussian's energy that its sign and a scale capture


def step_sizes(step: float, rounds: int, schedule: Schedule = "constant") -> Array:
    """Steps of the first rounds, `[T]`: `step`, or with "sqrt" `step/sqrt(t + 1)` for t = 0, 1, ...

    Example:
        >>> step_sizes(1.0, 4, "sqrt").round(3)
        array([1.   , 0.707, 0.577, 0.5  ])

    Reference: Theorem 2.
    """
    check_choice("schedule", schedule, get_args(Schedule))
    if not step > 0:
        raise ValueError(f"step must be positive; got {step}")
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1; got {rounds}")
    if schedule == "constant":
        return np.full(rounds, float(step))
    return step / np.sqrt(np.arange(1, rounds + 1))


def corrected_bound(
    gap: float,
    smoothness: float,
    step: float,
    mse: Numbers,
    rounds: int | None = None,
    schedule: Schedule = "constant",
    *,
    weighted: bool = False,
) -> Array:
    """Bound on the mean squared gradient norm that holds for any estimate, biased or not.

    `sum_t step_t*E|grad F|**2 <= 2*(F_0 - F_min) + sum_t step_t*E|e_t|**2`, with `e = ghat - grad F` and
    `step_t <= 1/L`; beyond 1/L it fails even for exact gradients.

    For a constant step, divided by `step*T`: `2*(F_0 - F_min)/(step*T) + (1/T)*sum_t E|e_t|**2`. For
    decreasing steps, `step_t >= step_T` turns the left side into the plain mean. Smoothness gives
    `F(w - step*ghat) <= F - (step/2)*|grad F|**2 - (step/2)*(1 - step*L)*|ghat|**2 + (step/2)*|e|**2`; sum
    over the rounds. No expectation is needed: with the errors that occurred it holds on every single run.
    The second term does not vanish: an error that stays leaves a floor.

    Args:
        gap: `F(w_0) - F_min`, non-negative.
        smoothness: L, positive.
        step: The first step, at most 1/L.
        mse: `E|e_t|**2` of each round, `[T]`, or one number for all (then `rounds` is needed).
        rounds: T; taken from `mse` if None.
        schedule: `"constant"` or `"sqrt"` (`step/sqrt(t + 1)`).
        weighted: Bound the mean weighted by the steps, which is tighter for decreasing ones.

    Example:
        >>> corrected_bound(gap=1.0, smoothness=2.0, step=0.5, mse=0.1, rounds=4)
        array([4.1       , 2.1       , 1.43333333, 1.1       ])

    Reference: Theorem 2, corrected; docs/errata.md.
    """
    errors = _errors(gap, smoothness, mse, rounds)
    steps = step_sizes(step, len(errors), schedule)
    if step * smoothness > 1 + 1e-12:  # 1/L itself may round up
        raise ValueError(f"step must be at most 1/smoothness = {1 / smoothness:g}; got {step:g}")
    right = 2 * gap + np.cumsum(steps * errors)
    total: Array = np.cumsum(steps) if weighted else steps * np.arange(1, len(steps) + 1)
    return right / total


def published_bound(
    gap: float, smoothness: float, step: float, mse: Numbers, rounds: int | None = None
) -> Array:
    """Theorem 2 as printed, for steps `step/sqrt(t + 1)` below `2/L`. It does not hold: see docs/errata.md.

    `((F_0 - F_min)/step + max_t E|e_t|**2 * (1 + ln T) * step**2*L/2) / (sqrt(T) * (1 - step*L/2))`

    Its proof takes the error to be uncorrelated with the gradient, which a shrunken estimate is not, and its
    last line has lost a division: `step**2*L/2` should be `step*L/2` even for an unbiased estimate.

    Example:
        >>> published_bound(gap=1.0, smoothness=2.0, step=0.5, mse=0.1, rounds=4).round(3)
        array([4.05 , 2.888, 2.37 , 2.06 ])
    """
    errors = np.maximum.accumulate(_errors(gap, smoothness, mse, rounds))
    step_sizes(step, 1)
    keep = 1 - step * smoothness / 2
    if keep <= 0:
        raise ValueError(f"step must be below 2/smoothness = {2 / smoothness:g}; got {step:g}")
    count = np.arange(1, len(errors) + 1)
    drift = errors * (1 + np.log(count)) * (step**2 * smoothness / 2) / keep
    bound: Array = (gap / (step * keep) + drift) / np.sqrt(count)
    return bound


def _errors(gap: float, smoothness: float, mse: Numbers, rounds: int | None) -> Array:
    if not gap >= 0:
        raise ValueError(f"gap must be non-negative; got {gap}")
    if not smoothness > 0:
        raise ValueError(f"smoothness must be positive; got {smoothness}")
    errors = non_negative("mse", mse)
    if errors.ndim == 0 and rounds is not None and rounds >= 1:
        return np.full(rounds, float(errors))
    if errors.ndim != 1 or len(errors) == 0 or rounds not in (None, len(errors)):
        raise ValueError(
            f"mse must be one number together with rounds >= 1, or of shape [rounds]; "
            f"got shape {list(errors.shape)} and rounds = {rounds}"
        )
    return errors


def feedback_limit(smoothness: float, captured: float = _GAUSSIAN) -> float:
    """The step below which error feedback helps in every direction: about `d**2/(2*L)`.

    Exactly the smaller root of `(d + d**2)*x**2 - (4 - 2*d + 3*d**2)*x + 2*d**2 = 0`, over L: 0.218/L for
    Gaussian coordinates, as a rotation makes them. L is the largest curvature of the summed loss, `captured`
    is d, the part of a gradient's energy that its signs and scale capture, `scale**2/variance`.

    Example:
        >>> round(feedback_limit(1.0), 4)
        0.2182
    """
    _check_captured(captured)
    if not 0 < smoothness < math.inf:
        raise ValueError(f"smoothness must be positive and finite; got {smoothness}")
    square, middle = captured + captured**2, 4 - 2 * captured + 3 * captured**2
    root = (middle - math.sqrt(middle**2 - 8 * square * captured**2)) / (2 * square)
    return root / smoothness


def feedback_ratio(step: float, curvature: Numbers, captured: float = _GAUSSIAN) -> float:
    """Excess loss with error feedback over that without, once both have settled; below one feedback helps.

    `sum_i 2*s*c_i/(d*(d + (1 - d)*s*c_i)*(2 - s*c_i)) / sum_i 1/(2 - s*d*c_i)` over directions of curvature
    `c_i` (eigenvalues of the Hessian of the summed loss), with the step s below `2/c_i`.

    Model: devices with full batches near the optimum of a quadratic loss, every round rotated anew, so that
    what the bits lose is new each round: a device sends `d*u + q`, `E|q|**2 = d*(1 - d)*|u|**2`. Without
    feedback u is the gradient g, and the model sees d of the exact step and white noise:
    `E[w**2] = s*(1 - d)*|g|**2 / (c*(2 - s*d*c))`. With feedback u is the gradient plus the memory:
    `E[w**2] = 2*s**2*(1 - d)*|g|**2 / (d*(d + (1 - d)*s*c)*(2 - s*c))`, by the virtual iterate
    `x = w - s*memory`, which steps along the exact gradient at `w = x + s*memory`, and a memory that
    fluctuates with the energy `(1 - d)*|g|**2/d**2` and keeps `1 - d` of itself from round to round.

    Example:
        >>> round(feedback_ratio(0.2, 1.0), 3), round(feedback_ratio(1.0, 1.0), 3)
        (0.922, 4.283)
    """
    _check_captured(captured)
    c = np.atleast_1d(non_negative("curvature", curvature))
    if not step > 0 or (step * c >= 2).any():
        raise ValueError(f"step must be positive and below 2 over the largest curvature; got {step}")
    x = step * c
    with_it = 2 * x / (captured * (captured + (1 - captured) * x) * (2 - x))
    return float(with_it.sum() / (1 / (2 - captured * x)).sum())


def _check_captured(captured: float) -> None:
    if not 0 < captured <= 1:
        raise ValueError(f"captured must be above 0 and at most 1; got {captured}")
