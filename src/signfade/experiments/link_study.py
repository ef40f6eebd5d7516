"""The radio of a run before anything is trained: the SNRs of its devices, and the error they cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from signfade.experiments.data_table import Column, DataTable, TableSet, percent
from signfade.experiments.distance import limit_lines, limit_numbers
from signfade.experiments.figures import mse_curves
from signfade.experiments.link_cost import cost_table, message_bits
from signfade.experiments.link_needs import LinkNeeds, array_gain_db, fading_law, find_needs
from signfade.experiments.link_notes import (
    bit_errors,
    downlink_note,
    fading_note,
    path_loss_note,
    switch_notes,
)
from signfade.experiments.link_tables import (
    budget_table,
    cdf_table,
    coverage_table,
    curve_table,
    device_table,
)
from signfade.server import AGGREGATORS
from signfade.settings import Fading, Family, Form, RunSettings
from signfade.simulation.run import layer_sizes
from signfade.theory.errors import mse, vote_nmse
from signfade.theory.rules import Rule
from signfade.uplink.radio import Radio, make_cell, make_radio

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

__all__ = ["ERRORS_ARE", "VOTE_RULE", "LinkStudy", "plot_errors", "study_link", "theory_errors"]

Array = NDArray[np.float64]

ERRORS_ARE = "Predicted squared error of a coordinate at one bit per weight, in units of its variance"
_HARD = "best hard decision"  # a vote's view of one bit; no rule by itself


def _rules() -> Iterator[tuple[str, Rule, Form]]:
    """Label, law and form of every rule that theory has a law for; the published form where it differs."""
    for law in get_args(Rule):
        names = [name for name, rule in AGGREGATORS.items() if rule.law == law]
        published = mse(law, 1.0, form="published") != mse(law, 1.0)
        for name in names or [_HARD]:
            yield name, law, "corrected"
            if published:
                yield f"{name}, published", law, "published"


RULES: tuple[tuple[str, Rule, Form], ...] = tuple(_rules())
VOTE_RULE = next(name for name, rule in AGGREGATORS.items() if rule.breaks_ties)
_VOTE = f"{VOTE_RULE}, best scale"  # of all devices together; the other rules take each device by itself
_CROWD = 20_000  # users that stand for "anybody in this cell"
_ROUNDS = 200  # rounds of fading that are drawn
_LEVELS = 500  # quantiles that stand for more devices than these


def theory_errors(
    snr_db: Array,
    *,
    family: Family = "gaussian",
    fading: Fading = "none",
    rician_k: float = 4.0,
    antennas: int = 1,
) -> dict[str, Array]:
    """Return the predicted squared error of every rule, by its label, for coordinates of variance one.

    Errors have the shape of `snr_db`, which is the mean SNR if there is fading; infinity is a link without
    noise.

    Reference: Theorem 1 and Corollary 3, corrected; docs/errata.md.
    """
    snr = 10 ** (np.asarray(snr_db, dtype=np.float64) / 10)
    return {
        label: np.asarray(
            mse(rule, snr, family=family, form=form, fading=fading, rician_k=rician_k, antennas=antennas)
        )
        for label, rule, form in RULES
    }


@dataclass(frozen=True, repr=False)
class LinkStudy:
    """The cell of a run and what theory says about it: tables, sentences and a figure.

    `tables` are, as far as there is something to say, `budget`, `devices`, `cdf`, `coverage`, `curves`,
    `cost` and `errors`; docs/link.md explains every key.
    """

    settings: RunSettings
    radio: Radio  # of the run's devices
    crowd: Radio | None  # of many users placed alike; None where SNRs were given, or links are perfect
    faded_snr_db: Array | None  # of the devices in the run's first 200 rounds, [200, K]; None if perfect
    needs: LinkNeeds
    errors: dict[str, float]  # of a coordinate, squared, over its variance, by label; over fading and devices
    tables: TableSet
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        count, snrs = self.settings.data.devices, "perfect links"
        if self.radio.mean_snr_db is not None:
            combined_db = self.radio.mean_snr_db + array_gain_db(self.settings.cell)
            levels = np.quantile(combined_db, (0.05, 0.5, 0.95))
            snrs = "mean SNR {:.1f}, {:.1f} and {:.1f} dB at 5, 50 and 95 %".format(*levels)
        devices, names = "1 device" if count == 1 else f"{count:,} devices", ", ".join(self.tables.tables)
        has = f".plot(), .text(), .notes, .errors, .needs, .radio, .tables.tables: {names}"
        return f"<signfade link {self.settings.name}, {devices}: {snrs};\n {has}>"

    def text(self) -> list[RenderableType]:
        """Return what `signfade link` prints, for a console of 100 columns or more."""
        from signfade.experiments.link_text import describe_link

        return describe_link(self)

    def plot(self) -> Figure | None:
        """Return one figure with all that can be drawn; None over perfect links."""
        from signfade.experiments.link_figure import draw_link

        return None if self.radio.mean_snr_db is None else draw_link(self)


def study_link(
    settings: RunSettings,
    *,
    weights: int | None = None,
    correlation: float = 0.0,
    target_error: float = 0.1,
) -> LinkStudy:
    """Study the cell that a run with these settings would have: the same places, the same fading.

    Args:
        settings: Those of the run. No data is loaded.
        weights: Number of weights of the model, where the settings alone do not tell it.
        correlation: Between any two devices' gradients, for the limit.
        target_error: Share of wrong bits, and of lost codewords, that a link may have.

    Example:
        >>> study = study_link(RunSettings.model_validate({"data": {"devices": 3}}))
        >>> [sorted(row)[:3] for row in study.tables.tables["devices"].rows][0]
        ['ber', 'bler', 'bler_margin_db']
    """
    cell, devices = settings.cell, settings.data.devices
    layers = (weights,) if weights is not None else layer_sizes(settings)
    needs, radio = find_needs(settings, layers, target_error), make_radio(cell, devices, settings.seed)
    crowd = None if radio.propagation is None else make_radio(cell, _CROWD, settings.seed)
    faded = _faded_snr_db(radio)
    errors = _rule_errors(settings, radio, faded)
    tables, notes = {}, []
    if radio.mean_snr_db is not None:
        if crowd is not None:
            tables = {"budget": budget_table(crowd, needs)}
        tables["devices"] = device_table(settings, radio, needs)
        everybody = radio if crowd is None else crowd
        assert everybody.mean_snr_db is not None
        tables["cdf"] = cdf_table(everybody.mean_snr_db, cell)
        if crowd is not None:
            tables["coverage"] = coverage_table(cell, needs)
        tables["curves"] = curve_table(radio.mean_snr_db, cell, needs)
        wrong = bit_errors(10 ** (radio.mean_snr_db / 10), cell)
        notes = [f"Bits: {percent(wrong)} % arrive with the wrong sign."]
        notes += fading_note(cell)
        notes += switch_notes(settings, radio.mean_snr_db, faded, needs) + downlink_note(radio)
        if radio.positions_km is not None:
            notes += path_loss_note(cell, radio.positions_km)
    if layers is not None:
        tables["cost"] = cost_table(settings, layers, radio)
    ordered = sorted(errors.items(), key=lambda item: item[1])
    rows = [{"rule": label, "nmse": error} for label, error in ordered]
    heads = {"rule": Column("rule"), "nmse": Column("error", ".3f")}
    tables["errors"] = DataTable(ERRORS_ARE, heads, rows)
    limits = limit_numbers(settings, faded, correlation)
    facts = _facts(settings, needs, layers) | {"limit": limits, "notes": notes}
    everything = TableSet("signfade.link/1", tables, facts)
    lines = (*notes, "", *limit_lines(settings, limits, correlation))
    return LinkStudy(settings, radio, crowd, faded, needs, errors, everything, lines)


def _faded_snr_db(radio: Radio) -> Array | None:
    if radio.mean_snr_db is None:
        return None
    everyone = np.arange(radio.devices, dtype=np.int64)
    snrs = [radio.link(everyone, round).snr.double().numpy() for round in range(_ROUNDS)]
    with np.errstate(divide="ignore"):  # a gain of zero is minus infinity dB
        return np.asarray(10 * np.log10(np.stack(snrs)))


def _rule_errors(settings: RunSettings, radio: Radio, faded_snr_db: Array | None) -> dict[str, float]:
    """The error of every rule, averaged over devices and fading."""
    devices = settings.data.devices
    family, tie = settings.method.family, settings.method.tie
    if radio.mean_snr_db is None or faded_snr_db is None:
        perfect = theory_errors(np.array(np.inf), family=family)
        vote = vote_nmse(np.full(devices, np.inf), family=family, tie=tie)
        return {name: float(e) for name, e in perfect.items()} | {_VOTE: vote}
    levels = radio.mean_snr_db
    if devices > _LEVELS:
        levels = np.quantile(levels, (np.arange(_LEVELS) + 0.5) / _LEVELS)
    errors = theory_errors(levels, family=family, **fading_law(settings.cell))
    means = {name: float(error.mean()) for name, error in errors.items()}
    # The vote is averaged over these rounds; how lucky they are shows in a rule whose average is known.
    snrs = 10 ** (faded_snr_db / 10)
    luck = np.mean(mse("hard", snrs, family=family)) - means[_HARD]
    vote = float(np.mean([vote_nmse(snr, family=family, tie=tie) for snr in snrs]) - luck)
    return means | {_VOTE: vote}


def _facts(settings: RunSettings, needs: LinkNeeds, layers: tuple[int, ...] | None) -> dict[str, Any]:
    """Single numbers that the tables rest on, for programs."""
    cell, placed = settings.cell, settings.cell.placed
    facts = {"name": settings.name, "seed": settings.seed, "device_count": settings.data.devices}
    facts |= {"method": settings.method_label, "bandwidth_hz": cell.bandwidth_hz, **fading_law(cell)}
    if placed:
        place = make_cell(cell)
        facts |= {"path_loss": cell.path_loss, "carrier_hz": 1e6 * cell.carrier_mhz}
        facts |= {"radius_m": 1e3 * place.radius_km, "noise_dbm": place.budget.noise_dbm}
    facts |= {"target_error": needs.target, "needed_snr_db": needs.bit_db}
    facts |= {"needed_bler_snr_db": needs.word_db, "word_bits": needs.word_bits}
    facts |= {"word_length": needs.word_length, "weights": None if layers is None else sum(layers)}
    message = None if layers is None else message_bits(settings, layers)
    return facts | {"message_bits": None if message is None else asdict(message)}


def plot_errors(snr_db: Array, *, family: Family = "gaussian", fading: Fading = "none") -> Figure:
    """Return the curves of `theory_errors` against the SNR; the ideal rule, which has none, is left out."""
    errors = theory_errors(snr_db, family=family, fading=fading)
    shown = {label: error for label, error in errors.items() if error.any() and np.isfinite(error).any()}
    across = "SNR (dB)" if fading == "none" else f"mean SNR (dB), {fading.title()} fading"
    return mse_curves(snr_db, shown, across=across)
