"""The error of a rule when the devices' gradients are jointly Gaussian, which a shared rotation makes them.

Every coordinate has the same covariance between devices, `Cov(g_k, g_j) = std_k * std_j * r_kj`. With signs
`s_k` of the centred gradients and, given the signs, independent links,

- `E[g_k * f_j] = sqrt(2/pi) * std_k * r_kj * E[s f]_j` (the sign knows `g_k` through its correlation),
- `E[f_k * f_j] = (2/pi) * arcsin(r_kj) * E[s f]_k * E[s f]_j` for k != j (the arcsine law), `E[f_k**2]` as
  ever.

From these follow the energy of the sum, the energy of its estimate and their product: all that an error
needs. A rotation that padded the gradients to n coordinates gives back M of them: what the estimate shares
with the gradients survives that, and of everything else the part M/n does (`JointMoments.cut`).
"""

from __future__ import annotations

from typing import NamedTuple, get_args

import numpy as np
from scipy import special

from signfade._check import check_choice
from signfade.settings import Form, Tie
from signfade.theory.rules import Array, Numbers, Rule, gain, moments, non_negative, real

__all__ = ["JointMoments", "given_moments", "joint_moments", "vote_moments"]

_NODES = 64  # of the integral over the sum; even, so that no node sits on the step of a unanimous vote


class JointMoments(NamedTuple):
    """Second moments per coordinate of the weighted sum and its estimate."""

    energy: float  # E[gsum**2]
    product: float  # E[gsum * ghat]
    power: float  # E[ghat**2]
    aligned: float = 0.0  # the part of `power` that is a linear function of the devices' gradients

    def cut(self, kept: float, part: float = 1.0) -> JointMoments:
        """Return the moments over M coordinates after a rotation over n, `kept = M/n`, has been undone.

        The gradients lie in the M coordinates that are kept. The rest of the estimate, noise mostly, knows
        nothing of them and is spread evenly over all n: nearly so, within 3 % of the error where a few
        coordinates carry most of a small model's gradient. Where only the part f of the coordinates was sent
        and the rest is estimated as zero, f of the estimate is a function of the gradients and the rest of
        its energy joins the noise.
        """
        aligned = part**2 * self.aligned
        power = aligned + kept * (part * self.power - aligned)
        return JointMoments(self.energy, part * self.product, power, aligned)

    def nmse(self, factor: float = 1.0) -> float:
        """Return `E[(factor * ghat - gsum)**2] / E[gsum**2]`; NaN where the sum is zero."""
        error = self.energy - 2 * factor * self.product + factor**2 * self.power
        return error / self.energy if self.energy > 0 else float("nan")

    def best_scaled_nmse(self) -> float:
        """Return the error after the best constant factor: one minus the squared cosine."""
        both = self.energy * self.power
        return 1 - self.product**2 / both if both > 0 else 1.0


def joint_moments(
    rule: Rule,
    snr: Numbers,
    std: Numbers,
    correlation: Numbers,
    *,
    weights: Numbers | None = None,
    scale: Numbers | None = None,
    form: Form = "corrected",
) -> JointMoments:
    """Moments of a rule that reads one device at a time, on correlated devices.

    `ghat = sum_k alpha_k * scale_k * f(y_k)`. With the identity as correlation the error is that of `mse`.
    `snr` and `std` are `[K]`, `correlation` is `[K, K]`, `weights` are `alpha_k` (ones if None), `scale` is
    the `E|g - mean|` that the server uses, `[K]` (the Gaussian's if None).

    Example:
        >>> independent = joint_moments("sbfl", [1.0, 1.0], [1.0, 1.0], np.eye(2)).nmse()
        >>> alike = joint_moments("sbfl", [1.0, 1.0], [1.0, 1.0], [[1.0, 0.9], [0.9, 1.0]]).nmse()
        >>> round(independent, 3), round(alike, 3)  # independent shrinkage is too strong when devices agree
        (0.65, 0.556)

    Reference: Section III, the correlated prior; docs/bfl.md.
    """
    return given_moments(*moments(rule, snr, form), std, correlation, weights=weights, scale=scale)


def given_moments(
    signal: Numbers,
    power: Numbers,
    std: Numbers,
    correlation: Numbers,
    *,
    weights: Numbers | None = None,
    scale: Numbers | None = None,
    combine: Numbers | None = None,
    noise: float = 0.0,
) -> JointMoments:
    """`joint_moments` of any elementwise rule, given its `E[s*f]` and `E[f**2]` per device, `[K]`.

    `combine` are the factors of `f_k` in the estimate, `[K]`, where they are not `alpha_k * scale_k`: a
    linear rule `sum_k combine_k * y_k` has the moments `h_k` and `h_k**2 + sigma2_k`.

    With Gaussian noise before the sign, of deviation `noise * std`, the bit is that of a variable whose
    correlation with the gradient is `c = 1/sqrt(1 + noise**2)`: `E[g_k * f_j]` has the factor c, and bits
    correlate like variables of correlation `c**2 * r_kj`.

    Example:
        >>> round(given_moments([0.5504], [0.5504], [1.0], [[1.0]]).nmse(), 3)
        0.65
    """
    agreed = 1 / np.hypot(1, noise)
    first, second = np.atleast_1d(real("signal", signal)), np.atleast_1d(real("power", power))
    deviation, r, alpha = _devices(first, std, correlation, weights)
    if combine is None:
        used = alpha * (np.sqrt(2 / np.pi) * deviation if scale is None else non_negative("scale", scale))
    else:
        used = real("combine", combine)
    estimate = used * first
    bits = (2 / np.pi) * np.arcsin(agreed**2 * r)
    np.fill_diagonal(bits, 0.0)
    seen = agreed * np.sqrt(2 / np.pi) * (r @ (alpha * deviation))
    shared = agreed * estimate  # its linear fit by the gradients has the power (2/pi) w^T r w (Bussgang)
    return JointMoments(
        energy=_energy(alpha * deviation, r),
        product=float(seen @ estimate),
        power=float(estimate @ bits @ estimate + (used**2 * second).sum()),
        aligned=float((2 / np.pi) * (shared @ r @ shared)),
    )


