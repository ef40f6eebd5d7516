"""The base station: from faded, noisy bits to the posterior mean of the summed gradient, and the step."""

from signfade.server.bfl import (
    CorrelationState,
    LowRank,
    bfl,
    device_bfl,
    factor_bfl,
    fit_factor,
    gibbs_bfl,
    initial_correlation,
    joint_blmmse,
    joint_gain,
    joint_sbfl,
    joint_sbfl_gain,
    joint_sbfl_weights,
    joint_weights,
    learn_correlation,
    learn_low_rank,
    private_part,
    smooth_correlation,
)
from signfade.server.blmmse import blmmse, blmmse_covariance
from signfade.server.flipped import flipped_link, flipped_llr
from signfade.server.over_the_air import over_the_air, superposed_vote
from signfade.server.reliability import (
    ReliabilityState,
    gather_evidence,
    initial_reliability,
    judge,
)
from signfade.server.robust import ScalarState, accepted_scale, bound_scalars, initial_scalars
from signfade.server.robust_rules import coordinate_median, krum, trimmed_mean
from signfade.server.sbfl import SBFLNetwork, high_snr, ideal, sbfl, zero_forcing
from signfade.server.update import (
    ServerState,
    UpdateInfo,
    initial_state,
    momentum_update,
    sign_downlink_update,
)
from signfade.server.vote import break_ties, detect, majority_vote

__all__ = [
    "CorrelationState",
    "LowRank",
    "ReliabilityState",
    "SBFLNetwork",
    "ScalarState",
    "ServerState",
    "UpdateInfo",
    "accepted_scale",
    "bfl",
    "blmmse",
    "blmmse_covariance",
    "bound_scalars",
    "break_ties",
    "coordinate_median",
    "detect",
    "device_bfl",
    "factor_bfl",
    "fit_factor",
    "flipped_link",
    "flipped_llr",
    "gather_evidence",
    "gibbs_bfl",
    "high_snr",
    "ideal",
    "initial_correlation",
    "initial_reliability",
    "initial_scalars",
    "initial_state",
    "joint_blmmse",
    "joint_gain",
    "joint_sbfl",
    "joint_sbfl_gain",
    "joint_sbfl_weights",
    "joint_weights",
    "judge",
    "krum",
    "learn_correlation",
    "learn_low_rank",
    "majority_vote",
    "momentum_update",
    "over_the_air",
    "private_part",
    "sbfl",
    "sign_downlink_update",
    "smooth_correlation",
    "superposed_vote",
    "trimmed_mean",
    "zero_forcing",
]
