"""Krum, trimmed mean and median against their definitions written out."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from signfade.server import coordinate_median, krum, robust_rules, trimmed_mean


def vectors(devices: int = 9, size: int = 13, seed: int = 0) -> torch.Tensor:
    return torch.randn(devices, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("attackers", [0, 1, 3])
@pytest.mark.parametrize("chosen", [1, 4, 9])
def test_krum_is_its_definition(
    monkeypatch: pytest.MonkeyPatch, seed: int, attackers: int, chosen: int
) -> None:
    """The smallest sum over all sets of K - f - 2 others, which is that over the nearest."""
    monkeypatch.setattr(robust_rules, "_CHUNK", 5)
    x = vectors(seed=seed).numpy()
    scores = [
        min(
            sum(((x[i] - x[j]) ** 2).sum() for j in near)
            for near in combinations([j for j in range(9) if j != i], 9 - attackers - 2)
        )
        for i in range(9)
    ]
    best = np.argsort(scores)[:chosen]
    found = krum(torch.from_numpy(x), attackers, chosen)
    assert found.numpy() == pytest.approx(x[best].mean(axis=0), rel=1e-12)


@pytest.mark.parametrize("devices", [7, 8])
def test_trimmed_mean_and_median_are_numpys(monkeypatch: pytest.MonkeyPatch, devices: int) -> None:
    monkeypatch.setattr(robust_rules, "_CHUNK", 5)
    x = vectors(devices)
    assert coordinate_median(x).numpy() == pytest.approx(np.median(x.numpy(), axis=0), rel=1e-12)
    assert trimmed_mean(x, 0).numpy() == pytest.approx(x.numpy().mean(axis=0), rel=1e-12)
    inner = np.sort(x.numpy(), axis=0)[2:-2]
    assert trimmed_mean(x, 2).numpy() == pytest.approx(inner.mean(axis=0), rel=1e-12)


@pytest.mark.parametrize("size", [1e3, -1e30])
def test_a_minority_stays_without_influence(size: float) -> None:
    """Coordinates between the honest extremes; Krum chooses an honest vector."""
    x = vectors()
    x[:3] = size
    low, high = x[3:].amin(dim=0), x[3:].amax(dim=0)
    for found in (trimmed_mean(x, 3), coordinate_median(x), krum(x, 3), krum(x, 3, chosen=6)):
        assert (low <= found).all()
        assert (found <= high).all()
    assert (x[3:] == krum(x, 3)).all(dim=1).any()


def test_mistakes_are_named() -> None:
    x = vectors()
    with pytest.raises(ValueError, match="at least 11 devices for 4 attackers; got 9"):
        krum(x, 4)
    with pytest.raises(ValueError, match="chosen must be from 1 to 9; got 0"):
        krum(x, 1, chosen=0)
    with pytest.raises(ValueError, match="more than 10 devices for 5 attackers; got 9"):
        trimmed_mean(x, 5)
    with pytest.raises(ValueError, match="attackers must not be negative"):
        trimmed_mean(x, -1)
    for shape in ((0, 3), (3, 0), (3,)):
        with pytest.raises(ValueError, match="x must have shape"):
            coordinate_median(torch.zeros(shape))
