"""Own data: everything people have becomes the same `Dataset`, and every mistake is one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from signfade.data import Dataset, as_dataset, load
from signfade.simulation import Experiment

from ..runs import settings

DRAW = np.random.default_rng(0)
PIXELS = DRAW.integers(0, 256, (12, 3, 5, 4), dtype=np.uint8)
LABELS = np.arange(12) % 3
X = torch.from_numpy(PIXELS).float() / 255
Y = torch.from_numpy(LABELS)


class Rows:
    """A map-style data set, as HuggingFace's and torchvision's are."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


def pictures(first: int, last: int, row: Callable[[Image.Image, int], Any]) -> Rows:
    return Rows(
        [row(Image.fromarray(PIXELS[n].transpose(1, 2, 0)), int(LABELS[n])) for n in range(first, last)]
    )


@pytest.mark.parametrize(
    "data",
    [
        Dataset(X[:8], Y[:8], X[8:], Y[8:], 3, "mine"),
        (X[:8], Y[:8], X[8:], Y[8:]),
        (PIXELS[:8], LABELS[:8].astype(np.uint8), PIXELS[8:], LABELS[8:].tolist()),
        (X[:8].double().numpy(), LABELS[:8], X[8:].double().numpy(), LABELS[8:], None),
        (TensorDataset(X[:8], Y[:8]), TensorDataset(X[8:], Y[8:])),
        tuple(pictures(a, b, lambda image, label: (image, label)) for a, b in ((0, 8), (8, 12))),
        {
            part: pictures(a, b, lambda image, label: {"img": image, "label": label, "id": 7})
            for part, a, b in (("train", 0, 8), ("test", 8, 12))
        },
    ],
)
def test_all_that_people_have_becomes_the_same(data: object) -> None:
    found = as_dataset(data, "mine")
    assert (found.name, found.classes, found.clients) == ("mine", 3, None)
    assert found.train_x.dtype == torch.float32
    assert found.train_y.dtype == torch.int64
    for part, expected in (("train_x", X[:8]), ("train_y", Y[:8]), ("test_x", X[8:]), ("test_y", Y[8:])):
        assert torch.equal(getattr(found, part), expected), part


def test_clients_may_be_numbers_names_or_a_field() -> None:
    names = ["b", "a", "b", "c", "a", "a", "b", "c"]
    numbered = as_dataset((X[:8], Y[:8], X[8:], Y[8:]), "mine", clients=names)
    assert numbered.clients is not None
    assert numbered.clients.tolist() == [1, 0, 1, 2, 0, 0, 1, 2]
    fifth = as_dataset((X[:8], Y[:8], X[8:], Y[8:], [9, 9, 9, 4, 4, 4, 4, 4]), "mine")
    assert fifth.clients is not None
    assert fifth.clients.tolist() == [9, 9, 9, 4, 4, 4, 4, 4]
    rows = Rows([{"x": x, "y": int(y), "writer_id": f"w{y}"} for x, y in zip(X, Y)])
    field = as_dataset((rows, rows), "mine")
    assert field.clients is not None
    assert (field.clients == LABELS).all()


def test_tokens_stay_integers() -> None:
    tokens = DRAW.integers(0, 7, (12, 6)).astype(np.int32)
    found = as_dataset((tokens[:8, :-1], tokens[:8, 1:], tokens[8:, :-1], tokens[8:, 1:]), "text")
    assert found.train_x.dtype == torch.int64
    assert tuple(found.train_y.shape) == (8, 5)
    assert found.classes == 7


def test_labels_of_minus_100_do_not_count() -> None:
    tokens = DRAW.integers(0, 7, (12, 5))
    labels = tokens.copy()
    labels[:, 0] = -100
    found = as_dataset((tokens, labels, tokens, labels), "text")
    assert (found.classes, int(found.train_y.min())) == (1 + labels.max(), -100)
    with pytest.raises(ValueError, match="from 0 on, or -100 at positions that do not count; got -1"):
        as_dataset((tokens, np.where(labels < 0, -1, labels), tokens, labels), "text")


def test_columns_by_name_and_names_as_pandas_has_them() -> None:
    names = np.array(["ann", "bob"] * 4, dtype=object)
    train = {"x": X[:8], "y": Y[:8], "client_id": names}
    found = as_dataset({"train": train, "test": {"x": X[8:], "y": Y[8:]}}, "mine")
    assert torch.equal(found.train_x, X[:8])
    assert torch.equal(found.test_y, Y[8:])
    assert found.clients is not None
    assert found.clients.tolist() == [0, 1] * 4
    with pytest.raises(ValueError, match="has fields x; call the one with the labels"):
        as_dataset({"train": {"x": X}, "test": train}, "mine")


