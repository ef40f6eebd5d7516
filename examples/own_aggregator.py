"""A new aggregation rule in thirty lines, compared with the built-in ones.

    signfade compare examples/digits.toml --methods examples/own_aggregator.py:trusting,sbfl,signsgd

The rule trusts a device fully or not at all: it adds up the detected signs of the devices whose link is good,
weighted by their scales, and drops the others.
"""

import torch
from torch import Tensor

from signfade import server
from signfade.simulation import Received

GOOD_SNR = 1.0


def trusting(received: Received) -> Tensor:
    """Sum the signs of the devices received at 0 dB or better.

    Args:
        received: What the server has. `y` `[K, M]` are the signals; `h`, `sigma2`, `mean`, `scale` and
            `weights` `[K]` are what it knows of links and priors.

    Returns:
        An estimate of the weighted sum of the gradients, `[M]`.
    """
    good = received.link.snr >= GOOD_SNR
    weights = torch.where(good, received.weights, torch.zeros_like(received.weights))
    return server.high_snr(received.y, received.h, received.mean, received.scale, weights)
