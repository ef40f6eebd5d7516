"""A process of our own, as its parent sees it."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

__all__ = ["Child", "Inbox"]

_GRACE = 10.0  # seconds for one without work to leave
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)
_CODE = (
    "import sys; sys.path[:] = {path!r}; "
    "from {module} import {function} as serve; serve({scratch!r}, {parent})"
)

T = TypeVar("T")
Inbox = queue.SimpleQueue[tuple["Child[T] | None", T | None]]


class Child(Generic[T]):
    """A process of one thread that takes orders and answers, pickled; the order None asks it to leave.

    Where its orders end without one, its parent was killed.

    Args:
        serve: `module:function` to call in the process, with `scratch` and the parent's process number.
        inbox: where the answers arrive, each with the child; None comes when it is gone.
        scratch: a folder of the parent's.
    """

    def __init__(self, serve: str, inbox: Inbox[T], scratch: Path) -> None:
        module, _, function = serve.partition(":")
        code = _CODE.format(
            path=sys.path, module=module, function=function, scratch=str(scratch), parent=os.getpid()
        )
        self.errors = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115
        self._popen = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=os.environ | _ONE_THREAD,
            start_new_session=True,  # the terminal's Ctrl-C is ours to pass on
        )
        self.pid = self._popen.pid
        self._inbox = inbox
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                self._inbox.put((self, pickle.load(self._popen.stdout)))
        self._popen.wait()
        self._inbox.put((self, None))

    def send(self, order: object) -> None:
        """Give an order."""
        assert self._popen.stdin is not None
        with suppress(OSError):  # a dead one is found by its thread
            pickle.dump(order, self._popen.stdin)
            self._popen.stdin.flush()

    def close(self) -> None:
        """Ask it to save what it has in hand and to leave."""
        assert self._popen.stdin is not None
        if not self._popen.stdin.closed:
            self.send(None)
            with suppress(OSError):
                self._popen.stdin.close()

    def kill(self) -> None:
        """Have it gone at once."""
        self._popen.kill()

    def leave(self) -> None:
        """Wait for it to go; not for ever."""
        self.close()
        try:
            self._popen.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._thread.join()
        if self._popen.stdout is not None:
            self._popen.stdout.close()
        self.errors.close()

    def epitaph(self) -> str:
        """Say how it died."""
        code = self._popen.returncode
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        self.errors.seek(0)
        *_, last = self.errors.read().decode(errors="replace").strip().splitlines() or [""]
        return f"ended with code {code}{': ' if last else ''}{last}"
