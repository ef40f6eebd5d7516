"""Variants of one training run side by side: the tables and figures of studies that flip switches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from signfade.experiments.studies.drawing import curve_of
from signfade.experiments.studies.records import Record, Records
from signfade.experiments.studies.study import Results, Scale, Tier, Want
from signfade.lab.config import resolve
from signfade.lab.style import INK, line_style
from signfade.settings import RunSettings

__all__ = ["Variants", "draw_accuracy", "rounds_needed", "rounds_text"]


@dataclass(frozen=True)
class Variants:
    """Changes to one base configuration, by name.

    Attributes:
        base: dotted settings that all share, `rounds` among them.
        changes: dotted settings of each variant.
        times: as many seeds as usual.
    """

    base: Mapping[str, Any]
    changes: Mapping[str, Mapping[str, Any]]
    times: int = 1

    def runs(self, scale: Scale, name: str) -> list[RunSettings]:
        """Return the runs of a variant, one per seed."""
        tree = {"label": name, **self.base, **self.changes[name]}
        tree["rounds"] = min(tree["rounds"], scale.rounds)
        return [resolve(tree | {"seed": seed}) for seed in range(self.times * scale.figure_seeds)]

    def wants(self, names: Sequence[str]) -> Callable[[Scale, Records], list[Want]]:
        """Return the `wants` of a part that shows these variants."""
        return lambda scale, records: [
            Want(run, Tier.EXTRA, ours=True) for name in names for run in self.runs(scale, name)
        ]

    def found(self, results: Results, names: Sequence[str]) -> dict[str, list[Record]]:
        """Return the records of each variant that has any, diverged runs included."""
        found = {name: results.records.find_all(self.runs(results.scale, name)) for name in names}
        return {name: records for name, records in found.items() if records}


def rounds_needed(records: Sequence[Record]) -> list[float | None]:
    """Return the rounds to an accuracy of 0.9, one per seed, None for never."""
    return [record.value("rounds_to_accuracy_09") for record in records]


def rounds_text(records: Sequence[Record]) -> str:
    """Return the rounds to 0.9 of all seeds."""
    return ", ".join("never" if n is None else f"{n:.0f}" for n in rounds_needed(records))


def draw_accuracy(left: Axes, right: Axes, found: Mapping[str, Sequence[Record]]) -> None:
    """Draw accuracy over the rounds, mean over seeds, and beside it the rounds to 0.9, one dot per seed."""
    if not found:
        return
    for index, (name, records) in enumerate(found.items()):
        style, curve = line_style(index), curve_of([r for r in records if r.diverged is None], "accuracy")
        if curve is not None:
            left.plot(curve[0], curve[1], color=style.color, dashes=style.dashes, label=name)
        reached = [n for n in rounds_needed(records) if n is not None]
        right.plot(reached, [index] * len(reached), style.marker, color=style.color, alpha=0.8)
        if missing := len(records) - len(reached):
            side: Any = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "center", "fontsize": 8}
            right.annotate(f"{missing} never", (1, index), **side)
    left.axhline(0.9, color=INK, linewidth=0.8, linestyle=":")
    left.set(title="Test accuracy, mean over seeds", xlabel="round", ylim=(0, 1))
    longest = max(record.rounds for records in found.values() for record in records)
    right.set(title="Rounds to 0.9, each seed", xlabel="round", xlim=(0, 1.25 * longest))
    right.set_yticks(range(len(found)), list(found))
    right.set_ylim(len(found) - 0.5, -0.5)
