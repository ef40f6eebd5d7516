"""Variants of one training run side by side: the tables and figures of studies that flip switches."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from matplotlib.axes import Axes

from signfade.experiments.config import resolve
from signfade.experiments.studies.drawing import curve_of
from signfade.experiments.studies.records import Record, Records
from signfade.experiments.studies.study import Results, Scale, Tier, Want
from signfade.experiments.style import INK, line_style
from signfade.settings import RunSettings

__all__ = ["Variants", "draw_accuracy", "rounds_needed", "rounds_text"]


@dataclass(frozen=True)
class Variants:
    """Changes to one base configuration, by name, and which of them are compared.

    Attributes:
        base: dotted settings that all share, `rounds` among them.
        changes: dotted settings of each variant.
        switches: by name a table of `title` and `variants`; with `times` it has that many times the seeds.
    """

    base: Mapping[str, Any]
    changes: Mapping[str, Mapping[str, Any]]
    switches: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, file: str) -> Variants:
        """Read the tables base, variants and switches of a TOML file of this package."""
        text = files("signfade.experiments.studies").joinpath(file).read_text(encoding="utf-8")
        tree = tomllib.loads(text)
        return cls(tree["base"], tree["variants"], tree["switches"])

    def runs(self, scale: Scale, switch: str, name: str) -> list[RunSettings]:
        """Return the runs of a variant, one per seed."""
        tree = {"label": name, **self.base, **self.changes[name]}
        tree["rounds"] = min(tree["rounds"], scale.rounds)
        seeds = range(self.switches[switch].get("times", 1) * scale.figure_seeds)
        return [resolve(tree | {"seed": seed}) for seed in seeds]

    def wants(self, switch: str) -> Callable[[Scale, Records], list[Want]]:
        """Return the `wants` of the part that shows a switch."""
        return lambda scale, records: [
            Want(run, Tier.EXTRA, ours=True)
            for name in self.switches[switch]["variants"]
            for run in self.runs(scale, switch, name)
        ]

    def found(self, results: Results, switch: str) -> dict[str, list[Record]]:
        """Return the records of each variant of a switch that has any, diverged runs included."""
        found = {
            name: results.records.find_all(self.runs(results.scale, switch, name))
            for name in self.switches[switch]["variants"]
        }
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
