"""Sentences made from numbers: what the runs found, and how far their gradients were from the theory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, mean
from typing import Any, NamedTuple

from signfade.experiments.group import Group
from signfade.experiments.intervals import ENOUGH, half_width
from signfade.experiments.metrics import fall_text

__all__ = ["ENOUGH", "Difference", "TheoryRow", "difference", "finding", "theory_finding", "theory_rows"]

# With too few seeds for an interval, what a difference must exceed: a point of accuracy, as it is shown with
# one digit, or a part of a loss or error.
_POINT, _PART = 0.0105, 0.05


class Difference(NamedTuple):
    """One method less another."""

    mean: float  # over the seeds
    half: float | None  # half the width of its 95 % interval over seeds; None for too few seeds
    counts: bool  # whether the two differ; if not, they are level


def difference(one: Mapping[Any, float], other: Mapping[Any, float], floor: float) -> Difference:
    """Compare two methods by what each reached with each seed; values by seed, at least one each.

    With three or more shared seeds, `d_s = one_s - other_s` and the difference counts if `|mean(d)|` exceeds
    `t * stdev(d) / sqrt(n)`, with `t` the 97.5 % quantile of Student's distribution with `n - 1` degrees of
    freedom (and a twentieth of the floor, below which nothing shows). With fewer it counts if it exceeds the
    floor. Either way the two methods may change places: the mean changes its sign and nothing else.

    Example:
        >>> found = difference({0: 0.92, 1: 0.93, 2: 0.94}, {0: 0.90, 1: 0.92, 2: 0.92}, floor=0.01)
        >>> f"{found.mean:.4f} +- {found.half:.4f} {found.counts}"
        '0.0167 +- 0.0143 True'
    """
    shared = [seed for seed in one if seed in other]
    if len(shared) < ENOUGH:
        gap = fmean(one.values()) - fmean(other.values())
        return Difference(gap, None, abs(gap) > floor)
    gaps = [one[seed] - other[seed] for seed in shared]
    half = half_width(gaps)
    return Difference(fmean(gaps), half, abs(fmean(gaps)) > max(half, floor / 20))


def finding(groups: Sequence[Group]) -> str:
    """Return what the runs found, in one sentence and, if runs are unfinished, a second.

    Compares the last test accuracy, or the excess loss, or the error of the estimates, whichever there is;
    the ideal is a bound, not a contender. Methods are called level by one rule, see `difference`: their
    difference lies within its 95 % interval over the seeds they share or, with fewer than three seeds, is at
    most 1.0 points (5 % of a loss or error).
    """
    done = [group for group in groups if group.finished]
    left = sum(group.seeds for group in groups if not group.finished)
    if not done:
        return _on_the_way(groups)
    for key in ("last_accuracy", "last_test_loss", "nmse"):
        rivals = [group for group in done if group.values(key) and not (key == "nmse" and group.ideal)]
        if rivals:
            break
    else:
        return "The runs are finished, but recorded neither accuracy nor loss." + _unfinished(left)
    contenders = [group for group in rivals if not group.ideal] or rivals
    contenders.sort(key=lambda group: _mean(group, key), reverse=key == "last_accuracy")
    best, others = contenders[0], contenders[1:]
    after = f" after {best.rounds[0]} rounds" if best.rounds[0] != 1 else " after one round"
    sentence = _opening(best, key) + after + _against(best, others, key)
    bound = next((group for group in rivals if group.ideal and group is not best), None)
    if bound is not None and key == "last_accuracy":
        gap = _difference(best, bound, key)
        kind = "run" if gap.counts and gap.mean > 0 else "bound"
        sentence += f"; it is {_compared(best, bound, key)}, the {kind} without a radio"
    elif not others and key == "last_accuracy":
        sentence += _speed(best)
    seeds = {group.seeds for group in rivals}
    note = f" (means over {max(seeds)} seeds)" if len(seeds) == 1 and seeds != {1} else ""
    return sentence + note + "." + _chance(best, rivals, key) + _fallen(done) + _unfinished(left)


class TheoryRow(NamedTuple):
    """Normalised errors of one method: medians over rounds, means over seeds."""

    label: str
    measured: float
    predicted: float
    excess: float  # of the measured error over the predicted one, as a fraction of it


def theory_rows(groups: Sequence[Group]) -> list[TheoryRow]:
    """Return the methods for which theory makes a prediction; the ideal has no error and is left out."""
    rows = []
    for group in groups:
        measured, predicted = group.values("nmse"), group.values("nmse_theory")
        if not group.ideal and measured and predicted and mean(predicted) > 0:
            ours, theirs = mean(measured), mean(predicted)
            rows.append(TheoryRow(group.label, ours, theirs, ours / theirs - 1))
    return rows


def theory_finding(groups: Sequence[Group]) -> str:
    """Return how far the measured errors are from the predicted ones, in one sentence."""
    rows = theory_rows(groups)
    if not rows:
        return "There is no prediction to compare with."
    low, high = min(row.excess for row in rows), max(row.excess for row in rows)
    what = f"The error of {rows[0].label} is" if len(rows) == 1 else "Measured errors are"
    if max(abs(low), abs(high)) <= 0.03:
        return f"{what} as predicted, within {_percent(max(abs(low), abs(high), 0.01))}."
    if round(100 * low) == round(100 * high):
        return f"{what} {_percent(abs(high))} {'above' if high > 0 else 'below'} the prediction."
    if round(100 * low) == 0:
        return f"{what} up to {_percent(high)} above the prediction."
    if low >= 0:
        return f"{what} {100 * low:.0f} to {_percent(high)} above the prediction."
    if high <= 0:
        return f"{what} {100 * -high:.0f} to {_percent(-low)} below the prediction."
    return f"{what} between {_percent(-low)} below and {_percent(high)} above the prediction."


def _opening(best: Group, key: str) -> str:
    value = _mean(best, key)
    if key == "last_accuracy":
        return f"{best.label} ends at {100 * value:.1f} % test accuracy"
    if key == "last_test_loss":
        return f"{best.label} ends with an excess loss of {value:.3g}"
    return f"{best.label} comes nearest to the true sum, with a normalised error of {value:.2f}"


def _against(best: Group, others: Sequence[Group], key: str) -> str:
    """How far ahead of the next, and of the last."""
    if not others:
        return ""
    following, last = others[0], others[-1]
    text = f", {_compared(best, following, key)}"
    if last is not following:
        text += f", the next, and {_compared(best, last, key)}, the last"
    return text


def _difference(one: Group, other: Group, key: str) -> Difference:
    """One less the other, by the rule that all sentences share."""
    floor = _POINT if key == "last_accuracy" else _PART * max(abs(_mean(g, key)) for g in (one, other))
    return difference(one.by_seed(key), other.by_seed(key), floor)


def _compared(one: Group, other: Group, key: str) -> str:
    """How one method compares with another, with the interval if there is one."""
    found = _difference(one, other, key)
    if key == "last_accuracy":
        interval = "" if found.half is None else f" ± {100 * found.half:.1f}"
        size = f"{100 * abs(found.mean):.1f}{interval} points"
        side = "above" if found.mean > 0 else "below"
    else:
        ours, theirs = _mean(one, key), _mean(other, key)
        high, low = max(ours, theirs), min(ours, theirs)
        size = f"{100 * (1 - low / high):.0f} %" if high > 0 else f"{high - low:.3g}"
        side = "above" if ours > theirs else "below"
    if found.counts:
        return f"{size} {side} {other.label}"
    return f"level with {other.label}" + (f" ({size} {side})" if found.half is not None else "")


def _fallen(groups: Sequence[Group]) -> str:
    """Which methods ended far below their best."""
    names = [group.label for group in groups if any(fall_text(run.numbers) for run in group.runs)]
    return f" Far below its own best in the end: {', '.join(names)}." if names else ""


def _chance(best: Group, rivals: Sequence[Group], key: str) -> str:
    """A word of caution where one seed each is close."""
    if key != "last_accuracy" or any(group.seeds > 1 for group in rivals):
        return ""
    gaps = [abs(_mean(best, key) - _mean(group, key)) for group in rivals if group is not best]
    return " With one seed, a point or two may be chance." if min(gaps, default=1.0) < 0.0195 else ""


def _speed(group: Group) -> str:
    rounds, bits = group.values("rounds_to_accuracy_09"), group.values("uplink_bits_to_accuracy_09")
    if len(rounds) < group.seeds:
        return ""
    sent = f", after {mean(bits) / group.runs[0].devices / 1e6:.2g} Mbit per device" if bits else ""
    return f"; it passed 90 % in round {mean(rounds):.0f}{sent}"


def _on_the_way(groups: Sequence[Group]) -> str:
    if not groups:
        return "There are no runs."
    furthest = max(groups, key=lambda group: group.rounds[0])
    at, asked = furthest.rounds
    accuracy = furthest.values("last_accuracy")
    score = f" with {100 * mean(accuracy):.1f} % test accuracy" if accuracy else ""
    return f"No run is finished yet; the furthest, {furthest.label}, is at round {at} of {asked}{score}."


def _unfinished(left: int) -> str:
    return "" if not left else " One run is unfinished." if left == 1 else f" {left} runs are unfinished."


def _mean(group: Group, key: str) -> float:
    return mean(group.values(key))


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"
