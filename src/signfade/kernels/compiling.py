"""Tell when numba compiles: the first run of an installation, or of a changed one, waits many seconds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from numba.core import event

__all__ = ["tell_compiling"]


class _Once(event.Listener):
    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell: Callable[[str], None] | None = tell

    def on_start(self, happened: Any) -> None:
        if self._tell is not None:
            self._tell("compiling kernels, about a minute, for this environment; the next run finds them")
            self._tell = None

    def on_end(self, happened: Any) -> None:
        pass


def tell_compiling(tell: Callable[[str], None]) -> AbstractContextManager[object]:
    """Return a context that reports the first kernel that is compiled rather than loaded from disk."""
    manager: AbstractContextManager[object] = event.install_listener("numba:compile", _Once(tell))
    return manager
