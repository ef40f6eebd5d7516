"""Files that are whole or not there, and one sentence where the operating system refuses."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["NO_FOLLOW", "FolderError", "remove_leftovers", "speaking", "why", "write_atomically"]

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has none


class FolderError(ValueError):
    """A run folder that cannot be used as asked, said in one sentence that names it."""


def why(error: OSError) -> str:
    """Return what the operating system said, in words that fit a path that was to be made.

    Example:
        >>> why(FileExistsError(17, "File exists")), why(PermissionError(13, "Permission denied"))
        ('Not a directory', 'Permission denied')
    """
    if isinstance(error, FileExistsError):  # we make folders only: one of them is a file
        return "Not a directory"
    return error.strerror or str(error)


@contextmanager
def speaking(verb: str, folder: Path) -> Iterator[None]:
    """Turn what the operating system refuses meanwhile into a `FolderError`.

    Example:
        >>> with speaking("read", Path("here")):
        ...     open("/nowhere/at/all")
        Traceback (most recent call last):
        signfade.experiments.files.FolderError: cannot read the run folder here: No such file or directory
    """
    try:
        yield
    except OSError as error:
        raise FolderError(f"cannot {verb} the run folder {folder}: {why(error)}") from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that at every moment its name means the old content or the new, whole and on disk.

    The new content is written aside under a name that nobody can foresee, in a file that was not there: so
    a link that somebody put in its place is not followed.
    """
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
