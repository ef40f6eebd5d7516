from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, hypergeom

from signfade.data import Split, split
from signfade.data.splits import _feed_the_empty

WAYS = ("two-chunks", "iid", "dirichlet", "label-count")


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Labels of two to five classes, not always from 0 on, each with enough samples for all the devices."""
    devices = draw(st.integers(1, 12))
    names = draw(st.lists(st.integers(-3, 300), min_size=2, max_size=5, unique=True))
    sizes = [draw(st.integers(devices, devices + 30)) for _ in names]
    labels = np.repeat(names, sizes)
    return np.random.default_rng(draw(st.integers(0, 99))).permutation(labels), devices


@settings(deadline=None, max_examples=80)
@given(problem=problems(), how=st.sampled_from(WAYS), seed=st.integers(0, 2**40), exponent=st.integers(-9, 9))
def test_what_holds_for_every_split(
    problem: tuple[np.ndarray, int], how: str, seed: int, exponent: int
) -> None:
    labels, devices = problem
    parts = split(labels, devices, how, concentration=10.0**exponent, seed=seed)
    assert parts.indices.dtype == parts.offsets.dtype == np.int64
    assert parts.devices == devices
    assert (parts.counts >= 1).all()
    assert len(np.unique(parts.indices)) == len(parts.indices)
    assert parts.offsets[0] == 0
    assert parts.offsets[-1] == len(parts.indices)
    for k in range(devices):
        assert len(parts.of(k)) == parts.counts[k]
        assert (np.diff(parts.of(k)) > 0).all()
    if how == "two-chunks":
        takers = Counter(name for k in range(devices) for name in set(labels[parts.of(k)].tolist()))
        counts = [takers[name] for name in np.unique(labels).tolist()]
        assert max(counts) - min(counts) <= 1  # no class is favoured, none is left out
        for k in range(devices):
            held = Counter(labels[parts.of(k)].tolist())
            assert len(held) == 2
            for label, count in held.items():
                size = int((labels == label).sum())
                assert count in (size // devices, -(-size // devices))
    elif how != "label-count":  # which may leave a class to nobody
        assert len(parts.indices) == len(labels)
    if how == "iid":
        assert np.ptp(parts.counts) <= 1


@pytest.mark.parametrize("how", WAYS)
def test_a_split_is_a_function_of_its_seed(how: str) -> None:
    labels = np.arange(400) % 4
    first, again, other = (split(labels, 8, how, seed=seed) for seed in (1, 1, 2))
    assert (first.indices == again.indices).all()
    assert (first.offsets == again.offsets).all()
    assert not np.array_equal(first.indices, other.indices)


def test_labels_may_be_a_tensor() -> None:
    labels = torch.arange(40) % 4
    assert (split(labels, 5).indices == split(labels.tolist(), 5).indices).all()


def test_two_chunks_every_pair_of_classes_is_equally_likely() -> None:
    classes, devices, seeds = 5, 6, 400
    labels = np.repeat(np.arange(classes), devices)
    pairs: Counter[tuple[int, ...]] = Counter()
    for seed in range(seeds):
        parts = split(labels, devices, seed=seed)
        pairs.update(tuple(sorted(labels[parts.of(k)].tolist())) for k in range(devices))
    every = list(itertools.combinations(range(classes), 2))
    assert set(pairs) == set(every)
    assert chisquare([pairs[pair] for pair in every]).pvalue > 1e-4


def test_two_chunks_every_sample_is_equally_likely() -> None:
    classes, devices, seeds = 4, 5, 600
    labels = np.tile(np.arange(classes), devices)  # a chunk is one sample
    holders = np.zeros((len(labels), devices))
    for seed in range(seeds):
        parts = split(labels, devices, seed=seed)
        for k in range(devices):
            holders[parts.of(k), k] += 1
    # A device holds a given sample with probability 2 / (C K); counts are binomial over the seeds.
    p = 2 / (classes * devices)
    assert np.abs(holders - seeds * p).max() < 5 * math.sqrt(seeds * p * (1 - p))


def test_two_chunks_of_two_classes_uses_everything() -> None:
    labels = np.arange(100) % 2
    parts = split(labels, 50)
    assert sorted(parts.indices) == list(range(100))
    assert all(labels[parts.of(k)].tolist().count(1) == 1 for k in range(50))


def test_the_papers_setting() -> None:
    """Ten classes, 20 users: 20 chunks a class, 40 of the 200 chunks are held."""
    labels = np.repeat(np.arange(10), 6000)
    parts = split(labels, 20)
    assert parts.counts.tolist() == [600] * 20
    assert len(parts.indices) == 60_000 // 5


def test_iid_labels_are_hypergeometric() -> None:
    labels = (np.arange(300) < 120).astype(int)  # not shuffled: the split must do it
    counts = [int(labels[split(labels, 10, "iid", seed=seed).of(3)].sum()) for seed in range(500)]
    law = hypergeom(300, 120, 30)
    assert abs(np.mean(counts) - law.mean()) < 5 * law.std() / math.sqrt(500)
    assert abs(np.var(counts) / law.var() - 1) < 5 * math.sqrt(2 / 500)


@pytest.mark.parametrize("concentration", [0.05, 0.5, 5.0])
def test_dirichlet_shares_have_the_right_spread(concentration: float) -> None:
    """E[sum_k p_k^2] = (a + 1) / (a K + 1) for shares p from a symmetric Dirichlet law."""
    classes, devices, size = 300, 8, 2000
    labels = np.repeat(np.arange(classes), size)
    parts = split(labels, devices, "dirichlet", concentration)
    shares = np.stack([np.bincount(labels[parts.of(k)], minlength=classes) for k in range(devices)]) / size
    concentrated = (shares**2).sum(axis=0)
    expected = (concentration + 1) / (concentration * devices + 1)
    error = concentrated.std() / math.sqrt(classes) + 2 / size  # sampling, and rounding to whole samples
    assert abs(concentrated.mean() - expected) < 5 * error
    assert np.abs(shares.mean(axis=1) - 1 / devices).max() < 5 * shares.std() / math.sqrt(classes)


@pytest.mark.parametrize("concentration", [1e9, 1e300])
def test_dirichlet_of_large_concentration_is_even(concentration: float) -> None:
    labels = np.repeat(np.arange(3), 400)
    parts = split(labels, 8, "dirichlet", concentration)
    for k in range(8):
        assert np.abs(np.bincount(labels[parts.of(k)]) - 50).max() <= 1


def test_dirichlet_of_vanishing_concentration_gives_each_class_to_one_device() -> None:
    labels = np.repeat(np.arange(3), 100)
    parts = split(labels, 50, "dirichlet", 1e-300)
    counts = np.sort(parts.counts)
    assert counts[:47].tolist() == [1] * 47  # the others were left with nothing and got one sample each
    assert counts.sum() == 300


@pytest.mark.parametrize("seed", range(5))
def test_the_empty_are_fed_by_the_richest_one_at_a_time(seed: int) -> None:
    counts = np.random.default_rng(seed).poisson(0.6, (3, 40))
    expected = counts.copy()
    empty = np.flatnonzero(counts.sum(axis=0) == 0)
    assert 0 < len(empty) <= counts.sum() - 40 + len(empty)
    for poor in empty:
        donor = expected.sum(axis=0).argmax()
        row = expected[:, donor].argmax()
        expected[row, donor] -= 1
        expected[row, poor] += 1
    _feed_the_empty(counts)
    assert (counts == expected).all()
    assert (counts.sum(axis=0) >= 1).all()


@pytest.mark.parametrize("how", ["iid", "dirichlet"])
def test_as_many_devices_as_samples(how: str) -> None:
    assert split(np.arange(500) % 7, 500, how).counts.tolist() == [1] * 500


def test_many_devices_are_quick() -> None:
    labels = np.arange(120_000) % 10
    assert split(labels, 100_000, "dirichlet").counts.min() == 1
    assert split(labels, 100_000, "iid").counts.max() == 2
    assert split(labels, 12_000).counts.tolist() == [2] * 12_000


@pytest.mark.parametrize(
    ("labels", "devices", "how", "words"),
    [
        ([0, 1, 2], 4, "iid", "devices must be at most the number of samples, 3; got 4"),
        ([0, 1, 2], 0, "iid", "devices must be at least 1; got 0"),
        (
            [1, 1, 1],
            2,
            "two-chunks",
            "labels must have at least 2 classes for data.split = 'two-chunks'; got 1",
        ),
        ([0, 0, 0, 1], 2, "two-chunks", "devices must be at most 1, the size of the smallest class"),
        (
            [0, 1],
            1,
            "three-chunks",
            "how must be one of 'two-chunks', 'iid', 'dirichlet', 'label-count'",
        ),
        ([0.5, 1.0], 1, "iid", "labels must be a list of integers; got float64"),
        ([[0, 1]], 1, "dirichlet", "can only be dealt iid or natural; got 'dirichlet'"),
        ([], 1, "iid", "labels must be a list of integers|number of samples, 0"),
    ],
)
def test_what_cannot_be_split(labels: list[int], devices: int, how: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        split(labels, devices, how)


@pytest.mark.parametrize("concentration", [0.0, -1.0, math.inf, math.nan])
def test_concentration_must_be_positive(concentration: float) -> None:
    with pytest.raises(ValueError, match="concentration must be positive and finite"):
        split([0, 1, 2], 2, "dirichlet", concentration)


def test_a_device_that_does_not_exist() -> None:
    parts = Split(np.array([4, 7, 1]), np.array([0, 2, 3]))
    assert parts.of(1).tolist() == [1]
    for wrong in (-1, 2):
        with pytest.raises(ValueError, match="device must be from 0 to 1"):
            parts.of(wrong)


@settings(deadline=None, max_examples=60)
@given(problem=problems(), seed=st.integers(0, 2**40), data=st.data())
def test_label_count_gives_every_device_its_number_of_classes(
    problem: tuple[np.ndarray, int], seed: int, data: st.DataObject
) -> None:
    """All samples of a class with takers are dealt out, in equal parts; classes have equally many takers."""
    labels, devices = problem
    names = np.unique(labels)
    each = data.draw(st.integers(1, len(names)))
    parts = split(labels, devices, "label-count", seed=seed, classes_per_device=each)
    held = np.array([[(labels[parts.of(k)] == name).sum() for name in names] for k in range(devices)])
    assert ((held > 0).sum(axis=1) == each).all()
    assert np.ptp((held > 0).sum(axis=0)) <= 1
    for which, name in enumerate(names):
        shares = held[held[:, which] > 0, which]
        if shares.size:
            assert shares.sum() == (labels == name).sum()
            assert np.ptp(shares) <= 1


def test_natural_devices_are_clients_drawn_at_random() -> None:
    """Each of 8 clients is among 4 devices in half of 400 draws; 5 standard errors are 50."""
    clients = np.repeat(np.arange(8) * 100 - 300, np.arange(1, 9))
    labels = np.zeros((len(clients), 5), dtype=np.int64)
    taken: Counter[int] = Counter()
    for seed in range(400):
        parts = split(labels, 4, "natural", seed=seed, clients=clients)
        owners = [set(clients[parts.of(k)].tolist()) for k in range(4)]
        assert all(len(owner) == 1 for owner in owners)
        for k, owner in enumerate(owners):
            assert parts.counts[k] == (clients == next(iter(owner))).sum()
        taken.update(set().union(*owners))
    assert all(150 < taken[client] < 250 for client in np.unique(clients).tolist())


@pytest.mark.parametrize(
    ("devices", "options", "words"),
    [
        (5, {"clients": np.arange(6) // 2}, "at most the number of natural clients, 3; got 5"),
        (2, {"clients": np.arange(5)}, r"clients must be one for each of 6 samples; got \[5\]"),
        (2, {}, "needs a data set that knows the client of each sample"),
        (
            2,
            {"classes_per_device": 4},
            "classes_per_device must be from 1 to .* classes, 3; got 4",
        ),
        (6, {"classes_per_device": 2}, "devices must be at most 3 for data.split = 'label-count'"),
    ],
)
def test_what_the_new_splits_cannot_do(devices: int, options: dict[str, Any], words: str) -> None:
    how = "label-count" if "classes_per_device" in options else "natural"
    with pytest.raises(ValueError, match=words):
        split([0, 0, 1, 1, 2, 2], devices, how, **options)
