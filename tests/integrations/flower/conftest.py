"""What Flower's tests share: a task for messages to belong to, and a lock for tests of many processes."""

from __future__ import annotations

import fcntl
import importlib.util
import os
from collections.abc import Iterator

import pytest

if importlib.util.find_spec("flwr") is None:
    collect_ignore_glob = ["test_*.py"]  # the extra is not installed


@pytest.fixture(autouse=True, scope="session")
def task_identity() -> Iterator[None]:
    from flwr.supercore.task_identity import TaskIdentity

    with pytest.MonkeyPatch.context() as patch:
        for name in ("_run_id", "_node_id", "_task_id"):
            patch.setattr(TaskIdentity, name, 1)
        yield


@pytest.fixture
def one_at_a_time(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Wait until no other test with this fixture is running, on whichever worker of pytest-xdist."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent  # that of all workers
    with open(place / "processes.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
