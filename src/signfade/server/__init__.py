"""The base station: from faded, noisy bits to the posterior mean of the summed gradient, and the step."""

from signfade.server.blmmse import blmmse, blmmse_covariance
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
    "SBFLNetwork",
    "ServerState",
    "UpdateInfo",
    "blmmse",
    "blmmse_covariance",
    "detect",
    "high_snr",
    "ideal",
    "initial_state",
    "majority_vote",
    "momentum_update",
    "sbfl",
    "sign_downlink_update",
    "zero_forcing",
]
