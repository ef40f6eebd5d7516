"""Which runs are wanted, by whom, and in which order they are played.

Every artefact says which runs it needs. Runs are shared: a run wanted twice is played once, and the longest
that is wanted answers for the shorter ones. The order is by value: all cells of one seed before the next
seed, the paper's columns before ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from signfade.lab.reproduce.records import Records, family_of, run_name
from signfade.lab.reproduce.setups import METHODS
from signfade.lab.train import PlannedRun
from signfade.settings import RunSettings

__all__ = ["Tier", "Want", "estimate_seconds", "plan", "wanted"]


class Tier(IntEnum):
    """What comes first."""

    CALIBRATION = 0
    GRID = 1
    FIGURE = 2
    BEST = 3
    EXTRA = 4


@dataclass(frozen=True)
class Want:
    """A run that is needed, and how urgently: lower tiers first, then lower seeds, the paper's first."""

    settings: RunSettings
    tier: Tier = Tier.GRID
    ours: bool = False
    order: int = 0

    @property
    def rank(self) -> tuple[int, int, bool, int]:
        """Key to sort by."""
        return (self.tier, self.settings.seed, self.ours, self.order)


def wanted(wants: Iterable[Want]) -> list[RunSettings]:
    """Return the runs that satisfy all wants, each once, in the order of their value."""
    runs: dict[tuple[str, int], RunSettings] = {}
    for want in sorted(wants, key=lambda want: want.rank):
        key = (family_of(want.settings), want.settings.seed)
        there = runs.get(key)
        if there is None or there.rounds < want.settings.rounds:
            runs[key] = want.settings  # a dict keeps the place of its first want
    return list(runs.values())


def plan(wants: Iterable[Want], records: Records, folder: Path) -> list[PlannedRun]:
    """Return the runs still to be played, in order, each with its folder.

    Args:
        wants: what is needed.
        records: what is there already.
        folder: where run folders are made.
    """
    return [
        PlannedRun(settings, folder / run_name(settings))
        for settings in wanted(wants)
        if records.find(settings) is None
    ]


# Seconds a round of 20 devices on one core, until runs of the kind have been timed here.
_DEVICES = 20
_SECONDS = {"mnist": 0.4, "digits": 0.03, "regression": 0.004}
_FACTOR = {METHODS["best"].label: 1.2}


def estimate_seconds(runs: Iterable[RunSettings], records: Records) -> float:
    """Return about how long the runs take on one core, from the times of finished ones of the same kind."""
    timed: dict[str, list[float]] = {}
    for record in records:
        seconds = record.value("seconds")
        if seconds and record.diverged is None:
            timed.setdefault(record.name.split("-")[0], []).append(seconds / record.rounds)
    total = 0.0
    for settings in runs:
        known = timed.get(settings.data.name)
        each = sorted(known)[len(known) // 2] if known else _SECONDS.get(settings.data.name, 0.1)
        factor = _FACTOR.get(settings.label or "", 1.0) * settings.data.devices / _DEVICES
        total += settings.rounds * each * factor
    return total
