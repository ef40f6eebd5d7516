"""Lloyd-Max levels against Max's table, numerical integration and the high-resolution law."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from signfade.device import LloydMaxQuantizer

LAWS = {"gaussian": stats.norm(), "laplacian": stats.laplace(scale=math.sqrt(0.5))}


def distortion(quantizer: LloydMaxQuantizer, family: str) -> float:
    """`E x**2 - sum p*level**2`, which is the mean squared error when levels are centroids."""
    edges = np.concatenate([[-np.inf], quantizer.edges.numpy(), [np.inf]])
    return 1 - float(np.sum(np.diff(LAWS[family].cdf(edges)) * quantizer.levels.numpy() ** 2))


@pytest.mark.parametrize(
    ("bits", "positive_levels", "error"),
    [
        (1, [0.7980], 0.3634),
        (2, [0.4528, 1.510], 0.1175),
        (3, [0.2451, 0.7560, 1.344, 2.152], 0.03454),
        (4, [0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733], 0.009497),
    ],
)
def test_the_gaussian_levels_are_those_of_max(bits, positive_levels, error):
    quantizer = LloydMaxQuantizer.for_density(bits, "gaussian")
    printed = [-level for level in reversed(positive_levels)] + positive_levels
    # The table has four digits, and 0.7980 for 0.7979 in its first row.
    np.testing.assert_allclose(quantizer.points, printed, rtol=5e-4)
    assert distortion(quantizer, "gaussian") == pytest.approx(error, rel=5e-4)


def test_one_bit_levels_are_the_mean_deviation():
    gaussian, laplacian = (LloydMaxQuantizer.for_density(1, family).points[1] for family in LAWS)
    assert gaussian == pytest.approx(math.sqrt(2 / math.pi), rel=1e-14)
    assert laplacian == pytest.approx(math.sqrt(1 / 2), rel=1e-14)


@pytest.mark.parametrize("family", LAWS)
@pytest.mark.parametrize("bits", [1, 2, 3, 5])
def test_levels_are_centroids_under_quadrature(family, bits):
    quantizer = LloydMaxQuantizer.for_density(bits, family)
    density: Callable[[float], float] = LAWS[family].pdf
    edges = [-math.inf, *quantizer.edges.tolist(), math.inf]
    for level, left, right in zip(quantizer.points, edges, edges[1:]):
        mass, _ = integrate.quad(density, left, right, epsabs=0, epsrel=1e-12)
        moment, _ = integrate.quad(lambda x: x * density(x), left, right, epsabs=0, epsrel=1e-12)
        assert level == pytest.approx(moment / mass, rel=1e-10)


@pytest.mark.parametrize(
    ("family", "constant"), [("gaussian", math.sqrt(3) * math.pi / 2), ("laplacian", 4.5)]
)
def test_all_widths_converge_to_the_high_resolution_law(family, constant):
    # Panter and Dite: the error tends to (integral of density**(1/3))**3/12/n**2, here constant/n**2.
    normalised = []
    for bits in range(1, 17):
        quantizer = LloydMaxQuantizer.for_density(bits, family)
        assert len(quantizer.points) == 2**bits
        assert quantizer.points == tuple(-level for level in reversed(quantizer.points))
        normalised.append(distortion(quantizer, family) * 4.0**bits)
    assert normalised[7] == pytest.approx(constant, rel=0.02)
    assert normalised[15] == pytest.approx(constant, rel=2e-4)
    assert all(a < b for a, b in pairwise(normalised[:11]))  # from below


def test_levels_scale_with_the_deviation_and_the_bound_with_the_range():
    unit, wide = LloydMaxQuantizer.for_density(3), LloydMaxQuantizer.for_density(3, std=20.0)
    np.testing.assert_allclose(wide.points, 20 * np.array(unit.points), rtol=1e-14)
    assert wide.bound == pytest.approx(20 * unit.bound, rel=1e-14)
    far = LloydMaxQuantizer.for_density(3, limit=10.0)
    assert far.points == unit.points
    assert far.bound == pytest.approx(10 - unit.points[-1])


def test_the_bound_looks_at_both_ends_and_between():
    assert LloydMaxQuantizer(1, (0.0, 2.0), low=-0.5, high=2.5).bound == 1.0
    assert LloydMaxQuantizer(1, (0.0, 2.0), low=-3.0, high=2.5).bound == 3.0
    assert LloydMaxQuantizer(1, (0.0, 2.0), low=-0.5, high=6.0).bound == 4.0


@pytest.mark.parametrize("bits", [1, 2, 4, 9])
def test_the_bound_is_kept_and_attained(bits):
    quantizer = LloydMaxQuantizer.for_density(bits, "laplacian")
    x = torch.linspace(quantizer.low, quantizer.high, 200_001, dtype=torch.float64)
    errors = (quantizer.decode(quantizer.encode(x), torch.float64) - x).abs()
    assert errors.max().item() == pytest.approx(quantizer.bound, rel=1e-6)
    assert errors.max().item() <= quantizer.bound * (1 + 1e-12)


def squared_error(quantizer: LloydMaxQuantizer, sample: torch.Tensor) -> float:
    decoded = quantizer.decode(quantizer.encode(sample), torch.float64)
    return (decoded - sample).square().mean().item()


@pytest.mark.parametrize("bits", [1, 3, 6, 10])
@pytest.mark.parametrize("kind", ["gaussian", "log-normal", "rounded", "far away"])
def test_a_fit_is_a_fixed_point(kind, bits):
    x = torch.randn(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(bits))
    sample = {
        "gaussian": x,
        "log-normal": (2 * x).exp(),
        "rounded": (300 * x).round(),
        "far away": 1e6 + x,
    }[kind]
    quantizer = LloydMaxQuantizer.fit(sample, bits)
    codes = quantizer.encode(sample)
    levels = quantizer.levels
    count = torch.bincount(codes, minlength=len(levels))
    centre = sample.mean()
    centroid = centre + torch.bincount(codes, sample - centre, minlength=len(levels)) / count
    width = (sample.max() - sample.min()).item()
    filled = count > 0
    # The fit's running sums over n numbers round by at most n*eps of the range.
    np.testing.assert_allclose(levels[filled], centroid[filled], rtol=1e-14, atol=20_000 * 2.3e-16 * width)
    assert filled.sum() >= 0.99 * 2**bits
    assert (quantizer.low, quantizer.high) == (sample.min().item(), sample.max().item())


def test_a_bin_that_runs_empty_keeps_its_level():
    """Clusters far apart: on the way some level has no number left nearest to it (found by searching)."""
    far = [-3431.9, -2615.9, -178.6, -135.3, -19.4, 54.3, 121.3, 775.2, 1092.1, 1189.1, 2496.0]
    sample = torch.tensor([*far, -0.7, -0.4, -0.1, 0.0, 0.1, 0.3, 0.4], dtype=torch.float64)
    quantizer = LloydMaxQuantizer.fit(sample, 3)
    codes = quantizer.encode(sample)
    assert len(codes.unique()) < len(quantizer.points) == 8
    for code in codes.unique():
        assert quantizer.levels[code].item() == pytest.approx(sample[codes == code].mean().item(), rel=1e-12)


@pytest.mark.parametrize("bits", [1, 2, 4, 6])
@pytest.mark.parametrize("n", [2_000, 50_000])
def test_a_fit_is_about_as_good_as_knowing_the_density(bits, n):
    sample = torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    fitted, known = LloydMaxQuantizer.fit(sample, bits), LloydMaxQuantizer.for_density(bits)
    # The best fit would win on its own sample. Lloyd's iteration may stop short of it: where a level moves by
    # less than the distance to the next number, nothing moves. A bad start would cost tens of percent.
    assert squared_error(fitted, sample) <= 1.02 * squared_error(known, sample)


@pytest.mark.parametrize("bits", [1, 2])
def test_no_partition_of_a_small_sample_is_much_better_than_the_fit(bits):
    sample = torch.randn(24, dtype=torch.float64, generator=torch.Generator().manual_seed(5)).sort().values
    best = min(
        sum(piece.numel() * piece.var(correction=0).item() for piece in sample.tensor_split(cuts)) / 24
        for cuts in combinations(range(1, 24), 2**bits - 1)
    )
    error = squared_error(LloydMaxQuantizer.fit(sample, bits), sample)
    assert best * (1 - 1e-12) <= error <= 1.25 * best


def test_few_distinct_numbers_are_coded_without_error():
    sample = torch.tensor([[3.0, 1.0, 1.0], [3.0, 7.0, 1.0]])
    quantizer = LloydMaxQuantizer.fit(sample, bits=2)
    assert quantizer.points == (1.0, 3.0, 7.0)
    assert torch.equal(quantizer.decode(quantizer.encode(sample)), sample)
    single = LloydMaxQuantizer.fit(torch.full((5,), 2.5), bits=1)
    assert (single.points, single.bound) == ((2.5,), 0.0)


def test_multiplicity_counts():
    assert LloydMaxQuantizer.fit(torch.tensor([0.0, 0.0, 0.0, 1.0, 10.0]), bits=1).points == (0.25, 10.0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: LloydMaxQuantizer.for_density(2, "uniform"),
            "family must be one of 'gaussian', 'laplacian'",
        ),
        (lambda: LloydMaxQuantizer.for_density(2, std=0.0), "std must be positive"),
        (lambda: LloydMaxQuantizer.for_density(2, std=math.inf), "std must be positive"),
        (lambda: LloydMaxQuantizer.for_density(2, limit=1.0), "low and high must be finite and enclose"),
        (lambda: LloydMaxQuantizer.for_density(2, limit=math.inf), "low and high must be finite"),
        (lambda: LloydMaxQuantizer.fit(torch.zeros(0), 2), "sample must hold at least one"),
        (lambda: LloydMaxQuantizer.fit(torch.tensor([1.0, math.nan]), 2), "sample must be finite"),
        (lambda: LloydMaxQuantizer(1, (1.0, 2.0, 3.0), 0.0, 4.0), "points must hold 1 to 2 levels"),
        (lambda: LloydMaxQuantizer(1, (), 0.0, 4.0), "points must hold"),
        (lambda: LloydMaxQuantizer(1, (2.0, 2.0), 0.0, 4.0), "points must be strictly increasing"),
        (lambda: LloydMaxQuantizer(1, (1.0, math.nan), 0.0, 4.0), "points must be strictly increasing"),
        (lambda: LloydMaxQuantizer(1, (math.nan,), 0.0, 4.0), "low and high must be finite and enclose"),
    ],
)
def test_bad_arguments_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()
