"""IDX files, the format of MNIST and its relatives: read with suspicion, written whole.

An IDX file is a magic number (0, 0, type, number of dimensions), the dimensions as big-endian 32-bit
integers, then the entries. Only unsigned bytes are read here; all image sets of this family use them.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import secrets
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DataError",
    "IdxSet",
    "find_file",
    "open_data",
    "read_idx",
    "read_idx_set",
    "whole_file",
    "write_idx",
]

PARTS = ("train-images", "train-labels", "t10k-images", "t10k-labels")
"""The four files of a set, by the beginning of their names."""

_UNSIGNED_BYTE = 0x08
_PIECE = 1 << 20


class DataError(ValueError):
    """A data file is missing or damaged; the message is one sentence that says which, how, and what to do."""


class IdxSet(NamedTuple):
    """Images `[N, H, W]` (or `[N, D]`, `[N, C, H, W]`) and labels `[N]` as they stand in the four files."""

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.uint8]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]


def file_name(part: str) -> str:
    """Return the usual name of a part, unpacked.

    Example:
        >>> file_name("train-labels")
        'train-labels-idx1-ubyte'
    """
    return f"{part}-{'idx1' if part.endswith('labels') else 'idx3'}-ubyte"


def find_file(folder: str | Path, name: str) -> Path | None:
    """Return the file of this name in `folder`, plain or else with `.gz`, or None.

    Both spellings of IDX files are known: `train-images-idx3-ubyte` and `train-images.idx3-ubyte`.
    """
    for packed in ("", ".gz"):
        for spelling in dict.fromkeys((name, name.replace("-idx", ".idx"))):
            path = Path(folder) / f"{spelling}{packed}"
            try:
                if path.is_file():
                    return path
            except OSError as error:  # a folder that may not be entered, a name too long
                reason = error.strerror or error
                raise DataError(f"{folder} cannot be read ({reason}): name another folder") from error
    return None


def find_idx(folder: str | Path, part: str) -> Path | None:
    """Return the file in `folder` that holds one of the `PARTS` of a set, or None; plain before `.gz`."""
    dimensions = (1,) if part.endswith("labels") else (3, 2, 4)
    found = [find_file(folder, f"{part}-idx{dimension}-ubyte") for dimension in dimensions]
    return min((path for path in found if path), key=lambda path: path.suffix == ".gz", default=None)


@contextmanager
def open_data(path: str | Path, remedy: str, *, unpack: bool = True) -> Iterator[BinaryIO]:
    """Open a file, plain or gzip (told apart by content, not by name); a `DataError` says what is wrong."""
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if packed and unpack:
                with gzip.GzipFile(fileobj=raw) as unpacked:
                    yield unpacked  # type: ignore[misc]
            else:
                yield raw
        return
    except _Damaged as error:
        reason = str(error)
    except EOFError:
        reason = "is truncated"
    except (zlib.error, gzip.BadGzipFile):
        reason = "is not a whole gzip file"
    except OSError as error:
        reason = f"cannot be read ({error.strerror or error})"
    raise DataError(f"{path} {reason}: {remedy}")


def read_idx(
    path: str | Path,
    *,
    sha256: str | None = None,
    remedy: str = "replace the file",
) -> NDArray[np.uint8]:
    """Read one IDX file of unsigned bytes, plain or gzip (told apart by content, not by name).

    Memory grows with what the file really holds, never with what its header claims.

    Args:
        path: the file.
        sha256: what the *unpacked* file must hash to, in hex; None accepts any content.
        remedy: what the reader of an error should do, the end of its sentence.

    Example:
        >>> read_idx("/nowhere", remedy="fetch it")
        Traceback (most recent call last):
        ...
        signfade.data.idx.DataError: /nowhere cannot be read (No such file or directory): fetch it
    """
    with open_data(path, remedy) as stream:
        return _parse(stream, sha256)


def read_idx_set(
    folder: str | Path, *, sha256: Mapping[str, str] | None = None, remedy: str = "replace the file"
) -> IdxSet:
    """Read the four files of a set from a folder and check that they belong together.

    `sha256` maps `PARTS` to the hashes of the unpacked files; `remedy` is as in `read_idx`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for part in ("train", "t10k"):
        ...         write_idx(f"{folder}/{part}-images-idx3-ubyte", np.zeros((5, 8, 8), np.uint8))
        ...         write_idx(f"{folder}/{part}-labels-idx1-ubyte", np.arange(5, dtype=np.uint8))
        ...     read_idx_set(folder).test_labels
        array([0, 1, 2, 3, 4], dtype=uint8)
    """
    paths: dict[str, Path] = {}
    for part in PARTS:
        found = find_idx(folder, part)
        if found is None:
            usual = file_name(part)
            dotted = usual.replace("-idx", ".idx")
            raise DataError(f"{folder} has no file {usual} (nor {dotted}, nor .gz): {remedy}")
        paths[part] = found
    arrays = {
        part: read_idx(path, sha256=None if sha256 is None else sha256[part], remedy=remedy)
        for part, path in paths.items()
    }
    for side in ("train", "t10k"):
        images, labels = arrays[f"{side}-images"], arrays[f"{side}-labels"]
        image_file, label_file = paths[f"{side}-images"], paths[f"{side}-labels"]
        if images.ndim < 2:
            raise DataError(f"{image_file} holds a list, not images: {remedy}")
        if labels.ndim != 1:
            raise DataError(f"{label_file} has {labels.ndim} dimensions, labels have one: {remedy}")
        if len(images) != len(labels):
            counts = f"{len(images)} images but {label_file.name} has {len(labels)} labels"
            raise DataError(f"{image_file} has {counts}: {remedy}")
    train, test = arrays["train-images"].shape[1:], arrays["t10k-images"].shape[1:]
    if train != test:
        sizes = f"of size {list(test)} but those for training are {list(train)}"
        raise DataError(f"{paths['t10k-images']} has images {sizes}: {remedy}")
    return IdxSet(*(arrays[part] for part in PARTS))


def write_idx(path: str | Path, array: NDArray[np.uint8]) -> None:
    """Write unsigned bytes of one to four dimensions as a plain IDX file; one that exists is replaced.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_idx(f"{folder}/labels", np.array([3, 1, 4], np.uint8))
        ...     read_idx(f"{folder}/labels")
        array([3, 1, 4], dtype=uint8)
    """
    shape = array.shape
    with whole_file(Path(path)) as file:
        file.write(struct.pack(f">BBBB{len(shape)}I", 0, 0, _UNSIGNED_BYTE, len(shape), *shape))
        file.write(np.ascontiguousarray(array, dtype=np.uint8).data)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file that appears when it is finished, and not at all if something goes wrong.

    The bytes go to a file beside it that then takes its name, so that a reader, or another process that
    writes the same file, never meets a half.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with open(part, "xb") as file:
            yield file
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


class _Damaged(Exception):
    """What is wrong with a file, as the middle of a sentence."""


def _parse(stream: BinaryIO, sha256: str | None) -> NDArray[np.uint8]:
    """Read one array, and nothing after it, from a stream."""
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or not 1 <= magic[3] <= 4:
        raise _Damaged("is not an IDX file (bad magic number)")
    if magic[2] != _UNSIGNED_BYTE:
        raise _Damaged(f"holds entries of type 0x{magic[2]:02x}, only unsigned bytes (0x08) are read")
    sizes = stream.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise _Damaged("is truncated")
    shape = struct.unpack(f">{magic[3]}I", sizes)
    count = math.prod(shape)
    if count == 0:
        raise _Damaged("is empty")
    content = bytearray()
    while len(content) < count:
        piece = stream.read(min(_PIECE, count - len(content)))
        if not piece:
            raise _Damaged(f"is truncated ({count} bytes promised, {len(content)} there)")
        content += piece
    if stream.read(1):
        raise _Damaged(f"is longer than its header says ({count} bytes)")
    if sha256 is not None:
        digest = hashlib.sha256(magic + sizes)
        digest.update(content)
        if digest.hexdigest() != sha256.lower():
            raise _Damaged("has the wrong SHA-256")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)
