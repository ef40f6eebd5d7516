"""The error of the sum over the devices, which is what the server passes on."""

from __future__ import annotations

from typing import Literal, get_args

from signfade._check import check_choice
from signfade.settings import Family, Form, Tie
from signfade.theory._numbers import Numbers, non_negative, per_device, real
from signfade.theory.errors import mse
from signfade.theory.rules import Rule
from signfade.theory.vote import vote_nmse

__all__ = ["nmse"]


def nmse(
    rule: Rule | Literal["majority_vote"],
    snr: Numbers,
    std: Numbers = 1.0,
    weights: Numbers | None = None,
    *,
    family: Family = "gaussian",
    form: Form = "corrected",
    scale: Numbers | None = None,
    mean_abs: Numbers | None = None,
    tie: Tie = "zero",
) -> float:
    """Normalised error of a rule's estimate of the weighted sum of independent, centred gradients.

    `sum_k alpha_k**2*MSE_k / sum_k alpha_k**2*Var_k`: the errors of independent devices have mean zero, so
    their squares add. For the majority vote, the error of the best-scaled vote (`vote_nmse`).

    Args:
        rule: A rule of `mse`, or `"majority_vote"`.
        snr: Instantaneous SNR `gamma = h**2/sigma2` of each device, `[K]`.
        std: Standard deviation of each device's coordinates, `[K]` or one for all.
        weights: `alpha_k`, `[K]`; ones if None.
        tie: As in `vote_probability`; the other rules have no ties.

    Other arguments as in `mse`, `[K]`.

    Returns:
        The error over the energy of the target. Guessing zero has 1; a rule can do worse.

    Example:
        >>> round(nmse("sbfl", [1.0, 1.0]), 3), round(nmse("majority_vote", [1.0, 1.0]), 3)
        (0.65, 0.703)

    Reference:
        Theorem 1, summed over devices as there; docs/errata.md.
    """
    check_choice("rule", rule, [*get_args(Rule), "majority_vote"])
    if rule == "majority_vote":
        return vote_nmse(snr, std, weights, family=family, mean_abs=mean_abs, tie=tie)
    gamma = non_negative("snr", snr, infinite=True)
    if gamma.ndim != 1 or len(gamma) == 0:
        raise ValueError(f"snr must have shape [K]; got {list(gamma.shape)}")
    deviation = per_device("std", non_negative("std", std), len(gamma))
    share = per_device("weights", real("weights", 1.0 if weights is None else weights), len(gamma)) ** 2
    energy = (share * deviation**2).sum()
    if energy == 0:
        raise ValueError("std and weights must not all be zero: the target has no energy")
    error = mse(rule, gamma, deviation, family=family, form=form, scale=scale, mean_abs=mean_abs)
    counted = share > 0  # a device without weight adds nothing, however large its error
    return float((share[counted] * error[counted]).sum() / energy)
