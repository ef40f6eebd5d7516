from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from hypothesis.extra.numpy import arrays as any_arrays

from signfade.data import DataError, read_idx, read_idx_set, write_idx

shared_folder = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@shared_folder
@given(array=any_arrays(np.uint8, array_shapes(min_dims=1, max_dims=4, max_side=4)))
def test_what_is_written_is_read(tmp_path: Path, array: np.ndarray) -> None:
    write_idx(tmp_path / "file", array)
    again = read_idx(tmp_path / "file")
    assert again.shape == array.shape
    assert (again == array).all()


def test_the_bytes_are_those_of_the_format(tmp_path: Path) -> None:
    write_idx(tmp_path / "file", np.array([[7, 8, 9]], np.uint8))
    assert (
        tmp_path / "file"
    ).read_bytes() == b"\0\0\x08\x02" + b"\0\0\0\x01" + b"\0\0\0\x03" + b"\x07\x08\x09"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]  # and nothing beside it


def test_packed_is_told_by_content_not_by_name(tmp_path: Path, contents: dict[str, bytes]) -> None:
    (tmp_path / "packed").write_bytes(gzip.compress(contents["train-images"]))
    (tmp_path / "plain.gz").write_bytes(contents["train-images"])
    assert (read_idx(tmp_path / "packed") == read_idx(tmp_path / "plain.gz")).all()


def test_all_styles_of_names_are_found(
    folder: Path, arrays: dict[str, np.ndarray], hashes: dict[str, str]
) -> None:
    found = read_idx_set(folder, sha256=hashes)
    for read, written in zip(found, arrays.values()):
        assert (read == written).all()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "bad magic number"),
        (b"<!DOCTYPE html><p>not found", "bad magic number"),
        (b"\0\0\x08\x00", "bad magic number"),
        (b"\0\0\x08\x05" + b"\0\0\0\x01" * 5 + b"\0", "bad magic number"),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "type 0x0d"),
        (b"\0\0\x08\x02\0\0\0\x01", "truncated"),
        (b"\0\0\x08\x01\0\0\0\x05abcd", "truncated"),
        (b"\0\0\x08\x01\0\0\0\x03abcd", "longer than its header says"),
        (b"\0\0\x08\x02\0\0\0\x00\0\0\0\x03", "is empty"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_damage_is_named(tmp_path: Path, content: bytes, words: str, packed: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(DataError, match=words) as caught:
        read_idx(path, remedy="do this")
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).endswith(": do this")


@shared_folder
@given(data=st.data(), packed=st.booleans())
def test_no_damage_gives_any_other_exception(tmp_path: Path, data: st.DataObject, packed: bool) -> None:
    whole = bytes([0, 0, 8, 2, 0, 0, 0, 4, 0, 0, 0, 5, *range(20)])
    content = bytearray(gzip.compress(whole) if packed else whole)
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    (tmp_path / "file").write_bytes(content[:cut] + data.draw(st.binary(max_size=3)))
    try:
        read = read_idx(tmp_path / "file")
    except DataError:
        return
    assert 0 < read.size <= 1032 * (len(content) + 3)  # 1032 is the most that gzip can make of a byte


@pytest.mark.parametrize("packed", [False, True])
def test_a_header_cannot_make_us_allocate(tmp_path: Path, packed: bool) -> None:
    # It promises 600 MB: gzip could unpack as much from a megabyte, so only reading can tell.
    content = b"\0\0\x08\x02" + (600).to_bytes(4, "big") + (1_000_000).to_bytes(4, "big")
    noise = np.random.default_rng(0).bytes(1_000_000)
    (tmp_path / "file").write_bytes(gzip.compress(content + noise) if packed else content + noise)
    tracemalloc.start()
    with pytest.raises(DataError, match="truncated"):
        read_idx(tmp_path / "file")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8_000_000


@pytest.mark.parametrize("packed", [False, True])
def test_sizes_beyond_64_bits_are_refused(tmp_path: Path, packed: bool) -> None:
    content = b"\0\0\x08\x04" + b"\xff" * 16 + b"abc"
    (tmp_path / "file").write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(DataError, match="truncated"):
        read_idx(tmp_path / "file")


def test_one_changed_pixel_fails_the_hash(folder: Path, hashes: dict[str, str]) -> None:
    path = folder / "train-images-idx3-ubyte"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    read_idx_set(folder)  # a valid set, though not this one
    with pytest.raises(DataError, match="train-images-idx3-ubyte has the wrong SHA-256"):
        read_idx_set(folder, sha256=hashes)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "t10k-labels.idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="has no file t10k-labels-idx1-ubyte"):
        read_idx_set(folder)


@pytest.mark.parametrize(
    ("part", "wrong", "words"),
    [
        ("train-labels", np.zeros(11, np.uint8), "has 12 images but train-labels.idx1-ubyte has 11 labels"),
        ("train-labels", np.zeros((12, 2), np.uint8), "has 2 dimensions, labels have one"),
        ("train-images", np.zeros(12, np.uint8), "holds a list, not images"),
        (
            "train-images",
            np.zeros((12, 4, 5), np.uint8),
            r"images of size \[5, 4\] but those for training are \[4, 5\]",
        ),
    ],
)
def test_files_that_do_not_belong_together(folder: Path, part: str, wrong: np.ndarray, words: str) -> None:
    name = {"train-labels": "train-labels.idx1-ubyte", "train-images": "train-images-idx3-ubyte"}[part]
    write_idx(folder / name, wrong)
    with pytest.raises(DataError, match=words):
        read_idx_set(folder)


@pytest.mark.parametrize("place", ["missing", "x" * 5000, "file"])
def test_a_folder_that_is_none(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError):
        read_idx_set(tmp_path / place)


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx(tmp_path / "file", np.array([1, 2], np.uint8))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        write_idx(tmp_path / "file", np.array([3], np.uint8))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert read_idx(tmp_path / "file").tolist() == [1, 2]
