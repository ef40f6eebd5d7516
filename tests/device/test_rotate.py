"""The rotation is orthonormal, keyed, invertible, thread-blind, and makes spiky vectors Gaussian."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch
from scipy import stats

from signfade.device.rotation import rotate, rotated_size, unrotate
from signfade.kernels.jit import plain_form
from signfade.keys import stream_key

module = import_module("signfade.device.rotation")  # the package exports a function of that name
SIZES = [1, 2, 3, 5, 11, 12, 13, 100, 300, 1000, 4097, 5000, 9000, 15_000, 62_346]


def gradients(devices: int, size: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(devices, size, generator=torch.Generator().manual_seed(size), dtype=dtype)


@pytest.mark.parametrize("order", module._ORDERS)
def test_every_factor_is_a_hadamard_matrix(order: int) -> None:
    factor = module._factor(order)
    assert set(np.unique(factor)) <= {-1.0, 1.0}
    np.testing.assert_array_equal(factor @ factor.T, order * np.eye(order))


@pytest.mark.parametrize("size", SIZES)
def test_inner_products_are_kept_and_the_inverse_is_exact(size: int) -> None:
    g = gradients(3, size)
    before = g.clone()
    rotated = rotate(g, seed=9)
    assert rotated.shape == (3, rotated_size(size))
    torch.testing.assert_close(rotated @ rotated.T, g @ g.T, rtol=1e-12, atol=1e-12 * size)
    torch.testing.assert_close(unrotate(rotated, seed=9, size=size), g, rtol=0, atol=1e-13)
    torch.testing.assert_close(g, before, rtol=0, atol=0)


@pytest.mark.parametrize("size", [5, 300, 5000, 62_346])
def test_float32_inverts_to_rounding(size: int) -> None:
    g = gradients(2, size, torch.float32)
    back = unrotate(rotate(g, seed=1), seed=1, size=size)
    assert back.dtype == torch.float32
    # Rounding errors of log2(n) + 124 additions, twice, at unit scale.
    torch.testing.assert_close(back, g, rtol=0, atol=300 * 2.0**-24)


def test_the_whole_matrix_has_entries_of_one_magnitude() -> None:
    for size in (12, 16, 40, 52 * 2):
        matrix = rotate(torch.eye(size, dtype=torch.float64), seed=3)
        n = rotated_size(size)
        torch.testing.assert_close(matrix.abs(), torch.full((size, n), n**-0.5, dtype=torch.float64))


@pytest.mark.parametrize("size", SIZES)
def test_compiled_and_plain_agree(size: int) -> None:
    g = gradients(2, size)
    compiled = rotate(g, seed=4)
    back = unrotate(compiled, seed=4, size=size)
    with plain_form():
        torch.testing.assert_close(rotate(g, seed=4), compiled, rtol=0, atol=1e-12)
        torch.testing.assert_close(unrotate(compiled, seed=4, size=size), back, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [300, 20_000])
def test_threads_do_not_change_a_bit(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    g = gradients(5, size, torch.float32)
    monkeypatch.setattr(module, "_SMALL", 0)
    found = []
    for threads in (1, 2, 3, 7):
        monkeypatch.setattr(module, "available_threads", lambda threads=threads: threads)
        rotated = rotate(g, seed=8)
        found.append((rotated, unrotate(rotated, seed=8, size=size)))
    assert all(torch.equal(a, b) for others in found[1:] for a, b in zip(found[0], others, strict=True))


def test_a_device_does_not_see_the_others() -> None:
    g = gradients(4, 777, torch.float32)
    assert torch.equal(rotate(g, seed=2)[2], rotate(g[2], seed=2))
    assert torch.equal(rotate(g.T.contiguous().T, seed=2), rotate(g, seed=2))  # not contiguous


def test_rounds_are_rotated_independently() -> None:
    g = gradients(1, 5000)[0]
    a, b = (rotate(g, stream_key(7, "rotation", t)) for t in (1, 2))
    # Uncorrelated up to sampling error: the sample correlation has standard error n**-0.5.
    assert abs(float(torch.corrcoef(torch.stack((a, b)))[0, 1])) < 4 * len(a) ** -0.5
    assert torch.equal(a, rotate(g, stream_key(7, "rotation", 1)))


def test_the_signs_are_fair_and_a_prefix_of_one_sequence() -> None:
    signs = module._signs(11, 100_000)
    assert set(np.unique(signs)) == {-1, 1}
    assert abs(signs.mean()) < 4 / np.sqrt(len(signs))
    np.testing.assert_array_equal(module._signs(11, 777), signs[:777])


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 2**64 - 1])
def test_a_seed_names_one_rotation_for_ever(seed: int) -> None:
    """Bit i of Philox's word j flips coordinate 64 j + i. A run that goes on later relies on it."""
    words = np.random.Generator(np.random.Philox(key=seed)).integers(2**64, size=2, dtype=np.uint64)
    flips = [1 - 2 * (int(words[m // 64]) >> m % 64 & 1) for m in range(128)]
    # The first row of a Walsh-Hadamard matrix is all ones.
    first = rotate(torch.eye(128, dtype=torch.float64), seed)[:, 0] * 128**0.5
    assert first.round().tolist() == flips


def test_a_spiky_heterogeneous_gradient_becomes_jointly_gaussian() -> None:
    """Heavy tails, layers of different scale, devices that pull apart: rotated, all is N(0, C)."""
    generator = np.random.default_rng(5)
    size = 30_000
    common = generator.standard_t(2.5, size) * np.repeat([0.01, 1.0, 0.1], size // 3)
    g = np.stack([common + 0.5 * generator.laplace(size=size) * (common > 0), -0.7 * common])
    g[1, : size // 2] += generator.laplace(size=size // 2)
    rotated = rotate(torch.from_numpy(g), seed=6).numpy()
    n = rotated.shape[1]
    covariance = g @ g.T / n
    white = np.linalg.solve(np.linalg.cholesky(covariance), rotated)
    assert stats.kstest(white.ravel(), "norm").pvalue > 1e-3
    radius = stats.kstest((white**2).sum(axis=0), "chi2", args=(2,))
    assert radius.pvalue > 1e-3  # jointly, not only one by one
    assert stats.kstest(g[0] / g[0].std(), "norm").pvalue < 1e-100  # before, nothing of the kind
    # The same covariance in every part of the vector: the spread between parts is sampling error alone.
    parts = white.reshape(2, 8, n // 8)
    assert np.abs((parts**2).mean(axis=2) - 1).max() < 5 * np.sqrt(2 / (n // 8))


def test_padding_stays_small() -> None:
    sizes = np.unique(np.geomspace(1000, 3e7, 2000).astype(int))
    padding = np.array([rotated_size(int(m)) / m - 1 for m in sizes])
    assert padding.min() >= 0
    assert padding.max() < 0.091
    assert padding.mean() < 0.031
    assert all(rotated_size(rotated_size(int(m))) == rotated_size(int(m)) for m in sizes[:200])


def test_bad_input_is_named() -> None:
    good = torch.ones(2, 5)
    with pytest.raises(ValueError, match="g must have shape"):
        rotate(torch.ones(2, 2, 2), seed=1)
    with pytest.raises(ValueError, match="g must have shape"):
        rotate(torch.ones(2, 0), seed=1)
    with pytest.raises(ValueError, match="g must be float32 or float64; got"):
        rotate(torch.ones(2, 5, dtype=torch.int64), seed=1)
    with pytest.raises(ValueError, match="seed must be non-negative; got -1"):
        rotate(good, seed=-1)
    with pytest.raises(
        ValueError, match=r"rotated must have shape \[K, 8\] or \[8\] for size 5; got \[2, 5\]"
    ):
        unrotate(good, seed=1, size=5)
    with pytest.raises(ValueError, match="size must be at least 1; got 0"):
        rotated_size(0)
    for bad in (float("nan"), float("inf")):
        for k, m in ((0, 0), (1, 4)):
            g = good.clone()
            g[k, m] = bad
            with pytest.raises(ValueError, match="g must be finite"):
                rotate(g, seed=1)
