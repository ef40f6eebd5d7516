"""The tables of `signfade link`: link budget, SNRs, coverage, devices and error curves.

Path losses, shadowing, line of sight and SNRs are read from the radio and the cell, never worked out again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from signfade.experiments.data_table import Column, DataTable
from signfade.experiments.link_needs import LinkNeeds, array_gain_db, fading_law
from signfade.server import AGGREGATORS
from signfade.settings import CellSettings, RunSettings
from signfade.theory.coding import bit_error_faded, block_error, block_error_faded, outage
from signfade.theory.errors import mse
from signfade.theory.rate import explained
from signfade.theory.rules import Rule, bit_error, fading_nodes
from signfade.uplink.cost import bits_per_symbol
from signfade.uplink.radio import Radio, make_cell, power_and_snr

__all__ = [
    "budget_table",
    "cdf_table",
    "coverage_table",
    "curve_table",
    "device_errors",
    "device_table",
]

Array = NDArray[np.float64]

_LEVELS = 500  # quantiles of the users' mean SNRs that stand for all of them
_SHADOWS = special.ndtri((np.arange(201) + 0.5) / 201)  # shadowing, in deviations
_BAND = 0.005  # users within half a percent of a quantile stand for it
_LISTED = 2000  # at most so many devices by name


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return columns of one length as rows of Python's own numbers."""
    return [dict(zip(columns, row)) for row in zip(*(np.asarray(x).tolist() for x in columns.values()))]


def budget_table(crowd: Radio, needs: LinkNeeds) -> DataTable:
    """Return the link budget of the 5 %, median and 95 % user, by mean SNR: means over users close to them.

    `snr = power + gains - path loss - shadowing - noise + array gain`, less 3 dB where two bits share a
    symbol. The 5 % user is the one that 5 % of all users are below.
    """
    snr_db, path, places, power = crowd.mean_snr_db, crowd.propagation, crowd.positions_km, crowd.power_dbm
    if snr_db is None or path is None or places is None or power is None:
        raise ValueError("crowd must have places; got a radio with given SNRs")
    budget, order = make_cell(crowd.settings).budget, np.argsort(snr_db)
    distance, rows = 1e3 * np.hypot(*places.T), list[dict[str, Any]]()
    for level, name in ((0.05, "5 % user"), (0.5, "median user"), (0.95, "95 % user")):
        near = order[int((level - _BAND) * len(order)) : int((level + _BAND) * len(order)) + 1]
        means = (float(x[near].mean()) for x in (power, path.path_loss_db, path.shadowing_db, snr_db))
        sent, loss, shadow, snr = means
        rows.append(
            {
                "user": name,
                "level": level,
                "distance_m": float(distance[near].mean()),
                "line_of_sight": float(path.line_of_sight[near].mean()) if budget.model.sight else None,
                "power_dbm": sent,
                "gains_db": budget.gains_db,
                "path_loss_db": loss,
                "shadowing_db": shadow,
                "received_dbm": sent + budget.gains_db - loss - shadow,
                "noise_dbm": budget.noise_dbm,
                "array_gain_db": array_gain_db(crowd.settings),
                "bits_per_symbol": bits_per_symbol(crowd.settings),
                "mean_snr_db": snr + array_gain_db(crowd.settings),
                "needed_snr_db": needs.bit_db,
                "needed_bler_snr_db": needs.word_db,
                **{key: float(x) for key, x in needs.margins(np.array(snr), crowd.settings).items()},
            }
        )
    target, coded = f"{100 * needs.target:g} % (dB)", crowd.settings.side_info == "coded"
    word = "scalars" if coded else "scalars, if coded"
    heads = {
        "user": Column(""),
        "distance_m": Column("distance (m)", ".0f"),
        "line_of_sight": Column("in line of sight (%)", ".0f", 100),
        "power_dbm": Column("transmit power (dBm)"),
        "gains_db": Column("+ antenna gains, less losses (dB)"),
        "path_loss_db": Column("- path loss (dB)"),
        "shadowing_db": Column("- shadowing (dB)"),
        "received_dbm": Column("= received power (dBm)"),
        "noise_dbm": Column("- noise floor (dBm)"),
        "array_gain_db": Column("+ gain of combined antennas (dB)"),
        "bits_per_symbol": Column("bits that share the power", ".0f"),
        "mean_snr_db": Column("= mean SNR of a bit (dB)"),
        "needed_snr_db": Column(f"needed for a BER of {target}"),
        "margin_db": Column("margin (dB)"),
        "ber": Column("BER, mean over fading (%)", "%"),
        "outage": Column("outage: below the need (%)", "%"),
        "needed_bler_snr_db": Column(f"{word}: needed for a BLER of {target}"),
        "bler_margin_db": Column(f"{word}: margin (dB)"),
        "bler": Column(f"{word}: BLER, mean over fading (%)", "%"),
    }
    idle = {"line_of_sight": None, "array_gain_db": 0.0, "bits_per_symbol": 1, "needed_bler_snr_db": None}
    shown = {
        key: head
        for key, head in heads.items()
        if key in rows[0] and (key not in idle or rows[0][key] != idle[key])
    }
    return DataTable("Link budget", shown, rows, across=True)


