"""The radio of a run: every setting reaches it, every round and device has its own draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from signfade.keys import generator
from signfade.settings import CellSettings
from signfade.uplink import LinkBudget, draw_fading, make_radio, mean_snr_db, place_users

DEVICES = 7
EVERYONE = np.arange(DEVICES)


def plan(seed: int = 3, **options: Any) -> Any:
    return make_radio(CellSettings.model_validate(options), DEVICES, seed)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"power_dbm": 10.0},
        {"gains_db": 6.0},
        {"bandwidth_hz": 1e6},
        {"noise_figure_db": 9.0},
        {"carrier_mhz": 1800.0},
        {"base_m": 30.0},
        {"user_m": 3.0},
        {"path_loss": "umi"},
        {"path_loss": "cost231", "city": "medium"},
        {"path_loss": "log-distance", "exponent": 4.0},
        {"shadowing_db": 8.0},
    ],
)
def test_every_setting_reaches_the_link_budget(options: dict[str, Any]) -> None:
    users = place_users(DEVICES, generator(3, "positions"))
    expected = mean_snr_db(users, LinkBudget(**options), generator(3, "shadowing"), warn=False)
    found = plan(**options)
    assert np.array_equal(found.positions_km, users.numpy())
    assert np.array_equal(found.mean_snr_db, expected.numpy())
    assert not options or not np.allclose(found.mean_snr_db, plan().mean_snr_db)


def test_the_radius_scales_the_places() -> None:
    assert np.allclose(plan(radius_km=3.0).positions_km, 3 * plan().positions_km)
    assert not np.array_equal(plan(seed=4).positions_km, plan().positions_km)


def test_given_snrs_replace_the_budget() -> None:
    assert plan(snr_db=5.0).mean_snr_db.tolist() == [5.0] * DEVICES
    listed = plan(snr_db=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert listed.positions_km is None
    assert torch.allclose(listed.link(EVERYONE, 0).sigma2, 10 ** (-torch.arange(7.0).double() / 10))


@pytest.mark.parametrize("fading", ["gaussian", "rayleigh", "rician", "none"])
def test_each_round_fades_anew_by_the_law_that_is_set(fading: str) -> None:
    cell = plan(fading=fading, rician_k=2.0)
    for t in range(3):
        expected = draw_fading(fading, DEVICES, generator(3, "fading", t), rician_k=2.0)
        assert torch.equal(cell.link(EVERYONE, t).h, expected)
    assert fading == "none" or not torch.equal(cell.link(EVERYONE, 0).h, cell.link(EVERYONE, 1).h)


def test_a_device_has_its_link_whoever_else_is_heard() -> None:
    everyone = plan().link(EVERYONE, 5)
    some = np.array([1, 4, 6])
    heard = plan().link(some, 5)
    assert torch.equal(heard.h, everyone.h[some])
    assert torch.equal(heard.sigma2, everyone.sigma2[some])


def test_perfect_links_neither_fade_nor_hiss() -> None:
    link = plan(perfect=True).link(np.array([0, 2]), 4)
    assert link.h.tolist() == [1.0, 1.0]
    assert link.sigma2.tolist() == [0.0, 0.0]
