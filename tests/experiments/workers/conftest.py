"""Tests that start a dozen processes take turns, whichever worker of pytest-xdist they are on."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import pytest


@pytest.fixture
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Wait until no other test that asks for this is running."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent  # a worker's own folder is in that of all
    with open(place / "alone.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
