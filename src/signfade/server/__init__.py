"""The base station: from faded, noisy bits to the posterior mean of the summed gradient, and the step."""

from signfade.server.bfl import (
    LowRank,
    bfl,
    device_bfl,
    factor_bfl,
    fit_factor,
    joint_blmmse,
    joint_gain,
    joint_sbfl,
    joint_sbfl_gain,
    joint_sbfl_weights,
    joint_weights,
    learn_correlation,
    learn_low_rank,
    private_part,
)
from signfade.server.blmmse import blmmse, blmmse_covariance
from signfade.server.over_the_air import over_the_air, superposed_vote
from signfade.server.sbfl import SBFLNetwork, high_snr, ideal, sbfl, zero_forcing
from signfade.server.update import (
    ServerState,
    UpdateInfo,
    initial_state,
    momentum_update,
    sign_downlink_update,
)
from signfade.server.vote import detect, majority_vote

__all__ = [
    "LowRank",
    "SBFLNetwork",
    "ServerState",
    "UpdateInfo",
    "bfl",
    "blmmse",
    "blmmse_covariance",
    "detect",
    "device_bfl",
    "factor_bfl",
    "fit_factor",
    "high_snr",
    "ideal",
    "initial_state",
    "joint_blmmse",
    "joint_gain",
    "joint_sbfl",
    "joint_sbfl_gain",
    "joint_sbfl_weights",
    "joint_weights",
    "learn_correlation",
    "learn_low_rank",
    "majority_vote",
    "momentum_update",
    "over_the_air",
    "private_part",
    "sbfl",
    "sign_downlink_update",
    "superposed_vote",
    "zero_forcing",
]
