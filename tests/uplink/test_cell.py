import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from signfade.keys import generator
from signfade.uplink import Cell, LinkBudget, OutsideValidity, mean_snr_db, noise_variance, place_users

PAPER = LinkBudget(path_loss="cost231")
# A Kolmogorov-Smirnov distance times sqrt(n) exceeds this once in ten thousand fair samples.
KS_LIMIT = stats.kstwobign.isf(1e-4)


def test_noise_floor_is_the_textbook_one() -> None:
    # -174 dBm/Hz at 290 K (more exactly -173.975), 180 kHz is 52.553 dB Hz.
    budget = LinkBudget(noise_figure_db=0.0)
    assert budget.noise_dbm == pytest.approx(-173.975 + 52.553, abs=1e-3)
    assert LinkBudget(noise_figure_db=7.0).noise_dbm == pytest.approx(budget.noise_dbm + 7)
    assert LinkBudget(noise_figure_db=0.0, temperature_k=580).noise_dbm == pytest.approx(
        budget.noise_dbm + 10 * math.log10(2)
    )


def test_budget_adds_up_in_db() -> None:
    distance = torch.tensor([1.0, 3.0, 20.0], dtype=torch.float64)
    snr = PAPER.snr_db(distance)
    # 23 dBm - 135.7066 dB + 116.4225 dBm at 1 km
    assert snr[0].item() == pytest.approx(23 - 135.70658 + 116.42246, abs=1e-4)
    changes = {
        "power_dbm": (26.0, 3.0),
        "gains_db": (15.0, 15.0),
        "noise_figure_db": (9.0, -4.0),
        "bandwidth_hz": (1.8e6, -10.0),
        "temperature_k": (2900.0, -10.0),
        "city": ("large", 3.0),
    }
    for name, (value, gain) in changes.items():
        other = replace(PAPER, **{name: value}).snr_db(distance)  # type: ignore[arg-type]
        assert torch.allclose(other, snr + gain, rtol=0, atol=1e-9), name
    shadowed = PAPER.snr_db(distance, torch.tensor([0.0, 8.0, -8.0]))
    assert torch.allclose(snr - shadowed, torch.tensor([0.0, 8.0, -8.0], dtype=torch.float64))


def test_heights_and_carrier_reach_the_path_loss() -> None:
    one = torch.tensor(1.0, dtype=torch.float64)
    base = float(PAPER.snr_db(one))
    higher_mast = float(replace(PAPER, base_m=140).snr_db(one))
    assert higher_mast - base == pytest.approx(13.82 * math.log10(2))
    lower_carrier = float(replace(PAPER, carrier_mhz=1600).snr_db(one))
    assert lower_carrier - base == pytest.approx(33.9 * math.log10(2000 / 1600))
    # The large-city correction a(hm) at 10 m less that at 1.5 m.
    tall_user = float(replace(PAPER, user_m=10.0).snr_db(one))
    x, y = math.log10(11.75 * 1.5), math.log10(117.5)
    assert tall_user - base == pytest.approx(3.2 * (y**2 - x**2))


def test_a_budget_is_worked_out_in_double_precision() -> None:
    single = LinkBudget().snr_db(torch.tensor([0.5, 1.0]), warn=False)
    double = LinkBudget().snr_db(torch.tensor([0.5, 1.0], dtype=torch.float64), warn=False)
    assert single.dtype == torch.float64
    assert torch.equal(single, double)


def test_the_papers_quantiles_in_closed_form() -> None:
    # A fraction q of a disc's users stands beyond sqrt(1 - q) of its radius.
    cell = Cell(budget=PAPER)
    for level, rounded in ((0.05, 4), (0.5, 9), (0.95, 25)):
        distance = math.sqrt(1 - level)
        by_hand = 3.71588 - (44.9 - 6.55 * math.log10(70)) * math.log10(distance)
        assert cell.snr_quantile_db(level) == pytest.approx(by_hand, abs=1e-4)
        assert round(cell.snr_quantile_db(level)) == rounded


@pytest.mark.parametrize(
    "cell",
    [
        Cell(budget=PAPER),
        Cell(),
        Cell(budget=LinkBudget(shadowing_db=0.0)),
        Cell(0.1, LinkBudget(path_loss="inh")),
        Cell(2.0, LinkBudget(path_loss="umi")),
    ],
)
def test_placed_users_have_these_quantiles(cell: Cell) -> None:
    count = 20_000
    users = cell.place_users(count, generator(5, "positions"))
    snr = cell.mean_snr_db(users, generator(5, "shadowing"), warn=False).numpy()
    for level in (0.05, 0.5, 0.95):
        assert float(cell.snr_cdf(cell.snr_quantile_db(level))) == pytest.approx(level, abs=1 / 4096)
        below = float(np.mean(snr < cell.snr_quantile_db(level)))
        assert abs(below - level) < 4 * math.sqrt(level * (1 - level) / count)


