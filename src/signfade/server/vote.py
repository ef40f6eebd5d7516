"""signSGD: detect each device's bit, then let the majority decide."""

from __future__ import annotations

from typing import get_args

import numpy as np
import torch
from torch import Tensor

from signfade._check import check_choice
from signfade.device.bits import sign
from signfade.kernels import standard_normal
from signfade.server._sum import check_received, column, fused
from signfade.server.aggregators import AGGREGATORS, Aggregator, Context, vote
from signfade.server.received import Estimate, Received
from signfade.settings import MethodSettings, Tie
from signfade.uplink import Signals, symbols

__all__ = ["break_ties", "detect", "majority_vote", "sign_sum"]


def detect(y: Tensor, h: Tensor) -> Tensor:
    """Maximum-likelihood detection of the sent bits, `sign(y / h)`.

    Args:
        y: Received signals, `[K, M]`.
        h: Channel gains, `[K]`.

    Returns:
        Detected signs, `[K, M]`: +1 or -1, and 0 for a device with `h = 0`, which has no say.

    Example:
        >>> import torch
        >>> detect(torch.tensor([[0.2, -0.1, 0.0]]), torch.tensor([-2.0]))
        tensor([[-1.,  1.,  1.]])

    Reference:
        Section II, the detector before the vote.
    """
    check_received(y, h)
    side = column(h, y).sign()  # y * sign(h) has the sign of y / h, without its overflow
    return sign(y * side) * side.abs()


def sign_sum(y: Tensor | Signals, h: Tensor, weights: Tensor | None = None) -> Tensor:
    """Sum of the detected signs, `sum_k alpha_k * sign(y_k / h_k)`: what a vote counts.

    Args:
        y: Received signals from `uplink.transmit`, or symbols `[K, M]`.
        h: Channel gains, `[K]`. A gain of zero gives the device no say.
        weights: `alpha_k`, `[K]`; ones if None.

    Returns:
        The sum, `[M]`.

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
    y: Tensor | Signals,
    h: Tensor,
    tie: Tie = "zero",
    key: int | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """Majority vote over the detected signs: the aggregator of signSGD.

    `vote = sign(sum_k sign(y_k / h_k))`, and `break_ties` says what becomes of a sum of zero.

    Args:
        y: Received signals from `uplink.transmit`, or symbols `[K, M]`.
        h: Channel gains, `[K]`. A gain of zero gives the device no vote.
        tie: As in `break_ties`.
        key: As in `break_ties`.
        weights: Of the votes, `[K]`; ones if None.

    Returns:
        The vote, `[M]`: +1, -1, or 0 for a tie under "zero". It estimates the sign of the summed gradient,
        not its size. Where no device has a vote it is 0 everywhere, whatever `tie` says: no signal, no step.

    Example:
        >>> y = torch.tensor([[1.0, -1.0, 0.3], [0.5, -0.2, -0.1]])
        >>> majority_vote(y, torch.ones(2)), majority_vote(y, torch.ones(2), tie="plus")
        (tensor([ 1., -1.,  0.]), tensor([ 1., -1.,  1.]))
        >>> majority_vote(y, torch.zeros(2), tie="plus")
        tensor([0., 0., 0.])

    Reference:
        Section II. Ties: docs/model.md.
    """
    check_choice("tie", tie, get_args(Tie))
    tally = sign_sum(y, h, weights)
    voters = h if weights is None else h * weights.to(h)
    return break_ties(tally, tie, key) if bool(voters.any()) else tally


def break_ties(tally: Tensor, tie: Tie = "zero", key: int | None = None) -> Tensor:
    """Turn the sums of detected signs into votes.

    `vote = sign(tally)`; where the tally is 0, it is 0 ("zero"), +1 ("plus"), or +1 or -1 with equal chances
    ("random").

    Args:
        tally: Sums of the detected signs, `[M]`.
        tie: "zero" makes no step, and is symmetric: negated tallies give negated votes. "random" is symmetric
            in distribution, for a downlink that has only one bit. "plus" is what one bit does by itself.
        key: Of the coins, for "random". Coordinate m always gets coin m of the stream, so that votes do not
            depend on where and in which order they are taken.

    Returns:
        The votes, `[M]`.

    Raises:
        ValueError: An unknown `tie`, or "random" without a key.

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


def _vote(received: Received, method: MethodSettings) -> Tensor:
    return majority_vote(
        received.signals, received.device_link.h, method.tie, received.tie_key, received.trust
    )


def _sum(received: Received, context: Context) -> Estimate:
    return Estimate(sign_sum(received.signals, received.device_link.h, received.trust))


AGGREGATORS.add(
    "signsgd",
    Aggregator(
        help="majority vote over the detected signs (signSGD, Section II); devices send no scalars",
        estimate=vote(_vote),
        sends="signs",
        scaled=False,
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
    ),
)
