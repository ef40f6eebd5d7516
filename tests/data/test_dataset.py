from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from signfade.data import DataError, Dataset, Sources, available, cache_folder, load, standardised, write_idx


def test_digits_are_split_in_proportion_and_none_is_lost() -> None:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    digits = load("digits")
    assert digits.train_x.shape == (1437, 1, 8, 8)
    assert digits.test_x.shape == (360, 1, 8, 8)
    assert digits.train_x.dtype == torch.float32
    assert digits.train_y.dtype == torch.int64
    assert (digits.classes, digits.name, digits.input_shape) == (10, "digits", (1, 8, 8))
    pairs = [
        (*(16 * x.flatten()).int().tolist(), int(y))
        for xs, ys in ((digits.train_x, digits.train_y), (digits.test_x, digits.test_y))
        for x, y in zip(xs, ys)
    ]
    original = [(*image.astype(int).ravel().tolist(), int(y)) for image, y in zip(bunch.images, bunch.target)]
    assert sorted(pairs) == sorted(original)
    share = np.bincount(bunch.target) * 360 / 1797
    assert (np.abs(digits.test_y.bincount().numpy() - share) < 1).all()


def test_digits_are_split_the_same_way_for_ever() -> None:
    """Results on digits can be compared only while this holds."""
    digits = load("digits")
    digest = hashlib.sha256((16 * digits.test_x).byte().numpy().tobytes() + digits.test_y.numpy().tobytes())
    assert digest.hexdigest() == "14c68ac2e619211042945515a1cfb0c6358fc2e94e01bdb17d1d9e367439e2cd"


def test_a_folder_of_idx_files(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    dataset = load("idx", folder)
    assert dataset.train_x.shape == (12, 1, 5, 4)
    assert dataset.test_x.shape == (6, 1, 5, 4)
    assert (dataset.classes, dataset.name) == (3, "set")
    assert dataset.train_x.min() >= 0
    assert dataset.train_x.max() <= 1
    assert ((dataset.test_x[:, 0] * 255).round().byte().numpy() == arrays["t10k-images"]).all()
    assert (dataset.train_y.numpy() == arrays["train-labels"]).all()


@pytest.mark.parametrize("shape", [(7,), (3, 5, 4)])
def test_vectors_and_colours_keep_their_shape(folder: Path, shape: tuple[int, ...]) -> None:
    (folder / "train-images-idx3-ubyte").unlink()
    (folder / "t10k-images-idx3-ubyte.gz").unlink()
    write_idx(folder / f"train-images-idx{len(shape) + 1}-ubyte", np.full((12, *shape), 255, np.uint8))
    write_idx(folder / f"t10k-images-idx{len(shape) + 1}-ubyte", np.zeros((6, *shape), np.uint8))
    dataset = load("idx", folder)
    assert dataset.input_shape == shape
    assert (dataset.train_x == 1).all()


def test_a_class_seen_only_in_the_test_counts(folder: Path) -> None:
    write_idx(
        folder / "t10k-labels-idx1-ubyte", np.full(6, 7, np.uint8)
    )  # a plain file goes before a packed one
    assert load("idx", folder).classes == 8


def test_mnist_in_a_named_folder_is_checked_too(folder: Path, hashes: dict[str, str]) -> None:
    files = {f"{part}-{'idx1' if 'labels' in part else 'idx3'}-ubyte": hashes[part] for part in hashes}
    assert load("mnist", folder, sources=Sources(files)).name == "mnist"
    with pytest.raises(DataError, match=r"wrong SHA-256: .*`signfade data fetch mnist`.*data.name idx"):
        load("mnist", folder)  # these are not the real files
    with pytest.raises(DataError, match="has no file train-images-idx3-ubyte"):
        load("mnist", folder / "nowhere")


def test_idx_needs_a_folder_and_names_are_known() -> None:
    with pytest.raises(DataError, match=r"set data\.folder"):
        load("idx")
    with pytest.raises(ValueError, match=r"data.name must be one of digits, idx, mnist, .*; got 'minst'"):
        load("minst")


def test_the_cache_is_where_it_is_told_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGNFADE_CACHE", str(tmp_path / "env"))
    assert cache_folder() == tmp_path / "env"
    assert cache_folder(tmp_path / "told") == tmp_path / "told"
    monkeypatch.delenv("SIGNFADE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder().name.lower() == "signfade"


def test_the_list_says_whether_mnist_is_here(tmp_path: Path, folder: Path) -> None:
    def where() -> str | None:
        return {entry.name: entry.where for entry in available(tmp_path)}["mnist"]

    assert where() is None
    folder.rename(tmp_path / "mnist")
    assert where() == str(tmp_path / "mnist")
    (tmp_path / "mnist" / "train-labels.idx1-ubyte").unlink()
    assert where() is None


def test_standardised_features_have_mean_zero_and_variance_one_and_keep_their_channels_apart() -> None:
    """By NumPy, a channel at a time; test samples are moved by the numbers of the training samples."""
    draw = np.random.default_rng(3)
    images = draw.uniform(2, 7, (40, 3, 5, 4)) * np.array([1, 4, 0]).reshape(3, 1, 1)  # the last never varies
    train, test = (torch.from_numpy(part.astype(np.float32)) for part in (images[:30], images[30:]))
    labels = torch.arange(40) % 2
    data = standardised(Dataset(train, labels[:30], test, labels[30:], 2, "mine"))
    for channel, (mean, spread) in enumerate(
        zip(images[:30].mean((0, 2, 3)), images[:30].std((0, 2, 3), ddof=1))
    ):
        for ours, given in ((data.train_x, images[:30]), (data.test_x, images[30:])):
            wanted = (given[:, channel] - mean) / (spread or 1.0)
            assert np.allclose(ours[:, channel].numpy(), wanted, atol=2e-5)
    table = standardised(Dataset(train[:, :, 0, 0], labels[:30], test[:, :, 0, 0], labels[30:], 2, "mine"))
    assert torch.allclose(table.train_x[:, :2].std(dim=0), torch.ones(2), atol=1e-5)
    assert torch.equal(train, torch.from_numpy(images[:30].astype(np.float32)))  # the set itself is as it was


def test_tokens_cannot_be_standardised() -> None:
    tokens = torch.arange(12).reshape(6, 2) % 3
    with pytest.raises(ValueError, match=r"data\.standardise must be false with mine: tokens have no mean"):
        standardised(Dataset(tokens, tokens[:, 0], tokens, tokens[:, 0], 3, "mine"))
