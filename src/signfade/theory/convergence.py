"""How far gradient descent gets with estimated gradients: the printed bound and one that holds.

Both bound the mean squared gradient norm over the first T rounds of `w <- w - step_t*ghat_t`, without
momentum, for an L-smooth loss F, from the total error `E|ghat_t - grad F(w_t)|**2` of each round (`M` times
the error per coordinate of the sum over devices).

Results are arrays `[T]`: entry t - 1 is the bound after t rounds.
"""

from __future__ import annotations

from typing import get_args

import numpy as np

from signfade._check import check_choice
from signfade.settings import Schedule
from signfade.theory._numbers import Array, Numbers, non_negative

__all__ = ["corrected_bound", "published_bound", "step_sizes"]


def step_sizes(step: float, rounds: int, schedule: Schedule = "constant") -> Array:
    """Steps of the first rounds: `step`, or `step/sqrt(t + 1)` for t = 0, 1, ...

    Args:
        step: The first step, positive.
        rounds: T.
        schedule: `"constant"` or `"sqrt"`.

    Returns:
        The steps, `[T]`.

    Example:
        >>> step_sizes(1.0, 4, "sqrt").round(3)
        array([1.   , 0.707, 0.577, 0.5  ])

    Reference:
        Theorem 2.
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
    `step_t <= 1/L`

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
        weighted: Bound the mean weighted by the steps, `sum_t step_t*|grad F|**2 / sum_t step_t`, instead of
            the plain one. Tighter for decreasing steps, the same for a constant one.

    Returns:
        The bound after 1, 2, ..., T rounds, `[T]`.

    Raises:
        ValueError: If the step exceeds 1/L: beyond it the bound fails even for exact gradients.

    Example:
        >>> corrected_bound(gap=1.0, smoothness=2.0, step=0.5, mse=0.1, rounds=4)
        array([4.1       , 2.1       , 1.43333333, 1.1       ])

    Reference:
        Theorem 2, corrected; docs/errata.md.
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
    """Theorem 2 as printed, for steps `step/sqrt(t + 1)`. It does not hold: see docs/errata.md.

    `((F_0 - F_min)/step + max_t E|e_t|**2 * (1 + ln T) * step**2*L/2) / (sqrt(T) * (1 - step*L/2))`

    Its proof takes the error to be uncorrelated with the gradient, which a shrunken estimate is not, and its
    last line has lost a division: `step**2*L/2` should be `step*L/2` even for an unbiased estimate.

    Args:
        gap: `F(w_0) - F_min`, non-negative.
        smoothness: L, positive.
        step: The first step, below 2/L.
        mse: `E|e_t|**2` of each round, `[T]`, or one number for all (then `rounds` is needed).
        rounds: T; taken from `mse` if None.

    Returns:
        The printed bound after 1, 2, ..., T rounds, `[T]`.

    Example:
        >>> published_bound(gap=1.0, smoothness=2.0, step=0.5, mse=0.1, rounds=4).round(3)
        array([4.05 , 2.888, 2.37 , 2.06 ])

    Reference:
        Theorem 2 as printed.
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
