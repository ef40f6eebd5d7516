"""Files that are whole or not there, names of folders, and a lock: one process at a time may write."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from signfade._text import printable

if sys.platform != "win32":
    import fcntl

__all__ = [
    "NO_FOLLOW",
    "FolderError",
    "Held",
    "acquire",
    "check_free",
    "folder_name",
    "move_aside",
    "os_errors",
    "release",
    "remove_leftovers",
    "why",
    "write_atomically",
]

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has none
_TRIES, _PAUSE = 50, 0.02  # to take a lock, and seconds between: a holder needs a moment to write who it is
_LONGEST = 200  # bytes of a folder's name; most systems end at 255, and some names are made longer


class FolderError(ValueError):
    """A run folder that cannot be used as asked, said in one sentence that names it."""


def why(error: OSError) -> str:
    """Return what the operating system said, in words that fit a path that was to be made."""
    if isinstance(error, FileExistsError):  # we make folders only: one of them is a file
        return "Not a directory"
    return error.strerror or str(error)


@contextmanager
def os_errors(verb: str, folder: Path) -> Iterator[None]:
    """Turn what the operating system refuses inside the context into a `FolderError`."""
    try:
        yield
    except OSError as error:
        raise FolderError(f"cannot {verb} the run folder {folder}: {why(error)}") from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that at every moment its name means the old content or the new, whole and on disk."""
    # A name that nobody can foresee, and a file that was not there: a link put in its place is not followed.
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW, 0o666)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sys.platform != "win32":  # the move itself lives in the folder
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove what `write_atomically` left in `folder` when it was killed; nobody else may write there now."""
    for path in folder.glob(".*.tmp"):
        if path.is_symlink() or path.is_file():
            path.unlink(missing_ok=True)


def folder_name(text: str) -> str:
    """Return a name for a folder made of what people call a run or a method, no longer than systems allow.

    Example:
        >>> folder_name("rules/mine.py: sbfl"), folder_name(".."), len(folder_name("x" * 300))
        ('rules-mine.py-sbfl', 'run', 200)
    """
    name = re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "run"
    if len(name.encode()) <= _LONGEST:
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]  # names that begin alike stay apart
    return f"{name.encode()[: _LONGEST - 13].decode(errors='ignore')}-{digest}"


def move_aside(folder: Path) -> Path | None:
    """Rename a run folder, or a folder of runs by method and seed, to the first free NAME.1, NAME.2, ...

    Returns the new path, None if there is no run in the folder; `FolderError` if somebody is writing there.
    """
    runs = [folder, *folder.glob("*/seed-*")]
    if not any((run / "config.toml").exists() for run in runs):
        return None
    try:
        for run in runs:
            check_free(run / ".lock")
    except Held as held:
        raise FolderError(f"another process is writing to the run folder {run}: {held}") from None
    names = (folder.with_name(f"{folder.name}.{number}") for number in count(1))
    aside = next(path for path in names if not path.exists())
    with os_errors("move", folder):
        folder.rename(aside)
    return aside


class Held(Exception):
    """Another process holds the lock; the message says which, as far as it is known."""


def acquire(path: Path) -> int | None:
    """Take the lock in the file `path`, which is made, and return what `release` wants, or raise `Held`.

    None is returned where there are no locks: on Windows, and on file systems without them.
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
