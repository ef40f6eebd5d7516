"""Which form of a function runs: the compiled one on the CPU, the plain torch one on every other device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

__all__ = ["is_compiled", "plain_form"]

_forced = [False]


def is_compiled(x: Tensor) -> bool:
    """Tell whether the compiled form takes this tensor."""
    return x.device.type == "cpu" and not _forced[0]


@contextmanager
def plain_form() -> Iterator[None]:
    """Use the plain torch form meanwhile, as for a tensor on an accelerator; for tests."""
    before, _forced[0] = _forced[0], True
    try:
        yield
    finally:
        _forced[0] = before
