"""Buffers of many devices become one: the mean where devices agree, bounded where some lie."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from signfade.simulation.task import merge_buffers


def draws(devices: int, seed: int) -> Tensor:
    return torch.randn(devices, 40, generator=torch.Generator().manual_seed(seed))


def merged(values: Tensor) -> Tensor:
    [result] = merge_buffers([[row] for row in values])
    return result


@pytest.mark.parametrize("devices", [1, 2, 7, 20])
def test_devices_that_agree_are_averaged(devices: int) -> None:
    """Evenly spaced values are within two median deviations of their median."""
    values = torch.linspace(-3.0, 5.0, devices).unsqueeze(1) * torch.arange(1.0, 41.0)
    assert torch.equal(merged(values), values.double().mean(0).float())


@pytest.mark.parametrize("lie", [3.4e38, -3.4e38, 1e3])
@pytest.mark.parametrize(("devices", "liars"), [(3, 1), (5, 2), (20, 9), (21, 10)])
def test_a_minority_stays_within_fifteen_ranges(devices: int, liars: int, lie: float) -> None:
    values = draws(devices, seed=1)
    honest = values[liars:]
    low, high = honest.amin(0), honest.amax(0)
    values[:liars] = lie
    result = merged(values)
    reach = 15 * (high - low)
    assert bool(((result >= low - reach) & (result <= high + reach)).all())


def test_it_does_not_matter_where_zero_and_one_are() -> None:
    values = draws(9, seed=2).double()
    values[0] = 1e6
    shifted = merged(1000 + 3 * values)
    assert torch.allclose(shifted, 1000 + 3 * merged(values), rtol=1e-12, atol=0)


def test_counters_take_their_median() -> None:
    assert int(merged(torch.tensor([[3], [4], [2**63 - 1]]))) == 4
    assert int(merged(torch.tensor([[3], [4]]))) == 4
    assert merged(torch.tensor([[True], [False], [True]])).tolist() == [True]


def test_doubles_do_not_overflow() -> None:
    values = torch.tensor([[1.0], [2.0], [3.0], [1.7e308], [-1.7e308]], dtype=torch.float64)
    assert 1.0 - 30 <= float(merged(values)) <= 3.0 + 30
