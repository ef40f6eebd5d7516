"""The joint posterior as a study: its tables stand in docs/bfl.md."""

from __future__ import annotations

from signfade.experiments.studies.joint.ladder import JOINT_LADDER
from signfade.experiments.studies.joint.rotated import JOINT_ROTATED
from signfade.experiments.studies.joint.training import JOINT_TRAINING
from signfade.experiments.studies.study import Study

__all__ = ["JOINT"]

JOINT = Study(
    "joint", "The joint posterior", "joint", (JOINT_ROTATED, JOINT_LADDER, JOINT_TRAINING), host="bfl.md"
)
