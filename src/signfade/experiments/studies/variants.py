"""Variants of one training run side by side: the tables and figures of studies that flip switches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from signfade.experiments.config import resolve
from signfade.experiments.studies.records import (
    Record,
    Records,
    Results,
    Scale,
    Tier,
    Want,
    curve_of,
    read_toml,
)
from signfade.experiments.style import INK, line_style
from signfade.settings import RunSettings

__all__ = ["Variants", "draw_accuracy", "rounds_text"]


class Variants:
    """Changes to one base configuration, by name, and which of them are compared; read from a TOML file.

    `base` has the dotted settings that all share, `variants` those of each variant, and `switches` by name
    what is compared: `title`, `variants`, and with `times` that many times the seeds.
    """

    def __init__(self, file: str) -> None:
        tree = read_toml(file)
        self.base: Mapping[str, Any] = tree["base"]
        self.changes: Mapping[str, Mapping[str, Any]] = tree["variants"]
        self.switches: Mapping[str, Mapping[str, Any]] = tree["switches"]

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
        names = self.switches[switch]["variants"]
        found = {name: results.records.find_all(self.runs(results.scale, switch, name)) for name in names}
        return {name: records for name, records in found.items() if records}


def _rounds_needed(records: Sequence[Record]) -> list[float | None]:
    return [record.value("rounds_to_accuracy_09") for record in records]


def rounds_text(records: Sequence[Record], never: str = "never") -> str:
    """Return the rounds to an accuracy of 0.9, of all seeds."""
    return ", ".join(never if n is None else f"{n:.0f}" for n in _rounds_needed(records))


def draw_accuracy(
    figure: Figure, left: Axes, right: Axes, found: Mapping[str, Sequence[Record]], **legend: Any
) -> None:
    """Draw accuracy over the rounds, mean over seeds, and beside it the rounds to 0.9, one dot per seed.

    `legend`: where it is, `loc`, and the most columns it has, `ncols`.
    """
    if not found:
        return
    for index, (name, records) in enumerate(found.items()):
        style, curve = line_style(index), curve_of([r for r in records if r.diverged is None], "accuracy")
        if curve is not None:
            left.plot(curve[0], curve[1], color=style.color, dashes=style.dashes, label=name)
        reached = [n for n in _rounds_needed(records) if n is not None]
        right.plot(reached, [index] * len(reached), style.marker, color=style.color, alpha=0.8)
        if missing := len(records) - len(reached):
            place: Any = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "center", "fontsize": 8}
            right.annotate(f"{missing} never", (1, index), **place)
    left.axhline(0.9, color=INK, linewidth=0.8, linestyle=":")
    left.set(title="Test accuracy, mean over seeds", xlabel="round", ylim=(0, 1))
    longest = max(record.rounds for records in found.values() for record in records)
    right.set(title="Rounds to 0.9, each seed", xlabel="round", xlim=(0, 1.25 * longest))
    right.set_yticks(range(len(found)), list(found))
    right.set_ylim(len(found) - 0.5, -0.5)
    lines, labels = left.get_legend_handles_labels()
    if lines:
        figure.legend(lines, labels, **legend | {"ncols": min(len(labels), legend["ncols"])})
