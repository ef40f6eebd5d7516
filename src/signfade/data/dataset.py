"""Labelled sets and the registry of data sets; scikit-learn's digits are defined here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade import keys
from signfade.registry import Registry, user_code

__all__ = ["DATASETS", "NO_LABEL", "Available", "DataSource", "Dataset", "available", "cache_folder"]
__all__ += ["fetch", "load", "standardised"]

NO_LABEL = -100  # torch's own label of positions that do not count, such as padding
_TENSORS = ("train_x", "train_y", "test_x", "test_y")
_DIGITS_TEST = 360
_DIGITS_SEED = 0  # of the split into training and test: part of the data set, not of a run


@dataclass(frozen=True, eq=False)
class Dataset:
    """A labelled set in memory, ready to use: drawing a batch is one index and no conversion.

    Samples are numbers (images, feature vectors) or tokens (text); a text may have one label, or one for each
    of its T positions. `clients` says who a training sample comes from by nature (a writer, a speaker), for
    the natural split.
    """

    train_x: Tensor  # [N, ...] float32, pixels in [0, 1]; or [N, T] int64, tokens
    train_y: Tensor  # [N] or [N, T] int64, classes from 0; NO_LABEL at positions that do not count
    test_x: Tensor
    test_y: Tensor
    classes: int
    name: str  # for people
    clients: NDArray[np.int64] | None = None  # [N], any integers

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train_x.shape[1:])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return tensors and clients as arrays by name, over the same memory."""
        arrays = {part: getattr(self, part).numpy() for part in _TENSORS}
        return arrays if self.clients is None else {**arrays, "clients": self.clients}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], classes: int, name: str) -> Dataset:
        """Make the set again from what `arrays` returned."""
        tensors = {part: torch.from_numpy(arrays[part]) for part in _TENSORS}
        return cls(**tensors, classes=classes, name=name, clients=arrays.get("clients"))


def standardised(data: Dataset) -> Dataset:
    """Return the set with mean 0 and variance 1 over the training samples, channel by channel.

    A channel is the second axis: a colour of images, a column of features. One that never varies is
    only shifted.

    Example:
        >>> digits = standardised(load("digits"))
        >>> abs(float(digits.train_x.mean())) < 1e-5, round(float(digits.train_x.std()), 4)
        (True, 1.0)
    """
    if not data.train_x.is_floating_point():
        raise ValueError(f"data.standardise must be false with {data.name}: tokens have no mean")
    axes = [axis for axis in range(data.train_x.ndim) if axis != 1]
    spread, centre = torch.std_mean(data.train_x, dim=axes, keepdim=True)
    spread = torch.where(spread > 0, spread, 1.0)
    train, test = ((part - centre) / spread for part in (data.train_x, data.test_x))
    return replace(data, train_x=train, test_x=test)


@dataclass(frozen=True)
class DataSource:
    """Where a data set comes from.

    Attributes:
        help: One line for people.
        load: From `data.folder` and the options of the function `load` to the set; None where there are no
            labelled samples.
        where: From the cache folder to where the set is on this machine (None: not yet here); None for
            what `signfade data list` does not list.
        fetch: From a folder (None: the cache) and the options of the function `fetch` to the folder with the
            files; None where there is nothing to fetch.
        shape: Shape of a sample and number of classes, where they are known without loading.
        tokens: Whether samples are tokens.
        licence: Under what terms the set may be used.
        citation: Whom to cite.
    """

    help: str
    load: Callable[..., Dataset] | None = None
    where: Callable[[Path], str | None] | None = None
    fetch: Callable[..., Path] | None = None
    shape: tuple[tuple[int, ...], int] | None = None
    tokens: bool = False
    licence: str = ""
    citation: str = ""


class Available(NamedTuple):
    """A data set that can be named: what it is, and where it is on this machine (None: not yet here)."""

    name: str
    description: str
    where: str | None
    licence: str
    citation: str


def _adopt(path: str, function: Callable[..., Any]) -> DataSource:
    def load(folder: str | Path | None, **options: Any) -> Dataset:
        from signfade.data.own import as_dataset  # late: it needs Dataset

        with user_code(path):
            data = function()
        return as_dataset(data, path)

    return DataSource(f"your own data set {path}", load)


DATASETS: Registry[DataSource] = Registry("data.name", _adopt)


def load(name: str, folder: str | Path | None = None, **options: Any) -> Dataset:
    """Load a labelled set by name: one of `DATASETS`, or your own as `file.py:function`, which returns it.

    - `digits`: 1797 images of 8 x 8 that come with scikit-learn; 1437 to train and 360 to test, each class in
      proportion, by a split that is always the same.
    - `mnist` and the others that `fetch` knows: from `folder` if named, else from the cache, else fetched;
      SHA-256 checked every time. Their options are those of `fetch`, and `download=False`, which keeps them
      from fetching.
    - `idx`: the four IDX files in `folder`, plain or `.gz`; EMNIST, for one.

    Raises a `DataError` where files are missing or damaged.

    Example:
        >>> digits = load("digits")
        >>> tuple(digits.train_x.shape), len(digits.test_y), digits.classes
        ((1437, 1, 8, 8), 360, 10)
    """
    source = DATASETS.find(name)
    if source.load is None:
        labelled = ", ".join(other for other, entry in DATASETS.items() if entry.load and entry.where)
        raise ValueError(f"{name} has no classes; data.name must be one of {labelled}")
    return source.load(folder, **options)


