"""signSGD: detect each device's bit, then let the majority decide."""

from __future__ import annotations

from torch import Tensor

from signfade.device.sign import sign
from signfade.server._sum import check_received, column

__all__ = ["detect", "majority_vote"]


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


def majority_vote(y: Tensor, h: Tensor) -> Tensor:
    """Majority vote over the detected signs: the aggregator of signSGD.

    `vote = sign(sum_k sign(y_k / h_k))`, a tie counts as +1.

    Args:
        y: Received signals, `[K, M]`.
        h: Channel gains, `[K]`. A gain of zero gives the device no vote.

    Returns:
        The vote, `[M]`, +1 or -1. It estimates the sign of the summed gradient, not its size.

    Example:
        >>> import torch
        >>> majority_vote(torch.tensor([[1.0, -1.0], [0.5, -0.2], [-0.1, 2.0]]), torch.ones(3))
        tensor([ 1., -1.])

    Reference:
        Section II.
    """
    return sign(detect(y, h).sum(dim=0))
