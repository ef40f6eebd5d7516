"""One copy of a data set for all processes of a machine: a file that each of them maps, read-only."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from signfade.data import DATASETS, Dataset, load
from signfade.settings import RunSettings

__all__ = ["DataKey", "Shared", "data_key", "open_shared", "share", "share_all"]

DataKey = tuple[str, str | None]


@dataclass(frozen=True)
class Shared:
    """Where the arrays of a data set lie: `folder` holds a file for each of `parts`."""

    folder: Path
    parts: tuple[str, ...]
    classes: int
    name: str


def data_key(settings: RunSettings) -> DataKey | None:
    """Return what names the data set of a run; None if it is drawn from the seed and there is none."""
    data = settings.data
    source = DATASETS.built_in(data.name)
    return None if source is not None and source.load is None else (data.name, data.folder)


def share(dataset: Dataset, folder: Path) -> Shared:
    """Write the arrays of a data set to files in a new `folder`, as they are in memory.

    Example:
        >>> import tempfile
        >>> digits = load("digits")
        >>> again = open_shared(share(digits, Path(tempfile.mkdtemp()) / "digits"))
        >>> bool((again.train_x == digits.train_x).all()), tuple(again.test_y.shape)
        (True, (360,))
    """
    folder.mkdir(parents=True)
    arrays = dataset.arrays()
    for part, array in arrays.items():
        np.save(folder / f"{part}.npy", array, allow_pickle=False)
    return Shared(folder, tuple(arrays), dataset.classes, dataset.name)


def open_shared(shared: Shared) -> Dataset:
    """Map the files of `share`: their pages are read once and held once, whoever else maps them."""
    # Copy on write: a process that writes all the same gets a page of its own.
    arrays = {part: np.load(shared.folder / f"{part}.npy", mmap_mode="c") for part in shared.parts}
    return Dataset.from_arrays(arrays, shared.classes, shared.name)


def share_all(settings: Iterable[RunSettings], folder: Path) -> dict[DataKey | None, Shared]:
    """Share every data set that the runs name; the runs report one that cannot be loaded."""
    found: dict[DataKey | None, Shared] = {}
    for key in dict.fromkeys(map(data_key, settings)):
        with suppress(ValueError):
            if key is not None:
                found[key] = share(load(*key), folder / f"data-{len(found)}")
    return found
