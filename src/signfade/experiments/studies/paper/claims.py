"""What the paper says in words, each claim with our number and its 95 % interval over seeds, and the verdict.

A claim is tested in one way or more, each a paired difference over the seeds that both methods share. It is
held if every interval says so (`rules.toml`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from statistics import fmean, mean, stdev
from typing import Literal, NamedTuple

from signfade.experiments.intervals import Interval, jackknife, mean_interval
from signfade.experiments.studies.paper.cells import (
    KINDS,
    METHODS,
    OPTIMUM,
    PAIRS,
    RULES,
    SIGNSGD,
    Column,
    Group,
    Pair,
    best_cell,
    cell,
    chosen,
    find_column,
    floors,
    pair_text,
)
from signfade.experiments.studies.paper.gradients import FIG_PRIORS
from signfade.experiments.studies.paper.point import settle
from signfade.experiments.studies.paper.printed import majority_rounds, read_paper, words_of
from signfade.experiments.studies.paper.quantisation import FIG_QUANTISATION, PRIORS, change
from signfade.experiments.studies.paper.regression import FIG_REGRESSION
from signfade.experiments.studies.paper.tables import (
    TABLE_ACCURACY,
    accuracy_verdicts,
    agreement,
    rounds_verdicts,
)
from signfade.experiments.studies.records import Missing, Record, Results, shared_seeds, tail_mean
from signfade.experiments.studies.study import Block, Part, Table, Text

__all__ = ["CLAIMS", "Finding", "findings"]

Word = Literal["held", "in part", "not held", "open"]
_RULE = RULES["claim"]
_PAIR: Pair = tuple(_RULE["pair"])


class Finding(NamedTuple):
    """Our side of a claim: the verdict, and the numbers."""

    word: Word
    words: str


class Test(NamedTuple):
    """One way to test a claim: whether it holds, None if the interval leaves it open, and the numbers."""

    holds: bool | None
    words: str


def _finding(tests: Iterable[Test], start: str = "") -> Finding:
    """A claim may hold in all ways, in some, in none; it is open if a seed more could change the word."""
    found = list(tests)
    ways = {test.holds for test in found}
    word: Word = "held" if ways == {True} else "not held" if ways == {False} else "open"
    if {True, False} <= ways:
        word = "in part"
    return Finding(word, start + "; ".join(test.words for test in found))


def _sbfl(form: Group, prior: str = "gaussian") -> str:
    return f"printed-{prior}" if form == "printed" else prior


def _paired(value: Callable[[Record], float], ours: Sequence[Record], theirs: Sequence[Record]) -> Interval:
    """Ours less theirs over the seeds that both have."""
    pairs = list(zip(*shared_seeds(ours, theirs)))
    if not pairs:
        raise Missing
    return mean_interval([value(one) - value(other) for one, other in pairs])


def _accuracy(record: Record) -> float:
    if record.accuracy is None:
        raise Missing
    return record.accuracy


def _points(gain: Interval) -> str:
    return gain.text(1, 100, " points")


def _factor(logs: Interval) -> str:
    """A paired difference of logarithms, as a factor."""
    return logs.through(math.exp).text(1, sign="")


# -- Tables I and II -----------------------------------------------------------------------------------------


def _rounds_of(record: Record) -> float:
    """Rounds to 0.9; never counts as the length of the run, the least it can be."""
    return record.value("rounds_to_accuracy_09") or record.rounds


def _rounds_text(records: Sequence[Record]) -> str:
    known = majority_rounds([record.value("rounds_to_accuracy_09") for record in records])
    return f"{mean(known):.0f}" if known else "never"


def _log_rounds(record: Record) -> float:
    return math.log(_rounds_of(record))


def _fastest(results: Results, column: Column) -> list[Record]:
    """The records of the pair with which a method is fastest on average."""
    cells = [found for pair in PAIRS if (found := cell(results, column, pair))]
    if not cells:
        raise Missing
    return min(cells, key=lambda records: mean(map(_rounds_of, records)))


def _slower(results: Results, names: tuple[str, str], factor: float) -> Finding:
    """Whether the first method needs `factor` times the rounds of the second, or more."""
    columns, tests = [find_column(name) for name in names], []
    ways = [("at " + pair_text(_PAIR), [cell(results, column, _PAIR) for column in columns])]
    ways.append(("each at its fastest pair", [_fastest(results, column) for column in columns]))
    for start, (slow, fast) in ways:
        ratio = _paired(_log_rounds, slow, fast)
        texts = map(_rounds_text, (slow, fast))
        rounds = ", ".join(f"{column.label} {text}" for column, text in zip(columns, texts))
        tests.append(Test(ratio.above(math.log(factor)), f"{start}: {rounds}, a factor of {_factor(ratio)}"))
    return _finding(tests, "rounds to 0.9 ")


def _rounds(results: Results, form: Group) -> Finding:
    return _slower(results, ("vote", _sbfl(form)), _RULE["factor"])


def _prior(results: Results, form: Group) -> Finding:
    return _slower(results, (_sbfl(form, "laplacian"), _sbfl(form)), 1.0)


def _gain(prior: str, results: Results, form: Group) -> Finding:
    number = read_paper().claims[prior].number
    assert number is not None
    columns = [find_column(name) for name in (_sbfl(form, prior), "vote")]
    alike = _paired(_accuracy, *(cell(results, column, _PAIR) for column in columns))
    best = _paired(_accuracy, *(best_cell(results, column)[1] for column in columns))
    ways = {f"at {pair_text(_PAIR)}": alike, "best cell against best cell": best}
    level = number - _RULE["points"]
    return _finding(Test(gain.above(level), f"{name}: {_points(gain)}") for name, gain in ways.items())


def _downlink(results: Results, form: Group) -> Finding:
    tests = []
    values: dict[str, Callable[[Record], float]] = {
        "in the last round": _accuracy,
        "over the last ten evaluations": lambda one: one.late_accuracy(),
    }
    for prior, (when, value) in product(("gaussian", "laplacian"), values.items()):
        gains = []
        for quantity in ("DC", "Full"):
            columns = (find_column(name, quantity) for name in (_sbfl(form, prior), "vote"))
            pairs = zip(*shared_seeds(*(best_cell(results, column)[1] for column in columns)))
            gains.append({one.seed: value(one) - value(other) for one, other in pairs})
        more = [gains[0][seed] - gains[1][seed] for seed in sorted(set(gains[0]) & set(gains[1]))]
        if not more:
            raise Missing
        gain = mean_interval(more)
        tests.append(Test(gain.above(0), f"{prior.capitalize()}, {when}: {_points(gain)}"))
    return _finding(tests, "gain with DC less gain without, best cells. ")


def _compressed(results: Results, form: Group) -> Finding:
    gains = {}
    for prior, pair in product(("gaussian", "laplacian"), PAIRS):
        columns = (find_column(_sbfl(form, prior), "DC"), find_column("vote", "DC"))
        name = f"{prior.capitalize()}, {pair_text(pair)}"
        gains[name] = _paired(_accuracy, *(cell(results, column, pair) for column in columns))
    tests = [Test(gain.above(0), "") for gain in gains.values()]
    above, below, unclear = (sum(test.holds is way for test in tests) for way in (True, False, None))
    ends = [pick(gains, key=lambda name: gains[name].mean) for pick in (min, max)]
    span = " to ".join(f"{_points(gains[name])} ({name})" for name in ends)
    words = (
        f"of {len(tests)} cells SBFL is above in {above}, below in {below}, unclear in {unclear}; from {span}"
    )
    return Finding(_finding(tests).word, words)


def _variance(results: Results, form: Group) -> Finding:
    tests = []
    for prior in ("gaussian", "laplacian"):
        cells = [best_cell(results, find_column(name))[1] for name in (_sbfl(form, prior), "vote")]
        pairs = list(zip(*shared_seeds(*cells)))
        if len(pairs) < 3:
            raise Missing
        rounds = set.intersection(*(set(one.points("accuracy")) for pair in pairs for one in pair))
        for when, shown in (("in the last round", [max(rounds)]), ("mean over all rounds", sorted(rounds))):
            less = jackknife(partial(_less_spread, rounds=shown), pairs)
            tests.append(Test(less.above(0), f"{prior.capitalize()}, {when}: {_points(less)}"))
    return _finding(tests, "deviation over seeds of signSGD less that of SBFL, best cells. ")


def _less_spread(pairs: Sequence[tuple[Record, ...]], rounds: Sequence[float]) -> float:
    ours, theirs = ([record.points("accuracy") for record in records] for records in zip(*pairs))
    return fmean(stdev(c[t] for c in theirs) - stdev(c[t] for c in ours) for t in rounds)


# -- Figs. 3, 4 and 6 ----------------------------------------------------------------------------------------


def _quantisation(results: Results, form: Group) -> Finding:
    if form != "printed":
        raise Missing
    tests = []
    for method, kind in product(PRIORS, (None, *KINDS)):
        found = change(results, method, 4, kind)
        size = _RULE["four_bits" if kind is None else "four_bits_loss"]
        text = _points(found) if kind is None else found.text(1, 100, " % of the excess loss")
        tests.append(
            Test(found.within(size), f"{kind or results.scale.data}, {METHODS[method].label}: {text}")
        )
    return _finding(tests, "4 bits against float. ")


def _log_ratio(results: Results, method: str, kind: str, reading: str) -> dict[int, float]:
    """Logarithm of a method's excess loss over signSGD's with its best step, by seed."""
    pairs = zip(*shared_seeds(chosen(results, method, kind)[1], chosen(results, reading, kind)[1]))
    ends = {one.seed: [tail_mean(record, "test_loss") for record in (one, other)] for one, other in pairs}
    found = {seed: math.log(a / b) for seed, (a, b) in ends.items() if a is not None and b is not None}
    if not found:
        raise Missing
    return found


def _homogeneous(results: Results, form: Group) -> Finding:
    number = read_paper().claims["homogeneous"].number
    assert number is not None
    tests = []
    for reading in SIGNSGD:
        logs = mean_interval([*_log_ratio(results, _sbfl(form), "homogeneous", reading).values()])
        below = logs.through(lambda value: 1 - math.exp(value))
        text = f"{below.text(0, 100, ' %', sign='')} below the {METHODS[reading].label.partition(', ')[2]}"
        tests.append(Test(below.above(number - _RULE["part"]), text))
    ours = mean(floors(chosen(results, _sbfl(form), "homogeneous")[1]))
    end = words_of("claims", "loss", ours=ours, optimum=OPTIMUM)
    word, words = _finding(tests, "excess loss, each with its best step: ")
    return Finding(word, f"{words}. {end}")


def _heterogeneous(results: Results, form: Group) -> Finding:
    tests = []
    for reading in SIGNSGD:
        even, uneven = (_log_ratio(results, _sbfl(form), kind, reading) for kind in KINDS)
        more = mean_interval([even[seed] - uneven[seed] for seed in even if seed in uneven])
        name = METHODS[reading].label.partition(", ")[2]
        tests.append(Test(more.above(0), f"against the {name} by a factor of {_factor(more)}"))
    return _finding(tests, "the ratio of excess losses is better with heterogeneous devices ")


def _gradients(results: Results, kind: str) -> dict[tuple[int, int], dict[str, float]]:
    """What was measured of raw gradients on a kind of data, by (round, user)."""
    found = {}
    for key, sample in results.measurement("fig-priors").get(kind, {}).items():
        t, user = key.split(",")
        found[int(t), int(user)] = sample["raw"]
    if not found:
        raise Missing
    return found


def _zero_mean(results: Results, form: Group) -> Finding:
    if form != "corrected":
        raise Missing
    kind = results.scale.data
    ratio = max(abs(sample["mean"]) / sample["std"] for sample in _gradients(results, kind).values())
    return _finding([Test(ratio < _RULE["mean"], words_of("claims", "mean", kind=kind, ratio=ratio))])


def _trend(rises: bool, results: Results, form: Group) -> Finding:
    if form != "corrected":
        raise Missing
    samples = _gradients(results, results.scale.data if rises else "regression")
    first, *later = sorted({t for t, _ in samples})
    users = [u for t, u in samples if t == first]
    ratios = {t: [(samples[t, u]["std"] / samples[first, u]["std"]) ** 2 for u in users] for t in later}
    parts = "; ".join(f"round {t}: {', '.join(f'{x:.3g}' for x in ratios[t])}" for t in later)
    tests = [Test((ratio > 1) == rises, "") for ratio in ratios[later[-1]]]
    return Finding(_finding(tests).word, f"variance over that in round {first}, {len(users)} users: {parts}")


_FIND: dict[str, Callable[[Results, Group], Finding]] = {
    "rounds": _rounds,
    "gaussian": partial(_gain, "gaussian"),
    "laplacian": partial(_gain, "laplacian"),
    "prior": _prior,
    "downlink": _downlink,
    "compressed": _compressed,
    "quantisation": _quantisation,
    "variance": _variance,
    "homogeneous": _homogeneous,
    "heterogeneous": _heterogeneous,
    "zero_mean": _zero_mean,
    "shrinking": partial(_trend, False),
    "growing": partial(_trend, True),
}


def findings(results: Results, form: Group = "printed") -> dict[str, Finding]:
    """Return our side of every claim that has runs, by its name, for one of the two algorithms."""
    found = {}
    for name in read_paper().claims:
        try:
            found[name] = _FIND[name](results, form)
        except Missing:
            continue
    return found


def _render(results: Results) -> list[Block]:
    forms: tuple[Group, ...] = ("printed", "corrected")
    found = {form: findings(results, form) for form in forms}
    if not any(found.values()):
        raise Missing
    rows = []
    for name, claim in read_paper().claims.items():
        text = claim.text if claim.contradiction is None else f"{claim.text} (but {claim.contradiction})"
        start = [text, claim.paper]
        for form in (form for form in forms if name in found[form]):
            verdict = results.verdict(found[form][name].word)
            rows.append([*start, found[form][name].words, form, f"**{verdict}**"])
            start = ["", ""]  # one claim, two algorithms
        if start[0]:
            rows.append([*start, "too few runs yet", "", ""])
    for table, verdicts in (("I", rounds_verdicts), ("II", accuracy_verdicts)):
        text = f"Table {table}, [cell by cell](tables.md)"
        for form in forms if not results.scale.quick else ():
            words = agreement(results, verdicts, form)
            if words:
                agree = verdicts(results, form).count("agrees")
                rows.append(
                    [text, f"{len(verdicts(results, form))} cells", words, form, f"**{agree} agree**"]
                )
                text = ""
    heads = ["the paper says", "paper", "ours (95 % interval)", "algorithm", "verdict"]
    return [Text(words_of("claims")), Table(heads, rows)]


CLAIMS = Part(
    "claims",
    "What the paper claims",
    "Section VI",
    _render,
    settle=settle,
    also=(TABLE_ACCURACY, FIG_QUANTISATION, FIG_REGRESSION, FIG_PRIORS),
)
