"""The fitted prior is the sample's own mean and deviations, whatever the offset or the layers."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from signfade.device import Prior, fit_prior, spread

FLOAT32 = 2.0**-24  # relative rounding error of one float32 operation


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def exact_deviations(row: Tensor, mean: float) -> tuple[float, float]:
    """Mean absolute and root mean square deviation about `mean`, summed as fractions: no rounding at all."""
    deviations = [Fraction(x) - Fraction(mean) for x in row.tolist()]
    absolute = sum((abs(d) for d in deviations), Fraction(0)) / len(deviations)
    square = sum((d * d for d in deviations), Fraction(0)) / len(deviations)
    return float(absolute), math.sqrt(float(square))


@pytest.mark.parametrize("family", ["gaussian", "laplacian", "empirical"])
@pytest.mark.parametrize("offset", [0.0, 1e3, -1e6])
def test_a_large_mean_costs_no_digits(family, offset):
    g = (offset + 1e-6 * max(1.0, abs(offset)) * draw(2, 3000)).float()
    fitted = fit_prior(g, family)
    for k in range(2):
        mean = float(sum(map(Fraction, g[k].tolist())) / 3000)
        assert fitted.mean[k].item() == torch.tensor(mean).item()  # the sample mean, correctly rounded
        absolute, std = exact_deviations(g[k], fitted.mean[k].item())
        scale = math.sqrt(2 / math.pi) * std if family == "gaussian" else absolute
        assert fitted.std[k].item() == pytest.approx(std, rel=2 * FLOAT32)
        assert fitted.scale[k].item() == pytest.approx(scale, rel=2 * FLOAT32)
    assert fitted.family == family


def test_the_scale_of_each_family():
    g = torch.tensor([[-3.0, -1.0, 1.0, 3.0]], dtype=torch.float64)
    families = ("gaussian", "laplacian", "empirical")
    scales = {family: fit_prior(g, family).scale.item() for family in families}
    assert scales == {
        "gaussian": pytest.approx(math.sqrt(2 / math.pi * 5)),
        "laplacian": 2.0,
        "empirical": 2.0,
    }


def test_all_families_agree_on_the_mean_deviation_when_the_family_is_true():
    n = 200_000
    gaussian = draw(1, n)
    laplacian = torch.sign(draw(1, n, seed=1)) * torch.empty(1, n, dtype=torch.float64).exponential_(
        generator=torch.Generator().manual_seed(2)
    )
    # Standard errors: of mean|x| it is sqrt(Var|x|/n); of sqrt(2/pi)*std it is sqrt(2/pi)/sqrt(2n).
    kappa = math.sqrt(2 / math.pi)
    assert fit_prior(gaussian, "empirical").scale.item() == pytest.approx(
        kappa, abs=4 * math.sqrt((1 - kappa**2) / n)
    )
    assert fit_prior(gaussian, "gaussian").scale.item() == pytest.approx(
        kappa, abs=4 * kappa / math.sqrt(2 * n)
    )
    assert fit_prior(laplacian, "laplacian").scale.item() == pytest.approx(1, abs=4 / math.sqrt(n))


@pytest.mark.parametrize("family", ["gaussian", "laplacian", "empirical"])
def test_per_layer_is_per_slice(family):
    segments = [1, 700, 299]
    g = (draw(3, 1000) * spread(torch.tensor([[1.0, 10.0, 0.1]] * 3), segments)).float()
    layered = fit_prior(g, family, segments)
    start = 0
    for s, length in enumerate(segments):
        alone = fit_prior(g[:, start : start + length], family)
        for field in ("mean", "scale", "std"):
            assert torch.equal(getattr(layered, field)[:, s], getattr(alone, field))
        start += length
    assert layered.mean.shape == (3, 3)


def test_the_mean_that_is_sent_is_the_centre():
    g = draw(4, 500, seed=3).float()
    sent = torch.tensor([0.0, 0.5, -1.0, 3.0])
    for family in ("gaussian", "empirical"):
        fitted = fit_prior(g, family, mean=sent)
        assert torch.equal(fitted.mean, sent)
        for k in range(4):
            absolute, std = exact_deviations(g[k], sent[k].item())
            scale = math.sqrt(2 / math.pi) * std if family == "gaussian" else absolute
            assert fitted.scale[k].item() == pytest.approx(scale, rel=2 * FLOAT32)
            assert fitted.std[k].item() == pytest.approx(std, rel=2 * FLOAT32)
    layers = torch.tensor([[0.5, -0.5]] * 4)
    assert torch.equal(fit_prior(g, segments=[100, 400], mean=layers).mean, layers)


def test_sending_the_sample_mean_changes_nothing():
    g = (5 + draw(3, 400, seed=4)).float()
    free = fit_prior(g, "empirical")
    told = fit_prior(g, "empirical", mean=free.mean)
    assert torch.equal(free.scale, told.scale)
    assert torch.equal(free.std, told.std)


def test_double_precision_stays_double():
    g = 1 + draw(1, 1000, seed=9)
    fitted = fit_prior(g, "empirical")
    mean = float(sum(map(Fraction, g[0].tolist())) / 1000)
    assert fitted.mean.dtype == torch.float64
    assert fitted.mean.item() == pytest.approx(mean, rel=1e-14)
    assert fitted.scale.item() == pytest.approx(exact_deviations(g[0], fitted.mean.item())[0], rel=1e-14)


@pytest.mark.parametrize("power", [-90, 90])
def test_float32_gradients_whose_squares_float32_cannot_hold(power):
    g = draw(2, 300, seed=10).float()
    fitted, scaled = fit_prior(g), fit_prior(g * 2.0**power)
    assert torch.equal(scaled.std, fitted.std * 2.0**power)


def test_scaling_and_permuting_devices():
    g = draw(6, 200, seed=6).float()
    fitted, scaled, turned = fit_prior(g), fit_prior(-4 * g), fit_prior(g.flip(0))
    assert torch.equal(scaled.mean, -4 * fitted.mean)  # a power of two: exact
    assert torch.equal(scaled.scale, 4 * fitted.scale)
    assert torch.equal(turned.std, fitted.std.flip(0))


def test_degenerate_gradients():
    zero = fit_prior(torch.zeros(2, 5), "empirical")
    assert zero.mean.tolist() == zero.scale.tolist() == zero.std.tolist() == [0, 0]
    single = fit_prior(torch.tensor([[7.0]]))
    assert (single.mean.item(), single.scale.item()) == (7, 0)
    assert fit_prior(torch.zeros(0, 5)).mean.shape == (0,)
    assert fit_prior(torch.zeros(0, 5), segments=[2, 3]).mean.shape == (0, 2)


def test_half_precision_gradients_get_float32_priors_and_inputs_stay():
    g = draw(2, 300, seed=7).to(torch.bfloat16)
    copy = g.clone()
    fitted = fit_prior(g)
    assert fitted.mean.dtype == fitted.scale.dtype == torch.float32
    torch.testing.assert_close(fitted.std, fit_prior(g.double()).std.float(), rtol=2 * FLOAT32, atol=0)
    assert torch.equal(g, copy)
    assert not fit_prior(torch.ones(1, 3, requires_grad=True)).mean.requires_grad


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("mean", [None, torch.zeros(2)])
def test_what_is_not_finite_is_refused_by_name(bad, mean):
    g = torch.zeros(2, 9)
    g[1, 4] = bad
    with pytest.raises(ValueError, match="g must be finite"):
        fit_prior(g, mean=mean)
    with pytest.raises(ValueError, match="mean must be finite"):
        fit_prior(torch.zeros(2, 9), mean=torch.tensor([0.0, bad]))


def test_variance_beyond_double_precision_is_refused():
    with pytest.raises(ValueError, match="variance that fits float64"):
        fit_prior(torch.tensor([[1e200, -1e200]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"family": "cauchy"}, "family must be one of 'gaussian', 'laplacian', 'empirical'; got 'cauchy'"),
        ({"g": torch.zeros(6)}, "g must be floating point"),
        ({"g": torch.zeros(2, 0)}, "g must be floating point"),
        ({"g": torch.zeros(2, 6, dtype=torch.int32)}, "g must be floating point"),
        ({"segments": [1, 2]}, "segments must sum to M = 6"),
        ({"segments": [6, 0]}, "segments must be one positive length"),
        ({"segments": [7, -1]}, "segments must be one positive length"),
        ({"segments": []}, "segments must be one positive length"),
        ({"segments": [1.5, 4.5]}, "segments must be one positive length"),
        ({"segments": 6}, "segments must be one positive length"),
        ({"mean": torch.zeros(3)}, "mean must have shape"),
        ({"mean": torch.zeros(2), "segments": [2, 4]}, "mean must have shape"),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        fit_prior(**{"g": torch.zeros(2, 6), **arguments})


def test_spread_repeats_over_layers():
    values = draw(3, 4, seed=8)
    segments = [1, 5, 2, 8]
    expected = values.repeat_interleave(torch.tensor(segments), dim=1)
    assert torch.equal(spread(values, segments), expected)
    with pytest.raises(ValueError, match="values must have shape"):
        spread(values, [1, 2])
    with pytest.raises(ValueError, match="segments must be one positive length"):
        spread(values, [1, 2, 3, 0])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"family": "normal"}, "family must be one of"),
        ({"mean": torch.zeros(2, 2, 2)}, "mean must have shape"),
        ({"scale": torch.ones(3)}, "scale must have shape"),
        ({"scale": torch.tensor([1.0, -1.0])}, "scale must be non-negative"),
        ({"std": torch.tensor([1.0, float("nan")])}, "std must be finite"),
    ],
)
def test_a_prior_that_cannot_be_is_refused(fields, words):
    good = {"mean": torch.zeros(2), "scale": torch.ones(2), "std": torch.ones(2), "family": "gaussian"}
    assert Prior(**good).family == "gaussian"
    with pytest.raises(ValueError, match=words):
        Prior(**{**good, **fields})
