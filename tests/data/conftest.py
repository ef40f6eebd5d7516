"""A set of four tiny IDX files that stands in for MNIST, and the hashes it must have."""

from __future__ import annotations

import gzip
import hashlib
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[np.uint8]]


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    """The format written out once more, from its description, to check the one in the package."""
    head = bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", size) for size in array.shape)
    return head + array.tobytes()


@pytest.fixture
def arrays() -> Arrays:
    draw = np.random.default_rng(0)
    return {
        "train-images": draw.integers(0, 256, (12, 5, 4), dtype=np.uint8),
        "train-labels": np.arange(12, dtype=np.uint8) % 3,
        "t10k-images": draw.integers(0, 256, (6, 5, 4), dtype=np.uint8),
        "t10k-labels": np.arange(6, dtype=np.uint8) % 3,
    }


@pytest.fixture
def contents(arrays: Arrays) -> dict[str, bytes]:
    return {part: idx_bytes(array) for part, array in arrays.items()}


@pytest.fixture
def hashes(contents: dict[str, bytes]) -> dict[str, str]:
    return {part: hashlib.sha256(content).hexdigest() for part, content in contents.items()}


@pytest.fixture
def folder(tmp_path: Path, contents: dict[str, bytes]) -> Path:
    """A folder that holds the set, each file in another style: plain or packed, with a dash or a dot."""
    place = tmp_path / "set"
    place.mkdir()
    (place / "train-images-idx3-ubyte").write_bytes(contents["train-images"])
    (place / "train-labels.idx1-ubyte").write_bytes(contents["train-labels"])
    (place / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(contents["t10k-images"]))
    (place / "t10k-labels.idx1-ubyte.gz").write_bytes(gzip.compress(contents["t10k-labels"]))
    return place
