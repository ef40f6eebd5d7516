"""Winograd's 5x5 convolution against direct sums in float64, and its matrices against their definition."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from signfade.kernels.winograd import conv5x5, fits

pytest.importorskip("numba")


@pytest.mark.parametrize(
    ("samples", "inputs", "outputs", "height", "width"),
    [(32, 32, 64, 12, 12), (1, 16, 16, 8, 8), (9, 33, 40, 8, 16), (17, 64, 31, 20, 12)],
)
@pytest.mark.parametrize("channels_last", [False, True])
def test_it_is_a_convolution(
    samples: int, inputs: int, outputs: int, height: int, width: int, channels_last: bool
) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(samples, inputs, height, width), torch.randn(outputs, inputs, 5, 5)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    assert fits(x, weight)
    exact = functional.conv2d(x.double(), weight.double()).permute(0, 2, 3, 1)
    error = (conv5x5(x, weight) - exact) / exact.std()
    assert float(error.std()) < 4e-6  # the module's word
    assert float(error.abs().max()) < 5e-5


def right(x: Tensor, weight: Tensor) -> bool:
    exact = functional.conv2d(x.double(), weight.double()).permute(0, 2, 3, 1)
    return float((conv5x5(x, weight) - exact).abs().max()) < 1e-4 * float(exact.abs().max())


def test_kernels_are_transformed_anew_when_they_change() -> None:
    """Transformed kernels are kept for the next call: only for the same numbers, whoever changed them."""
    torch.manual_seed(0)
    x, first, second = torch.randn(2, 16, 8, 8), torch.randn(16, 16, 5, 5), torch.randn(16, 16, 5, 5)
    assert right(x, first)
    assert right(x, second)
    assert right(x, first)
    first.mul_(2)
    assert right(x, first)
    first.data[0] += 1
    assert right(x, first)
    first.numpy()[1] -= 1
    assert right(x, first)


def test_threads_do_not_share_kernels() -> None:
    torch.manual_seed(0)
    x, weights = torch.randn(1, 32, 12, 12), torch.randn(8, 64, 32, 5, 5)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda turn: right(x, weights[turn % 8]), range(80)))


def test_samples_share_nothing() -> None:
    """At another place in the batch, or among others, a sample gives the same bytes."""
    torch.manual_seed(0)
    x, weight = torch.randn(16, 32, 12, 12), torch.randn(64, 32, 5, 5)
    whole = conv5x5(x, weight)
    assert torch.equal(conv5x5(x[8:], weight), whole[8:])
    assert torch.equal(conv5x5(x.flip(0), weight).flip(0)[:8], whole[:8])


def test_no_samples() -> None:
    assert conv5x5(torch.empty(0, 16, 8, 8), torch.ones(16, 16, 5, 5)).shape == (0, 4, 4, 16)


def test_another_default_type_changes_nothing() -> None:
    x, weight = torch.randn(1, 16, 8, 8), torch.randn(16, 16, 5, 5)
    expected = conv5x5(x, weight)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(conv5x5(x, weight), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_impulse_is_the_kernel() -> None:
    x, weight = torch.zeros(1, 16, 12, 12), torch.randn(16, 16, 5, 5)
    x[0, 3, 6, 6] = 1
    expected = torch.zeros(8, 8, 16)
    expected[2:7, 2:7] = weight[:, 3].flip(1, 2).permute(1, 2, 0)
    assert float((conv5x5(x, weight)[0] - expected).abs().max()) < 2e-5


def test_nan_is_not_hidden() -> None:
    x = torch.zeros(1, 16, 8, 8)
    x[0, 0, 0, 0] = np.nan
    assert conv5x5(x, torch.ones(16, 16, 5, 5)).isnan().any()


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        ((1, 32, 12, 12), (64, 32, 3, 3)),
        ((1, 32, 11, 12), (64, 32, 5, 5)),
        ((1, 32, 4, 4), (64, 32, 5, 5)),
        ((1, 1, 28, 28), (32, 1, 5, 5)),
    ],
)
def test_what_does_not_fit(x: tuple[int, ...], weight: tuple[int, ...]) -> None:
    assert not fits(torch.empty(x), torch.empty(weight))
