"""signSGD: detect each device's bit, then let the majority decide."""

from __future__ import annotations

from typing import get_args

import numpy as np
import torch
from torch import Tensor

from signfade._check import check_choice
from signfade.device.bits import sign
from signfade.kernels import standard_normal
from signfade.server._sum import detect, fused
from signfade.server.aggregators import AGGREGATORS, Aggregator
from signfade.server.predict import vote
from signfade.server.received import Context, Estimate, Received
from signfade.settings import MethodSettings, Tie
from signfade.uplink import Signals, symbols

__all__ = ["break_ties", "detect", "majority_vote", "sign_sum"]


def sign_sum(y: Tensor | Signals, h: Tensor, weights: Tensor | None = None) -> Tensor:
    """Sum of the detected signs, `sum_k alpha_k * sign(y_k / h_k)`, `[M]`: what a vote counts.

    Arguments as in `majority_vote`.

    Example:
        >>> sign_sum(torch.tensor([[1.0, -1.0, 0.3], [0.5, -0.2, -0.1]]), torch.ones(2))
        tensor([ 2., -2.,  0.])
    """
    total = fused("vote", y, h, None, weights=weights)
    if total is not None:
        return total
    signs = detect(symbols(y), h)
    return signs.sum(dim=0) if weights is None else torch.mv(signs.T, weights.to(signs))


def majority_vote(
    y: Tensor | Signals, h: Tensor, tie: Tie = "zero", key: int | None = None, weights: Tensor | None = None
) -> Tensor:
    """Majority vote over the detected signs: the aggregator of signSGD.

    `vote = sign(sum_k sign(y_k / h_k))`, and `break_ties` says what becomes of a sum of zero.

    `y`, `h` and `weights` as in `sbfl`; a gain of zero gives the device no vote. The vote, `[M]`, is +1, -1,
    or 0 for a tie under "zero": it estimates the sign of the summed gradient, not its size. Where no device
    has a vote it is 0 everywhere, whatever `tie` says: no signal, no step.

    Example:
        >>> y = torch.tensor([[1.0, -1.0, 0.3], [0.5, -0.2, -0.1]])
        >>> majority_vote(y, torch.ones(2)), majority_vote(y, torch.ones(2), tie="plus")
        (tensor([ 1., -1.,  0.]), tensor([ 1., -1.,  1.]))

    Reference: Section II. Ties: docs/model.md.
    """
    check_choice("tie", tie, get_args(Tie))
    tally = sign_sum(y, h, weights)
    voters = h if weights is None else h * weights.to(h)
    return break_ties(tally, tie, key) if bool(voters.any()) else tally


def break_ties(tally: Tensor, tie: Tie = "zero", key: int | None = None) -> Tensor:
    """Turn the sums of detected signs into votes.

    `vote = sign(tally)`; where the tally is 0, it is 0 ("zero"), +1 ("plus"), or +1 or -1 with equal chances
    ("random").

    "zero" makes no step, and is symmetric: negated tallies `[M]` give negated votes. "random" is symmetric in
    distribution, for a downlink that has only one bit. "plus" is what one bit does by itself. The `key` is
    that of the coins; coordinate m always gets coin m of the stream, wherever votes are taken.

    Example:
        >>> break_ties(torch.tensor([3.0, 0.0, 0.0, -1.0]), tie="random", key=7)
        tensor([ 1., -1.,  1., -1.])
    """
    check_choice("tie", tie, get_args(Tie))
    if tie == "zero":
        return tally.sign()
    if tie == "plus":
        return sign(tally)
    if key is None:
        raise ValueError('key must be given with tie "random"')
    coins = torch.from_numpy(standard_normal(np.array([key], dtype=np.uint64), len(tally))[0])
    return torch.where(tally == 0, sign(coins).to(tally), tally.sign())


def _vote(r: Received, method: MethodSettings) -> Tensor:
    return majority_vote(r.signals, r.device_link.h, method.tie, r.tie_key, r.trust)


def _sum(r: Received, context: Context) -> Estimate:
    return Estimate(sign_sum(r.signals, r.device_link.h, r.trust))


AGGREGATORS.add(
    "signsgd",
    Aggregator(
        help="majority vote over the detected signs (signSGD, Section II); devices send no scalars",
        estimate=vote(_vote),
        sends="signs",
        scaled=False,
        learning_rate=0.01,
        breaks_ties=True,
        over_the_air="sign",
    ),
)
AGGREGATORS.add(
    "signsum",
    Aggregator(
        help="signsgd whose server adds the detected signs up and takes no majority",
        estimate=_sum,
        sends="signs",
        scaled=False,
        learning_rate=0.003,  # of a sum over devices
    ),
)
