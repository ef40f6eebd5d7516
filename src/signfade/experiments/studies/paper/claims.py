"""What the paper says in words, each claim with our number: held or not at the calibrated budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import mean, stdev
from typing import Literal, NamedTuple

import numpy as np

from signfade.experiments.studies.paper.cells import (
    COLUMNS,
    OPTIMUM,
    PAIRS,
    SIGNSGD,
    Column,
    Pair,
    at_bits,
    best_cells,
    cell,
    chosen,
    floors,
    pair_text,
    part_below,
    rounds_to,
)
from signfade.experiments.studies.paper.printed import majority_rounds, read_paper, words_of
from signfade.experiments.studies.records import Missing, Record, Results, accuracies, curve_of, shared_seeds
from signfade.experiments.studies.study import Block, Part, Table, Text

__all__ = ["CLAIMS", "Finding", "findings"]

Word = Literal["held", "in part", "not held", "missing"]
PAIR: Pair = (1e-3, 0.9)  # of which the paper's sentences speak


class Finding(NamedTuple):
    """Our side of a claim: the verdict, and the numbers."""

    word: Word
    words: str


def _known(value: float | None) -> float:
    if value is None:
        raise Missing
    return value


def _word(tests: Iterable[bool]) -> Word:
    """A claim is tested in more than one way: it may hold in all, in some, in none."""
    found = list(tests)
    return "held" if all(found) else "in part" if any(found) else "not held"


def _signed(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "−")


def _column(head: str, quantity: str = "Full") -> Column:
    (column,) = (one for one in COLUMNS if (one.head, one.quantity) == (head, quantity))
    return column


def _best(results: Results, head: str, quantity: str) -> list[Record]:
    """Records of a column's best cell, none until it is settled."""
    for column, _, settled, records in best_cells(results, quantity):
        if column.head == head and settled:
            return records
    return []


def _gain(ours: list[Record], theirs: list[Record], *, late: bool = False) -> float:
    """Difference of mean accuracies over common seeds, at the end or over the last ten evaluations."""
    pair = shared_seeds(ours, theirs)
    values = [[one.late_accuracy() for one in records] if late else accuracies(records) for records in pair]
    return _known(mean(values[0]) - mean(values[1]) if all(values) else None)


def _best_gain(results: Results, head: str, quantity: str, late: bool = False) -> float:
    return _gain(_best(results, head, quantity), _best(results, "signsgd", quantity), late=late)


def _pair_gain(results: Results, head: str, quantity: str, pair: Pair) -> float:
    """The gain at one pair, missing until both cells have all their seeds."""
    cells = [cell(results, _column(name, quantity), pair) for name in (head, "signsgd")]
    return _known(_gain(*cells) if min(map(len, cells)) >= results.scale.seeds else None)


def _needed(results: Results, head: str, pair: Pair) -> float:
    """Rounds to 0.9 in a cell; infinite if most of its seeds never get there."""
    values = rounds_to(cell(results, _column(head), pair), "TA")
    if len(values) < results.scale.seeds:
        raise Missing
    reached = majority_rounds(values)
    return mean(reached) if reached else np.inf


def _both_ways(
    results: Results, heads: dict[str, str], test: Callable[[float, float], bool], factor: bool = False
) -> Finding:
    """Compare the rounds of two columns at the paper's pair, and each with the pair that suits it best."""
    tests, parts = [], []
    for start, pairs in ((f"at {pair_text(PAIR)}", [PAIR]), ("each at its fastest pair", PAIRS)):
        one, other = (min(_needed(results, head, pair) for pair in pairs) for head in heads)
        tests.append(test(one, other))
        rounds = ["never" if np.isinf(value) else f"{value:.0f}" for value in (one, other)]
        words = ", ".join(f"{name} {value}" for name, value in zip(heads.values(), rounds))
        ratio = f" (a factor of {one / other:.1f})" if factor and "never" not in rounds else ""
        parts.append(f"{start}: {words}{ratio}")
    return Finding(_word(tests), f"rounds to 0.9 {'; '.join(parts)}")


def _rounds(results: Results) -> Finding:
    heads = {"signsgd": "signSGD", "gaussian": "SBFL"}
    return _both_ways(results, heads, lambda theirs, ours: 4 * ours <= theirs and ours < np.inf, factor=True)


