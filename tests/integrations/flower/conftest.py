"""Flower's messages know the task they are made in; tests have none of their own."""

from __future__ import annotations

import importlib.util
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
