"""What the switches of the radio do to the links of a run, in sentences."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from signfade.device import EXACT_BITS
from signfade.experiments.data_table import percent
from signfade.experiments.link_needs import LinkNeeds, fading_law, find_needs
from signfade.server import AGGREGATORS
from signfade.settings import CellSettings, MethodSettings, RunSettings
from signfade.theory.coding import bit_error_faded, block_error_faded, outage
from signfade.theory.errors import mse_faded
from signfade.theory.pilots import PilotRule, pilot_mse
from signfade.theory.rules import kappa_of
from signfade.uplink.path_loss import SPEED_OF_LIGHT
from signfade.uplink.radio import Radio, correlation_of

__all__ = ["air_error", "bit_errors", "downlink_note", "fading_note", "path_loss_note", "switch_notes"]

Array = NDArray[np.float64]

_LEVELS = 50  # in a larger cell, as many quantiles of the devices' mean SNRs stand for all
_AIR_ROUNDS, _AIR_COORDINATES = 50, 2000  # tell an error to about a hundredth of itself


def bit_errors(mean_snr: Array, cell: CellSettings) -> float:
    """Return the share of bits whose sign arrives wrong, `E[Q(sqrt(gamma))]`, over devices and fading."""
    return float(np.mean(bit_error_faded(mean_snr, **fading_law(cell))))


def path_loss_note(cell: CellSettings, positions_km: Array) -> list[str]:
    """Return a sentence where the path loss leaves the ranges it was measured in, none where it does not."""
    from signfade.uplink.radio import make_cell

    budget, distance = make_cell(cell).budget, np.hypot(*positions_km.T)
    title, (low, high) = budget.model.title, budget.model.ranges.get("distance_km", (0.0, math.inf))
    notes = []
    if elsewhere := int(((distance < low) | (distance > high)).sum()):
        stand = "stands" if elsewhere == 1 else "stand"
        notes.append(
            f"Path loss: {title} was measured at distances of {low:g} to {high:g} km; "
            f"{elsewhere} of {len(distance)} devices {stand} elsewhere."
        )
    if found := budget.model.outside(np.clip(distance, low, high), budget.site):
        notes.append(f"Path loss: {title} is extrapolated in cell.{', cell.'.join(found)}.")
    return notes


def fading_note(cell: CellSettings) -> list[str]:
    """Return how long a gain lasts, where it is correlated in time; the coherence time is `0.423/doppler_hz`.

    Example:
        >>> fading_note(CellSettings(doppler_hz=0.1))[0]
        'Fading: Doppler 0.1 Hz (0.054 km/h at 2 GHz), coherence time 4.23 s.'
        >>> fading_note(CellSettings(fading_correlation=0.9))
        ['Fading: gains are correlated by 0.900 from round to round, by less than a half after 7 rounds.']
    """
    notes, r = [], correlation_of(cell)
    if cell.doppler_hz:
        speed = 3.6 * cell.doppler_hz * SPEED_OF_LIGHT / (1e6 * cell.carrier_mhz)
        notes.append(
            f"Fading: Doppler {cell.doppler_hz:g} Hz ({speed:.2g} km/h at {cell.carrier_mhz / 1e3:g} GHz), "
            f"coherence time {math.sqrt(9 / (16 * math.pi)) / cell.doppler_hz:.3g} s."
        )
    if r != 0:
        half = "" if abs(r) >= 1 else f", by less than a half after {_rounds_to_half(r)}"
        notes.append(f"Fading: gains are correlated by {r:.3f} from round to round{half}.")
    return notes


def _rounds_to_half(r: float) -> str:
    rounds = math.floor(math.log(0.5) / math.log(abs(r))) + 1
    return "1 round" if rounds == 1 else f"{rounds} rounds"


def downlink_note(radio: Radio) -> list[str]:
    """Return how many of the broadcasts devices cannot decode, where the downlink can fail."""
    cell, mean_db = radio.settings, radio.downlink_snr_db
    if cell.downlink == "error_free" or mean_db is None:
        return []
    one_antenna = 10 ** (mean_db / 10) / cell.antennas  # each sends a part of the power
    missed = percent(float(np.mean(outage(2**cell.downlink_rate - 1, one_antenna, **fading_law(cell)))))
    return [f"Downlink: {missed} % of the broadcasts at {cell.downlink_rate:g} bit/s/Hz are missed."]


def switch_notes(
    settings: RunSettings,
    mean_snr_db: Array,
    faded_snr_db: Array | None = None,
    needs: LinkNeeds | None = None,
) -> list[str]:
    """Return what the errors of known links leave out, one sentence for each switch that is thrown.

    The mean SNR of a bit of each device, `[K]`; the same with the fading of some rounds, `[T, K]`, for the
    error over the air; what a codeword needs, if that was worked out already. A `ConfigError` says that the
    scalars do not fit into the codeword.

    Example:
        >>> from signfade.experiments.config import load
        >>> switch_notes(load(None, ["cell.side_info=coded", "method.side_bits=4"]), np.array([10.0]))
        ['Scalars: 15.2 % of the codewords (128 bits, 4 bits per scalar) are lost.']
    """
    cell, method = settings.cell, settings.method
    if len(mean_snr_db) > _LEVELS:
        mean_snr_db = np.quantile(mean_snr_db, (np.arange(_LEVELS) + 0.5) / _LEVELS)
    snr = 10 ** (mean_snr_db / 10)
    notes = []
    if cell.modulation == "qpsk":
        notes.append("Two bits per symbol: SNRs are those of a bit, 3 dB below the symbol's.")
    rule = AGGREGATORS.find(method.aggregator)
    if cell.csi == "pilot" and rule.sends != "values":
        notes.append(_pilots(cell, method, snr))
    if cell.side_info == "coded" and rule.sends_scalars:
        notes.append(_scalars(settings, needs or find_needs(settings, None), snr))
    if cell.access == "over_the_air" and faded_snr_db is not None and rule.sends != "values":
        notes.append(_air(settings, faded_snr_db))
    return notes


def _pilots(cell: CellSettings, method: MethodSettings, snr: Array) -> str:
    law = AGGREGATORS.find(method.aggregator).law
    rule: PilotRule = law if law in get_args(PilotRule) else "sbfl"  # type: ignore[assignment]
    kind = {"fading": cell.fading, "rician_k": cell.rician_k, "family": method.family}  # of one antenna
    pilots = cell.pilots * (2 if cell.modulation == "qpsk" else 1)  # a pilot has the power of a symbol
    found = np.mean(pilot_mse(rule, snr, pilots, use=cell.csi_error, **kind))  # type: ignore[arg-type]
    known = np.mean(mse_faded(rule, snr, **kind))  # type: ignore[arg-type]
    many = "1 pilot" if cell.pilots == 1 else f"{cell.pilots} pilots"
    return f"Gains: with {many} ({cell.csi_error}) the error of {rule} is {found:.3f}, if known {known:.3f}."


def _scalars(settings: RunSettings, needs: LinkNeeds, snr: Array) -> str:
    cell, each = settings.cell, settings.method.side_bits or EXACT_BITS
    if needs.word_bits is None or needs.word_length is None:
        return "Scalars: a codeword carries those of all layers; how many are lost depends on the model."
    lost = block_error_faded(snr, needs.word_bits, needs.word_length, **fading_law(cell))
    share = f"{percent(float(np.mean(lost)))} %"
    return f"Scalars: {share} of the codewords ({needs.word_length} bits, {each} bits per scalar) are lost."


def _air(settings: RunSettings, faded_snr_db: Array) -> str:
    cell, rule, devices = settings.cell, settings.method.aggregator, settings.data.devices
    how = f"{cell.precoding}, {'once' if cell.repeats == 1 else f'{cell.repeats} times'}"
    error = air_error(settings, 10 ** (faded_snr_db[:_AIR_ROUNDS] / 10))
    return (
        f"Over the air ({how}) the error of {rule} is {error:.3f}; "
        f"channel uses per coordinate: {cell.repeats}, one device at a time {devices}."
    )


def air_error(settings: RunSettings, snr: Array) -> float:
    """Return the error of the sum read over the air, over its variance, at SNRs `[T, K]` of like devices.

    Signs are drawn, and the rule is tried on them; what a sign leaves open of its gradient is added by
    formula. The error of a vote is that of its best multiple.
    """
    import torch

    from signfade.device.bits import sign
    from signfade.keys import generator
    from signfade.server import over_the_air, superposed_vote
    from signfade.uplink import align

    cell, rule = settings.cell, AGGREGATORS.find(settings.method.aggregator)
    kappa, devices = float(kappa_of(1.0, settings.method.family)), snr.shape[1]
    level = None if cell.inversion_db is None else 10 ** (cell.inversion_db / 20)
    zero, scale = torch.zeros(devices).double(), torch.full((devices,), kappa).double()
    product, power = [], []
    for t, one in enumerate(snr):
        draw = torch.from_numpy(generator(0, "prediction", t).normal(size=(devices + 1, _AIR_COORDINATES)))
        signs = sign(draw[:-1])
        gain, noise = torch.from_numpy(np.sqrt(one)), torch.ones(devices).double()
        amplitude = align(gain, noise, cell.precoding, level, cell.repeats)
        y = amplitude @ signs + draw[-1] / math.sqrt(cell.repeats)
        if not rule.scaled:
            read = superposed_vote(y)
        else:
            how = "gaussian" if rule.over_the_air == "linear" else "auto"
            read = over_the_air(y, amplitude, 1 / cell.repeats, zero, scale, method=how)  # type: ignore[arg-type]
        product.append(float((kappa * signs.sum(dim=0) * read).mean()) / devices)
        power.append(float(read.square().mean()) / devices)
    explained, size = np.array(product), np.array(power)
    if not rule.scaled:
        return float(np.mean(1 - explained**2 / size))
    return float(np.mean(1 - 2 * explained + size))
