"""Who holds what: samples of a labelled set dealt out to the devices."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from signfade import keys
from signfade._check import check_choice

__all__ = ["Split", "split"]


@dataclass(frozen=True, eq=False)
class Split:
    """The samples of every device, flat in memory: device `k` has `indices[offsets[k]:offsets[k + 1]]`.

    Example:
        >>> parts = Split(np.array([4, 7, 1]), np.array([0, 2, 3]))
        >>> parts.of(0), parts.counts
        (array([4, 7]), array([2, 1]))
    """

    indices: NDArray[np.int64]  # [N'], no sample twice
    offsets: NDArray[np.int64]  # [K + 1]

    @property
    def devices(self) -> int:
        """Number of devices K."""
        return len(self.offsets) - 1

    @property
    def counts(self) -> NDArray[np.int64]:
        """Samples of each device, N_k, `[K]`."""
        return np.diff(self.offsets)

    def of(self, device: int) -> NDArray[np.int64]:
        """Return the samples of one device, ascending, as a view."""
        if not 0 <= device < self.devices:
            raise ValueError(f"device must be from 0 to {self.devices - 1}; got {device}")
        return self.indices[self.offsets[device] : self.offsets[device + 1]]


def split(
    labels: ArrayLike,
    devices: int,
    how: str = "two-chunks",
    concentration: float = 0.5,
    seed: int = 0,
    *,
    classes_per_device: int = 2,
    clients: NDArray[np.int64] | None = None,
) -> Split:
    """Deal the samples of a labelled set out to the devices, no sample to two of them.

    - `two-chunks`, the paper's: each class is shuffled and cut into K chunks of equal size (up to one
      sample), each device takes two chunks of distinct classes, drawn so that every class goes to equally
      many devices (up to one). 2 of every C chunks are used, so most samples stay unused when there are many
      classes. (Were the devices' draws independent, one run in nine of the paper's setting would lack a class
      altogether, and none could average the accuracy that it reports.)
    - `iid`: the shuffled samples in K equal parts (up to one sample).
    - `dirichlet`: for each class, shares of the devices are drawn from a symmetric Dirichlet distribution and
      its shuffled samples cut accordingly. A device left with nothing is then given one sample by the device
      that has most, of the class it has most of, so that all can compute a gradient; nothing else is touched.
    - `label-count`, FedAvg's pathological split: each device takes `classes_per_device` distinct classes,
      drawn so that every class goes to equally many devices (up to one), which share it in equal parts.
    - `natural`: a device is one of the `clients`, drawn at random, and holds all of its samples.

    `labels [N]` are integers, the class of each sample; `iid` and `natural` take `[N, T]` too.
    There are at most N devices, and each gets at least one sample. A small `concentration` means few classes
    per device, a large one the same mix for all. `clients [N]` are the natural clients of the samples.

    Example:
        >>> labels = np.repeat(np.arange(10), 60)
        >>> parts = split(labels, devices=20)
        >>> parts.counts.tolist() == [6] * 20, np.unique(labels[parts.of(3)]).size
        (True, 2)

    Reference: the paper, Sec. VI (MNIST), for `two-chunks`; McMahan et al., AISTATS 2017, for `label-count`;
    Hsu, Qi and Brown, arXiv:1909.06335, for `dirichlet`; LEAF, arXiv:1812.01097, for `natural`.
    """
    check_choice("how", how, ("two-chunks", "iid", "dirichlet", "label-count", "natural"))
    classes = np.asarray(labels)
    if not np.issubdtype(classes.dtype, np.integer) or classes.ndim not in (1, 2):
        raise ValueError(
            f"labels must be a list of integers; got {classes.dtype} of shape {list(classes.shape)}"
        )
    if classes.ndim == 2 and how not in ("iid", "natural"):
        raise ValueError(
            f"a sample with a label at every position can only be dealt iid or natural; got {how!r}"
        )
    if devices < 1:
        raise ValueError(f"devices must be at least 1; got {devices}")
    if devices > len(classes):
        raise ValueError(f"devices must be at most the number of samples, {len(classes)}; got {devices}")
    if how == "iid":
        owner = np.empty(len(classes), dtype=np.int64)
        owner[keys.generator(seed, "split").permutation(len(classes))] = _cut(len(classes), devices)
    elif how == "two-chunks":
        owner = _two_chunks(classes, devices, seed)
    elif how == "label-count":
        owner = _label_count(classes, devices, classes_per_device, seed)
    elif how == "natural":
        owner = _natural(clients, len(classes), devices, seed)
    else:
        owner = _dirichlet(classes, devices, concentration, seed)
    return _gather(owner, devices)


def _cut(samples: int, parts: int) -> NDArray[np.int64]:
    """Return for each of the samples in a row which of the equal parts it falls in."""
    edges = np.arange(parts + 1, dtype=np.int64) * samples // parts
    return np.repeat(np.arange(parts, dtype=np.int64), np.diff(edges))


def _gather(owner: NDArray[np.int64], devices: int) -> Split:
    """Turn the owner of each sample (-1 for nobody) into a split."""
    owned = np.flatnonzero(owner >= 0)
    offsets = np.zeros(devices + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner[owned], minlength=devices), out=offsets[1:])
    return Split(owned[np.argsort(owner[owned], kind="stable")].astype(np.int64), offsets)


def _members(labels: NDArray[np.integer], label: int, seed: int) -> NDArray[np.int64]:
    """Return the samples of one class in random order."""
    return keys.generator(seed, "split", device=int(label)).permutation(np.flatnonzero(labels == label))


def _two_chunks(labels: NDArray[np.integer], devices: int, seed: int) -> NDArray[np.int64]:
    names, sizes = np.unique(labels, return_counts=True)
    if len(names) < 2:
        got = len(names)
        raise ValueError(f"labels must have at least 2 classes for data.split = 'two-chunks'; got {got}")
    if sizes.min() < devices:
        raise ValueError(
            f"devices must be at most {sizes.min()}, the size of the smallest class, for "
            f"data.split = 'two-chunks'; got {devices}"
        )
    first, second = _deal_pairs(len(names), devices, keys.generator(seed, "split-classes"))
    owner = np.full(len(labels), -1, dtype=np.int64)
    for which, label in enumerate(names):
        takers = np.flatnonzero((first == which) | (second == which))
        chunk_owner = np.full(devices, -1, dtype=np.int64)
        chunk_owner[: len(takers)] = takers
        members = _members(labels, label, seed)  # shuffled, so that any chunk is as random as any other
        owner[members] = chunk_owner[_cut(len(members), devices)]
    return owner


def _deal_pairs(
    classes: int, devices: int, draw: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Deal two distinct classes to every device at random, each class equally often (up to one)."""
    cards = np.resize(draw.permutation(classes), 2 * devices)
    first, second = draw.permutation(cards).reshape(2, devices)
    for twice in np.flatnonzero(first == second):
        # Swap one of the pair with a device that has neither. There is one: a class has at most K cards.
        label = first[twice]
        if label == second[twice]:
            partner = draw.choice(np.flatnonzero((first != label) & (second != label)))
            second[twice], second[partner] = second[partner], second[twice]
    return first, second


