"""Keyed noise: the streams are what they are said to be, and the table is a normal distribution."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtri

from signfade.kernels import standard_normal
from signfade.kernels.fused import CELL_BITS, quantile_table

from . import reference


def keys(count: int, seed: int = 0) -> NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, 2**64, size=count, dtype=np.uint64)


def random_words(count: int, size: int, seed: int = 0) -> NDArray[np.uint32]:
    rows = [reference.words(int(key), size).numpy().view(np.uint32) for key in keys(count, seed)]
    return np.stack(rows)


def magnitude(v: NDArray[np.int64]) -> NDArray[np.float32]:
    """The table's answer to the 31 bits v."""
    return reference.normal(torch.from_numpy(v.astype(np.int32))).numpy()


def signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


@pytest.mark.parametrize(
    ("counter", "key", "expected"),  # the known answers published with the algorithm
    [
        ((0, 0), 0, (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFFFFFFFFFF, (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), 0x0370734413198A2E, (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_its_known_answers(
    counter: tuple[int, int], key: int, expected: tuple[int, int]
) -> None:
    low, high = (torch.tensor([signed(word)], dtype=torch.int32) for word in counter)
    got = reference.threefry(key, low, high)
    assert tuple(int(word) & 0xFFFFFFFF for word in got) == expected


@pytest.mark.parametrize(
    ("start", "size"), [(0, 1), (0, 513), (3, 2000), (511, 2), (1024, 512), ((1 << 33) - 700, 1500), (7, 0)]
)
def test_a_second_implementation_gives_the_same_bytes(start: int, size: int) -> None:
    fast = standard_normal(keys(3), size, start)
    slow = [reference.normal(reference.words(int(key), size, start)).numpy() for key in keys(3)]
    assert fast.tobytes() == np.stack(slow).tobytes()
    assert fast.shape == (3, size)


def test_a_number_depends_on_its_key_and_place_alone() -> None:
    whole = standard_normal(keys(4), 3000)
    part = standard_normal(keys(4)[2:3], 1000, start=1234)
    assert part.tobytes() == whole[2:3, 1234:2234].tobytes()
    for threads in (1, 2, 5):
        assert standard_normal(keys(4), 3000, threads=threads).tobytes() == whole.tobytes()


def test_counter_beyond_32_bits_does_not_repeat() -> None:
    period = 1 << 33  # where the low counter word wraps
    assert not np.array_equal(standard_normal(keys(1), 600), standard_normal(keys(1), 600, start=period))


def test_one_bit_of_key_or_counter_turns_half_the_bits_of_the_word() -> None:
    rng = np.random.default_rng(1)
    counters = torch.from_numpy(rng.integers(-(2**31), 2**31, size=(2, 2000), dtype=np.int32))
    key = 0x0123456789ABCDEF
    base = torch.stack(reference.threefry(key, *counters))
    for bit in range(0, 64, 7):
        changed = torch.stack(reference.threefry(key ^ (1 << bit), *counters))
        flips = np.unpackbits((base ^ changed).numpy().view(np.uint8)).mean()
        assert abs(flips - 0.5) < 5 * 0.5 / np.sqrt(2 * 2000 * 32)
    for bit in range(0, 31, 5):
        changed = torch.stack(reference.threefry(key, counters[0] ^ (1 << bit), counters[1]))
        flips = np.unpackbits((base ^ changed).numpy().view(np.uint8)).mean()
        assert abs(flips - 0.5) < 5 * 0.5 / np.sqrt(2 * 2000 * 32)


def test_bytes_of_the_words_are_uniform() -> None:
    octets = random_words(2, 1 << 18).view(np.uint8).reshape(-1, 4)
    for place in range(4):
        counts = np.bincount(octets[:, place], minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-4
    neighbours = octets[:-1, 3].astype(np.int64) * 256 + octets[1:, 3]
    assert stats.chisquare(np.bincount(neighbours, minlength=65536)).pvalue > 1e-4


def test_quantiles_are_as_close_as_stated_everywhere() -> None:
    rng = np.random.default_rng(2)
    edges = (2.0 ** np.arange(1, 31)[:, None] * (1 + np.arange(32) / 32)).astype(np.int64).ravel()
    v = np.concatenate([np.arange(1 << 20), edges, edges - 1, edges + 1, rng.integers(0, 2**31, 400_000)])
    v = np.append(v[(v >= 0) & (v < 2**31)], 2**31 - 1)
    error = np.abs(magnitude(v) - -ndtri((v + 0.5) / 2**32))
    assert 5.1e-7 < error.max() < 5.2e-7  # the largest is at v = 68165, |z| = 4.16
    central = magnitude(v) < 1
    assert error[central].max() < 2.5e-7


def test_reach_and_centre() -> None:
    assert magnitude(np.array([0]))[0] == pytest.approx(-ndtri(2.0**-33), abs=5e-7)
    assert 0 <= magnitude(np.array([2**31 - 1]))[0] < 1e-7
    assert bool((np.diff(magnitude(np.arange(1 << 12))) < 0).all())


def moments_of_all_words() -> dict[int, float]:
    """E|z|^n over all 2^32 words in closed form: z^n is a polynomial of degree 2n in a cell's position."""
    table = quantile_table().astype(np.float64)
    nodes, node_weights = np.polynomial.legendre.leggauss(7)  # exact to degree 13
    cells = np.arange(1024)
    width = 2.0 ** (cells // 32 - 1) / 32
    t = nodes[:, None] * 2.0 ** (CELL_BITS - 1)
    z = table[0, :-1] + t * (table[1, :-1] + t * table[2, :-1])
    large = width >= 32  # finer cells hold a few integers or none: those v are summed one by one
    few = np.arange(1024)
    few_z = magnitude(few).astype(np.float64)
    moments = {}
    for n in (1, 2, 4, 6, 8):
        over_cells = (node_weights[:, None] / 2 * z**n).sum(axis=0) * width
        moments[n] = float((over_cells[large].sum() + (few_z**n).sum()) / 2**31)
    return moments


def test_moments_over_all_words_are_those_of_the_normal_distribution() -> None:
    assert 2.0 ** (1024 // 32 - 1) == 2**31  # the cells cover all v
    moments = moments_of_all_words()
    # a hundredth of the standard error of 1e9 samples: nobody will see the table in a sample mean
    normal = {1: np.sqrt(2 / np.pi), 2: 1.0, 4: 3.0, 6: 15.0, 8: 105.0}
    twice = {1: 1.0, 2: 3.0, 4: 105.0, 6: 10395.0, 8: 2027025.0}
    for n, value in normal.items():
        standard_error = np.sqrt((twice[n] - value**2) / 1e9)
        assert abs(moments[n] - value) < 0.01 * standard_error


def test_sample_is_normal() -> None:
    z = standard_normal(keys(4, seed=7), 1 << 18).ravel().astype(np.float64)
    assert stats.kstest(z, "norm").pvalue > 1e-3
    count = z.size
    assert abs(z.mean()) < 4 / np.sqrt(count)
    assert abs((z**3).mean()) < 4 * np.sqrt(15 / count)
    for n, value, twice in ((2, 1, 3), (4, 3, 105), (6, 15, 10395)):
        assert abs((z**n).mean() - value) < 4 * np.sqrt((twice - value**2) / count)
    for limit in (3.0, 4.0):
        expected = count * 2 * stats.norm.sf(limit)
        assert abs((np.abs(z) > limit).sum() - expected) < 4 * np.sqrt(expected)


def test_neighbours_streams_and_halves_of_a_tile_are_uncorrelated() -> None:
    z = standard_normal(np.arange(6, dtype=np.uint64), 1 << 17).astype(np.float64)  # neighbouring keys
    bound = 4.5 / np.sqrt(1 << 17)
    streams = z @ z.T / z.shape[1] - np.eye(6)
    assert np.abs(streams[np.triu_indices(6, 1)]).max() < bound
    for lag in (1, 2, 8, 255, 256, 257, 512):  # 256: the two words of a counter
        assert np.abs((z[:, :-lag] * z[:, lag:]).mean(axis=1)).max() < bound
        squares = (z**2 - 1) / np.sqrt(2)
        assert np.abs((squares[:, :-lag] * squares[:, lag:]).mean(axis=1)).max() < bound


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keys": np.arange(3)}, "keys must be uint64"),
        ({"keys": np.zeros((2, 2), np.uint64)}, "keys must be uint64 of shape"),
        ({"size": -1}, "size and start"),
        ({"start": -1}, "size and start"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        standard_normal(**({"keys": keys(2), "size": 5} | arguments))  # type: ignore[arg-type]
