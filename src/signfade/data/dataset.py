"""Labelled image sets: scikit-learn's digits, MNIST, and any folder of IDX files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade import keys
from signfade.data.idx import PARTS, DataError, IdxSet, find_idx, read_idx_set
from signfade.data.sources import MNIST, Progress, Sources, cache_folder, fetch
from signfade.registry import Registry, user_code

__all__ = ["DATASETS", "Available", "DataSource", "Dataset", "available", "load"]

_DIGITS_TEST = 360
_DIGITS_SEED = 0  # of the split into training and test: part of the data set, not of a run


@dataclass(frozen=True, eq=False)
class Dataset:
    """A labelled set in memory: float32, so that drawing a batch is one index and no conversion.

    Attributes:
        train_x: `[N, C, H, W]` or `[N, D]` float32, pixels in [0, 1].
        train_y: `[N]` int64, classes from 0.
        test_x: like `train_x`.
        test_y: like `train_y`.
        classes: number of classes.
        name: for people.
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    name: str

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train_x.shape[1:])


class Available(NamedTuple):
    """A data set that can be named: what it is, and where it is on this machine (None: not yet here)."""

    name: str
    description: str
    where: str | None


@dataclass(frozen=True)
class DataSource:
    """Where a data set comes from.

    Attributes:
        help: One line for people.
        load: From `data.folder` and the other arguments of the function `load` to the set; None where there
            are no labelled samples.
        where: From the cache folder to where the set is on this machine (None: not yet here); None for
            what `signfade data list` does not list.
    """

    help: str
    load: Callable[..., Dataset] | None = None
    where: Callable[[Path], str | None] | None = None


def _adopt(path: str, function: Callable[..., Any]) -> DataSource:
    def load(folder: str | Path | None, **options: Any) -> Dataset:
        with user_code(path):
            dataset = function()
        if not isinstance(dataset, Dataset):
            raise ValueError(f"{path} must return a signfade.data.Dataset; got {type(dataset).__name__}")
        return dataset

    return DataSource(f"your own data set {path}", load)


DATASETS: Registry[DataSource] = Registry("data.name", _adopt)


def load(
    name: str,
    folder: str | Path | None = None,
    cache: str | Path | None = None,
    *,
    download: bool = True,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
    sources: Sources = MNIST,
) -> Dataset:
    """Load a labelled set by name: one of `DATASETS`, or your own as `file.py:function`, which returns it.

    - `digits`: 1797 images of 8 x 8 that come with scikit-learn; 1437 to train and 360 to test, each class in
      proportion, by a split that is always the same.
    - `mnist`: from `folder` if named, else from the cache, else fetched (see `fetch`); SHA-256 checked every
      time.
    - `idx`: the four IDX files in `folder`, plain or `.gz`; Fashion-MNIST, for one.

    Args:
        name: A name in `DATASETS`, or an import path.
        folder: where the IDX files are; for `idx` required.
        cache: see `cache_folder`.
        download: whether MNIST may be fetched if it is not in the cache.
        progress: see `fetch`.
        note: see `fetch`.
        sources: see `fetch`.

    Returns:
        A `Dataset`.

    Raises:
        DataError: files are missing or damaged, or the set has no labelled samples.
        ValueError: there is no such set.

    Example:
        >>> digits = load("digits")
        >>> tuple(digits.train_x.shape), len(digits.test_y), digits.classes
        ((1437, 1, 8, 8), 360, 10)
    """
    source = DATASETS.find(name)
    if source.load is None:
        labelled = ", ".join(other for other, entry in DATASETS.items() if entry.load and entry.where)
        raise DataError(f"{name} has no classes; data.name must be one of {labelled}")
    return source.load(folder, cache=cache, download=download, progress=progress, note=note, sources=sources)


def _idx(folder: str | Path | None, **options: Any) -> Dataset:
    if folder is None:
        raise DataError("idx needs the folder of its four IDX files: set data.folder")
    place = Path(os.path.expanduser(folder))
    return _from_idx(
        read_idx_set(place, remedy="replace it or set data.folder to another folder"), place.name
    )


