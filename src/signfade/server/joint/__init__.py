"""Joint posterior of all devices' gradients (Section III of the paper), from exact to linear."""

from signfade.server.joint.approximate import EPInfo, ep_means, gibbs_means
from signfade.server.joint.correlation import (
    CorrelationState,
    initial_correlation,
    learn_correlation,
    learn_low_rank,
    smooth_correlation,
)
from signfade.server.joint.exact import exact_means
from signfade.server.joint.factor import factor_bfl, factor_nodes, fit_factor, private_part
from signfade.server.joint.lowrank import LowRank
from signfade.server.joint.posterior import bfl, device_bfl, gibbs_bfl
from signfade.server.joint.weighted import fit_joint_blmmse, fit_joint_sbfl, joint_blmmse, joint_sbfl

__all__ = [
    "CorrelationState",
    "EPInfo",
    "LowRank",
    "bfl",
    "device_bfl",
    "ep_means",
    "exact_means",
    "factor_bfl",
    "factor_nodes",
    "fit_factor",
    "fit_joint_blmmse",
    "fit_joint_sbfl",
    "gibbs_bfl",
    "gibbs_means",
    "initial_correlation",
    "joint_blmmse",
    "joint_sbfl",
    "learn_correlation",
    "learn_low_rank",
    "private_part",
    "smooth_correlation",
]
