"""What the switches of the radio do to the links of a run, in sentences."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from signfade.settings import VOTES, RunSettings
from signfade.theory.outage import block_error_faded
from signfade.theory.pilots import PilotRule, pilot_mse

__all__ = ["switch_notes"]

_LEVELS = 9  # quantiles of the devices' mean SNRs that stand for all


def switch_notes(settings: RunSettings, mean_snr_db: NDArray[np.float64]) -> list[str]:
    """Return what the errors of known links leave out, a sentence for each switch that is thrown.

    Args:
        settings: The run's.
        mean_snr_db: Of its devices, `[K]`.

    Example:
        >>> from signfade.lab.config import load
        >>> switch_notes(load(None, ["cell.side_info=coded", "method.side_bits=4"]), np.array([10.0]))
        ['Scalars: 15 % of the codewords (128 bits, 4 bits a scalar) are lost.']
    """
    cell, method = settings.cell, settings.method
    snr = 10 ** (np.quantile(mean_snr_db, (np.arange(_LEVELS) + 0.5) / _LEVELS) / 10)
    notes = []
    if cell.csi == "pilot":
        rule: PilotRule = "blmmse" if method.aggregator == "blmmse" else "sbfl"
        found = pilot_mse(
            rule, snr, cell.pilots, use=cell.csi_error, fading=cell.fading, rician_k=cell.rician_k
        )
        many = "1 pilot" if cell.pilots == 1 else f"{cell.pilots} pilots"
        notes.append(f"Gains: with {many} ({cell.csi_error}) the error of {rule} is {np.mean(found):.3f}.")
    if cell.side_info == "coded" and method.aggregator not in (*VOTES, "ideal"):
        from signfade.uplink import PolarCode

        bits = 2 * (method.side_bits or 32)
        rated = PolarCode.of_rate(bits, cell.code_rate, cell.code_check)
        length = cell.code_length or rated.length
        lost = block_error_faded(snr, bits + cell.code_check, length, cell.fading, cell.rician_k)
        share = f"{100 * np.mean(lost):.0f} %"
        notes.append(
            f"Scalars: {share} of the codewords ({length} bits, {bits // 2} bits a scalar) are lost."
        )
    if cell.access == "over_the_air":
        notes.append("Over the air no device is heard alone: a run predicts its own errors, round by round.")
    return notes
