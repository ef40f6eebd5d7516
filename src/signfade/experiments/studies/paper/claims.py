"""What the paper says in words, each claim with our number and its 95 % interval over seeds, and the verdict.

A claim is tested in one way or more, each a paired difference over the seeds that both methods share. It is
held if every interval says so (`rules.toml`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from statistics import fmean, mean, stdev
from typing import TypeVar, get_args

from signfade.experiments.intervals import ENOUGH, jackknife, mean_interval
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
    best_pair,
    cell,
    chosen,
    find_column,
    floors,
    pair_text,
)
from signfade.experiments.studies.paper.gradients import FIG_PRIORS
from signfade.experiments.studies.paper.judging import (
    Finding,
    Test,
    Word,
    difference,
    factor_text,
    judge,
    points_text,
    sbfl,
)
from signfade.experiments.studies.paper.point import at_nearest, here, settle
from signfade.experiments.studies.paper.printed import majority_rounds, read_paper, words_of
from signfade.experiments.studies.paper.quantisation import FIG_QUANTISATION, PRIORS, change
from signfade.experiments.studies.paper.regression import FIG_REGRESSION
from signfade.experiments.studies.paper.tables import (
    TABLE_ACCURACY,
    accuracy_verdicts,
    agreement,
    rounds_verdicts,
)
from signfade.experiments.studies.records import CHANCE, Missing, Record, Results, paired, shared_seeds
from signfade.experiments.studies.study import Block, Part, Table, Text

__all__ = ["CLAIMS", "findings"]

_T = TypeVar("_T")
_RULE = RULES["claim"]
_PAIR: Pair = tuple(_RULE["pair"])

# -- Tables I and II -----------------------------------------------------------------------------------------


def _accuracy(record: Record) -> float | None:
    return record.accuracy


def _rounds_of(record: Record) -> float:
    """Rounds to 0.9; never counts as the length of the run, the least it can be."""
    return record.value("rounds_to_accuracy_09") or record.rounds


def _rounds_text(records: Sequence[Record]) -> str:
    known = majority_rounds([record.value("rounds_to_accuracy_09") for record in records])
    return f"{mean(known):.0f}" if known else "never"


def _log_rounds(record: Record) -> float:
    return math.log(_rounds_of(record))


def _later(results: Results, found: Mapping[int, _T]) -> list[_T]:
    """What the seeds say that had no say in the choice of best cells, if there are enough of them; else all.

    A cell that was chosen by its own seeds looks better than it is, most of all that of a noisy method.
    """
    later = [value for seed, value in found.items() if seed >= results.scale.seeds]
    if not found:
        raise Missing
    return later if len(later) >= ENOUGH else [*found.values()]


def _fastest(results: Results, column: Column) -> list[Record]:
    """The records of the pair with which a method is fastest on average, chosen as best cells are."""
    pair, _ = best_pair(results.scale, results.records, column, lambda record: -_rounds_of(record))
    if pair is None:
        raise Missing
    return cell(results, column, pair)


def _slower(results: Results, names: tuple[str, str], factor: float) -> Finding:
    """Whether the first method needs `factor` times the rounds of the second, or more."""
    columns, tests = [find_column(name) for name in names], []
    alike = [cell(results, column, _PAIR) for column in columns]
    fastest = [_fastest(results, column) for column in columns]
    at_best = mean_interval(_later(results, paired(_log_rounds, *fastest)))
    for start, ratio, found in (
        (f"at {pair_text(_PAIR)}", difference(_log_rounds, *alike), alike),
        ("each at its fastest pair", at_best, fastest),
    ):
        slow, fast = shared_seeds(*found)
        holds = ratio.above(math.log(factor))
        # Of a run that never arrives only a lower limit is known: a slow method may be slower than it seems,
        # so that no claim fails, and a fast one too, so that none holds.
        unsure = fast if holds else slow
        if any(one.value("rounds_to_accuracy_09") is None for one in unsure):
            holds = None
        texts = map(_rounds_text, (slow, fast))
        rounds = ", ".join(f"{column.label} {text}" for column, text in zip(columns, texts))
        least = "at least " if any(one.value("rounds_to_accuracy_09") is None for one in slow) else ""
        tests.append(Test(holds, f"{start}: {rounds}, a factor of {least}{factor_text(ratio)}"))
    return judge(tests, "rounds to 0.9 ")


def _rounds(results: Results, form: Group) -> Finding:
    return _slower(results, ("vote", sbfl(form)), _RULE["factor"])


def _prior(results: Results, form: Group) -> Finding:
    return _slower(results, (sbfl(form, "laplacian"), sbfl(form)), 1.0)


def _gain(prior: str, results: Results, form: Group) -> Finding:
    number = read_paper().claims[prior].number
    assert number is not None
    columns = [find_column(name) for name in (sbfl(form, prior), "vote")]
    alike = difference(_accuracy, *(cell(results, column, _PAIR) for column in columns))
    ends = paired(_accuracy, *(best_cell(results, column)[1] for column in columns))
    best = mean_interval(_later(results, ends))
    ways = {f"at {pair_text(_PAIR)}": alike, "best cell against best cell": best}
    level = number - _RULE["points"]
    return judge(Test(gain.above(level), f"{name}: {points_text(gain)}") for name, gain in ways.items())


def _downlink(results: Results, form: Group) -> Finding:
    tests = []
    values: dict[str, Callable[[Record], float | None]] = {
        "in the last round": _accuracy,
        "over the last ten evaluations": lambda one: one.late_accuracy(),
    }
    for prior, (when, value) in product(("gaussian", "laplacian"), values.items()):
        gains = []
        for quantity in ("DC", "Full"):
            columns = (find_column(name, quantity) for name in (sbfl(form, prior), "vote"))
            gains.append(paired(value, *(best_cell(results, column)[1] for column in columns)))
        more = {seed: gains[0][seed] - gains[1][seed] for seed in sorted(set(gains[0]) & set(gains[1]))}
        gain = mean_interval(_later(results, more))
        tests.append(Test(gain.above(0), f"{prior.capitalize()}, {when}: {points_text(gain)}"))
    return judge(tests, "gain with DC less gain without, best cells. ")


def _compressed(results: Results, form: Group) -> Finding:
    gains = {}
    for prior, pair in product(("gaussian", "laplacian"), PAIRS):
        columns = (find_column(sbfl(form, prior), "DC"), find_column("vote", "DC"))
        name = f"{prior.capitalize()}, {pair_text(pair)}"
        gains[name] = difference(_accuracy, *(cell(results, column, pair) for column in columns))
    tests = [Test(gain.above(0), "") for gain in gains.values()]
    above, below, unclear = (sum(test.holds is way for test in tests) for way in (True, False, None))
    number = read_paper().claims["compressed"].number or len(tests)  # of which its own table has so many
    word: Word = "held" if above >= number else "not held" if above + unclear < number else "open"
    ends = [pick(gains, key=lambda name: gains[name].mean) for pick in (min, max)]
    span = " to ".join(f"{points_text(gains[name])} ({name})" for name in ends)
    few = sum(gain.seeds < ENOUGH for gain in gains.values())
    words = (
        f"of {len(tests)} cells SBFL is above in {above}, below in {below}, unclear in {unclear - few}, "
        f"with too few seeds to tell in {few}; from {span}"
    )
    return Finding(word, words)


def _variance(results: Results, form: Group) -> Finding:
    tests = []
    for prior in ("gaussian", "laplacian"):
        cells = [best_cell(results, find_column(name))[1] for name in (sbfl(form, prior), "vote")]
        pairs = _later(results, {pair[0].seed: pair for pair in zip(*shared_seeds(*cells))})
        if len(pairs) < 3:
            raise Missing
        whole = [one for pair in pairs for one in pair if one.diverged is None]
        if not whole:
            raise Missing
        rounds = set.intersection(*(set(one.points("accuracy")) for one in whole))
        for when, shown in (("in the last round", [max(rounds)]), ("mean over all rounds", sorted(rounds))):
            less = jackknife(partial(_less_spread, rounds=shown), pairs)
            tests.append(Test(less.above(0), f"{prior.capitalize()}, {when}: {points_text(less)}"))
    return judge(tests, "deviation over seeds of signSGD less that of SBFL, best cells. ")


def _less_spread(pairs: Sequence[tuple[Record, ...]], rounds: Sequence[float]) -> float:
    ours, theirs = ([record.points("accuracy") for record in records] for records in zip(*pairs))
    return fmean(_spread(theirs, t) - _spread(ours, t) for t in rounds)


def _spread(curves: Sequence[dict[float, float]], t: float) -> float:
    """Deviation over seeds; a run that has diverged is at chance."""
    return stdev(curve.get(t, CHANCE) for curve in curves)


# -- Figs. 3, 4 and 6 ----------------------------------------------------------------------------------------


def _quantisation(results: Results, form: Group) -> Finding:
    if form != "printed":
        raise Missing
    tests = []
    for method, kind in product(PRIORS, (None, *KINDS)):
        found = change(results, method, 4, kind)
        size = _RULE["four_bits" if kind is None else "four_bits_loss"]
        text = points_text(found) if kind is None else found.text(1, 100, " % of the excess loss")
        tests.append(
            Test(found.within(size), f"{kind or results.scale.data}, {METHODS[method].label}: {text}")
        )
    return judge(tests, "4 bits against float. ")


def _log_ratio(results: Results, method: str, kind: str, reading: str) -> dict[int, float]:
    """Logarithm of a method's excess loss over signSGD's with its best step, by seed."""
    found = paired(_log_floor, chosen(results, method, kind)[1], chosen(results, reading, kind)[1])
    if not found:
        raise Missing
    return found


def _log_floor(record: Record) -> float | None:
    floor = floors([record])
    return math.log(floor[0]) if floor else None


def _homogeneous(results: Results, form: Group) -> Finding:
    number = read_paper().claims["homogeneous"].number
    assert number is not None
    tests = []
    for reading in SIGNSGD:
        logs = mean_interval([*_log_ratio(results, sbfl(form), "homogeneous", reading).values()])
        below = logs.through(lambda value: 1 - math.exp(value))
        text = f"{below.text(0, 100, ' %', sign='')} below the {METHODS[reading].label.partition(', ')[2]}"
        tests.append(Test(below.above(number - _RULE["part"]), text))
    ours = mean(floors(chosen(results, sbfl(form), "homogeneous")[1]))
    end = words_of("claims", "loss", ours=ours, optimum=OPTIMUM)
    word, words = judge(tests, "excess loss, each with its best step: ")
    return Finding(word, f"{words}. {end}")


def _heterogeneous(results: Results, form: Group) -> Finding:
    tests = []
    for reading in SIGNSGD:
        even, uneven = (_log_ratio(results, sbfl(form), kind, reading) for kind in KINDS)
        more = mean_interval([even[seed] - uneven[seed] for seed in even if seed in uneven])
        name = METHODS[reading].label.partition(", ")[2]
        tests.append(Test(more.above(0), f"against the {name} by a factor of {factor_text(more)}"))
    return judge(tests, "the ratio of excess losses is better with heterogeneous devices ")


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
    return judge([Test(ratio < _RULE["mean"], words_of("claims", "mean", kind=kind, ratio=ratio))])


def _trend(rises: bool, results: Results, form: Group) -> Finding:
    if form != "corrected":
        raise Missing
    samples = _gradients(results, results.scale.data if rises else "regression")
    first, *later = sorted({t for t, _ in samples})
    users = [u for t, u in samples if t == first]
    ratios = {t: [(samples[t, u]["std"] / samples[first, u]["std"]) ** 2 for u in users] for t in later}
    parts = "; ".join(f"round {t}: {', '.join(f'{x:.3g}' for x in ratios[t])}" for t in later)
    tests = [Test((ratio > 1) == rises, "") for ratio in ratios[later[-1]]]
    return Finding(judge(tests).word, f"variance over that in round {first}, {len(users)} users: {parts}")


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
    rows += _agreements(results, "") if not results.scale.quick else []
    with suppress(Missing):
        there = at_nearest(results)
        rows += _agreements(there, f" at {here(there.scale).text}")
    heads = ["the paper says", "paper", "ours (95 % interval)", "algorithm", "verdict"]
    status = "; ".join(f"{form}: {_status(found[form].values())}" for form in forms if found[form])
    words = words_of("claims", scale=results.scale, count=len(read_paper().claims), status=status)
    return [Text(words), Table(heads, rows)]


def _status(found: Iterable[Finding]) -> str:
    """How many claims were judged how."""
    count = Counter(finding.word for finding in found)
    return ", ".join(f"{count[word]} {word}" for word in get_args(Word) if count[word])


def _agreements(results: Results, where: str) -> list[list[str]]:
    """How many cells of the tables agree, one row per table and algorithm that was run."""
    rows = []
    for table, verdicts in (("I", rounds_verdicts), ("II", accuracy_verdicts)):
        text = f"Table {table}{where}, [cell by cell](tables.md)"
        for form in ("printed", "corrected"):
            if words := agreement(results, verdicts, form):
                found = verdicts(results, form)
                agree = sum(one.verdict == "agrees" for one in found)
                rows.append([text, f"{len(found)} cells", words, form, f"**{agree} agree**"])
                text = ""
    return rows


CLAIMS = Part(
    "claims",
    "What the paper claims",
    "Section VI",
    _render,
    settle=settle,
    also=(TABLE_ACCURACY, FIG_QUANTISATION, FIG_REGRESSION, FIG_PRIORS),
)
