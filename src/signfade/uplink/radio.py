"""The radio of a run: where the devices are, their mean SNRs, and each round's fading."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special

from signfade.keys import generator
from signfade.settings import CellSettings
from signfade.uplink.cell import Cell, LinkBudget, Propagation, noise_variance
from signfade.uplink.channel import GaussMarkov, Link, Normals, draw_fading

__all__ = ["Radio", "correlation_of", "make_cell", "make_radio", "power_and_snr"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Radio:
    """The devices' places and mean SNRs, drawn once per run; `link` draws the fading of a round."""

    settings: CellSettings
    seed: int
    devices: int
    mean_snr_db: Array | None  # of one bit at one antenna, [K]; None for perfect links
    positions_km: Array | None = None  # [K, 2]; None where SNRs are given directly
    propagation: Propagation | None = None  # of the devices, where they have places
    power_dbm: Array | None = None  # that they send at, [K], where they have places

    def link(self, devices: NDArray[np.int64], round: int) -> Link:
        """Return the given devices' gains and noise in a round; perfect links are h = 1, sigma2 = 0."""
        if self.mean_snr_db is None:
            return Link(torch.ones(len(devices)).double(), torch.zeros(len(devices)).double())
        h = draw_fading(
            self.settings.fading,
            self.devices,
            self.normals(round),
            self.settings.rician_k,
            self.settings.antennas,
        )
        sigma2 = noise_variance(torch.from_numpy(self.mean_snr_db[devices]))
        return Link(h[torch.from_numpy(devices)], sigma2)

    def normals(self, round: int) -> Normals:
        """Return the source of a round's fading."""
        correlation = correlation_of(self.settings)
        if correlation == 0:
            return generator(self.seed, "fading", round)
        return GaussMarkov(self.seed, round, correlation)

    @property
    def downlink_snr_db(self) -> Array | None:
        """Mean SNR of the broadcast at each device, `[K]`: the same losses and noise figure both ways.

        The base station's power is shared by the subchannels of all devices, over which the model is sent.
        """
        if self.mean_snr_db is None:
            return None
        spent = self.settings.power_dbm if self.power_dbm is None else self.power_dbm
        return self.mean_snr_db + _shared_db(self.settings) + self.base_dbm - spent

    @property
    def base_dbm(self) -> float:
        """Power of the base station in one device's subchannel."""
        return self.settings.base_dbm - 10 * float(np.log10(self.devices))

    @property
    def downlink_hz(self) -> float:
        """Bandwidth of the broadcast: the subchannels of all devices."""
        return self.devices * self.settings.bandwidth_hz

    def hears(self, round: int) -> NDArray[np.bool_]:
        """Tell which devices decode a round's broadcast, `[K]`: `log2(1 + SNR) >= cell.downlink_rate`.

        The channel is reciprocal. Several antennas send an orthogonal space-time code, which gives each a
        part of the power: no beam serves all devices at once.
        """
        if self.settings.downlink == "error_free" or (mean := self.downlink_snr_db) is None:
            return np.ones(self.devices, dtype=bool)
        power = self.link(np.arange(self.devices), round).h.square().numpy() / self.settings.antennas
        return np.log2(1 + power * 10 ** (mean / 10)) >= self.settings.downlink_rate


def correlation_of(settings: CellSettings) -> float:
    """Return the correlation of a gain with that of the round before: as set, or by Jakes, `J0(2 pi f T)`.

    Example:
        >>> round(correlation_of(CellSettings(doppler_hz=0.1)), 4)
        0.9037
    """
    if settings.doppler_hz is None:
        return settings.fading_correlation
    return float(special.j0(2 * np.pi * settings.doppler_hz * settings.round_s))


def make_radio(settings: CellSettings, devices: int, seed: int) -> Radio:
    """Place the devices and work out their mean SNRs; places and shadowing have streams of their own."""
    if settings.perfect:
        return Radio(settings, seed, devices, None)
    if settings.snr_db is not None:
        snr = np.broadcast_to(np.asarray(settings.snr_db, dtype=np.float64), (devices,))
        return Radio(settings, seed, devices, snr - _shared_db(settings))
    cell = make_cell(settings)
    positions = cell.place_users(devices, generator(seed, "positions"))
    propagation = cell.propagate(positions, generator(seed, "shadowing"))
    power, snr_db = power_and_snr(settings, propagation.loss_db)
    return Radio(settings, seed, devices, snr_db, positions.numpy(), propagation, power)


def power_and_snr(settings: CellSettings, loss_db: Array) -> tuple[Array, Array]:
    """Return what devices with these losses send at, in dBm, and the mean SNR of a bit at one antenna, in dB.

    Fractional power control makes up for a part of path loss and shadowing, less the antenna gains.
    """
    budget = make_cell(settings).budget
    power = np.full(np.shape(loss_db), budget.power_dbm)
    if settings.power_control == "fractional":
        power = np.minimum(power, settings.p0_dbm + settings.alpha * (loss_db - budget.gains_db))
    return power, power + budget.gains_db - loss_db - budget.noise_dbm - _shared_db(settings)


def make_cell(settings: CellSettings) -> Cell:
    """Return the cell and the link budget that the settings describe."""
    budget = LinkBudget(**settings.model_dump(include={one.name for one in fields(LinkBudget)}))
    return Cell(radius_km=settings.radius_km, budget=budget)


def _shared_db(settings: CellSettings) -> float:
    """Return by how much a bit is below its symbol."""
    return 10 * float(np.log10(2)) if settings.modulation == "qpsk" else 0.0
