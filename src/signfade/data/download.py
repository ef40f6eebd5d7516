"""One file from one address: patient with a slow server, but not for ever, and never more than asked for."""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

__all__ = ["DEFAULT_LIMITS", "Failed", "Limits", "Progress", "download_file"]

Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes so far, and the bytes in all (0 if the server does not say)."""

_SLOWEST = 20_000  # bytes per second; a slower server is given up


class Failed(Exception):
    """Why a source gave nothing (more): the end of a sentence that begins with its name."""


@dataclass(frozen=True)
class Limits:
    """How long to wait and how much to take."""

    patience: float = 5.0  # seconds without an answer before a server is given up
    package_patience: float = 120.0  # seconds for a package client to bring its archive
    largest: int = 1 << 26  # bytes of the largest file to accept, packed or not


DEFAULT_LIMITS = Limits()


def download_file(address: str, name: str, folder: Path, limits: Limits, progress: Progress) -> Path:
    """Download a file to `folder` under a name of ours, by pooch; `file:` addresses are copied."""
    import pooch  # late: few need it

    if address.startswith("file:"):
        try:
            return Path(shutil.copy(url2pathname(urlsplit(address).path), folder / name))
        except OSError as error:
            raise Failed(f"has no {name} ({error.strerror})") from error
    watch = _Watch(name, limits, progress)
    downloader = pooch.HTTPDownloader(progressbar=watch, timeout=limits.patience)
    try:
        with _hushed(pooch.get_logger()):
            # No hash here: what counts is the unpacked file, and some servers unpack on the way.
            return Path(pooch.retrieve(address, None, fname=name, path=folder, downloader=downloader))
    except (OSError, ValueError) as error:  # those of requests are OSErrors
        raise Failed(_short(error, name, limits.patience)) from error


class _Watch:
    """A progress bar for pooch that gives up on a server that sends too slowly or too much."""

    def __init__(self, name: str, limits: Limits, progress: Progress) -> None:
        self.total = 0  # set by pooch
        self._name, self._limits, self._progress = name, limits, progress
        self._start, self._done, self._shown, self._over = time.monotonic(), 0, 0, False

    def update(self, size: int) -> None:
        self._done += size
        if self._over:
            self._progress(self._name, self._done, self._done)
            return
        if self._done > self._limits.largest:
            raise Failed(f"sent more than {self._limits.largest} bytes for {self._name}")
        if time.monotonic() - self._start > self._limits.patience + self._done / _SLOWEST:
            raise Failed(f"is too slow for {self._name}")
        if self._done - self._shown >= 1 << 16:
            self._shown = self._done
            self._progress(self._name, self._done, self.total)

    def reset(self) -> None:
        """Begin again: pooch does so when all is there, and then counts the exact size once."""
        self._done, self._over = 0, True

    def close(self) -> None:
        """Do nothing: required by pooch."""


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
    return "cannot be reached" if kind == "ConnectionError" else f"failed for {name} ({kind})"
