"""Lloyd-Max levels against Max's table, numerical integration and the high-resolution law."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

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
    quantizer = LloydMaxQuantizer(bits, "gaussian")
    printed = [-level for level in reversed(positive_levels)] + positive_levels
    # The table has four digits, and 0.7980 for 0.7979 in its first row.
    np.testing.assert_allclose(quantizer.levels, printed, rtol=5e-4)
    assert distortion(quantizer, "gaussian") == pytest.approx(error, rel=5e-4)


def test_one_bit_levels_are_the_mean_deviation():
    gaussian, laplacian = (LloydMaxQuantizer(1, family).levels[1].item() for family in LAWS)
    assert gaussian == pytest.approx(math.sqrt(2 / math.pi), rel=1e-14)
    assert laplacian == pytest.approx(math.sqrt(1 / 2), rel=1e-14)


@pytest.mark.parametrize("family", LAWS)
@pytest.mark.parametrize("bits", [1, 2, 3, 5])
def test_levels_are_centroids_under_quadrature(family, bits):
    quantizer = LloydMaxQuantizer(bits, family)
    density: Callable[[float], float] = LAWS[family].pdf
    edges = [-math.inf, *quantizer.edges.tolist(), math.inf]
    for level, left, right in zip(quantizer.levels.tolist(), edges, edges[1:]):
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
        quantizer = LloydMaxQuantizer(bits, family)
        assert len(quantizer.levels) == 2**bits
        assert torch.equal(quantizer.levels, -quantizer.levels.flip(0))
        normalised.append(distortion(quantizer, family) * 4.0**bits)
    assert normalised[7] == pytest.approx(constant, rel=0.02)
    assert normalised[15] == pytest.approx(constant, rel=2e-4)
    assert all(a < b for a, b in pairwise(normalised[:11]))  # from below


def test_levels_scale_with_the_deviation():
    unit, wide = LloydMaxQuantizer(3), LloydMaxQuantizer(3, std=20.0)
    np.testing.assert_allclose(wide.levels, 20 * unit.levels, rtol=1e-14)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: LloydMaxQuantizer(2, "uniform"),
            "family must be one of 'gaussian', 'laplacian'",
        ),
        (lambda: LloydMaxQuantizer(2, std=0.0), "std must be positive"),
        (lambda: LloydMaxQuantizer(2, std=math.inf), "std must be positive"),
    ],
)
def test_bad_arguments_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()
