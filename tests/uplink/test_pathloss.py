import math
import warnings

import numpy as np
import pytest
import torch

from signfade.uplink import LinkBudget, OutsideValidity, cost231_hata, mean_snr_db

PAPER = LinkBudget(path_loss="cost231")
# Worked on paper from a table of logarithms: log10 of 2, 3, 7 and 1.175.
LOG2, LOG3, LOG7, LOG1175 = 0.3010300, 0.4771213, 0.8450980, 0.0700379


def by_hand_2ghz_70m_1m5_1km() -> dict[str, float]:
    f = LOG2 + 3
    # log10(11.75 * 1.5) = log10(1.175) + 1 + log10(3) - log10(2)
    user = LOG1175 + 1 + LOG3 - LOG2
    common = 46.3 + 33.9 * f - 13.82 * (LOG7 + 1)
    large = common - (3.2 * user * user - 4.97)
    medium = common - (1.65 * f - 1.05) + (1.56 * f - 0.8)
    return {"medium": medium, "large": large, "metropolitan": large + 3}


def by_hand_1800mhz_30m_3m_5km() -> dict[str, float]:
    f = 2 + LOG2 + 2 * LOG3
    user = LOG1175 + 1 + LOG3
    slope = 44.9 - 6.55 * (1 + LOG3)
    common = 46.3 + 33.9 * f - 13.82 * (1 + LOG3) + slope * (1 - LOG2)
    large = common - 3.2 * user**2 + 4.97
    medium = common - (3.3 * f - 2.1) + (1.56 * f - 0.8)
    return {"medium": medium, "large": large, "metropolitan": large + 3}


@pytest.mark.parametrize("city", ["medium", "large", "metropolitan"])
def test_loss_worked_by_hand(city: str) -> None:
    # Seven digits of the logarithms, times 33.9: an error below 1e-5.
    assert cost231_hata(1.0, city=city) == pytest.approx(by_hand_2ghz_70m_1m5_1km()[city], abs=1e-5)
    loss = cost231_hata(5.0, carrier_mhz=1800, base_m=30, user_m=3, city=city)
    assert loss == pytest.approx(by_hand_1800mhz_30m_3m_5km()[city], abs=1e-5)


def test_published_digits() -> None:
    assert round(cost231_hata(1.0), 1) == 135.7
    assert [round(cost231_hata(1.0, city=city), 3) for city in ("medium", "large")] == [132.659, 132.707]


@pytest.mark.parametrize("city", ["medium", "large", "metropolitan"])
@pytest.mark.parametrize("base_m", [30.0, 70.0, 200.0])
def test_every_decade_of_distance_costs_the_same(city: str, base_m: float) -> None:
    distance = torch.logspace(-1.6, 1.3, 100, dtype=torch.float64)
    loss = cost231_hata(distance, base_m=base_m, city=city, warn=False)
    assert bool((loss.diff() > 0).all())
    ten, one = (cost231_hata(d, base_m=base_m, city=city) for d in (10.0, 1.0))
    assert ten - one == pytest.approx(44.9 - 6.55 * math.log10(base_m), abs=1e-9)


def test_numbers_arrays_and_tensors_give_the_same_digits() -> None:
    for distance in (0.3, 1.1, 7.0):
        loss = cost231_hata(distance, warn=False)
        assert loss == cost231_hata(np.array([distance]), warn=False)[0]
        assert loss == cost231_hata(torch.tensor([distance], dtype=torch.float64), warn=False).item()
        slope = 44.9 - 6.55 * math.log10(70)
        assert loss - cost231_hata(1.0) == pytest.approx(slope * math.log10(distance), abs=1e-12 * loss)


def test_nobody_is_closer_than_20_metres() -> None:
    near = cost231_hata(torch.tensor([0.0, 0.005, 0.02, 0.0201]).double(), warn=False)
    assert near[0] == near[1] == near[2] < near[3]
    assert bool(near.isfinite().all())


def test_kind_and_precision_follow_the_distance() -> None:
    number = cost231_hata(2.5)
    assert isinstance(number, float)
    array = cost231_hata(np.array([[2.5, 5.0]]))
    assert isinstance(array, np.ndarray)
    assert array.shape == (1, 2)
    assert array[0, 0] == number
    for dtype in (torch.float32, torch.float64):
        tensor = cost231_hata(torch.tensor([2.5, 5.0], dtype=dtype))
        assert tensor.dtype == dtype
        assert tensor[0].item() == pytest.approx(number, rel=torch.finfo(dtype).eps)
    assert cost231_hata(torch.tensor([2, 5])).tolist() == [cost231_hata(2.0), cost231_hata(5.0)]
    assert cost231_hata(torch.zeros(0)).shape == (0,)


def test_one_warning_names_everything_outside() -> None:
    with pytest.warns(OutsideValidity) as seen:
        cost231_hata(torch.tensor([0.5, 2.0, 30.0]), carrier_mhz=900, base_m=10, user_m=0.5)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    text = str(seen[0].message)
    assert all(name in text for name in ("carrier_mhz", "base_m", "user_m", "distance_km"))


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("carrier_mhz", 1500, 2000), ("base_m", 30, 200), ("user_m", 1, 10), ("distance_km", 1, 20)],
)
def test_range_includes_its_ends_and_nothing_more(name: str, low: float, high: float) -> None:
    inside = {"distance_km": 5.0, "carrier_mhz": 1800.0, "base_m": 50.0, "user_m": 2.0}
    for end in (low, high):
        cost231_hata(**{**inside, name: float(end)})  # a warning would be an error here
    for beyond in (low * 0.999, high * 1.001):
        with pytest.warns(OutsideValidity, match=name) as seen:
            cost231_hata(**{**inside, name: beyond})
        assert not any(other in str(seen[0].message) for other in inside.keys() - {name})


def test_warning_is_silent_on_request_and_not_repeated() -> None:
    positions = torch.tensor([[0.1, 0.2], [0.3, 0.0]])
    cost231_hata(0.5, warn=False)
    mean_snr_db(positions, PAPER, warn=False)
    PAPER.snr_db(torch.tensor([0.5]), warn=False)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for shrink in (1.0, 0.5, 0.25):  # other distances, the same text: shown once per line of code
            mean_snr_db(shrink * positions, PAPER)
    assert [w.category for w in seen] == [OutsideValidity]
    assert seen[0].filename == __file__


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("distance_km", -0.1),
        ("distance_km", math.nan),
        ("distance_km", math.inf),
        ("carrier_mhz", 0.0),
        ("base_m", -70.0),
        ("user_m", math.nan),
        ("city", "village"),
    ],
)
def test_bad_input_is_named(name: str, value: float | str) -> None:
    arguments: dict[str, object] = {"distance_km": 1.0, name: value}
    with pytest.raises(ValueError, match=name):
        cost231_hata(**arguments)  # type: ignore[call-overload]