def _own(folder: str | Path | None, **options: Any) -> Dataset:
    raise DataError('data.name "own" stands for the data of a Flower app, which only that app can load')


def _mnist(
    folder: str | Path | None,
    *,
    cache: str | Path | None,
    download: bool,
    progress: Progress | None,
    note: Callable[[str], None] | None,
    sources: Sources,
) -> Dataset:
    if folder is not None:
        remedy = (
            "run `signfade data fetch mnist` and leave data.folder out, or use data.name idx for another set"
        )
        return _from_idx(
            read_idx_set(Path(os.path.expanduser(folder)), sha256=sources.sha256, remedy=remedy), "mnist"
        )
    home = cache_folder(cache) / "mnist"
    remedy = "run `signfade data fetch mnist`"
    try:
        files = read_idx_set(home, sha256=sources.sha256, remedy=remedy)
    except DataError:
        if not download:
            raise
        fetch("mnist", cache=cache, progress=progress, note=note, sources=sources)
        files = read_idx_set(home, sha256=sources.sha256, remedy=remedy)
    return _from_idx(files, "mnist")


def available(cache: str | Path | None = None) -> list[Available]:
    """List the data sets that a run can name, and where they are.

    Args:
        cache: see `cache_folder`.

    Returns:
        One entry per set. MNIST counts as here if its four files are in the cache; they are verified when
        loaded.

    Example:
        >>> [entry.name for entry in available()]
        ['digits', 'mnist', 'idx', 'regression', 'gaussian']
    """
    home = cache_folder(cache)
    entries = [(name, entry) for name, entry in DATASETS.items() if entry.where is not None]
    return [Available(name, entry.help, entry.where and entry.where(home)) for name, entry in entries]


def _mnist_place(cache: Path) -> str | None:
    home = cache / "mnist"
    return str(home) if all(find_idx(home, part) for part in PARTS) else None


def _digits(folder: str | Path | None, **options: Any) -> Dataset:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy((bunch.images / 16).astype(np.float32)).unsqueeze(1)
    classes = bunch.target.astype(np.int64)
    train, test = _stratified(classes, _DIGITS_TEST, _DIGITS_SEED)
    labels = torch.from_numpy(classes)
    return Dataset(images[train], labels[train], images[test], labels[test], 10, "digits")


def _stratified(
    labels: NDArray[np.int64], test: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return training and test samples, ascending; a class gives the test its share, by largest remainder."""
    names, sizes = np.unique(labels, return_counts=True)
    shares = sizes * test / len(labels)
    quotas = np.floor(shares).astype(np.int64)
    quotas[np.argsort(quotas - shares, kind="stable")[: test - quotas.sum()]] += 1
    in_test = np.zeros(len(labels), dtype=bool)
    for label, quota in zip(names, quotas):
        draw = keys.generator(seed, "test-set", device=int(label))
        in_test[draw.permutation(np.flatnonzero(labels == label))[:quota]] = True
    return np.flatnonzero(~in_test), np.flatnonzero(in_test)


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


for _name, _source in {
    "digits": DataSource(
        "1797 handwritten digits, 8 x 8 pixels", _digits, lambda cache: "comes with scikit-learn"
    ),
    "mnist": DataSource("70000 handwritten digits, 28 x 28 pixels", _mnist, _mnist_place),
    "idx": DataSource(
        "any four IDX files in data.folder, Fashion-MNIST for one", _idx, lambda cache: "data.folder"
    ),
    "regression": DataSource(
        "the paper's synthetic linear regression", where=lambda cache: "made on the fly"
    ),
    "gaussian": DataSource("no data: gradients are iid Gaussian", where=lambda cache: "made on the fly"),
    "own": DataSource("the data of a Flower app, which only that app can load", _own),
}.items():
    DATASETS.add(_name, _source)
