"""What a round costs on the air: bits, symbols, time and energy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from signfade.device import Encoder
from signfade.experiments.data_table import Column, DataTable
from signfade.server import AGGREGATORS
from signfade.settings import RunSettings
from signfade.uplink.cost import UplinkBits, airtime_s, bits_per_symbol, channel_uses, uplink_bits
from signfade.uplink.radio import Radio

__all__ = ["cost_table", "message_bits", "round_encoder"]

Array = NDArray[np.float64]


def round_encoder(settings: RunSettings, layers: tuple[int, ...], *, first: bool = False) -> Encoder:
    """Return the encoder of the first round, or of the later ones, whose scales are sent as shorter codes."""
    rule = AGGREGATORS.find(settings.method.aggregator)
    encoder = Encoder(settings.method, layers, rule.sends_scalars, papr_db=settings.cell.papr_db)
    if first or not encoder.quantised:
        return encoder
    return Encoder(settings.method, layers, rule.sends_scalars, (0,) * len(encoder.segments), encoder.papr_db)


def message_bits(settings: RunSettings, layers: tuple[int, ...], *, first: bool = False) -> UplinkBits | None:
    """Return what a device sends in a round, by item; None where a compressor decides it."""
    values = AGGREGATORS.find(settings.method.aggregator).sends == "values"
    if values and settings.method.compressor != "auto":
        return None
    return uplink_bits(round_encoder(settings, layers, first=first), settings.cell, values=values)


def cost_table(settings: RunSettings, layers: tuple[int, ...], radio: Radio) -> DataTable:
    """Return bits, symbols, time on the air and energy: of a device in a round, of a round, of the run.

    The symbol rate is the bandwidth of a subchannel. `airtime_s` is that of the uplink alone, all devices at
    once on their subchannels. `energy_j` is what antennas are given, `power * symbols / bandwidth`, at the
    mean of the devices' powers. Numbers in full (`ideal`) go as 32 bits per weight, as if none were lost.
    """
    cell, rounds = settings.cell, settings.rounds
    devices = max(1, int(np.floor(settings.data.devices * settings.data.participation + 0.5)))
    values = AGGREGATORS.find(settings.method.aggregator).sends == "values"
    powers_dbm = cell.power_dbm if radio.power_dbm is None else radio.power_dbm
    watt = float(np.mean(10 ** (np.asarray(powers_dbm) / 10))) / 1e3

    def of_round(first: bool) -> Array:
        """Bits, symbols, seconds and joules: of one device, then of all, `[2, 4]`."""
        encoder, bits = (
            round_encoder(settings, layers, first=first),
            message_bits(settings, layers, first=first),
        )
        if bits is None:
            return np.full((2, 4), np.nan)
        one, every = (channel_uses(encoder, cell, count) for count in (1, devices))
        seconds = airtime_s(encoder, cell, devices)
        if values:
            one = -(-bits.total // bits_per_symbol(cell))
            every, seconds = devices * one, one / cell.bandwidth_hz
        joules = watt * one / cell.bandwidth_hz
        alone = (bits.total, one, one / cell.bandwidth_hz, joules)
        return np.array([alone, (devices * bits.total, every, seconds, devices * joules)])

    usual = of_round(first=False)
    whole = of_round(first=True) + (rounds - 1) * usual
    spans = (
        "one device, one round",
        f"{devices} devices, one round",
        "one device, the run",
        f"{devices} devices, the run",
    )
    rows = [
        {"span": span, "bits": row[0], "symbols": row[1], "airtime_s": row[2], "energy_j": row[3]}
        for span, row in zip(spans, [*usual.tolist(), *whole.tolist()])
    ]
    columns = {
        "span": Column(""),
        "bits": Column("bits", ",.0f"),
        "symbols": Column("symbols", ",.0f"),
        "airtime_s": Column("airtime (s)", ".4g"),
        "energy_j": Column("energy (J)", ".4g"),
    }
    return DataTable("Time and energy of the uplink", columns, rows)
