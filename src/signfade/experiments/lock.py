"""One process at a time in a folder: a lock that ends with its process, in a file that says who holds it."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

from signfade._text import printable
from signfade.experiments.files import NO_FOLLOW

if sys.platform != "win32":
    import fcntl

__all__ = ["Held", "acquire", "check_free", "release"]

_TRIES, _PAUSE = 50, 0.02  # seconds; a holder needs a moment to write who it is


class Held(Exception):
    """Another process holds the lock; the message says which, as far as it is known."""


def acquire(path: Path) -> int | None:
    """Take the lock in the file `path`, which is made, and return what `release` wants.

    None is returned where there are no locks: on Windows, and on file systems without them.

    Raises:
        Held: another process has it.
        OSError: the file cannot be made.

    Example:
        >>> import tempfile
        >>> lock = Path(tempfile.mkdtemp()) / ".lock"
        >>> first = acquire(lock)
        >>> try:
        ...     acquire(lock)
        ... except Held as held:
        ...     str(held) == f"pid {os.getpid()} on {socket.gethostname()}, since {str(held)[-19:]}"
        True
        >>> release(lock, first)
        >>> lock.exists()
        False
    """
    if sys.platform == "win32":
        return None
    for _ in range(_TRIES):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NO_FOLLOW, 0o666)
        kept = False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):  # and not the file of a holder who has just removed it
                _write_holder(descriptor)
                kept = True
                return descriptor
        except BlockingIOError:
            if (who := _holder(descriptor)) is not None:
                raise Held(who) from None
            time.sleep(_PAUSE)
        except OSError:
            path.unlink(missing_ok=True)
            return None
        finally:
            if not kept:
                os.close(descriptor)
    raise Held("it has not said which one")


def release(path: Path, lock: int | None) -> None:
    """Give back what `acquire` returned, and remove the file."""
    if lock is not None:
        if _is_at(lock, path):
            path.unlink(missing_ok=True)
        os.close(lock)


def check_free(path: Path) -> None:
    """Raise `Held` if a process holds the lock; take and change nothing."""
    if sys.platform == "win32":
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | NO_FOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Held(_holder(descriptor) or "it has not said which one") from None
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _write_holder(descriptor: int) -> None:
    words = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    os.ftruncate(descriptor, 0)
    os.write(descriptor, json.dumps(words).encode())


def _holder(descriptor: int) -> str | None:
    """Who wrote the file, in words; None if nobody has yet, or a process that is no more."""
    try:
        words = json.loads(os.pread(descriptor, 1000, 0))
        pid, host, since = int(words["pid"]), str(words["host"]), str(words["since"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if host == socket.gethostname() and not _is_alive(pid):
        return None
    return printable(f"pid {pid} on {host}, since {since}")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's, but there
        return True
    return True
