"""The path-loss models: worked by hand, against sionna, and what a run's devices draw from them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from signfade.experiments.config import ConfigError, resolve
from signfade.keys import generator
from signfade.settings import CellSettings
from signfade.uplink import PATH_LOSSES, LinkBudget, Site, make_radio

DISTANCES_M = np.array([10.0, 17.0, 18.0, 19.0, 57.0, 120.0, 149.0, 450.0, 1000.0, 4900.0])


def loss(name: str, metres: float, sight: bool, **site: float) -> float:
    model = PATH_LOSSES.find(name)
    place = Site(**({"base_m": model.base_m} | site))  # type: ignore[arg-type]
    return float(model.loss_db(np.array([metres / 1e3]), place, np.array([sight]))[0])


def test_the_reports_formulas_worked_by_hand() -> None:
    # Heights are chosen for round distances: d3D = 500 m from 400 m and 300 m, and so on; f = 2 GHz.
    log2, log5 = math.log10(2), math.log10(5)
    # UMa, hb = 301.5, hm = 1.5: dBP = 4 * 300.5 * 0.5 * 2e9/c = 4009.4 m, so 400 m is before it.
    tall = {"base_m": 301.5}
    assert loss("uma", 400, True, **tall) == pytest.approx(28 + 22 * (2 + log5) + 20 * log2)
    assert loss("uma", 400, False, **tall) == pytest.approx(13.54 + 39.08 * (2 + log5) + 20 * log2)
    assert loss("umi", 400, True, **tall) == pytest.approx(32.4 + 21 * (2 + log5) + 20 * log2)
    assert loss("umi", 400, False, **tall) == pytest.approx(22.4 + 35.3 * (2 + log5) + 21.3 * log2)
    # InH, hb = 61.5: d3D = 100 m from 80 m.
    assert loss("inh", 80, True, base_m=61.5) == pytest.approx(32.4 + 17.3 * 2 + 20 * log2)
    assert loss("inh", 80, False, base_m=61.5) == pytest.approx(17.3 + 38.3 * 2 + 24.9 * log2)
    # Free space at 1 GHz and 1 km: 92.45 dB, the textbook's; and 20 dB per decade of the carrier.
    flat = {"base_m": 1.5}
    assert loss("free-space", 1000, False, carrier_mhz=1000.0, **flat) == pytest.approx(92.45, abs=0.01)
    metre = loss("free-space", 1, False, **flat)
    assert loss("log-distance", 100, False, exponent=3.5, **flat) == pytest.approx(metre + 70)


@pytest.mark.parametrize(("name", "user_m"), [("uma", 1.5), ("umi", 3.0)])
def test_line_of_sight_bends_without_a_jump(name: str, user_m: float) -> None:
    model = PATH_LOSSES.find(name)
    bend = 4 * (model.base_m - 1) * (user_m - 1) * 2e9 / 299_792_458
    before, after = (loss(name, bend + step, True, user_m=user_m) for step in (-1e-6, 1e-6))
    # The branches meet because 22 + 2*9 = 40 and 21 + 2*9.5 = 40.
    assert after == pytest.approx(before, abs=1e-6)
    far = loss(name, 4000, True, user_m=user_m) - loss(name, 2000, True, user_m=user_m)
    assert far == pytest.approx(40 * math.log10(2), abs=0.01)


def test_models_agree_with_sionna() -> None:
    tr38901 = pytest.importorskip("sionna.phy.channel.tr38901")
    import torch

    array = tr38901.Antenna("single", "V", "omni", 2e9)
    for name, kind, height in (
        ("uma", tr38901.UMaScenario, 25.0),
        ("umi", tr38901.UMiScenario, 10.0),
        ("inh", tr38901.InHScenario, 3.0),
    ):
        ends = {"carrier_frequency": 2e9, "ut_array": array, "bs_array": array, "direction": "uplink"}
        extra = {"indoor_scenario": "mixed"} if name == "inh" else {"o2i_model": "low"}
        theirs = kind(**ends, **extra, precision="double")
        metres = DISTANCES_M[DISTANCES_M < 150] if name == "inh" else DISTANCES_M
        users = torch.zeros(1, len(metres), 3, dtype=torch.float64)
        users[0, :, 0], users[0, :, 2] = torch.from_numpy(metres), 1.5
        base = torch.tensor([[[0.0, 0.0, height]]], dtype=torch.float64)
        still = torch.zeros(1, len(metres), 3, dtype=torch.float64)
        indoor = torch.full((1, len(metres)), name == "inh")
        for sight in (True, False):
            theirs.set_topology(users, base, still, still[:, :1], still, indoor, los=sight)
            ours = PATH_LOSSES.find(name).loss_db(
                metres / 1e3, Site(base_m=height), np.full(len(metres), sight)
            )
            assert np.allclose(theirs.basic_pathloss.numpy().ravel(), ours, rtol=0, atol=1e-6), (name, sight)
        chance = PATH_LOSSES.find(name).sight_probability(metres / 1e3)
        assert np.allclose(theirs.los_probability.numpy().ravel(), chance, rtol=0, atol=1e-6), name


def test_devices_draw_line_of_sight_and_shadowing_by_their_law() -> None:
    budget, count = LinkBudget(), 40_000
    distance = np.repeat([0.03, 0.15, 0.8], count)
    drawn = budget.propagate(distance, generator(1, "shadowing"))
    chance = PATH_LOSSES.find("uma").sight_probability(distance)
    for place in np.split(np.arange(3 * count), 3):
        p = chance[place[0]]
        assert abs(drawn.line_of_sight[place].mean() - p) < 4 * math.sqrt(p * (1 - p) / count)
    for sight, deviation in ((True, 4.0), (False, 6.0)):
        sample = drawn.shadowing_db[drawn.line_of_sight == sight]
        assert abs(sample.mean()) < 4 * deviation / math.sqrt(len(sample))
        assert abs(sample.std() / deviation - 1) < 4 / math.sqrt(2 * len(sample))
    # A device's draw does not depend on how many come after.
    few = budget.propagate(distance[:5], generator(1, "shadowing"))
    assert np.array_equal(few.loss_db, drawn.loss_db[:5])
    assert np.array_equal(
        make_radio(CellSettings(), 3, 7).mean_snr_db, make_radio(CellSettings(), 9, 7).mean_snr_db[:3]
    )  # type: ignore[index]


def test_heights_and_shadowing_are_the_models_unless_given() -> None:
    heights = {name: LinkBudget(path_loss=name).site.base_m for name in PATH_LOSSES.names()}
    assert [heights[name] for name in ("uma", "umi", "inh", "cost231")] == [25, 10, 3, 70]
    assert LinkBudget(base_m=40.0).site.base_m == 40
    assert LinkBudget().deviations_db == (4, 6)
    assert LinkBudget(shadowing_db=3.0).deviations_db == (3, 3)
    assert LinkBudget(path_loss="cost231").deviations_db == (0, 0)


def test_the_default_cell_lies_inside_its_model() -> None:
    from signfade.experiments.link_notes import path_loss_note

    radio = make_radio(CellSettings(), 50, 0)
    assert path_loss_note(radio.settings, radio.positions_km) == []  # type: ignore[arg-type]


def test_a_cell_beyond_its_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cell.radius_km must be at most 0.15 with path_loss inh"):
        resolve({"cell.path_loss": "inh"})
    resolve({"cell.path_loss": "inh", "cell.snr_db": 3.0})
    with pytest.raises(ConfigError, match=r"cell.path_loss must be one of uma, umi, inh, cost231"):
        resolve({"cell.path_loss": "okumura"})


def test_a_path_loss_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def wall(distance_km, site):\n    return 100 + 0 * distance_km + site.user_m\n")
    name = f"{file}:wall"
    assert loss(name, 300, False) == 101.5
    file.write_text("def wall(distance_km, site):\n    return 100\n")
    with pytest.raises(ValueError, match="one finite loss for each of 1 distances"):
        loss(name, 300, False)
