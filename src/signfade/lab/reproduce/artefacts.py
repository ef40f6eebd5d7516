"""All tables and figures by name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from signfade.lab.reproduce.artefact import Artefact
from signfade.lab.reproduce.calibrate import CALIBRATE
from signfade.lab.reproduce.claims import CLAIMS
from signfade.lab.reproduce.fig_accuracy import FIG_ACCURACY
from signfade.lab.reproduce.fig_convergence import FIG_CONVERGENCE
from signfade.lab.reproduce.fig_downlink import FIG_DOWNLINK
from signfade.lab.reproduce.fig_mse import FIG_MSE
from signfade.lab.reproduce.fig_priors import FIG_PRIORS
from signfade.lab.reproduce.fig_quantisation import FIG_QUANTISATION
from signfade.lab.reproduce.fig_regression import FIG_REGRESSION
from signfade.lab.reproduce.fig_setup import FIG_SETUP
from signfade.lab.reproduce.fig_snr import FIG_SNR
from signfade.lab.reproduce.table_accuracy import TABLE_ACCURACY
from signfade.lab.reproduce.table_devices import TABLE_DEVICES
from signfade.lab.reproduce.table_rounds import TABLE_ROUNDS

__all__ = ["ARTEFACTS", "choose"]

ARTEFACTS: dict[str, Artefact] = {
    artefact.name: artefact
    for artefact in (
        CLAIMS,
        FIG_SETUP,
        CALIBRATE,
        FIG_PRIORS,
        FIG_REGRESSION,
        TABLE_ROUNDS,
        TABLE_DEVICES,
        FIG_ACCURACY,
        FIG_QUANTISATION,
        TABLE_ACCURACY,
        FIG_DOWNLINK,
        FIG_SNR,
        FIG_MSE,
        FIG_CONVERGENCE,
    )
}


def choose(names: Sequence[str]) -> list[Artefact]:
    """Return the artefacts with these names in the order of the page; `all` is all of them.

    Raises:
        ValueError: there is no such name.

    Example:
        >>> [artefact.name for artefact in choose(["table-accuracy", "table-rounds"])]
        ['table-rounds', 'table-accuracy']
    """
    for name in names:
        if name not in ARTEFACTS and name != "all":
            near = difflib.get_close_matches(name, ARTEFACTS, n=1, cutoff=0.0)[0]
            raise ValueError(f"there is no table or figure {name!r}; the nearest name is {near!r}")
    return [artefact for name, artefact in ARTEFACTS.items() if name in names or "all" in names]
