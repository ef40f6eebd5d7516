"""The base station: from faded, noisy bits to the posterior mean of the summed gradient, and the step."""

from __future__ import annotations

import importlib
import pkgutil

from signfade.server._sum import detect
from signfade.server.aggregators import AGGREGATORS, Aggregator
from signfade.server.core import Server, ServerMemory, Stage
from signfade.server.independent import (
    SBFLNetwork,
    blmmse,
    blmmse_covariance,
    high_snr,
    ideal,
    sbfl,
    zero_forcing,
)
from signfade.server.joint import (
    CorrelationState,
    LowRank,
    bfl,
    device_bfl,
    factor_bfl,
    fit_factor,
    fit_joint_blmmse,
    fit_joint_sbfl,
    gibbs_bfl,
    initial_correlation,
    joint_blmmse,
    joint_sbfl,
    learn_correlation,
    learn_low_rank,
    private_part,
    smooth_correlation,
)
from signfade.server.joint_inputs import flipped_link, flipped_llr
from signfade.server.received import Context, Devices, Estimate, Received, Truth
from signfade.server.reliability import ReliabilityState, gather_evidence, initial_reliability, update_trust
from signfade.server.robust import ScalarState, accepted_scale, bound_scalars, initial_scalars
from signfade.server.robust_rules import coordinate_median, krum, trimmed_mean
from signfade.server.superposition import over_the_air, superposed_vote
from signfade.server.tasks import Broadcast
from signfade.server.update import (
    ServerState,
    UpdateInfo,
    initial_state,
    momentum_update,
    sign_downlink_update,
)
from signfade.server.vote import break_ties, majority_vote, sign_sum

# A rule registers itself where it is defined: a new file in this folder is all it takes.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "Broadcast",
    "Context",
    "CorrelationState",
    "Devices",
    "Estimate",
    "LowRank",
    "Received",
    "ReliabilityState",
    "SBFLNetwork",
    "ScalarState",
    "Server",
    "ServerMemory",
    "ServerState",
    "Stage",
    "Truth",
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
    "fit_joint_blmmse",
    "fit_joint_sbfl",
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
    "joint_sbfl",
    "krum",
    "learn_correlation",
    "learn_low_rank",
    "majority_vote",
    "momentum_update",
    "over_the_air",
    "private_part",
    "sbfl",
    "sign_downlink_update",
    "sign_sum",
    "smooth_correlation",
    "superposed_vote",
    "trimmed_mean",
    "update_trust",
    "zero_forcing",
]