def fetch(name: str, folder: str | Path | None = None, **options: Any) -> Path:
    """Make sure that a data set is on this machine, and return the folder that holds its files.

    What is already there and right stays; each file is checked by SHA-256 before it takes its name. Any
    number of processes may fetch at once: each file appears whole, and all write the same.

    Args:
        name: a set that is fetched, such as `mnist`; the others need no fetching.
        folder: where to put the files; None puts them in the cache. A file that is there and is not the set's
            is never replaced, except in the cache.
        options: `cache`, see `cache_folder`; `progress(file, bytes, bytes in all)`, called with every piece
            of a download; `note(line)`, called when a source fails or a damaged file is replaced, which
            otherwise goes to the log; `sources`, where from.

    Example:
        >>> fetch("digits")
        Traceback (most recent call last):
        ...
        ValueError: digits needs no fetching; fetch one of mnist, fashion-mnist, cifar10, shakespeare, sotu
    """
    source = DATASETS.built_in(name)
    if source is None or source.fetch is None:
        others = ", ".join(other for other, entry in DATASETS.items() if entry.fetch)
        problem = f"no data set {name!r}" if source is None else f"{name} needs no fetching"
        raise ValueError(f"{problem}; fetch one of {others}")
    return source.fetch(folder, **options)


def cache_folder(cache: str | Path | None = None) -> Path:
    """Return the folder for fetched data: `cache`, else `$SIGNFADE_CACHE`, else the platform's cache folder.

    Example:
        >>> cache_folder("/tmp/mine").as_posix()
        '/tmp/mine'
    """
    named = cache or os.environ.get("SIGNFADE_CACHE")
    if not named:
        import pooch  # late: few need it

        named = pooch.os_cache("signfade")
    return Path(os.path.expanduser(named))


def available(cache: str | Path | None = None) -> list[Available]:
    """List the data sets that a run can name, and where they are.

    A set that is fetched counts as here if its files are in the cache; they are verified when loaded.

    Example:
        >>> [entry.name for entry in available()][:5]
        ['digits', 'idx', 'mnist', 'fashion-mnist', 'cifar10']
    """
    home = cache_folder(cache)
    return [
        Available(name, entry.help, entry.where(home), entry.licence, entry.citation)
        for name, entry in DATASETS.items()
        if entry.where
    ]


def _digits(folder: object, **options: Any) -> Dataset:
    # The file that sklearn.datasets.load_digits reads, without importing all of scikit-learn: a second saved,
    # which a device on Flower would otherwise spend in every round.
    [place] = find_spec("sklearn").submodule_search_locations  # type: ignore[union-attr, misc]
    table = np.loadtxt(Path(place) / "datasets" / "data" / "digits.csv.gz", delimiter=",", dtype=np.float32)
    images = torch.from_numpy(table[:, :-1] / 16).reshape(-1, 1, 8, 8)
    labels = table[:, -1].astype(np.int64)
    test = _test_part(labels, _DIGITS_TEST, _DIGITS_SEED)
    y = torch.from_numpy(labels)
    return Dataset(images[~test], y[~test], images[test], y[test], 10, "digits")


def _test_part(labels: NDArray[np.int64], count: int, seed: int) -> NDArray[np.bool_]:
    """Choose the samples of the test; each class gives its share, by largest remainder."""
    names, sizes = np.unique(labels, return_counts=True)
    shares = sizes * count / len(labels)
    quotas = np.floor(shares).astype(np.int64)
    quotas[np.argsort(quotas - shares, kind="stable")[: count - quotas.sum()]] += 1
    chosen = np.zeros(len(labels), dtype=bool)
    for label, quota in zip(names, quotas):
        draw = keys.generator(seed, "test-set", device=int(label))
        chosen[draw.permutation(np.flatnonzero(labels == label))[:quota]] = True
    return chosen


def _own(folder: object, **options: Any) -> Dataset:
    raise ValueError('data.name "own" stands for the data of a Flower app, which only that app can load')


DATASETS.add(
    "digits",
    DataSource(
        "1797 handwritten digits, 8 x 8 pixels",
        _digits,
        where=lambda cache: "comes with scikit-learn",
        shape=((1, 8, 8), 10),
        licence="CC BY 4.0",
        citation="Alpaydin and Kaynak, UCI Machine Learning Repository, 1998",
    ),
)
# Set by Flower apps, not by people.
DATASETS.add("own", DataSource("the data of a Flower app, which only that app can load", _own), listed=False)
