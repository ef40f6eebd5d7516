"""Small data that every test of this folder can afford."""

from __future__ import annotations

import pytest
import torch

from signfade.data import Dataset, Split, split


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(240, 1, 8, 8, generator=rng)
    y = torch.arange(240) % 4
    return Dataset(x[:200], y[:200], x[200:], y[200:], classes=4, name="random")


@pytest.fixture(scope="session")
def who(dataset: Dataset) -> Split:
    return split(dataset.train_y, 6, "iid", seed=0)
