"""The device's kernels equal the plain expressions they replace."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from signfade.device import pack_signs, spread
from signfade.kernels import layer_deviations, layer_sums, pack_above
from signfade.kernels.jit import plain_form

SEGMENTS = (3, 40, 1, 137, 16)
SIZE = sum(SEGMENTS)


@pytest.fixture(params=["compiled", "plain"])
def form(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test with both forms of the kernels."""
    with plain_form() if request.param == "plain" else nullcontext():
        yield


def gradients(dtype: torch.dtype = torch.float32, devices: int = 5) -> torch.Tensor:
    return torch.randn(devices, SIZE, generator=torch.Generator().manual_seed(2), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_and_deviations_are_those_of_float64(form: None, dtype: torch.dtype) -> None:
    g = gradients(dtype) + 1000
    parts = g.double().split(SEGMENTS, dim=1)
    total = torch.stack([part.sum(1) for part in parts], dim=1)
    torch.testing.assert_close(layer_sums(g, SEGMENTS), total, rtol=1e-14, atol=0)
    centre = (total / torch.tensor(SEGMENTS)).to(dtype)
    absolute, square = layer_deviations(g, centre, SEGMENTS)
    deviations = [part - centre[:, s, None].double() for s, part in enumerate(parts)]
    torch.testing.assert_close(
        absolute, torch.stack([d.abs().sum(1) for d in deviations], 1), rtol=1e-13, atol=0
    )
    torch.testing.assert_close(
        square, torch.stack([(d * d).sum(1) for d in deviations], 1), rtol=1e-13, atol=0
    )


@pytest.mark.parametrize("segments", [None, SEGMENTS, (8, SIZE - 8)])
def test_pack_above_compares_then_packs(form: None, segments: tuple[int, ...] | None) -> None:
    g = gradients()
    parts = 1 if segments is None else len(segments)
    mean = 0.3 * torch.randn(5, parts, generator=torch.Generator().manual_seed(3))
    g[:, :3] = mean[:, :1]  # a coordinate on the threshold is +1
    threshold = mean if segments is None else spread(mean, segments)
    assert torch.equal(pack_above(g, mean, segments), pack_signs(torch.where(g < threshold, -1.0, 1.0)))


def test_a_finer_threshold_is_not_rounded(form: None) -> None:
    g = torch.ones(1, 8)
    above = torch.tensor([[1 + 1e-12]], dtype=torch.float64)
    assert int(pack_above(g, above)) == 0
    assert int(pack_above(g, above - 2e-12)) == 255


def test_minus_zero_is_plus_one_about_zero() -> None:
    assert int(pack_above(torch.tensor([[-0.0, 0.0, -1e-45]]), torch.zeros(1, 1))) == 0b11000000


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_bytes_do_not_depend_on_threads_or_on_the_other_devices(threads: int) -> None:
    g = gradients(devices=6)
    centre = torch.zeros(6, 1)
    assert torch.equal(layer_sums(g, threads=threads), layer_sums(g, threads=1))
    assert torch.equal(layer_sums(g[2:3], threads=threads), layer_sums(g)[2:3])
    assert torch.equal(
        layer_deviations(g, centre, threads=threads)[1], layer_deviations(g, centre, threads=1)[1]
    )
    assert torch.equal(pack_above(g, centre, threads=threads), pack_above(g, centre, threads=1))


def test_small_entries_survive_large_ones() -> None:
    g = torch.tensor([[1e8, 1.0, -1e8, 1.0] * 1000])
    assert float(layer_sums(g)) == 2000.0


def test_what_is_not_finite_shows() -> None:
    g = gradients()
    g[1, 50] = torch.nan
    g[2, 0] = torch.inf
    assert layer_sums(g).isfinite().squeeze(1).tolist() == [True, False, False, True, True]


def test_no_device(form: None) -> None:
    g = torch.empty(0, SIZE)
    assert layer_sums(g).shape == (0, 1)
    assert pack_above(g, torch.empty(0, 1)).shape == (0, -(-SIZE // 8))


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (layer_sums, (torch.ones(3),), "g must be float32 or float64"),
        (layer_sums, (torch.ones(2, 3, dtype=torch.int64),), "g must be float32 or float64"),
        (layer_sums, (torch.ones(2, 3), (1, 1)), "segments must be positive and add up"),
        (layer_sums, (torch.ones(2, 3), (3, 0)), "segments must be positive and add up"),
        (layer_deviations, (torch.ones(2, 3), torch.ones(2)), "centre must have shape"),
        (pack_above, (torch.ones(2, 3), torch.ones(2, 2)), "threshold must have shape"),
    ],
)
def test_wrong_arguments_are_named(function: Any, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(*arguments)


def test_gradients_that_are_not_contiguous() -> None:
    g = gradients().T.contiguous().T
    assert torch.equal(
        pack_above(g, torch.zeros(5, 1)), torch.from_numpy(np.packbits(g.numpy() >= 0, axis=1))
    )