GOOD = (X[:8], Y[:8], X[8:], Y[8:])
NAN = X.clone()
NAN[5, 0, 0, 0] = torch.nan


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (None, "mine must be a signfade.data.Dataset, .* got NoneType"),
        ((X, Y, X), r"got 3 values \(Tensor, Tensor, Tensor\)"),
        ({"train": 1, "valid": 2}, "must have the keys train and test; got train, valid"),
        ((X, Y[:3], X, Y), "mine: train_y has 3 labels for 12 samples"),
        ((X, Y, X[:4], Y), "mine: test_y has 12 labels for 4 samples"),
        ((X, Y, X[:, :1], Y), r"must be alike; got float32 \[3, 5, 4\] and float32 \[1, 5, 4\]"),
        ((NAN, Y, X, Y), "mine: train_x must be finite; sample 5 holds NaN"),
        ((X[:, 0, 0, 0], Y, X, Y), r"train_x must be samples of some shape, .* got shape \[12\]"),
        ((X.to(torch.complex64), Y, X, Y), "train_x must hold floats, .* got complex64"),
        ((X.long(), Y, X, Y), "train_x must hold floats, bytes .* got int64"),
        ((Y[:, None] - 1, Y, X, Y), "tokens, which must be from 0; got -1"),
        (([[1.0], [1.0, 2.0]], Y, X, Y), "train_x cannot be made an array: all samples must have one shape"),
        ((X, Y.float(), X, Y), r"train_y must hold integers, .* got float32 of shape \[12\]"),
        ((X, Y, X, Y - 1), "test_y must be from 0 on; got -1"),
        ((X, Y, X, Y - 100), "test_y must be from 0 on; got -100"),
        ((X, Y, X, Y + 10**7), "labels reach 1000000., and there are 24 of them; number classes from 0 on"),
        ((X[:0], Y[:0], X, Y), r"train_x is empty; got shape \[0, 3, 5, 4\]"),
        ((Rows([(X[0], torch.tensor(0.5))]), Rows([(X[0], 0)])), "train_y must hold integers, .* got float"),
        ((X, X[:, 0, 0].long(), X, Y), "train_x must be tokens of the same shape"),
        (Dataset(*GOOD, classes=2, name="mine"), "labels must be from 0 to 1; got 2"),
        ((*GOOD, [1.5] * 8), r"clients must be an integer or a name for each of the 8 training samples"),
        ((*GOOD, [1] * 7), r"clients must be .* got int64 of shape \[7\]"),
        ((iter([]), Rows([])), "the training set must be map-style, .* got list_iterator"),
        ((Rows([]), Rows([])), "the training set is empty"),
        ((Rows([1]), Rows([1])), r"must give \(sample, label\) or named fields; got int"),
        ((Rows([{"a": 1, "y": 0}]), Rows([])), "has fields a, y; call the one with the samples image or img"),
        ((Rows([("words", 1)]), Rows([])), "holds text; make tokens of it first"),
        ((Rows([(X[0], 0), (X[0, :1], 1)]), Rows([])), "has samples of different shapes"),
    ],
)
def test_mistakes_are_one_sentence(data: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        as_dataset(data, "mine")
    assert "\n" not in str(caught.value)


def test_the_example_of_the_docs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    (tmp_path / "my_data.py").write_text(page.split("```python\n")[1].split("```")[0])
    found = load(f"{tmp_path}/my_data.py:readings")
    assert found.clients is not None
    assert (tuple(found.train_x.shape), found.classes, len(set(found.clients))) == ((1500, 16), 3, 20)


def test_one_line_of_settings_or_of_python(tmp_path: Path) -> None:
    """A function of a file and an object give the same run, natural clients and all."""
    (tmp_path / "own.py").write_text(
        "import numpy as np\n\n\ndef clouds():\n"
        "    rng, y = np.random.default_rng(0), np.arange(500) % 2\n"
        "    x = rng.normal(size=(500, 16)) + y[:, None]\n"
        "    return x[:400], y[:400], x[400:], y[400:], np.arange(400) // 40\n"
    )
    name = f"{tmp_path}/own.py:clouds"
    changes = {"rounds": 2, "data__split": "natural", "data__devices": 10, "data__batch": None}
    by_name = Experiment(settings(**changes, data__name=name))
    data = load(name)
    parts = (data.train_x, data.train_y, data.test_x, data.test_y, data.clients)
    by_object = Experiment(settings(**changes), dataset=parts)
    assert by_name.task.shares.tolist() == [0.1] * 10
    for _ in range(2):
        by_name.advance()
        by_object.advance()
    assert torch.equal(by_name.weights, by_object.weights)
    with pytest.raises(
        ValueError, match=r"data.split natural of .* at most the number of natural clients, 10"
    ):
        Experiment(settings(**{**changes, "data__devices": 11}), dataset=parts)
    with pytest.raises(ValueError, match="needs a data set that knows the client of each sample"):
        Experiment(settings(data__split="natural"))
