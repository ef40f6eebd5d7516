"""Attacks against defences on digits: the tables of docs/attacks.md."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from statistics import fmean
from typing import Any

from signfade.experiments.config import resolve
from signfade.experiments.studies.records import Records, Results, Scale, Tier, Want
from signfade.experiments.studies.study import Block, Part, Study, Table
from signfade.settings import RunSettings

__all__ = ["ATTACKS"]

_LAST = 4  # evaluations whose mean is the accuracy of a run; a model that diverged counts as a guess
_BASE: dict[str, Any] = {
    "name": "attacks",
    "data.name": "digits",
    "data.devices": 20,
    "data.split": "two-chunks",
    "data.batch": 32,
}
_MLP = {"rounds": 100, "model.name": "mlp", "server.learning_rate": 0.2, "server.schedule": "sqrt"}
_ROTATED = {"method.aggregator": "sbfl", "method.rotation": "hadamard"}
_BOUND, _RELY = {"defence.bound_scales": True}, {"defence.reliability": True}
_DEFENCES: dict[str, dict[str, Any]] = {
    "none": {},
    "bound": _BOUND,
    "reliability": _RELY,
    "both": _BOUND | _RELY,
    "Krum": {"method.aggregator": "krum"},
    "multi-Krum": {"method.aggregator": "multi_krum"},
    "trimmed mean": {"method.aggregator": "trimmed_mean"},
    "median": {"method.aggregator": "median"},
}
_OURS = ("none", "bound", "reliability", "both")
_ATTACKS: dict[str, dict[str, Any]] = {
    "none": {},
    "sign-flip": {"attack.kind": "sign-flip"},
    "ones": {"attack.kind": "ones"},
    "random-bits": {"attack.kind": "random-bits"},
    "random-bits, colluding": {"attack.kind": "random-bits", "attack.collude": True},
    "mean-shift, 10": {"attack.kind": "mean-shift", "attack.strength": 10.0},
    "scale-inflation, 1000": {"attack.kind": "scale-inflation", "attack.strength": 1000.0},
    "scale-collusion, 1000": {"attack.kind": "scale-collusion", "attack.strength": 1000.0},
    "below-bound": {"attack.kind": "below-bound"},
    "mixed, 3": {"attack.kind": "mixed", "attack.strength": 3.0},
}
# By method: its settings, and the attacks and defences that go with it; `best` is its own rule.
_METHODS: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    "sbfl": (_MLP | _ROTATED, tuple(_ATTACKS), tuple(_DEFENCES)),
    "best": (_MLP | {"method.preset": "best"}, tuple(_ATTACKS), _OURS),
    # The default network: after a rotation the last two attacks move one weight, here a filter's.
    "cnn": (
        {"rounds": 150, "server.learning_rate": 3e-2} | _ROTATED,
        ("sign-flip", "ones", "mean-shift, 10"),
        _OURS,
    ),
}
_FRACTIONS = (0.1, 0.3, 0.45)


def _runs(scale: Scale, method: str, attack: str, fraction: float, defence: str) -> list[RunSettings]:
    tree = _BASE | _METHODS[method][0] | _DEFENCES[defence] | _ATTACKS[attack]
    tree |= {} if attack == "none" else {"attack.fraction": fraction}
    tree |= {"defence.assumed": 0.3 if attack == "none" else min(fraction, 0.4)}  # of 20 Krum can bear 8
    tree |= {"label": f"{method}, {attack}, {defence}", "rounds": min(tree["rounds"], scale.rounds)}
    return [resolve(tree | {"seed": seed}) for seed in range(scale.figure_seeds)]


def _late(results: Results, *cell: Any) -> dict[int, float]:
    """Accuracy in percent at the end of the runs of a cell, by seed."""
    found = results.records.find_all(_runs(results.scale, *cell))
    return {record.seed: 100 * record.late_accuracy(_LAST) for record in found}


def _wants(fraction: float) -> Callable[[Scale, Records], list[Want]]:
    return lambda scale, records: [
        Want(run, Tier.EXTRA, ours=True, order=round(100 * fraction))
        for method in _methods(fraction)
        for attack, defence in product(*_METHODS[method][1:])
        for run in _runs(scale, method, attack, fraction, defence)
    ]


def _methods(fraction: float) -> list[str]:
    return [method for method in _METHODS if method != "cnn" or fraction == 0.3]


def _part(fraction: float) -> Part:
    """Mean and least accuracy of every attack by a part of the devices, by defence."""

    def render(results: Results) -> list[Block]:
        blocks: list[Block] = []
        for method in _methods(fraction):
            _, attacks, defences = _METHODS[method]
            rows = []
            for attack in attacks:
                cells = [[*_late(results, method, attack, fraction, d).values()] for d in defences]
                rows.append([attack, *(f"{fmean(c):.1f} [{min(c):.0f}]" if c else "" for c in cells)])
            if any(cell for row in rows for cell in row[1:]):
                blocks.append(Table(["attack", *defences], rows, name=f"{method} {100 * fraction:.0f}"))
        return blocks

    percent = f"{100 * fraction:.0f}"
    title = f"{percent} % of the devices attack"
    return Part(f"attacks-{percent}", title, "ours", render, _wants(fraction))


def _all_wants(scale: Scale, records: Records) -> list[Want]:
    return [want for fraction in _FRACTIONS for want in _wants(fraction)(scale, records)]


def _render_costs(results: Results) -> list[Block]:
    """Where a defence of ours costs accuracy, over the seeds that both have; the worst first."""
    found = []
    cells = [
        (method, f, attack) for f in _FRACTIONS for method in _methods(f) for attack in _METHODS[method][1]
    ]
    for (method, fraction, attack), defence in product(cells, _OURS[1:]):
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


ATTACKS = Study(
    "attacks",
    "Attacks against defences",
    "attacks",
    (*map(_part, _FRACTIONS), Part("attacks-costs", "What defences cost", "ours", _render_costs, _all_wants)),
    host="attacks.md",
)