def cdf_table(mean_snr_db: Array, cell: CellSettings) -> DataTable:
    """Return the distribution of users' mean SNRs, and of what fading makes of them, in steps of 1 dB.

    Given mean SNRs at one antenna, `[K]`, it is that of the combined antennas. `users_below` is the share of
    users whose mean SNR is at most `snr_db`, `below` the share of users and rounds whose SNR is.
    """
    combined_db, law = np.sort(mean_snr_db) + array_gain_db(cell), fading_law(cell)
    levels = np.quantile(combined_db, (np.arange(_LEVELS) + 0.5) / _LEVELS)
    low, high = np.floor(np.quantile(levels, 0.01)) - 20, np.ceil(np.quantile(levels, 0.99)) + 8
    grid = np.linspace(low, high, int(min(high - low, 200)) + 1)
    users = np.searchsorted(combined_db, grid, side="right") / combined_db.size
    one_antenna = 10 ** (levels / 10) / cell.antennas
    below = np.mean(outage(10 ** (grid[:, None] / 10), one_antenna, **law), axis=1)
    return DataTable(
        "Distribution of SNRs", {}, _rows({"snr_db": grid, "users_below": users, "below": below})
    )


def coverage_table(cell: CellSettings, needs: LinkNeeds) -> DataTable:
    """Return what a user at a distance may expect, from the base station to the edge of the cell.

    `snr_db` is the mean SNR, averaged in dB over line of sight; `covered` the probability, over line of
    sight, shadowing and fading, that a bit has the SNR it needs.
    """
    place = make_cell(cell)
    budget, distance = place.budget, np.linspace(0, place.radius_km, 101)[1:]
    clear = np.asarray(budget.model.sight_probability(distance))
    expected, covered, medians = np.zeros(len(distance)), np.zeros(len(distance)), {}
    for weight, state, deviation in zip((clear, 1 - clear), (True, False), budget.deviations_db):
        path_loss = budget.model.loss_db(distance, budget.site, np.full(len(distance), state))
        _, snr_db = power_and_snr(cell, path_loss[:, None] + deviation * _SHADOWS)
        missed = np.mean(outage(needs.bit_snr, 10 ** (snr_db / 10), **fading_law(cell)), axis=1)
        snr_db = snr_db + array_gain_db(cell)
        medians[state] = snr_db[:, len(_SHADOWS) // 2]
        expected += weight * snr_db.mean(axis=1)
        covered += weight * (1 - missed)
    columns = {"distance_m": 1e3 * distance, "line_of_sight": clear, "snr_db": expected}
    columns |= {"clear_snr_db": medians[True], "blocked_snr_db": medians[False], "covered": covered}
    return DataTable("Coverage", {}, _rows(columns))


def device_table(settings: RunSettings, radio: Radio, needs: LinkNeeds) -> DataTable:
    """Return one row per device, the first 2000 of more: place, losses, mean SNR, errors over fading.

    `error` is what theory expects of the device's own estimate, over its variance; `error_share` its part of
    the error of the sum, for devices of one size that are independent.
    """
    assert radio.mean_snr_db is not None
    cell, snr_db = settings.cell, radio.mean_snr_db[:_LISTED]
    columns: dict[str, Any] = {"device": list(range(len(snr_db)))}
    path, places = radio.propagation, radio.positions_km
    if path is not None and places is not None:
        x, y = 1e3 * places[:_LISTED].T
        columns |= {"x_m": x, "y_m": y, "distance_m": np.hypot(x, y)}
        if make_cell(cell).budget.model.sight is not None:
            columns["line_of_sight"] = path.line_of_sight[:_LISTED].tolist()
        columns |= {"path_loss_db": path.path_loss_db[:_LISTED], "shadowing_db": path.shadowing_db[:_LISTED]}
        columns["power_dbm"] = np.asarray(radio.power_dbm)[:_LISTED]
    error = device_errors(settings, 10 ** (snr_db / 10))
    with np.errstate(invalid="ignore"):  # a rule may have no finite error
        share = error / error.sum() * (len(error) / radio.devices)
    columns |= {"mean_snr_db": snr_db + array_gain_db(cell), **needs.margins(snr_db, cell)}
    columns |= {"error": error, "error_share": share}
    rows = _rows(columns)
    heads = {
        "device": Column("device", ".0f"),
        "distance_m": Column("distance\n(m)", ".0f"),
        "line_of_sight": Column("LOS"),
        "path_loss_db": Column("path loss\n(dB)"),
        "shadowing_db": Column("shadow\n(dB)"),
        "power_dbm": Column("power\n(dBm)"),
        "mean_snr_db": Column("mean SNR\n(dB)"),
        "margin_db": Column("margin\n(dB)"),
        "ber": Column("BER\n(%)", "%"),
        "outage": Column("outage\n(%)", "%"),
        "bler": Column("BLER\n(%)", "%"),
        "error_share": Column("share of\nerror (%)", "%"),
    }
    shown = {key: column for key, column in heads.items() if key in columns}
    if cell.side_info != "coded":
        shown.pop("bler", None)
    if cell.power_control == "full":
        shown.pop("power_dbm", None)
    return DataTable("Devices", shown, rows)


def device_errors(settings: RunSettings, mean_snr: Array) -> Array:
    """Return the squared error of a device's own estimate over its variance, averaged over fading, `[K]`.

    Under the run's rule, or the rule it comes nearest to for one device: a vote is a hard decision, a joint
    rule the posterior mean or the linear estimate. Undebiased.
    """
    method, cell, rule = settings.method, settings.cell, AGGREGATORS.find(settings.method.aggregator)
    if method.soft:
        power, weight = fading_nodes(**fading_law(cell))
        seen = explained(np.outer(mean_snr, power).ravel(), method.level_bits, cell.papr_db)
        return 1 - method.part * (seen.reshape(len(mean_snr), -1) @ weight)
    linear = rule.soft == "joint" and method.joint == "linear"
    nearest: Rule = "hard" if rule.breaks_ties else "blmmse" if linear else "sbfl"
    kind = {"family": method.family, "form": method.form, **fading_law(cell)}
    return 1 - method.part * (1 - np.asarray(mse(rule.law or nearest, mean_snr, **kind)))


def curve_table(mean_snr_db: Array, cell: CellSettings, needs: LinkNeeds) -> DataTable:
    """Return error probabilities against the SNR around the devices': of bits, and of the scalars' codeword.

    At one SNR (`ber`, `bler`) and averaged over fading with this mean SNR after combining (`ber_faded`,
    `bler_faded`). Takes the devices' mean SNRs at one antenna, `[K]`.
    """
    combined_db, law = mean_snr_db + array_gain_db(cell), fading_law(cell)
    shown_db = [combined_db.min(), combined_db.max(), needs.bit_db]
    shown_db += [] if needs.word_db is None else [needs.word_db]
    ends = (min(shown_db) - 5, max(shown_db) + 5)
    grid = np.linspace(*ends, 121)
    snr = 10 ** (grid / 10)
    one = snr / cell.antennas
    columns = {"snr_db": grid, "ber": bit_error(snr), "ber_faded": bit_error_faded(one, **law)}
    if needs.word_bits is not None and needs.word_length is not None:
        word = (needs.word_bits, needs.word_length)
        columns |= {"bler": block_error(snr, *word), "bler_faded": block_error_faded(one, *word, **law)}
    return DataTable("Error curves", {}, _rows(columns))