def _label_count(labels: NDArray[np.integer], devices: int, each: int, seed: int) -> NDArray[np.int64]:
    names, sizes = np.unique(labels, return_counts=True)
    if not 1 <= each <= len(names):
        raise ValueError(
            f"classes_per_device must be from 1 to the number of classes, {len(names)}; got {each}"
        )
    draw = keys.generator(seed, "split-classes")
    takers = np.zeros(len(names), dtype=np.int64)
    takes = np.zeros((devices, len(names)), dtype=bool)
    for device in range(devices):  # the classes with the fewest takers so far, at random among equals
        mine = np.lexsort((draw.random(len(names)), takers))[:each]
        takes[device, mine] = True
        takers[mine] += 1
    if (short := sizes < takers).any():
        most = int(sizes[short].min()) * len(names) // each
        raise ValueError(
            f"devices must be at most {most} for data.split = 'label-count', so that every device finds a "
            f"sample of each of its classes; got {devices}"
        )
    owner = np.full(len(labels), -1, dtype=np.int64)
    for which in np.flatnonzero(takers):
        members = _members(labels, names[which], seed)
        owner[members] = np.flatnonzero(takes[:, which])[_cut(len(members), int(takers[which]))]
    return owner


def _natural(clients: NDArray[np.int64] | None, samples: int, devices: int, seed: int) -> NDArray[np.int64]:
    if clients is None:
        raise ValueError("data.split = 'natural' needs a data set that knows the client of each sample")
    if clients.shape != (samples,):
        raise ValueError(f"clients must be one for each of {samples} samples; got {list(clients.shape)}")
    names, number = np.unique(clients, return_inverse=True)
    if devices > len(names):
        raise ValueError(
            f"devices must be at most the number of natural clients, {len(names)}; got {devices}"
        )
    device = np.full(len(names), -1, dtype=np.int64)
    device[keys.generator(seed, "split-clients").permutation(len(names))[:devices]] = np.arange(devices)
    return device[number]


def _dirichlet(
    labels: NDArray[np.integer], devices: int, concentration: float, seed: int
) -> NDArray[np.int64]:
    # Beyond 1e12 the shares are equal to the last sample, and the sampler would overflow.
    if not (concentration > 0 and math.isfinite(concentration)):
        raise ValueError(f"concentration must be positive and finite; got {concentration}")
    names = np.unique(labels)
    members = [_members(labels, label, seed) for label in names]
    counts = np.empty((len(names), devices), dtype=np.int64)
    for row, label in enumerate(names):
        draw = keys.generator(seed, "split-shares", device=int(label))
        shares = draw.dirichlet(np.full(devices, min(concentration, 1e12)))
        edges = np.rint(np.cumsum(shares) * len(members[row])).astype(np.int64)
        edges[-1] = len(members[row])  # the shares sum to one only up to rounding
        counts[row] = np.diff(np.minimum(edges, edges[-1]), prepend=0)
    _feed_the_empty(counts)
    owner = np.empty(len(labels), dtype=np.int64)
    for row, mine in enumerate(members):
        owner[mine] = np.repeat(np.arange(devices), counts[row])
    return owner


def _feed_the_empty(counts: NDArray[np.int64]) -> None:
    """Give each device without samples one of the device that has most (in place; there are enough)."""
    totals = counts.sum(axis=0)
    richest = [(-int(total), device) for device, total in enumerate(totals) if total]
    heapq.heapify(richest)
    for poor in np.flatnonzero(totals == 0):
        total, donor = richest[0]
        row = int(counts[:, donor].argmax())
        counts[row, donor] -= 1
        counts[row, poor] += 1
        heapq.heapreplace(richest, (total + 1, donor))
