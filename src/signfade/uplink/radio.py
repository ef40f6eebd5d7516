"""The radio of a run: where the devices are, their mean SNRs, and each round's fading."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray

from signfade.keys import generator
from signfade.settings import CellSettings
from signfade.uplink.cell import Cell, LinkBudget, Propagation, noise_variance
from signfade.uplink.channel import Link, draw_fading

__all__ = ["Radio", "make_cell", "make_radio"]


@dataclass(frozen=True)
class Radio:
    """The devices' places and mean SNRs, drawn once per run; `link` draws the fading of a round."""

    settings: CellSettings
    seed: int
    devices: int
    mean_snr_db: NDArray[np.float64] | None  # of one bit, [K]; None for perfect links
    positions_km: NDArray[np.float64] | None = None  # [K, 2]; None where SNRs are given directly
    propagation: Propagation | None = None  # of the devices, where they have places

    def link(self, devices: NDArray[np.int64], round: int) -> Link:
        """Return the given devices' gains and noise in a round; perfect links are h = 1, sigma2 = 0."""
        if self.mean_snr_db is None:
            return Link(torch.ones(len(devices)).double(), torch.zeros(len(devices)).double())
        draw = generator(self.seed, "fading", round)
        h = draw_fading(self.settings.fading, self.devices, draw, self.settings.rician_k)
        sigma2 = noise_variance(torch.from_numpy(self.mean_snr_db[devices]))
        return Link(h[torch.from_numpy(devices)], sigma2)


def make_radio(settings: CellSettings, devices: int, seed: int) -> Radio:
    """Place the devices and work out their mean SNRs; places and shadowing (with line of
    sight) have streams of their own.
    """
    if settings.perfect:
        return Radio(settings, seed, devices, None)
    shared_db = 10 * np.log10(2) if settings.modulation == "qpsk" else 0.0
    if settings.snr_db is not None:
        snr = np.broadcast_to(np.asarray(settings.snr_db, dtype=np.float64), (devices,))
        return Radio(settings, seed, devices, snr - shared_db)
    cell = make_cell(settings)
    positions = cell.place_users(devices, generator(seed, "positions"))
    propagation = cell.propagate(positions, generator(seed, "shadowing"))
    budget = cell.budget
    snr_db = budget.power_dbm + budget.gains_db - propagation.loss_db - budget.noise_dbm
    return Radio(settings, seed, devices, snr_db - shared_db, positions.numpy(), propagation)


def make_cell(settings: CellSettings) -> Cell:
    """Return the cell and the link budget that the settings describe."""
    budget = LinkBudget(**settings.model_dump(include={one.name for one in fields(LinkBudget)}))
    return Cell(radius_km=settings.radius_km, budget=budget)
