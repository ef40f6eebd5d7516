"""Processes that one of ours started, and their descendants: known by a mark, and gone when we are."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["Children", "marked"]

_MARK = "SIGNFADE_DEPLOYMENT"
_GRACE = 3.0  # seconds between asking a process to stop and making it
_DEATH = 60.0  # seconds that a killed process may take to end: it must get its turn on a busy machine first
_SET_PARENT_DEATH_SIGNAL = 1
# Looked up here: between fork and exec as little as possible should happen.
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


class Children:
    """Starts processes that share a mark in their environment, and stops all that carry it.

    Flower's processes start others in sessions of their own, which a process group would not find; the mark
    is inherited by all of them. On Linux they also end if this process is killed. The processes have our
    environment and, on top of it, `environment`.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.mark = uuid.uuid4().hex
        self._environment = {**os.environ, **environment, _MARK: self.mark}
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str | Path], log: Path) -> subprocess.Popen[bytes]:
        """Start a process whose output goes to the end of a file."""
        with open(log, "ab") as output:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # an interrupt at the terminal is for us alone
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        self._started.append(process)
        return process

    def stop(self) -> None:
        """Stop all processes that carry the mark: ask, wait, then kill; return when none is left."""
        for process in self._started:
            _send(process.pid, signal.SIGTERM)
        end = time.monotonic() + _GRACE
        while time.monotonic() < end and self.alive():
            time.sleep(0.1)
        end = time.monotonic() + _DEATH
        while (left := self.alive()) and time.monotonic() < end:
            for pid in left:
                _send(pid, signal.SIGKILL)
            time.sleep(0.05)
        for process in self._started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_DEATH)
        self._started.clear()

    def kill(self, pid: int) -> None:
        """Kill a process if it carries the mark; its number may be another's by now."""
        if pid in self.alive():
            _send(pid, signal.SIGKILL)

    def alive(self) -> list[int]:
        """Return the processes that carry the mark and have not ended."""
        for process in self._started:
            process.poll()  # collects those that ended
        return marked(self.mark)


def marked(mark: str) -> list[int]:
    """Return the processes that carry a mark in their environment; those that are ending do not count."""
    wanted = f"{_MARK}={mark}"
    if not Path("/proc/self/environ").exists():
        listed = subprocess.run(["ps", "-axEww", "-o", "pid=,command="], capture_output=True, text=True)
        return [int(line.split()[0]) for line in listed.stdout.splitlines() if wanted in line.split()]
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            words = (entry / "environ").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if wanted.encode() in words and state not in "ZX":
                found.append(int(entry.name))
    return found


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _die_with_parent() -> None:
    """Ask the kernel to end this process when the one that started it does."""
    assert _prctl is not None
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM.value)