def _prior(results: Results) -> Finding:
    heads = {"laplacian": "Laplacian", "gaussian": "Gaussian"}
    return _both_ways(results, heads, lambda laplacian, gaussian: laplacian > gaussian)


def _points(head: str) -> Callable[[Results], Finding]:
    def find(results: Results) -> Finding:
        claim = _known(read_paper().claims[head].number)
        alike, best = _pair_gain(results, head, "Full", PAIR), _best_gain(results, head, "Full")
        words = f"{_signed(alike)} points at {pair_text(PAIR)}; {_signed(best)}, best cell against best cell"
        return Finding(_word(gain >= claim - 0.015 for gain in (alike, best)), words)

    return find


def _downlink(results: Results) -> Finding:
    tests, parts = [], []
    for head in ("gaussian", "laplacian"):
        words = []
        for many in (False, True):
            full, compressed = (_best_gain(results, head, quantity, many) for quantity in ("Full", "DC"))
            tests.append(compressed > full)
            words.append(f"{_signed(full)} points with full downlink and {_signed(compressed)} with DC")
        last, late = f"{words[0]} in the last round", f"{words[1]} over the last ten evaluations"
        parts.append(f"{head.capitalize()}: {last}, {late}")
    end = "(best cells; signSGD's are the same runs, its vote is one bit)"
    return Finding(_word(tests), f"{'; '.join(parts)} {end}")


def _compressed(results: Results) -> Finding:
    tests, parts = [], []
    for head in ("gaussian", "laplacian"):
        gains = [_pair_gain(results, head, "DC", pair) for pair in PAIRS]
        wins = [gain > 0 for gain in gains]
        tests += wins
        won, by = f"{sum(wins)} of {len(wins)} pairs", ", ".join(map(_signed, gains))
        parts.append(f"{head.capitalize()} ends above signSGD in {won} ({by} points)")
    order = ", ".join(map(pair_text, PAIRS))
    return Finding(_word(tests), f"{'; '.join(parts)}; in the order {order}")


def _quantisation(results: Results) -> Finding:
    tests, parts = [], []
    for prior in ("gaussian", "laplacian"):
        both = shared_seeds(at_bits(results, prior, 4), at_bits(results, prior, None))
        coarse, exact = map(accuracies, both)
        if not coarse:
            raise Missing
        changes = [ours - theirs for ours, theirs in zip(coarse, exact)]
        change, spread = mean(changes), stdev(changes) if len(changes) > 1 else 0.0
        tests.append(abs(change) <= 0.01)
        parts.append(f"{prior.capitalize()} {_signed(change)} ± {100 * spread:.1f} points")
    start = f"4 bits against float, seed by seed, after {results.scale.figure_rounds} rounds"
    return Finding(_word(tests), f"{start}: {', '.join(parts)}")


def _variance(results: Results) -> Finding:
    names = {"signsgd": "signSGD", "gaussian": "Gaussian", "laplacian": "Laplacian"}
    last, all_rounds = {}, {}
    for head in names:
        records = _best(results, head, "Full")
        curve = curve_of(records, "accuracy")
        if len(records) < 3 or curve is None:
            raise Missing
        last[head], all_rounds[head] = stdev(accuracies(records)), float(curve[2].mean())
    tests, parts = [], []
    for when, spreads in (("in the last round", last), ("mean over all rounds", all_rounds)):
        tests += [spreads[head] < spreads["signsgd"] for head in ("gaussian", "laplacian")]
        parts.append(f"{when}: {', '.join(f'{names[h]} {100 * v:.1f}' for h, v in spreads.items())}")
    start = "deviation of the accuracy over seeds in points, best cells"
    return Finding(_word(tests), f"{start}, {'; '.join(parts)}")


def _reductions(results: Results, kind: str) -> list[float]:
    """By which part SBFL's excess loss is below signSGD's: as a vote, and as a sum of signs."""
    return [_known(part_below(results, "gaussian", kind, reading)) for reading in SIGNSGD]


def _below_text(reductions: list[float]) -> str:
    words = [f"{100 * abs(part):.0f} % {'below' if part >= 0 else 'above'}" for part in reductions]
    return f"{words[0]} the vote, {words[1]} the sum of signs"


