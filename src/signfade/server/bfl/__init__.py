"""Joint posterior of all devices' gradients (Section III of the paper), from exact to linear."""

from signfade.server.bfl.correlation import (
    CorrelationState,
    initial_correlation,
    learn_correlation,
    learn_low_rank,
    smooth_correlation,
)
from signfade.server.bfl.linear import joint_blmmse, joint_gain, joint_weights
from signfade.server.bfl.lowrank import LowRank

__all__ = [
    "CorrelationState",
    "LowRank",
    "initial_correlation",
    "joint_blmmse",
    "joint_gain",
    "joint_weights",
    "learn_correlation",
    "learn_low_rank",
    "smooth_correlation",
]
