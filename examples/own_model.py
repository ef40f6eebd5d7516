"""Train a network of your own: a factory that signfade finds by its path.

    signfade run examples/digits.toml --set model.name=examples/own_model.py:tiny --out runs/tiny

Parameters may have any shapes. Buffers (here the running statistics of batch normalisation) are averaged over
the devices at full precision, and counted in the uplink bits.
"""

import math

from torch import nn


def tiny(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A hidden layer with batch normalisation, for samples of the given shape."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, classes),
    )
