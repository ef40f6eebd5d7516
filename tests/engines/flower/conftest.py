"""Flower's messages know the task they are made in; tests have none of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture(autouse=True, scope="session")
def task_identity() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_run_id", "_node_id", "_task_id"):
            patch.setattr(TaskIdentity, name, 1)
        yield
