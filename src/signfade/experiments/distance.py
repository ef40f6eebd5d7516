"""How far a method is above the limit: what `signfade link` and reports say about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from signfade.experiments.group import Group
from signfade.server import AGGREGATORS
from signfade.server.joint.weighted import combine_bits
from signfade.settings import RunSettings
from signfade.theory.dial import dial_uses, equal_correlation
from signfade.theory.joint import JointMoments, given_moments, vote_moments
from signfade.theory.limits import above_db, limit
from signfade.theory.rate import Rotated, harmonics
from signfade.theory.rules import moments

__all__ = ["INDEPENDENT", "above_text", "limit_lines", "limit_notes", "limit_numbers", "predicted_errors"]

Array = NDArray[np.float64]

INDEPENDENT = "bound for independent devices"
_DEVICES, _PAIRS = 500, 1_000_000  # at most so many devices, and pairs of them in all rounds together


def predicted_errors(settings: RunSettings, snr: Array, correlation: float) -> tuple[float, float] | None:
    """Return the normalised error that theory expects of the method, before and after debiasing.

    Means over rounds, SNRs `[T, K]`, of devices of one variance that are all correlated alike; gains and
    scalars as they are. None for rules that have no law.
    """
    method, rule = settings.method, AGGREGATORS.find(settings.method.aggregator)
    joint, devices = rule.soft == "joint", snr.shape[1]
    ones, matrix = np.ones(devices), equal_correlation(devices, correlation)
    if not rule.scaled and rule.breaks_ties:
        law = {"agreement": 1 - 2 * method.flip, "noise": method.sign_noise}
        votes = [vote_moments(row, ones, matrix, tie=method.tie, **law) for row in snr]
        error = fmean(vote.cut(1.0, method.part).best_scaled_nmse() for vote in votes)
        return error, error
    if not method.soft and not joint and rule.law is None:
        return None

    def soft(row: Array, r: Array, private: bool) -> JointMoments:
        coefficients = harmonics(row, method.level_bits, settings.cell.papr_db)
        model = Rotated(coefficients, ones, r, method.part, private=private)
        return model.moments(ones, model.fit(ones).combine if joint else ones)

    def bits(row: Array, r: Array) -> JointMoments:
        if joint and method.joint == "linear":
            first, second = np.sqrt(row), row + 1
        else:
            first, second = map(np.atleast_1d, moments(rule.law or "sbfl", row, method.form))
        first, combine = (1 - 2 * method.flip) * first, None
        if joint:  # the best weights on signals or soft bits
            agreed = 1 / np.hypot(1, method.sign_noise)
            root = np.sqrt(np.maximum(second, 1e-300))
            seen = agreed * np.sqrt(2 / np.pi) * (r @ ones)
            combine = combine_bits(first / root, seen, agreed**2 * r) / root
        law = {"combine": combine, "noise": method.sign_noise}
        return given_moments(first, second, ones, r, **law).cut(1.0, method.part)  # type: ignore[arg-type]

    def found(row: Array, r: Array) -> JointMoments:
        if not method.soft:
            return bits(row, r)
        kinds = {"shared": [False], "private": [True]}.get(method.rotation, [False, True])
        return min((soft(row, r, private) for private in kinds), key=JointMoments.nmse)

    plain, debiased = [], []
    for row in snr:
        one = found(row, matrix)
        known = one if joint else found(row, np.eye(devices))  # a rule for independent devices debiases so
        plain.append(one.nmse())
        debiased.append(one.nmse(known.energy / known.product if known.product > 0 else 1.0))
    return fmean(plain), fmean(debiased)


def limit_numbers(settings: RunSettings, faded_snr_db: Array | None, correlation: float) -> dict[str, float]:
    """Return the limit, the predicted error of the sum, plain and debiased, and how far they are above it.

    SNRs are `[T, K]`; keys are `limit_nmse`, `nmse`, `above_limit_db`, `debiased_nmse` and
    `debiased_above_limit_db`. Empty where there is no limit: perfect links, signs added up by the air,
    coordinates that are not Gaussian, numbers in full.
    """
    method = settings.method
    gaussian = method.family == "gaussian" or method.rotation != "none"
    on_the_radio = AGGREGATORS.find(method.aggregator).sends != "values" and faded_snr_db is not None
    if faded_snr_db is None or not (on_the_radio and gaussian and settings.cell.access == "orthogonal"):
        return {}
    snr = 10 ** (faded_snr_db[:, :_DEVICES] / 10)
    equal_correlation(snr.shape[1], correlation)  # refuses what no devices can have
    snr = snr[: max(1, _PAIRS // snr.shape[1] ** 2)]
    least = float(np.mean(limit(snr, max(0.0, correlation), dial_uses(method.bits_per_weight))))
    found = {"limit_nmse": least}
    if (errors := predicted_errors(settings, snr, correlation)) is not None:
        for name, error in zip(("", "debiased_") if method.debias else ("",), errors):
            found |= {f"{name}nmse": error, f"{name}above_limit_db": float(above_db(error, least))}
    return found


def limit_lines(settings: RunSettings, found: Mapping[str, float], correlation: float) -> list[str]:
    """Return what `limit_numbers` found as lines; none over perfect links, where the limit is zero."""
    method, cell = settings.method, settings.cell
    if AGGREGATORS.find(method.aggregator).sends == "values" or cell.perfect:
        return []
    if cell.access == "over_the_air":
        return [
            "Limit: it is that of devices received one by one, and none is known for what the air adds up."
        ]
    if method.family != "gaussian" and method.rotation == "none":
        return ["Limit: it is that of Gaussian coordinates; set method.rotation to shared or private."]
    lines = []
    if "nmse" in found:
        rate = method.bits_per_weight
        sent = "amplitudes" if rate == "analog" else f"{rate:g} bit{'s' * (rate > 1)} per weight"
        lines.append(
            f"{settings.method_label}, {sent}, rotation {method.rotation}: predicted error of the sum "
            f"{found['nmse']:.3g}, {_db(found['above_limit_db'])} above the limit."
        )
    if "debiased_nmse" in found:
        above = f"{_db(found['debiased_above_limit_db'])} above the limit"
        error = found["debiased_nmse"]
        noise = " It is noise around the right sum, which steps average out." if error > 1 else ""
        lines.append(f"Debiased: predicted error {error:.3g}, {above}.{noise}")
    what = f"bound for devices correlated by {correlation:g}" if correlation > 0 else INDEPENDENT
    apart = "; none is known for devices that disagree" if correlation < 0 else ""
    uses = dial_uses(method.bits_per_weight)
    each = "use" if uses == 1 else "uses"
    if settings.data.devices > _DEVICES:
        apart += f"; of the first {_DEVICES} devices"
    return [*lines, f"Limit: {found['limit_nmse']:.3g}, {what}, {uses:g} channel {each} per weight{apart}."]


def limit_notes(groups: Sequence[Group]) -> list[str]:
    """Return a sentence about methods whose limit is that of independent devices, none if there are none."""
    apart = [g.label for g in groups if (r := g.values("correlation_mean")) and fmean(r) < 0]
    return (
        [f"{', '.join(apart)}: devices disagree on average; the limit is the {INDEPENDENT}."] if apart else []
    )


def above_text(values: Sequence[float]) -> str:
    """Return how far methods are above the limit, mean over seeds; a dash where there is none.

    Example:
        >>> above_text([2.0, 3.0]), above_text([])
        ('2.5 dB', '–')
    """
    return _db(fmean(values)) if values else "–"


def _db(value: float) -> str:
    return f"{value:.1f} dB".replace("-", "−")
