"""A folder for the files that processes of one machine share; what killed processes left is removed.

Its name says whose it is, `signfade-PID-START-...` with the start of the process in the kernel's clock, and a
lock in it is held as long as that process lives.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from signfade.experiments.files import Held, acquire, check_free, release

__all__ = ["MEMORY", "remove_dead", "scratch_folder"]

MEMORY = Path("/dev/shm")  # a file system in memory, where there is one
_NAME = re.compile(r"signfade-([0-9]+)-([0-9]+)-[0-9a-f]{16}")


@contextmanager
def scratch_folder(place: Path | None = None) -> Iterator[Path]:
    """Make a new folder in `place`, by default where temporary files are, and remove it afterwards.

    Leftovers of dead processes of this user there and in memory are removed first.

    Example:
        >>> with scratch_folder() as folder:
        ...     folder.name.startswith(f"signfade-{os.getpid()}-")
        True
        >>> folder.exists()
        False
    """
    usual = Path(tempfile.gettempdir())
    for one in (usual, MEMORY):
        remove_dead(one)
    folder = (place or usual) / f"signfade-{os.getpid()}-{_start_of(os.getpid()) or 0}-{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700)
    lock = acquire(folder / ".lock")
    try:
        yield folder
    finally:
        with suppress(OSError):
            release(folder / ".lock", lock)
        shutil.rmtree(folder, ignore_errors=True)


def remove_dead(place: Path) -> None:
    """Remove the folders that `scratch_folder` made in `place` for processes of this user that have ended."""
    try:
        paths = [(path, match) for path in place.iterdir() if (match := _NAME.fullmatch(path.name))]
    except OSError:
        return
    for path, match in paths:
        with suppress(OSError, Held):
            status = path.lstat()
            own = not hasattr(os, "getuid") or status.st_uid == os.getuid()
            if own and stat.S_ISDIR(status.st_mode) and not _runs(int(match[1]), int(match[2])):
                check_free(path / ".lock")  # processes of another container have numbers we cannot see
                shutil.rmtree(path, ignore_errors=True)


def _start_of(pid: int) -> int | None:
    """When a process began, in ticks since the machine did; None if it has ended, or if nobody says."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(fields[18])


def _runs(pid: int, start: int) -> bool:
    if Path("/proc/self/stat").exists():
        return _start_of(pid) == start
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is somebody else's
        return True
    return True
