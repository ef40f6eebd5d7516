"""Your own data in one line: whatever tensors, arrays or data sets you have, as a `Dataset`.

Mistakes are told in one sentence that names the part of the data and what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from signfade.data.dataset import NO_LABEL, Dataset

__all__ = ["as_dataset"]

_ACCEPTED = (
    "a signfade.data.Dataset, (train_x, train_y, test_x, test_y), optionally with clients as a fifth, or a "
    "pair of map-style data sets (train, test)"
)
_SAMPLES = ("image", "img", "pixel_values", "input_ids", "features", "x")
_LABELS = ("label", "labels", "fine_label", "target", "y")
_CLIENTS = ("client_id", "client", "user_id", "writer_id", "speaker_id", "character_id")


def as_dataset(data: object, name: str, clients: ArrayLike | None = None) -> Dataset:
    """Make a `Dataset` of your own data, checked.

    Args:
        data: a `Dataset`; or `(train_x, train_y, test_x, test_y)`, tensors or arrays, and if you like a
            client of each training sample as a fifth; or a pair `(train, test)` of map-style data sets of
            `(sample, label)`, as torch and torchvision have them, or of rows with named fields, as
            HuggingFace's; or a mapping with the keys train and test, of such sets or of mappings of columns.
        name: what it is called in tables and messages.
        clients: the natural client of each training sample, integers or names `[N]`.

    Samples may be floats, bytes (pixels, divided by 255), or integers `[N, T]` (tokens). Labels are integers
    from 0, one for each sample or for each of its positions, where -100 does not count.

    Example:
        >>> x, y = np.random.default_rng(0).normal(size=(100, 8)), np.arange(100) % 2
        >>> data = as_dataset((x[:80], y[:80], x[80:], y[80:]), "noise", clients=["ann", "bob"] * 40)
        >>> data.train_x.dtype, data.classes, data.clients[:3]
        (torch.float32, 2, array([0, 1, 0]))
        >>> as_dataset((x, y[:80], x, y), "noise")
        Traceback (most recent call last):
        ValueError: noise: train_y has 80 labels for 100 samples
    """
    if isinstance(data, Dataset):
        parts: Sequence[Any] = (data.train_x, data.train_y, data.test_x, data.test_y, data.clients)
    elif isinstance(data, Mapping):
        if not {"train", "test"} <= data.keys():
            raise ValueError(f"{name}: the mapping must have the keys train and test; got {', '.join(data)}")
        parts = _read_pair(name, data["train"], data["test"])
    elif isinstance(data, tuple | list) and len(data) in (4, 5):
        parts = data
    elif isinstance(data, tuple | list) and len(data) == 2:
        parts = _read_pair(name, *data)
    else:
        raise ValueError(f"{name} must be {_ACCEPTED}; got {_describe(data)}")
    arrays = [_as_array(f"{name}: {part}", value) for part, value in zip(_PARTS, parts)]
    x, y, test_x, test_y = (
        check(f"{name}: {part}", array)
        for part, array, check in zip(_PARTS, arrays, (_samples, _labels, _samples, _labels))
    )
    for side, samples, labels in (("train", x, y), ("test", test_x, test_y)):
        if len(samples) != len(labels):
            raise ValueError(f"{name}: {side}_y has {len(labels)} labels for {len(samples)} samples")
        if labels.ndim == 2 and (samples.dtype != torch.int64 or samples.shape != labels.shape):
            raise ValueError(
                f"{name}: {side}_y has a label for each position, so {side}_x must be tokens of the same "
                f"shape {list(labels.shape)}; got {samples.dtype} of shape {list(samples.shape)}"
            )
    if x.shape[1:] != test_x.shape[1:] or x.dtype != test_x.dtype or y.ndim != test_y.ndim:
        raise ValueError(
            f"{name}: samples of training and test must be alike; got {_kind(x)} and {_kind(test_x)}"
        )
    classes, count = 1 + int(max(y.max(), test_y.max())), y.numel() + test_y.numel()
    if classes > count:
        raise ValueError(
            f"{name}: labels reach {classes - 1}, and there are {count} of them; number classes from 0 on"
        )
    if isinstance(data, Dataset):
        if classes > data.classes:
            raise ValueError(f"{name}: labels must be from 0 to {data.classes - 1}; got {classes - 1}")
        classes, name = data.classes, data.name
    given = clients if clients is not None else parts[4] if len(parts) == 5 else None
    return Dataset(x, y, test_x, test_y, classes, name, _client_numbers(name, given, len(x)))


_PARTS = ("train_x", "train_y", "test_x", "test_y")


def _describe(data: object) -> str:
    if isinstance(data, tuple | list):
        return f"{len(data)} values ({', '.join(type(value).__name__ for value in data[:6])})"
    return type(data).__name__


def _kind(samples: Tensor) -> str:
    return f"{str(samples.dtype).removeprefix('torch.')} {list(samples.shape[1:])}"


def _as_array(what: str, value: Any) -> NDArray[Any]:
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:  # samples of different shapes, for one
        raise ValueError(f"{what} cannot be made an array: all samples must have one shape") from error


def _samples(what: str, array: NDArray[Any]) -> Tensor:
    if not array.size:
        raise ValueError(f"{what} is empty; got shape {list(array.shape)}")
    if array.ndim < 2:
        raise ValueError(f"{what} must be samples of some shape, [N, ...]; got shape {list(array.shape)}")
    kind = array.dtype.kind
    if array.dtype == np.uint8:
        return torch.from_numpy(array.astype(np.float32)).div_(255)
    if kind in "iu" and array.ndim == 2:
        if array.min() < 0:
            raise ValueError(f"{what} holds integers [N, T], tokens, which must be from 0; got {array.min()}")
        return torch.from_numpy(array.astype(np.int64, copy=False))
    if kind not in "fb":
        raise ValueError(
            f"{what} must hold floats, bytes (pixels) or integers [N, T] (tokens); got {array.dtype} of "
            f"shape {list(array.shape)}"
        )
    samples = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
    finite = torch.isfinite(samples).flatten(1).all(dim=1)
    if not finite.all():
        first = int((~finite).nonzero()[0, 0])
        raise ValueError(f"{what} must be finite; sample {first} holds NaN or infinity")
    return samples


def _labels(what: str, array: NDArray[Any]) -> Tensor:
    if array.dtype.kind not in "iub" or array.ndim not in (1, 2):
        raise ValueError(
            f"{what} must hold integers, a class from 0 for each sample [N] or position [N, T]; got "
            f"{array.dtype} of shape {list(array.shape)}"
        )
    labels = torch.from_numpy(array.astype(np.int64, copy=False))
    negative = labels[labels < 0]
    if labels.ndim == 2:
        negative = negative[negative != NO_LABEL]
    if len(negative):
        end = f", or {NO_LABEL} at positions that do not count" if labels.ndim == 2 else ""
        raise ValueError(f"{what} must be from 0 on{end}; got {int(negative.min())}")
    return labels


def _client_numbers(name: str, clients: ArrayLike | None, samples: int) -> NDArray[np.int64] | None:
    """Return the clients as integers; names are numbered."""
    if clients is None:
        return None
    ids = np.asarray(clients)
    if ids.dtype == object and all(isinstance(one, str) for one in ids.flat):  # as pandas has them
        ids = ids.astype(str)
    if ids.shape != (samples,) or ids.dtype.kind not in "iuU":
        raise ValueError(
            f"{name}: clients must be an integer or a name for each of the {samples} training samples; got "
            f"{ids.dtype} of shape {list(ids.shape)}"
        )
    if ids.dtype.kind == "U":
        ids = np.unique(ids, return_inverse=True)[1]
    return ids.astype(np.int64)


def _read_pair(name: str, train: Any, test: Any) -> tuple[Any, ...]:
    x, y, clients = _read_rows(f"{name}: the training set", train)
    test_x, test_y, _ = _read_rows(f"{name}: the test set", test)
    return x, y, test_x, test_y, clients


def _read_rows(what: str, rows: Any) -> tuple[Any, Any, Any]:
    """Read a map-style data set, or a mapping of columns, into samples, labels and clients."""
    if isinstance(rows, Mapping):
        columns = [_field(what, rows, *kind) for kind in (("samples", _SAMPLES), ("labels", _LABELS))]
        return *columns, next((rows[field] for field in _CLIENTS if field in rows), None)
    if not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")):
        raise ValueError(f"{what} must be map-style, with a length and an index; got {type(rows).__name__}")
    samples, labels, clients = [], [], []
    for index in range(len(rows)):
        row = rows[index]
        if isinstance(row, Mapping):
            samples.append(_field(what, row, "samples", _SAMPLES))
            labels.append(_field(what, row, "labels", _LABELS))
            clients += [row[field] for field in _CLIENTS if field in row][:1]
        elif isinstance(row, tuple | list) and len(row) == 2:
            samples.append(row[0])
            labels.append(row[1])
        else:
            raise ValueError(f"{what} must give (sample, label) or named fields; got {_describe(row)}")
    if not samples:
        raise ValueError(f"{what} is empty")
    stacked = [_sample(what, sample) for sample in samples]
    if len({sample.shape for sample in stacked}) > 1:
        raise ValueError(f"{what} has samples of different shapes; resize or cut them to one")
    plain = [label.tolist() if isinstance(label, Tensor) else label for label in labels]
    return np.stack(stacked), plain, clients or None


def _field(what: str, row: Mapping[str, Any], kind: str, names: Sequence[str]) -> Any:
    for name in names:
        if name in row:
            return row[name]
    fields = ", ".join(map(str, row))
    raise ValueError(f"{what} has fields {fields}; call the one with the {kind} {' or '.join(names)}")


def _sample(what: str, sample: Any) -> NDArray[Any]:
    if isinstance(sample, str):
        raise ValueError(f"{what} holds text; make tokens of it first, integers of one length")
    if isinstance(sample, Tensor):
        return sample.detach().cpu().numpy()
    array = np.asarray(sample)
    if hasattr(sample, "getbands"):  # a picture of PIL: height, width, colours
        return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    return array