def vote_moments(
    snr: Numbers,
    std: Numbers,
    correlation: Numbers,
    *,
    weights: Numbers | None = None,
    agreement: float = 1.0,
    noise: float = 0.0,
    tie: Tie = "zero",
) -> JointMoments:
    """Moments of the majority vote on correlated devices: approximate, its cosine within 5 % from K = 20.

    Within 1 % where all devices are correlated alike; up to 5 % too large where they share few directions.

    Given the sum, `u = gsum/sqrt(E[gsum**2])`, the tally of detected signs is a sum of weakly dependent terms
    and is taken as Gaussian: `E[vote | u] = erf(mean/sqrt(2*variance))`, then `E[u * vote]` is an integral
    over u. The power is 1, less the probability of a tie where that counts as zero; a vote is measured by
    `.best_scaled_nmse()`.

    `agreement` is `1 - 2p` where devices flip each bit with probability p; `noise` as in `given_moments`,
    `tie` as in `vote_nmse`, the rest as in `joint_moments`.

    Example:
        >>> round(vote_moments([1e9] * 101, [1.0] * 101, np.eye(101)).best_scaled_nmse(), 3)
        0.593

    Reference: Section II, majority vote.
    """
    check_choice("tie", tie, get_args(Tie))
    deviation, r, alpha = _devices(snr, std, correlation, weights)
    energy = _energy(alpha * deviation, r)
    if energy == 0:
        return JointMoments(0.0, 0.0, 1.0)
    right = agreement * np.atleast_1d(gain("high_snr", snr))
    agreed = 1 / np.hypot(1, noise)
    # Correlation with the sum of what the sign is taken of.
    along = agreed * np.clip((r @ (alpha * deviation)) / np.sqrt(energy), -1, 1)
    rest = np.sqrt(np.maximum(1 - along**2, 1e-12))
    partial = np.clip((agreed**2 * r - np.outer(along, along)) / np.outer(rest, rest), -1, 1)
    bits = (2 / np.pi) * np.arcsin(partial)
    np.fill_diagonal(bits, 0.0)
    nodes, node_weights = special.roots_hermitenorm(_NODES)
    node_weights = node_weights / np.sqrt(2 * np.pi)
    signs = special.erf(np.outer(nodes, along / (np.sqrt(2) * rest)))  # E[s_k | u], [nodes, K]
    tally = signs @ right
    left = right * np.sqrt(1 - signs**2)
    variance = (1 - (signs * right) ** 2).sum(axis=1) + np.einsum("nk,kj,nj->n", left, bits, left)
    width = np.sqrt(2 * np.maximum(variance, 1e-9))
    even = 1 - len(right) % 2  # an even number of votes can tie, which says nothing about u
    below, above = special.erf((tally - even) / width), special.erf((tally + even) / width)
    product = float((node_weights * nodes * (below + above)).sum()) / 2
    tied = float((node_weights * (above - below)).sum()) / 2 if tie == "zero" else 0.0
    return JointMoments(energy, product * float(np.sqrt(energy)), 1 - tied, aligned=product**2)


def _devices(
    like: Numbers, std: Numbers, correlation: Numbers, weights: Numbers | None
) -> tuple[Array, Array, Array]:
    """Return standard deviations, correlation and weights as arrays of matching sizes."""
    deviation = np.atleast_1d(non_negative("std", std))
    devices = len(deviation)
    r = real("correlation", correlation)
    if r.shape != (devices, devices) or np.abs(r).max(initial=0) > 1 + 1e-6:
        raise ValueError(
            f"correlation must be [{devices}, {devices}] with entries from -1 to 1; got {list(r.shape)}"
        )
    if np.shape(like) != (devices,):
        raise ValueError(f"snr and sigma2 must have shape [{devices}]; got {list(np.shape(like))}")
    alpha = np.ones(devices) if weights is None else real("weights", weights)
    if alpha.shape != (devices,):
        raise ValueError(f"weights must have shape [{devices}]; got {list(alpha.shape)}")
    return deviation, np.clip(r, -1, 1), alpha


def _energy(deviation: Array, r: Array) -> float:
    """`E[gsum**2]`; rounding may leave a sum that cancels a little below zero."""
    return max(0.0, float(deviation @ r @ deviation))
