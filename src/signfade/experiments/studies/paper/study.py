"""The reproduction of the paper as a study: its page is docs/results.md."""

from __future__ import annotations

from signfade.experiments.studies.paper.calibrate import CALIBRATE
from signfade.experiments.studies.paper.claims import CLAIMS
from signfade.experiments.studies.paper.curves import FIG_ACCURACY, FIG_DOWNLINK, FIG_QUANTISATION, FIG_SNR
from signfade.experiments.studies.paper.errors import FIG_MSE
from signfade.experiments.studies.paper.gradients import FIG_PRIORS, FIG_SETUP
from signfade.experiments.studies.paper.printed import FACTOR, LARGEST_FACTOR, MOST_POINTS, POINTS, words_of
from signfade.experiments.studies.paper.regression import FIG_CONVERGENCE, FIG_REGRESSION
from signfade.experiments.studies.paper.tables import TABLE_ACCURACY, TABLE_DEVICES, TABLE_ROUNDS
from signfade.experiments.studies.study import Scale, Study

__all__ = ["PAPER"]


def _opening(scale: Scale) -> list[str]:
    rule = words_of(
        "opening",
        "rule",
        points=100 * POINTS,
        most_points=100 * MOST_POINTS,
        factor=FACTOR,
        largest_factor=LARGEST_FACTOR,
    )
    choices = words_of("opening", "choices", scale, mhz=scale.bandwidth_hz / 1e6)
    return [words_of("opening", "about"), choices, words_of("opening", "terms"), rule]


PAPER = Study(
    "paper",
    "The paper's experiments, ours beside the paper's",
    "results",
    (
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
    ),
    _opening,
)
