"""What the paper says in words, each claim with our number: held or not held at the calibrated budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, stdev

import numpy as np

from signfade.lab.reproduce.artefact import Artefact, Study
from signfade.lab.reproduce.document import Block, Table, Text
from signfade.lab.reproduce.fig_accuracy import best_cells
from signfade.lab.reproduce.fig_quantisation import at_bits
from signfade.lab.reproduce.fig_regression import chosen, floors, signsgd_floor
from signfade.lab.reproduce.grid import FULL_COLUMNS, cell
from signfade.lab.reproduce.paper import Claim, read_paper
from signfade.lab.reproduce.records import Record, accuracies
from signfade.lab.reproduce.setups import PAIRS
from signfade.lab.reproduce.table_rounds import rounds_to
from signfade.lab.reproduce.verdict import majority_rounds

__all__ = ["CLAIMS", "Finding", "findings"]


@dataclass(frozen=True)
class Finding:
    """Our side of a claim: whether it held (None: not known yet), and the numbers."""

    held: bool | None
    words: str


_UNKNOWN = Finding(None, "not finished")


def _records(study: Study, head: str, quantity: str) -> list[Record]:
    """Records of a column's best cell, none until it is settled."""
    for column, _, settled, records in best_cells(study, quantity):
        if column.head == head and settled:
            return records
    return []


def _best(study: Study, head: str, quantity: str) -> float | None:
    values = accuracies(_records(study, head, quantity))
    return mean(values) if values else None


def _gain(study: Study, head: str, quantity: str) -> float | None:
    ours, theirs = _best(study, head, quantity), _best(study, "signsgd", quantity)
    return None if ours is None or theirs is None else ours - theirs


def _fewest(study: Study, head: str) -> float | None:
    """The fewest rounds to 0.9 over a column's cells; infinite if none gets there, None if unknown."""
    (column,) = (column for column in FULL_COLUMNS if column.head == head)
    found = []
    for pair in PAIRS:
        values = rounds_to(cell(study.scale, study.records, column, pair), "TA")
        if not values:
            return None
        reached = majority_rounds(values)
        found.append(mean(reached) if reached else np.inf)
    return min(found)


def _rounds(study: Study) -> Finding:
    ours, theirs = _fewest(study, "gaussian"), _fewest(study, "signsgd")
    if ours is None or theirs is None:
        return _UNKNOWN
    told = ", ".join(
        f"{name} {'never' if np.isinf(value) else f'{value:.0f}'}"
        for name, value in (("signSGD", theirs), ("SBFL", ours))
    )
    if np.isinf(ours):
        return Finding(False, f"rounds to 0.9, best cells: {told}")
    ratio = theirs / ours
    factor = "" if np.isinf(ratio) else f", a factor of {ratio:.1f}"
    return Finding(bool(ratio >= 4), f"rounds to 0.9, best cells: {told}{factor}")


def _points(head: str) -> Callable[[Study], Finding]:
    def find(study: Study) -> Finding:
        gain, claim = _gain(study, head, "Full"), read_paper().claims[head].number
        if gain is None or claim is None:
            return _UNKNOWN
        return Finding(
            gain >= claim - 0.015, f"{100 * gain:+.1f} points, best cell against best cell".replace("-", "−")
        )

    return find


def _prior(study: Study) -> Finding:
    gaussian, laplacian = _fewest(study, "gaussian"), _fewest(study, "laplacian")
    if gaussian is None or laplacian is None:
        return _UNKNOWN
    names = ["never" if np.isinf(value) else f"{value:.0f}" for value in (laplacian, gaussian)]
    return Finding(
        laplacian > gaussian, f"rounds to 0.9, best cells: Laplacian {names[0]}, Gaussian {names[1]}"
    )


def _downlink(study: Study) -> Finding:
    gains = {(head, q): _gain(study, head, q) for head in ("gaussian", "laplacian") for q in ("Full", "DC")}
    known = {key: gain for key, gain in gains.items() if gain is not None}
    if len(known) < len(gains):
        return _UNKNOWN
    grows = all(known[head, "DC"] > known[head, "Full"] for head in ("gaussian", "laplacian"))
    told = "; ".join(
        f"{head.capitalize()}: {100 * known[head, 'Full']:+.1f} points with full downlink, "
        f"{100 * known[head, 'DC']:+.1f} with DC"
        for head in ("gaussian", "laplacian")
    )
    return Finding(grows, told.replace("-", "−"))


def _quantisation(study: Study) -> Finding:
    parts, held = [], True
    for prior in ("gaussian", "laplacian"):
        coarse = accuracies(at_bits(study, prior, 4))
        exact = accuracies(at_bits(study, prior, None))
        if not coarse or not exact:
            return _UNKNOWN
        change = mean(coarse) - mean(exact)
        spread = max((stdev(values) for values in (coarse, exact) if len(values) > 1), default=0.0)
        held = held and abs(change) <= max(0.01, spread)
        parts.append(f"{prior.capitalize()} {100 * change:+.1f} points".replace("-", "−"))
    return Finding(
        held, f"4 bits against float, after {study.scale.figure_rounds} rounds: {', '.join(parts)}"
    )


