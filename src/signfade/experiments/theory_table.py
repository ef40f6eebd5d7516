"""What `signfade theory` prints: errors at given SNRs, the limit, and how far the errors are above it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from signfade.experiments.data_table import DataTable, TableSet
from signfade.experiments.distance import INDEPENDENT
from signfade.experiments.figures import mse_curves
from signfade.experiments.link_study import theory_errors
from signfade.settings import Fading, Family
from signfade.theory.dial import dial_nmse, dial_uses, equal_correlation
from signfade.theory.limits import above_db, limit
from signfade.theory.rules import fading_nodes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Dial", "Prediction", "dial_curves", "predict"]

Array = NDArray[np.float64]


class Dial(NamedTuple):
    """Settings of the rate dial for K devices that are all correlated alike; `private` None is both kinds."""

    bits_per_weight: tuple[float | str, ...]
    devices: int = 20
    correlation: float = 0.0
    private: bool | None = None
    papr_db: float | None = 8.0

    @property
    def title(self) -> str:
        """What its errors are."""
        if self.devices == 1:
            return "Predicted squared error of one device, over its energy"
        return (
            f"Predicted squared error of the sum of {self.devices} devices correlated by "
            f"{self.correlation:g}, over its energy"
        )

    def errors(self, snr_db: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the errors at SNRs `[S]` by label, and the limits of the same labels."""
        snr = np.repeat(10 ** (snr_db / 10)[:, None], self.devices, axis=1)
        equal_correlation(self.devices, self.correlation)  # or a sentence that names the range
        errors, limits = {}, {}
        for rate in self.bits_per_weight:
            least = limit(snr, max(0.0, self.correlation), dial_uses(rate))
            for private in (False, True) if self.private is None else (self.private,):
                label = f"{self._name(rate)}, {'private' if private else 'shared'}"
                errors[label] = dial_nmse(snr, rate, self.correlation, private=private, papr_db=self.papr_db)
                limits[label] = least
        return errors, limits

    def _name(self, rate: float | str) -> str:
        if isinstance(rate, str):
            return f"analog, {self.papr_db:g} dB" if self.papr_db is not None else "analog, no peak"
        return f"{rate:g} bit{'s' * (rate > 1)}"


class Prediction(NamedTuple):
    """Errors and limits by label, and the errors in dB above their limits, each `[S]`."""

    rows: dict[str, Array]
    above: dict[str, Array]

    def tables(self, snr_db: Array, **facts: Any) -> TableSet:
        """Return one row per rule and SNR for programs; `facts` are what the errors depend on besides."""
        nothing = np.full(len(snr_db), np.nan)
        rows = [
            {"rule": label, "snr_db": snr, "nmse": error, "above_limit_db": above}
            for label, errors in self.rows.items()
            for snr, error, above in zip(snr_db, errors, self.above.get(label, nothing))
        ]
        return TableSet("signfade.theory/1", {"errors": DataTable("", {}, rows)}, facts)


def predict(snr_db: Array, dial: Dial | None, *, family: Family, fading: Fading) -> Prediction:
    """Return what `signfade theory` prints: of the rules for one device, or of the rate dial.

    The limit of one device is averaged over fading as its errors are; it is that of Gaussian coordinates.
    """
    if dial is not None:
        errors, limits = dial.errors(snr_db)
        what = f", {INDEPENDENT}" if dial.correlation < 0 else ""
        uses = dict.fromkeys(map(dial_uses, dial.bits_per_weight))
        named = {f"limit, {use:g} use{'s' * (use > 1)}{what}": use for use in uses}
        snr = np.repeat(10 ** (snr_db / 10)[:, None], dial.devices, axis=1)
        least = {label: limit(snr, max(0.0, dial.correlation), use) for label, use in named.items()}
        return Prediction(errors | least, {label: above_db(errors[label], limits[label]) for label in errors})
    errors = theory_errors(snr_db, family=family, fading=fading)
    if family != "gaussian":
        return Prediction(errors, {})
    power, weight = fading_nodes(fading)
    bound = limit(10 ** (snr_db / 10)[:, None, None] * power[:, None]) @ weight
    above = {label: above_db(error, bound) for label, error in errors.items() if error.any()}
    return Prediction(errors | {"limit": bound}, above)


def dial_curves(snr_db: Array, dial: Dial) -> Figure:
    """Return the curves of the dial and its limits against the SNR."""
    rows = predict(snr_db, dial, family="gaussian", fading="none").rows
    return mse_curves(snr_db, rows, across="SNR (dB)")
