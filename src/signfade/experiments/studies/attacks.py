"""Attacks against defences on digits: the tables of docs/attacks.md."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from statistics import fmean
from typing import Any

from signfade.experiments.config import resolve
from signfade.experiments.studies.records import Records, Results, Scale, Tier, Want, read_toml
from signfade.experiments.studies.study import Block, Part, Study, Table
from signfade.settings import RunSettings

__all__ = ["ATTACKS"]

_LAST = 4  # evaluations whose mean is the accuracy of a run; a model that diverged counts as a guess
_FRACTIONS = (0.1, 0.3, 0.45)
_DATA = read_toml("attacks.toml")


def _cells(method: str, kind: str) -> list[str]:
    """The attacks or defences that go with a method."""
    return list(_DATA["methods"][method].get(kind, _DATA[kind]))


def _runs(scale: Scale, method: str, attack: str, fraction: float, defence: str) -> list[RunSettings]:
    tree = _DATA["base"] | _DATA["methods"][method]["settings"]
    tree |= _DATA["defences"][defence] | _DATA["attacks"][attack]
    tree |= {} if attack == "none" else {"attack.fraction": fraction}
    tree |= {"defence.assumed": 0.3 if attack == "none" else min(fraction, 0.4)}  # of 20 Krum can bear 8
    tree |= {"label": f"{method}, {attack}, {defence}", "rounds": min(tree["rounds"], scale.rounds)}
    return [resolve(tree | {"seed": seed}) for seed in range(scale.figure_seeds)]


def _late(results: Results, *cell: Any) -> dict[int, float]:
    """Accuracy in percent at the end of the runs of a cell, by seed."""
    found = results.records.find_all(_runs(results.scale, *cell))
    return {record.seed: 100 * record.late_accuracy(_LAST) for record in found}


def _methods(fraction: float) -> list[str]:
    return [method for method in _DATA["methods"] if method != "cnn" or fraction == 0.3]


def _wants(*fractions: float) -> Callable[[Scale, Records], list[Want]]:
    return lambda scale, records: [
        Want(run, Tier.EXTRA, ours=True, order=round(100 * fraction))
        for fraction in fractions
        for method in _methods(fraction)
        for attack, defence in product(_cells(method, "attacks"), _cells(method, "defences"))
        for run in _runs(scale, method, attack, fraction, defence)
    ]


def _part(fraction: float) -> Part:
    """Mean and least accuracy of every attack by a part of the devices, by defence."""
    percent = f"{100 * fraction:.0f}"

    def render(results: Results) -> list[Block]:
        blocks: list[Block] = []
        for method in _methods(fraction):
            rows, defences = [], _cells(method, "defences")
            for attack in _cells(method, "attacks"):
                found = [[*_late(results, method, attack, fraction, d).values()] for d in defences]
                rows.append([attack, *(f"{fmean(c):.1f} [{min(c):.0f}]" if c else "" for c in found)])
            if any(cell for row in rows for cell in row[1:]):
                blocks.append(Table(["attack", *defences], rows, name=f"{method} {percent}"))
        return blocks

    title = f"{percent} % of the devices attack"
    return Part(f"attacks-{percent}", title, "ours", render, _wants(fraction))


def _costs(results: Results) -> list[Block]:
    """Where a defence of ours costs accuracy, over the seeds that both have; the worst first."""
    found = []
    for fraction, method in [(f, m) for f in _FRACTIONS for m in _methods(f)]:
        for attack, defence in product(_cells(method, "attacks"), ("bound", "reliability", "both")):
            if attack == "none" and fraction != _FRACTIONS[0]:
                continue  # without attackers the fraction does not matter
            plain, defended = (_late(results, method, attack, fraction, name) for name in ("none", defence))
            lost = [plain[seed] - defended[seed] for seed in plain.keys() & defended.keys()]
            if lost and fmean(lost) > 0:
                part = "0 %" if attack == "none" else f"{100 * fraction:.0f} %"
                found.append((fmean(lost), [method, attack, part, defence, f"{fmean(lost):.1f}"]))
    heads = ["method", "attack", "fraction", "defence", "points lost against no defence"]
    rows = [row for _, row in sorted(found, reverse=True)]
    return [Table(heads, rows, name="costs")] if rows else []


_COSTS = Part("attacks-costs", "What defences cost", "ours", _costs, _wants(*_FRACTIONS))
_PARTS = (*map(_part, _FRACTIONS), _COSTS)
ATTACKS = Study("attacks", "Attacks against defences", "attacks", _PARTS, host="attacks.md")