def _variance(study: Study) -> Finding:
    spreads = {}
    for head in ("signsgd", "gaussian", "laplacian"):
        values = accuracies(_records(study, head, "Full"))
        if len(values) < 3:
            return _UNKNOWN
        spreads[head] = stdev(values)
    held = max(spreads["gaussian"], spreads["laplacian"]) < spreads["signsgd"]
    told = ", ".join(f"{head} {100 * value:.2f}" for head, value in spreads.items())
    return Finding(held, f"deviation over seeds in points, best cells: {told}")


def _reduction(study: Study, kind: str) -> float | None:
    floor = signsgd_floor(study, kind)
    ours = floors(chosen(study, "gaussian", kind)[1])
    return None if floor is None or not ours else 1 - mean(ours) / floor


def _below(reduction: float) -> str:
    return f"{100 * abs(reduction):.0f} % {'below' if reduction >= 0 else 'above'}"


def _homogeneous(study: Study) -> Finding:
    reduction, claim = _reduction(study, "homogeneous"), read_paper().claims["homogeneous"].number
    if reduction is None or claim is None:
        return _UNKNOWN
    ours = mean(floors(chosen(study, "gaussian", "homogeneous")[1]))
    words = (
        f"{_below(reduction)} signSGD with its best step. The loss itself (ours: {ours:.3g} above the "
        "optimum) cannot be compared: with labels independent of the data the optimum is far above 0.009"
    )
    return Finding(reduction >= claim - 0.1, words)


def _heterogeneous(study: Study) -> Finding:
    even, uneven = _reduction(study, "homogeneous"), _reduction(study, "heterogeneous")
    if even is None or uneven is None:
        return _UNKNOWN
    return Finding(uneven > even, f"{_below(uneven)} signSGD; homogeneous: {_below(even)}")


def _looks(study: Study) -> dict[str, dict[tuple[int, int], dict[str, float]]]:
    """Raw gradients by kind of data and (round, user)."""
    data = study.measured.get("fig-priors", {})
    return {
        kind: {(int(key.split(",")[0]), int(key.split(",")[1])): look["raw"] for key, look in looks.items()}
        for kind, looks in data.items()
    }


def _zero_mean(study: Study) -> Finding:
    ratios = [abs(look["mean"]) / look["std"] for looks in _looks(study).values() for look in looks.values()]
    if not ratios:
        return _UNKNOWN
    return Finding(
        max(ratios) < 0.1, f"at most {max(ratios):.3f} of the deviation, over rounds, users and both tasks"
    )


def _trend(kind: str, rises: bool) -> Callable[[Study], Finding]:
    def find(study: Study) -> Finding:
        looks = _looks(study).get("regression" if kind == "regression" else study.scale.data)
        if not looks:
            return _UNKNOWN
        first, last = min(t for t, _ in looks), max(t for t, _ in looks)
        ratios = {u: (looks[last, u]["std"] / looks[first, u]["std"]) ** 2 for t, u in looks if t == first}
        held = all((ratio > 1) == rises for ratio in ratios.values())
        told = ", ".join(f"{ratio:.3g}" for ratio in ratios.values())
        return Finding(held, f"variance in round {last} over that in round {first}, three users: {told}")

    return find


_FIND: dict[str, Callable[[Study], Finding]] = {
    "rounds": _rounds,
    "gaussian": _points("gaussian"),
    "laplacian": _points("laplacian"),
    "prior": _prior,
    "downlink": _downlink,
    "quantisation": _quantisation,
    "variance": _variance,
    "homogeneous": _homogeneous,
    "heterogeneous": _heterogeneous,
    "zero_mean": _zero_mean,
    "shrinking": _trend("regression", rises=False),
    "growing": _trend("images", rises=True),
}


def findings(study: Study) -> dict[str, Finding]:
    """Return our side of every claim in the paper's file, by its name."""
    return {name: _FIND[name](study) for name in read_paper().claims}


def _text(claim: Claim) -> str:
    return claim.text if claim.contradiction is None else f"{claim.text} (but {claim.contradiction})"


def _word(study: Study, held: bool | None) -> str:
    if held is None:
        return "missing"
    if study.scale.name == "quick":
        return "not compared"
    return "held" if held else "not held"


def _render(study: Study) -> list[Block]:
    found = findings(study)
    rows = [
        [_text(claim), claim.place, found[name].words, _word(study, found[name].held)]
        for name, claim in read_paper().claims.items()
    ]
    rule = (
        "Held means: a factor of at least 4 (the paper: about 5) in rounds; no more than 1.5 points below "
        "the paper's gain; a loss whose reduction is at most 10 points smaller than the paper's; 4 bits "
        "within a point or one deviation of float; a mean below a tenth of the deviation; and otherwise "
        "that the numbers stand in the order claimed. Best cells are those of the tables below, chosen "
        "alike for every method."
    )
    return [Text(rule), Table(["the paper says", "where", "we find", "verdict"], rows, words=True)]


CLAIMS = Artefact("claims", "What the paper claims", "Section VI", _render)
