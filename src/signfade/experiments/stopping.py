"""SIGINT and SIGTERM: the one handler that runs, worker pools and clusters install."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Interrupted", "Stop", "on_stop_signal"]


class Interrupted(Exception):
    """The run was asked to stop; what it did is saved, and `--resume` continues it."""


class Stop:
    """Whether a run was asked to stop: while `patient`, the current round is finished and saved first."""

    def __init__(self) -> None:
        self.asked = False
        self.patient = False

    def ask(self) -> None:
        """Ask the run to stop; asked twice, it does not finish the round."""
        if self.asked or not self.patient:
            raise Interrupted("stopped at once")
        self.asked = True


@contextmanager
def on_stop_signal(handle: Callable[[], None]) -> Iterator[None]:
    """Call `handle` at every SIGINT and SIGTERM inside the context; outside the main thread do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: object) -> None:
        handle()

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
