"""All studies by name, and the tables and figures in them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from signfade.experiments.studies.attacks import ATTACKS
from signfade.experiments.studies.devices import DEVICES
from signfade.experiments.studies.dial import DIAL
from signfade.experiments.studies.joint_errors import JOINT_LADDER, JOINT_ROTATED
from signfade.experiments.studies.joint_training import JOINT_TRAINING
from signfade.experiments.studies.many_tasks import MANY_TASKS
from signfade.experiments.studies.paper.calibration import CALIBRATE, DECIDE, opening, tables_opening
from signfade.experiments.studies.paper.claims import CLAIMS
from signfade.experiments.studies.paper.curves import FIG_ACCURACY, FIG_DOWNLINK, FIG_SNR
from signfade.experiments.studies.paper.errors import FIG_MSE
from signfade.experiments.studies.paper.gradients import FIG_PRIORS, FIG_SETUP
from signfade.experiments.studies.paper.nearest import TABLE_NEAREST, TABLE_READINGS
from signfade.experiments.studies.paper.quantisation import FIG_QUANTISATION
from signfade.experiments.studies.paper.regression import FIG_CONVERGENCE, FIG_REGRESSION
from signfade.experiments.studies.paper.tables import TABLE_ACCURACY, TABLE_ROUNDS
from signfade.experiments.studies.radio import RADIO
from signfade.experiments.studies.study import Part, Study
from signfade.experiments.studies.tasks import TASKS

__all__ = ["JOINT", "PAPER", "STUDIES", "TABLES", "choose", "parts_by_name"]

_PAPER = (CLAIMS, FIG_ACCURACY, FIG_DOWNLINK, CALIBRATE, DECIDE, FIG_QUANTISATION, FIG_SNR, FIG_REGRESSION)
_MORE = (FIG_CONVERGENCE, FIG_MSE, FIG_PRIORS, FIG_SETUP)
_TABLES = (TABLE_NEAREST, TABLE_ACCURACY, TABLE_ROUNDS, TABLE_READINGS)
_JOINT = (JOINT_ROTATED, JOINT_LADDER, JOINT_TRAINING)
PAPER = Study("paper", "The paper's experiments, ours beside the paper's", "results", _PAPER + _MORE, opening)
TABLES = Study(
    "paper", "Tables I and II, cell by cell", "tables", _TABLES, tables_opening
)  # a page of its own
JOINT = Study("joint", "The joint posterior", "joint", _JOINT, host="bfl.md")
STUDIES: tuple[Study, ...] = (PAPER, TABLES, JOINT, RADIO, DEVICES, ATTACKS, DIAL, TASKS, MANY_TASKS)


def parts_by_name() -> dict[str, Part]:
    """Return the tables and figures of all studies."""
    return {part.name: part for study in STUDIES for part in study.parts}


def choose(names: Sequence[str]) -> list[Part]:
    """Return the parts with these names, or of the studies with these names, in the order of the pages.

    `all` is everything.

    >>> [part.name for part in choose(["table-rounds", "table-accuracy"])]
    ['table-accuracy', 'table-rounds']
    """
    parts = parts_by_name()
    known = ["all", *(study.name for study in STUDIES), *parts]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise ValueError(f"there is no study, table or figure {name!r}; the nearest name is {near!r}")
    whole = {part.name for study in STUDIES if study.name in names for part in study.parts}
    return [part for name, part in parts.items() if name in names or name in whole or "all" in names]
