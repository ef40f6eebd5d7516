"""What the devices hold: labelled sets, the paper's regression, and how samples are dealt out."""

from __future__ import annotations

import importlib
import pkgutil

from signfade.data.dataset import (
    DATASETS,
    NO_LABEL,
    Available,
    Dataset,
    DataSource,
    available,
    cache_folder,
    fetch,
    load,
    standardised,
)
from signfade.data.download import Limits
from signfade.data.fetching import Sources
from signfade.data.idx import DataError, read_idx, read_idx_set, write_idx
from signfade.data.images import CIFAR10, FASHION_MNIST, MNIST
from signfade.data.own import as_dataset
from signfade.data.packages import Package
from signfade.data.plot import count_classes, plot_split
from signfade.data.regression import RegressionData, make_regression
from signfade.data.splits import Split, split
from signfade.data.texts import Text, character_windows, load_texts

# A data set registers itself where it is defined: a new file in this folder is all it takes.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "CIFAR10",
    "DATASETS",
    "FASHION_MNIST",
    "MNIST",
    "NO_LABEL",
    "Available",
    "DataError",
    "DataSource",
    "Dataset",
    "Limits",
    "Package",
    "RegressionData",
    "Sources",
    "Split",
    "Text",
    "as_dataset",
    "available",
    "cache_folder",
    "character_windows",
    "count_classes",
    "fetch",
    "load",
    "load_texts",
    "make_regression",
    "plot_split",
    "read_idx",
    "read_idx_set",
    "split",
    "standardised",
    "write_idx",
]
