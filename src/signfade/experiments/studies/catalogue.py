"""All studies by name, and the tables and figures in them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from signfade.experiments.studies.attacks import ATTACKS
from signfade.experiments.studies.devices import DEVICES
from signfade.experiments.studies.joint.ladder import JOINT_LADDER
from signfade.experiments.studies.joint.rotated import JOINT_ROTATED
from signfade.experiments.studies.joint.training import JOINT_TRAINING
from signfade.experiments.studies.paper.study import PAPER
from signfade.experiments.studies.radio import RADIO
from signfade.experiments.studies.study import Part, Study

__all__ = ["STUDIES", "choose", "parts_by_name"]

_JOINT_PARTS = (JOINT_ROTATED, JOINT_LADDER, JOINT_TRAINING)
JOINT = Study("joint", "The joint posterior", "joint", _JOINT_PARTS, host="bfl.md")
STUDIES: tuple[Study, ...] = (PAPER, JOINT, RADIO, DEVICES, ATTACKS)


def parts_by_name() -> dict[str, Part]:
    """Return the tables and figures of all studies."""
    return {part.name: part for study in STUDIES for part in study.parts}


def choose(names: Sequence[str]) -> list[Part]:
    """Return the parts with these names in the order of the pages.

    Args:
        names: of studies, which stand for all of their parts, or of single parts; `all` is everything.

    Raises:
        ValueError: there is no such name.

    Example:
        >>> [part.name for part in choose(["table-accuracy", "table-rounds"])]
        ['table-rounds', 'table-accuracy']
        >>> len(choose(["paper"])) == len(PAPER.parts)
        True
    """
    parts = parts_by_name()
    known = ["all", *(study.name for study in STUDIES), *parts]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise ValueError(f"there is no study, table or figure {name!r}; the nearest name is {near!r}")
    whole = {part.name for study in STUDIES if study.name in names for part in study.parts}
    return [part for name, part in parts.items() if name in names or name in whole or "all" in names]
