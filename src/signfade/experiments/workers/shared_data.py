"""One copy of a data set for all processes of a machine: a file that each of them maps, read-only."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from signfade.data import DATASETS, Dataset, load
from signfade.settings import RunSettings

__all__ = ["PARTS", "DataKey", "Shared", "data_key", "open_shared", "share", "share_all"]

PARTS = ("train_x", "train_y", "test_x", "test_y")
DataKey = tuple[str, str | None]


@dataclass(frozen=True)
class Shared:
    """Where the tensors of a data set lie: `folder` holds a file for each, of these shapes."""

    folder: Path
    shapes: dict[str, tuple[int, ...]]
    classes: int
    name: str


def data_key(settings: RunSettings) -> DataKey | None:
    """Return what names the data set of a run; None if it is drawn from the seed and there is none."""
    data = settings.data
    source = DATASETS.built_in(data.name)
    return None if source is not None and source.load is None else (data.name, data.folder)


def share(dataset: Dataset, folder: Path) -> Shared:
    """Write the tensors of a data set to files in a new `folder`, as they are in memory.

    Example:
        >>> import tempfile
        >>> digits = load("digits")
        >>> again = open_shared(share(digits, Path(tempfile.mkdtemp()) / "digits"))
        >>> bool((again.train_x == digits.train_x).all()), tuple(again.test_y.shape)
        (True, (360,))
    """
    folder.mkdir(parents=True)
    shapes = {}
    for part in PARTS:
        tensor = getattr(dataset, part)
        tensor.contiguous().numpy().tofile(folder / part)
        shapes[part] = tuple(tensor.shape)
    return Shared(folder, shapes, dataset.classes, dataset.name)


def open_shared(shared: Shared) -> Dataset:
    """Map the files of `share`: their pages are read once and held once, whoever else maps them."""
    tensors = {}
    for part, shape in shared.shapes.items():
        dtype = torch.float32 if part.endswith("x") else torch.int64
        # Not shared for writing: a process that writes all the same gets a page of its own.
        flat = torch.from_file(str(shared.folder / part), shared=False, size=math.prod(shape), dtype=dtype)
        tensors[part] = flat.view(shape)
    return Dataset(**tensors, classes=shared.classes, name=shared.name)


def share_all(settings: Iterable[RunSettings], folder: Path) -> dict[DataKey | None, Shared]:
    """Share every data set that the runs name; the runs report one that cannot be loaded."""
    found: dict[DataKey | None, Shared] = {}
    for key in dict.fromkeys(map(data_key, settings)):
        with suppress(ValueError):
            if key is not None:
                found[key] = share(load(*key), folder / f"data-{len(found)}")
    return found
