"""What error feedback does to the excess loss, and up to which step it helps.

Model: K devices with full batches near the optimum of a quadratic loss, every round rotated anew, so that
what the bits lose is new each round: a device's sent vector is `d*u + q`, `E|q|^2 = d*(1 - d)*|u|^2`, with d
the part of the energy that a sign and a scale capture. Without feedback u is the gradient: the model sees d
of the exact step and white noise of energy `d*(1 - d)*|g|^2` each. With feedback u is the gradient and the
memory, the noise of one round is taken back in the next, and nothing is lost for good. On a direction of
curvature c, with s the step and `|g|^2` the energy of the devices' gradients there,

    without:  E[w^2] = s*(1 - d)*|g|^2 / (c*(2 - s*d*c))
    with:     E[w^2] = 2*s^2*(1 - d)*|g|^2 / (d*(d + (1 - d)*s*c)*(2 - s*c))

by the virtual iterate `x = w - s*memory`, which steps along the exact gradient at `w = x + s*memory`, and a
memory that fluctuates with the energy `(1 - d)*|g|^2/d^2` and keeps `1 - d` of itself from round to round.
"""

from __future__ import annotations

import math

import numpy as np

from signfade.theory._numbers import Numbers, non_negative

__all__ = ["feedback_limit", "feedback_ratio"]

_GAUSSIAN = 2 / math.pi


def feedback_limit(smoothness: float, captured: float = _GAUSSIAN) -> float:
    """The step below which error feedback helps in every direction: about `d^2 / (2*L)`.

    Exactly the smaller root of `(d + d^2)*x^2 - (4 - 2*d + 3*d^2)*x + 2*d^2 = 0`, over L.

    Args:
        smoothness: L of the summed loss, the largest curvature.
        captured: d, the part of a gradient's energy that its signs and scale capture, `scale^2/variance`.

    Returns:
        The step; 0.218/L for Gaussian coordinates, as a rotation makes them.

    Raises:
        ValueError: A smoothness that is not positive, or d outside (0, 1].

    Example:
        >>> round(feedback_limit(1.0), 4)
        0.2182
    """
    _check(captured)
    if not 0 < smoothness < math.inf:
        raise ValueError(f"smoothness must be positive and finite; got {smoothness}")
    square, middle = captured + captured**2, 4 - 2 * captured + 3 * captured**2
    root = (middle - math.sqrt(middle**2 - 8 * square * captured**2)) / (2 * square)
    return root / smoothness


def feedback_ratio(step: float, curvature: Numbers, captured: float = _GAUSSIAN) -> float:
    """Excess loss with error feedback over that without, once both have settled.

    `sum_i 2*s*c_i/(d*(d + (1 - d)*s*c_i)*(2 - s*c_i)) / sum_i 1/(2 - s*d*c_i)` over directions of curvature
    c_i.

    Args:
        step: s.
        curvature: Eigenvalues of the Hessian of the summed loss, any shape.
        captured: As in `feedback_limit`.

    Returns:
        The ratio; below one feedback helps.

    Raises:
        ValueError: A negative curvature, a step at which descent itself does not settle (`s*c >= 2`).

    Example:
        >>> round(feedback_ratio(0.2, 1.0), 3), round(feedback_ratio(1.0, 1.0), 3)
        (0.922, 4.283)
    """
    _check(captured)
    c = np.atleast_1d(non_negative("curvature", curvature))
    if not step > 0 or (step * c >= 2).any():
        raise ValueError(f"step must be positive and below 2 over the largest curvature; got {step}")
    x = step * c
    with_it = 2 * x / (captured * (captured + (1 - captured) * x) * (2 - x))
    return float(with_it.sum() / (1 / (2 - captured * x)).sum())


def _check(captured: float) -> None:
    if not 0 < captured <= 1:
        raise ValueError(f"captured must be above 0 and at most 1; got {captured}")