def _raw(reductions: list[float], ours: float) -> list[float]:
    """Reductions of the loss itself, from those of its excess over the optimum."""
    theirs = [ours / (1 - part) for part in reductions]
    return [(other - ours) / (OPTIMUM + other) for other in theirs]


def _homogeneous(results: Results) -> Finding:
    found, claim = _reductions(results, "homogeneous"), _known(read_paper().claims["homogeneous"].number)
    ours = mean(floors(chosen(results, "gaussian", "homogeneous")[1]))
    words = (
        f"excess loss {_below_text(found)}, both with their best steps. The loss itself (ours: {ours:.3g} "
        "above the optimum) cannot be compared: with labels independent of the data the optimum is far "
        f"above 0.009, about {OPTIMUM:g}; with it counted in, the reductions are "
        f"{' and '.join(f'{100 * part:.0f} %' for part in _raw(found, ours))}"
    )
    return Finding(_word(part >= claim - 0.1 for part in found), words)


def _heterogeneous(results: Results) -> Finding:
    even, uneven = _reductions(results, "homogeneous"), _reductions(results, "heterogeneous")
    words = f"{_below_text(uneven)}; homogeneous: {_below_text(even)}"
    return Finding(_word(more > less for more, less in zip(uneven, even)), words)


def _gradients(results: Results, kind: str) -> dict[tuple[int, int], dict[str, float]]:
    """What was measured of raw gradients on a kind of data, by (round, user)."""
    found = {}
    for key, sample in results.measurement("fig-priors").get(kind, {}).items():
        t, user = key.split(",")
        found[int(t), int(user)] = sample["raw"]
    if not found:
        raise Missing
    return found


def _zero_mean(results: Results) -> Finding:
    kind = results.scale.data
    ratios = [abs(sample["mean"]) / sample["std"] for sample in _gradients(results, kind).values()]
    words = (
        f"{kind}: at most {max(ratios):.3f} of the deviation over rounds and users, "
        f"{100 * max(ratios) ** 2:.1f} % of the energy; the regression's 300 elements are too few to tell"
    )
    return Finding(_word([max(ratios) < 0.1]), words)


def _trend(kind: str, rises: bool) -> Callable[[Results], Finding]:
    def find(results: Results) -> Finding:
        samples = _gradients(results, "regression" if kind == "regression" else results.scale.data)
        first, *later = sorted({t for t, _ in samples})
        users = [u for t, u in samples if t == first]
        ratios = {t: [(samples[t, u]["std"] / samples[first, u]["std"]) ** 2 for u in users] for t in later}
        parts = "; ".join(f"round {t}: {', '.join(f'{x:.3g}' for x in ratios[t])}" for t in later)
        return Finding(
            _word((ratio > 1) == rises for ratio in ratios[later[-1]]),
            f"variance over that in round {first}, {len(users)} users: {parts}",
        )

    return find


_FIND: dict[str, Callable[[Results], Finding]] = {
    "rounds": _rounds,
    "gaussian": _points("gaussian"),
    "laplacian": _points("laplacian"),
    "prior": _prior,
    "downlink": _downlink,
    "compressed": _compressed,
    "quantisation": _quantisation,
    "variance": _variance,
    "homogeneous": _homogeneous,
    "heterogeneous": _heterogeneous,
    "zero_mean": _zero_mean,
    "shrinking": _trend("regression", rises=False),
    "growing": _trend("images", rises=True),
}


def findings(results: Results) -> dict[str, Finding]:
    """Return our side of every claim in the paper's file, by its name."""
    found = {}
    for name in read_paper().claims:
        try:
            found[name] = _FIND[name](results)
        except Missing:
            found[name] = Finding("missing", "not finished")
    return found


def _render(results: Results) -> list[Block]:
    rows = []
    for claim, found in zip(read_paper().claims.values(), findings(results).values()):
        text = claim.text if claim.contradiction is None else f"{claim.text} (but {claim.contradiction})"
        rows.append([text, claim.place, found.words, results.verdict(found.word)])
    return [Text(words_of("claims")), Table(["the paper says", "where", "we find", "verdict"], rows)]


CLAIMS = Part("claims", "What the paper claims", "Section VI", _render)
