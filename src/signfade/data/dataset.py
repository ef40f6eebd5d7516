"""Labelled image sets: scikit-learn's digits, MNIST, and any folder of IDX files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade import keys
from signfade._check import check_choice
from signfade.data.idx import PARTS, DataError, IdxSet, find_idx, read_idx_set
from signfade.data.sources import MNIST, Progress, Sources, cache_folder, fetch

__all__ = ["Available", "Dataset", "available", "load"]

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
    """Load a labelled set by name.

    - `digits`: 1797 images of 8 x 8 that come with scikit-learn; 1437 to train and 360 to test, each class in
      proportion, by a split that is always the same.
    - `mnist`: from `folder` if named, else from the cache, else fetched (see `fetch`); SHA-256 checked every
      time.
    - `idx`: the four IDX files in `folder`, plain or `.gz`; Fashion-MNIST, for one.

    Args:
        name: `digits`, `mnist` or `idx`.
        folder: where the IDX files are; for `idx` required.
        cache: see `cache_folder`.
        download: whether MNIST may be fetched if it is not in the cache.
        progress: see `fetch`.
        note: see `fetch`.
        sources: see `fetch`.

    Returns:
        A `Dataset`.

    Raises:
        DataError: files are missing or damaged.

    Example:
        >>> digits = load("digits")
        >>> tuple(digits.train_x.shape), len(digits.test_y), digits.classes
        ((1437, 1, 8, 8), 360, 10)
    """
    check_choice("name", name, ("digits", "mnist", "idx"))
    if name == "digits":
        return _digits()
    if name == "idx":
        if folder is None:
            raise DataError("idx needs the folder of its four IDX files: set data.folder")
        place = Path(os.path.expanduser(folder))
        return _from_idx(
            read_idx_set(place, remedy="replace it or set data.folder to another folder"), place.name
        )
    if folder is not None:
        remedy = (
            "run `signfade data fetch mnist` and leave data.folder out, or use data.name idx for another set"
        )
        return _from_idx(
            read_idx_set(Path(os.path.expanduser(folder)), sha256=sources.sha256, remedy=remedy), name
        )
    home = cache_folder(cache) / "mnist"
    remedy = "run `signfade data fetch mnist`"
    try:
        files = read_idx_set(home, sha256=sources.sha256, remedy=remedy)
    except DataError:
        if not download:
            raise
        fetch(name, cache=cache, progress=progress, note=note, sources=sources)
        files = read_idx_set(home, sha256=sources.sha256, remedy=remedy)
    return _from_idx(files, name)


def available(cache: str | Path | None = None) -> list[Available]:
    """List the data sets that a run can name, and where they are.

    Args:
        cache: see `cache_folder`.

    Returns:
        One entry a set. MNIST counts as here if its four files are in the cache; they are verified when
        loaded.

    Example:
        >>> [entry.name for entry in available()]
        ['digits', 'mnist', 'idx', 'regression', 'gaussian']
    """
    home = cache_folder(cache) / "mnist"
    here = all(find_idx(home, part) for part in PARTS)
    return [
        Available("digits", "1797 handwritten digits, 8 x 8 pixels", "comes with scikit-learn"),
        Available("mnist", "70000 handwritten digits, 28 x 28 pixels", str(home) if here else None),
        Available("idx", "any four IDX files in data.folder, Fashion-MNIST for one", "data.folder"),
        Available("regression", "the paper's synthetic linear regression", "made on the fly"),
        Available("gaussian", "no data: gradients are iid Gaussian", "made on the fly"),
    ]


def _digits() -> Dataset:
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
