"""Every quantiser keeps its stated bound, has half-open bins and refuses what it cannot mean."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from signfade.device import LloydMaxQuantizer, LogQuantizer, Quantizer, UniformQuantizer

ONE_OF_EACH = [
    UniformQuantizer(bits=1, limit=0.1),
    UniformQuantizer(bits=4, limit=2.0),
    UniformQuantizer(bits=16, limit=1e-3),
    LogQuantizer(bits=1, low=1e-3, high=1.0),
    LogQuantizer(bits=4, low=1e-6, high=1.0),
    LogQuantizer(bits=16, low=1e-6, high=1e3),
    LloydMaxQuantizer(1),
    LloydMaxQuantizer(4, "laplacian", std=0.01),
]


@pytest.mark.parametrize("quantizer", ONE_OF_EACH, ids=str)
def test_bins_are_half_open(quantizer):
    edges = quantizer.edges.numpy()
    just_below = torch.from_numpy(np.nextafter(edges, -np.inf))
    codes = torch.arange(len(edges))
    assert torch.equal(quantizer.encode(quantizer.edges), codes + 1)
    assert torch.equal(quantizer.encode(just_below), codes)


@pytest.mark.parametrize("quantizer", ONE_OF_EACH, ids=str)
def test_levels_are_increasing_and_encode_to_themselves(quantizer):
    codes = torch.arange(len(quantizer.levels))
    assert 1 <= len(codes) <= 2**quantizer.bits
    assert bool((quantizer.levels.diff() > 0).all())
    assert torch.equal(quantizer.encode(quantizer.decode(codes)), codes)  # through float32
    assert torch.equal(quantizer.encode(quantizer.decode(codes, torch.float64)), codes)


@pytest.mark.parametrize("quantizer", ONE_OF_EACH, ids=str)
def test_shapes_dtypes_and_saturation(quantizer: Quantizer):
    huge = torch.full((2, 3), 1e30)
    top = len(quantizer.levels) - 1
    assert quantizer.encode(huge).dtype == torch.int64
    assert quantizer.encode(huge).tolist() == [[top] * 3] * 2
    assert quantizer.decode(quantizer.encode(huge)).dtype == torch.float32
    lowest = torch.tensor(0.0 if isinstance(quantizer, LogQuantizer) else -1e30)
    assert quantizer.encode(lowest).item() == 0
    assert (
        quantizer.encode(torch.zeros(0, 4)).shape
        == quantizer.decode(torch.zeros(0, 4).long()).shape
        == (0, 4)
    )
    column = torch.stack([huge, lowest.expand(2, 3)], dim=-1)[..., 1]  # not contiguous
    assert quantizer.encode(column).tolist() == [[0] * 3] * 2


@pytest.mark.parametrize("quantizer", ONE_OF_EACH, ids=str)
def test_what_has_no_code_or_no_level_raises(quantizer: Quantizer):
    for bad in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(ValueError, match="x must be finite"):
            quantizer.encode(torch.tensor([0.5, bad]))
    with pytest.raises(ValueError, match="x must be floating point"):
        quantizer.encode(torch.tensor([1]))
    for bad in (-1, len(quantizer.levels), 2**16, -(2**40)):
        with pytest.raises(ValueError, match="codes must lie in 0"):
            quantizer.decode(torch.tensor([0, bad]))
    for dtype in (torch.float32, torch.bool, torch.complex64):
        with pytest.raises(ValueError, match="codes must be integers"):
            quantizer.decode(torch.zeros(1, dtype=dtype))


@settings(deadline=None, derandomize=True, max_examples=300)
@given(bits=st.integers(1, 16), limit=st.floats(1e-30, 1e30), share=st.floats(-1, 1))
def test_uniform_keeps_its_bound(bits, limit, share):
    quantizer = UniformQuantizer(bits, limit)
    x = torch.tensor(share * limit, dtype=torch.float64)
    error = abs(quantizer.decode(quantizer.encode(x), torch.float64).item() - x.item())
    assert error <= quantizer.bound + 4e-16 * limit


@pytest.mark.parametrize("bits", range(1, 17))
def test_uniform_is_mid_tread_symmetric_and_tight(bits):
    quantizer = UniformQuantizer(bits, limit=3.0)
    levels = quantizer.levels
    assert len(levels) == 2**bits - 1
    assert torch.equal(levels, -levels.flip(0))
    assert quantizer.decode(quantizer.encode(torch.zeros(1))).item() == 0
    # No quantiser of n levels over this range can promise less than limit/n; at the ends this one errs by it.
    assert quantizer.bound == 3.0 / (2**bits - 1)
    ends = torch.tensor([-3.0, 3.0], dtype=torch.float64)
    errors = (quantizer.decode(quantizer.encode(ends), torch.float64) - ends).abs()
    assert errors.tolist() == pytest.approx([quantizer.bound] * 2, rel=1e-9)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    bits=st.integers(1, 16),
    exponents=st.tuples(st.floats(-30, 30), st.floats(-30, 30)).filter(lambda e: abs(e[0] - e[1]) > 0.01),
    share=st.floats(0, 1),
)
def test_log_keeps_its_bound(bits, exponents, share):
    start, stop = sorted(exponents)
    quantizer = LogQuantizer(bits, low=10**start, high=10**stop)
    x = min(max(10 ** (start + share * (stop - start)), quantizer.low), quantizer.high)
    code = quantizer.encode(torch.tensor(x, dtype=torch.float64))
    ratio = quantizer.decode(code, torch.float64).item() / x
    assert max(ratio, 1 / ratio) <= quantizer.bound * (1 + 1e-13)


def test_four_bits_span_six_decades():
    quantizer = LogQuantizer(bits=4, low=1e-6, high=1.0)
    assert quantizer.bound == pytest.approx(10 ** (6 / 32), rel=1e-14)  # 1.54
    scales = torch.logspace(-6, 0, 100_001, dtype=torch.float64)
    decoded = quantizer.decode(quantizer.encode(scales), torch.float64)
    worst = torch.maximum(decoded / scales, scales / decoded).max().item()
    assert worst == pytest.approx(quantizer.bound, rel=1e-12)  # kept, and attained at the ends
    assert quantizer.encode(scales).unique().tolist() == list(range(16))
    # In float32, as the server decodes it, the bound holds up to the rounding of that type.
    decoded = quantizer.decode(quantizer.encode(scales.float())).double()
    assert torch.maximum(decoded / scales, scales / decoded).max().item() <= quantizer.bound * (1 + 2**-22)


@pytest.mark.parametrize("bits", range(1, 17))
def test_log_bins_are_equal_ratios(bits):
    quantizer = LogQuantizer(bits, low=1e-3, high=10.0)
    assert len(quantizer.levels) == 2**bits
    ends = torch.tensor([1e-3, 10.0], dtype=torch.float64)
    edges = torch.cat([ends[:1], quantizer.edges, ends[1:]])
    step = math.log(1e4) / 2**bits
    np.testing.assert_allclose(edges.log().diff(), step, rtol=0, atol=1e-14)
    np.testing.assert_allclose(quantizer.levels.log(), edges[:-1].log() + step / 2, rtol=0, atol=1e-14)


def test_log_takes_an_all_zero_gradient_for_its_smallest_scale_and_refuses_a_negative_one():
    quantizer = LogQuantizer(bits=4, low=1e-6, high=1.0)
    for zero in (0.0, -0.0, 1e-300):
        code = quantizer.encode(torch.tensor([zero], dtype=torch.float64))
        assert code.item() == 0
        assert quantizer.decode(code).item() == pytest.approx(1e-6 * quantizer.bound, rel=1e-6)
    with pytest.raises(ValueError, match="x must be non-negative"):
        quantizer.encode(torch.tensor([1.0, -1e-9]))


def test_log_ranges_whose_ratio_overflows():
    quantizer = LogQuantizer(bits=8, low=1e-300, high=1e300)
    assert math.isfinite(quantizer.bound)
    assert quantizer.encode(torch.tensor(1.0, dtype=torch.float64)).item() in (127, 128)


@pytest.mark.parametrize("bits", [0, 17, -1, 2.0, "4", True, None])
def test_bits_are_one_to_sixteen(bits):
    for make in (
        lambda: UniformQuantizer(bits, 1.0),
        lambda: LogQuantizer(bits, 0.1, 1.0),
        lambda: LloydMaxQuantizer(bits),
    ):
        with pytest.raises(ValueError, match=r"bits must be an integer in 1\.\.16"):
            make()


@pytest.mark.parametrize("limit", [0.0, -1.0, math.inf, math.nan])
def test_uniform_range_is_refused(limit):
    with pytest.raises(ValueError, match="limit must be positive and finite"):
        UniformQuantizer(4, limit)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 1.0), (2.0, 1.0), (1.0, math.inf)])
def test_log_range_is_refused(low, high):
    with pytest.raises(ValueError, match="low and high must satisfy"):
        LogQuantizer(4, low, high)


def test_quantisers_are_values():
    assert LogQuantizer(4, 1e-6, 1.0) == LogQuantizer(4, 1e-6, 1.0)
    assert len({UniformQuantizer(4, 1.0), UniformQuantizer(4, 1.0), UniformQuantizer(5, 1.0)}) == 2