@pytest.mark.parametrize("radius", [1.0, 3.5])
def test_users_are_uniform_in_the_disc(radius: float) -> None:
    count = 20_000
    positions = place_users(count, generator(11, "positions"), radius).numpy()
    square = (positions**2).sum(axis=1) / radius**2
    angle = np.arctan2(positions[:, 1], positions[:, 0])
    for sample, law in ((square, stats.uniform(0, 1)), (angle, stats.uniform(-np.pi, 2 * np.pi))):
        assert stats.kstest(sample, law.cdf).statistic * math.sqrt(count) < KS_LIMIT
    # Distance and angle independent: rank correlation of independent samples has deviation 1/sqrt(n - 1).
    assert abs(stats.spearmanr(square, angle).statistic) < 4 / math.sqrt(count - 1)


def test_user_does_not_move_when_others_come() -> None:
    few, many = (place_users(count, generator(2, "positions")) for count in (5, 50))
    assert torch.equal(few, many[:5])
    assert few.shape == (5, 2)
    assert place_users(0, generator(2, "positions")).shape == (0, 2)


def test_cell_scales_with_its_radius() -> None:
    cell, wide = Cell(budget=PAPER), Cell(radius_km=2.0, budget=PAPER)
    near = cell.place_users(7, generator(3, "positions"))
    far = wide.place_users(7, generator(3, "positions"))
    assert torch.allclose(far, 2 * near)
    difference = cell.mean_snr_db(near, warn=False) - wide.mean_snr_db(far, warn=False)
    slope = 44.9 - 6.55 * math.log10(70)
    assert torch.allclose(difference, torch.full_like(difference, slope * math.log10(2)))


def test_shadowing_is_log_normal_and_keyed() -> None:
    count, budget = 20_000, replace(PAPER, shadowing_db=8.0)
    positions = torch.ones(count, 2)
    median = mean_snr_db(positions[:1], PAPER)
    snr = mean_snr_db(positions, budget, generator(1, "shadowing"))
    sample = ((snr - median) / 8).numpy()
    assert stats.kstest(sample, stats.norm.cdf).statistic * math.sqrt(count) < KS_LIMIT
    assert torch.equal(snr[:9], mean_snr_db(positions[:9], budget, generator(1, "shadowing")))
    # Without shadowing a generator changes nothing.
    assert torch.equal(mean_snr_db(positions[:3], PAPER, generator(1, "shadowing")), median.expand(3))


def test_noise_variance_inverts_the_snr() -> None:
    snr_db = torch.tensor([-100.0, -3.0, 0.0, 7.0, 150.0], dtype=torch.float64)
    assert torch.allclose(-10 * noise_variance(snr_db).log10(), snr_db, rtol=1e-12)
    assert noise_variance(snr_db.float()).dtype == torch.float32
    assert noise_variance(torch.tensor([math.inf])).item() == 0


def test_a_placement_warns_once() -> None:
    cell = Cell(budget=PAPER)
    users = cell.place_users(50, generator(1, "positions"))
    for call in (lambda: cell.mean_snr_db(users), lambda: mean_snr_db(users, PAPER)):
        with pytest.warns(OutsideValidity, match="distance_km") as seen:
            call()
        assert len(seen) == 1
        assert seen[0].filename == __file__


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("power_dbm", math.nan),
        ("gains_db", math.inf),
        ("bandwidth_hz", 0.0),
        ("temperature_k", -1.0),
        ("noise_figure_db", math.nan),
        ("carrier_mhz", 0.0),
        ("base_m", math.nan),
        ("user_m", -1.5),
        ("shadowing_db", -8.0),
        ("city", "rural"),
        ("path_loss", "hata"),
        ("exponent", 0.0),
    ],
)
def test_bad_budget_is_named(name: str, value: float | str) -> None:
    with pytest.raises(ValueError, match=name):
        LinkBudget(**{name: value})  # type: ignore[arg-type]


def test_bad_calls_are_named() -> None:
    source = generator(1, "positions")
    with pytest.raises(ValueError, match="radius_km"):
        Cell(radius_km=0.0)
    with pytest.raises(ValueError, match="radius_km"):
        place_users(3, source, math.nan)
    with pytest.raises(ValueError, match="count"):
        place_users(-1, source)
    with pytest.raises(ValueError, match="positions"):
        mean_snr_db(torch.zeros(3))
    with pytest.raises(ValueError, match="positions"):
        mean_snr_db(torch.full((3, 2), math.nan))
    with pytest.raises(ValueError, match="generator"):
        mean_snr_db(torch.ones(3, 2), replace(PAPER, shadowing_db=4.0), warn=False)
    with pytest.raises(ValueError, match="generator"):
        mean_snr_db(torch.ones(3, 2), LinkBudget(shadowing_db=0.0))
    with pytest.raises(ValueError, match="distance_km"):
        LinkBudget().snr_db(torch.tensor([-1.0]))
    with pytest.raises(ValueError, match="shadowing"):
        LinkBudget().snr_db(torch.tensor([1.0]), math.nan)
    with pytest.raises(ValueError, match="level"):
        Cell().snr_quantile_db(1.5)
    with pytest.raises(ValueError, match="snr_db"):
        noise_variance(torch.tensor([math.nan]))
