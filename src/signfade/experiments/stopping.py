"""SIGINT and SIGTERM: the round is finished and saved; asked again, it is not."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupted", "Stop", "listening"]


class Interrupted(Exception):
    """The run was asked to stop; what it did is saved, and `--resume` goes on from there."""


class Stop:
    """Whether somebody asked us to stop: while `patient`, the round is finished first."""

    def __init__(self) -> None:
        self.asked = False
        self.patient = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Hear a signal."""
        if self.asked or not self.patient:  # asked twice: do not wait for the round
            raise Interrupted("stopped at once")
        self.asked = True


@contextmanager
def listening() -> Iterator[Stop]:
    """Catch SIGINT and SIGTERM meanwhile; only the main thread can."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
