"""What `signfade link` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.text import Text

from signfade.experiments.data_table import Column, DataTable
from signfade.experiments.link_needs import array_gain_db
from signfade.uplink.cost import bits_per_symbol
from signfade.uplink.radio import make_cell

if TYPE_CHECKING:
    from rich.console import RenderableType

    from signfade.experiments.link_study import LinkStudy

__all__ = ["describe_link"]

_QUANTILES = {"min": 0.0, "5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "max": 1.0}
_MANY = 40  # of more devices, those with the lowest SNRs are listed
_LOWEST = 10


def describe_link(study: LinkStudy) -> list[RenderableType]:
    """Return the parts of the text, each followed by an empty line."""
    tables = study.tables.tables
    parts: list[RenderableType] = [Text(_heading(study))]
    if "budget" in tables:
        parts.append(tables["budget"].to_text())
    if study.faded_snr_db is not None:
        parts += [_snrs(study).to_text(), *_devices(study)]
    parts += _cost(study)
    parts += [tables["errors"].to_text(), Text("\n".join([_about_errors(study), "", *study.notes]).strip())]
    return [piece for part in parts for piece in (part, Text())][:-1]


def _heading(study: LinkStudy) -> str:
    cell, count = study.settings.cell, study.settings.data.devices
    devices = "1 device" if count == 1 else f"{count:,} devices"
    if study.radio.mean_snr_db is None:
        return f"{devices}. Perfect links: no fading, no noise."
    fading = "no fading" if cell.fading == "none" else f"{cell.fading.title()} fading"
    band = f"{cell.bandwidth_hz / 1e3:g} kHz per device, {fading}"
    if not cell.placed:
        return f"{devices} with given SNRs, {band}."
    title = make_cell(cell).budget.model.title
    return f"{devices} within {cell.radius_km:g} km, {title} at {cell.carrier_mhz / 1e3:g} GHz, {band}."


def _snrs(study: LinkStudy) -> DataTable:
    """Quantiles of the SNRs."""
    cell, crowd = study.settings.cell, study.crowd
    found = [("mean, this run's devices", study.radio.mean_snr_db, array_gain_db(cell))]
    if cell.fading != "none":
        found.append((f"with {cell.fading.title()} fading", study.faded_snr_db, 0.0))
    if crowd is not None:
        found.append(("mean, anybody in this cell", crowd.mean_snr_db, array_gain_db(cell)))
    rows = [
        {"of": name, **dict(zip(_QUANTILES, np.quantile(snr_db, list(_QUANTILES.values())) + gain_db))}
        for name, snr_db, gain_db in found
        if snr_db is not None
    ]
    return DataTable("SNR in dB", {"of": Column("")} | {name: Column(name) for name in _QUANTILES}, rows)


def _devices(study: LinkStudy) -> list[RenderableType]:
    table = study.tables.tables["devices"]
    if len(table.rows) <= _MANY:
        return [table.to_text()]
    lowest = sorted(table.rows, key=lambda row: row["mean_snr_db"])[:_LOWEST]
    text = f"The {_LOWEST} devices with the lowest SNRs; --json and --csv have {len(table.rows):,}."
    return [table.to_text(lowest), Text(text)]


def _cost(study: LinkStudy) -> list[RenderableType]:
    settings, facts = study.settings, study.tables.facts
    if "cost" not in study.tables.tables:
        return [Text("Time and energy: the number of weights depends on the data; give it as --weights.")]
    cell, weights, message = settings.cell, facts["weights"], facts["message_bits"]
    lines = [f"Model: {weights:,} weights; what the compressor sends decides time and energy."]
    if message is not None:
        items = ", ".join(f"{bits:,} {name}" for name, bits in message.items() if bits)
        lines = [f"Model: {weights:,} weights; a device's message in bits: {items}."]
    each = "2 bits" if bits_per_symbol(cell) == 2 else "1 bit"
    fixed = cell.power_control == "full"
    power = f"{cell.power_dbm:g} dBm while sending" if fixed else "each at its power, the mean is shown"
    lines.append(f"One symbol per hertz and second, {each} per symbol; {power}.")
    return [study.tables.tables["cost"].to_text(), Text("\n".join(lines))]


def _about_errors(study: LinkStudy) -> str:
    from signfade.experiments.link_study import VOTE_RULE

    cell = study.settings.cell
    faded = study.radio.mean_snr_db is not None and cell.fading != "none"
    over = f"devices and {cell.fading.title()} fading" if faded else "devices, without fading"
    return (
        f"Averaged over {over}; {study.settings.method.family.title()} coordinates, all independent.\n"
        f"{VOTE_RULE} is the vote of all devices; the other rules take each device by itself.\n"
        "The joint rule bfl gains as far as devices are correlated, which no link shows."
    )
