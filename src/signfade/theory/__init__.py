"""What the rules of `server` should achieve, from the mathematics alone: this package never imports `server`.

Arguments are floats, sequences, NumPy arrays or torch tensors; results are float64 NumPy arrays, or Python
floats where all arguments are single numbers. SNRs are ratios, not dB: `gamma = h**2/sigma2`, with sigma2 the
variance of the real noise per symbol and signs ±1.
"""

from __future__ import annotations

from signfade.settings import Fading, Family, Form, PilotUse, Schedule
from signfade.theory.bounds import (
    corrected_bound,
    feedback_limit,
    feedback_ratio,
    published_bound,
    step_sizes,
)
from signfade.theory.coding import bit_error_faded, block_error, block_error_faded, outage, threshold_snr
from signfade.theory.errors import Printed, mse, mse_faded, nmse, printed_mse, tie_probability, vote_nmse
from signfade.theory.joint import JointMoments, given_moments, joint_moments, vote_moments
from signfade.theory.limits import above_db, limit
from signfade.theory.mismatch import mismatched_moments
from signfade.theory.pilots import PilotRule, pilot_mse
from signfade.theory.rules import Rule, bit_error, gain, kappa_of, moments, rho

__all__ = [
    "Fading",
    "Family",
    "Form",
    "JointMoments",
    "PilotRule",
    "PilotUse",
    "Printed",
    "Rule",
    "Schedule",
    "above_db",
    "bit_error",
    "bit_error_faded",
    "block_error",
    "block_error_faded",
    "corrected_bound",
    "feedback_limit",
    "feedback_ratio",
    "gain",
    "given_moments",
    "joint_moments",
    "kappa_of",
    "limit",
    "mismatched_moments",
    "moments",
    "mse",
    "mse_faded",
    "nmse",
    "outage",
    "pilot_mse",
    "printed_mse",
    "published_bound",
    "rho",
    "step_sizes",
    "threshold_snr",
    "tie_probability",
    "vote_moments",
    "vote_nmse",
]
