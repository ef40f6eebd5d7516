"""Small data that every test of this folder can afford."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from signfade.data import Dataset, Split, split
from signfade.settings import RunSettings


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(240, 1, 8, 8, generator=rng)
    y = torch.arange(240) % 4
    return Dataset(x[:200], y[:200], x[200:], y[200:], classes=4, name="random")


@pytest.fixture(scope="session")
def who(dataset: Dataset) -> Split:
    return split(dataset.train_y, 6, "iid", seed=0)


def settings(**changes: Any) -> RunSettings:
    """A run of three rounds on digits by SBFL, changed by dotted names with __ for the dot."""
    tree: dict[str, Any] = {
        "rounds": 3,
        "data": {"devices": 6},
        "model": {"name": "linear"},
        "method": {} if "method__preset" in changes else {"aggregator": "sbfl"},
        "server": {"step": 1e-2},
    }
    for name, value in changes.items():
        section, _, key = name.rpartition("__")
        (tree.setdefault(section, {}) if section else tree)[key] = value
    return RunSettings.model_validate(tree)
